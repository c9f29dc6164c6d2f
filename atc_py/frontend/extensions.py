"""Operators that onnx has no schema for and that equal canonical operators: what they look like, and their translation.

    @extension("com.microsoft::BiasGelu", inputs="A B", outputs="C")
    def _(d: Draft) -> list[int]:
        return d.emit("Gelu", d.emit("Add", d.inputs))

A signature is an `Op` without rules or kernel: names of inputs and outputs, attributes with kinds and defaults. A
translation gets the node with all declared attributes in place and emits typed canonical nodes; it returns one value
an output, ABSENT where nobody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atc_py.frontend.draft import Draft
from atc_py.ops.base import Attr, Engine, Flags, Op

Translation = Callable[[Draft], "list[int]"]


@dataclass(frozen=True)
class Extension:
    """An operator's signature and its translation."""

    signature: Op
    translate: Translation


EXTENSIONS: dict[str, Extension] = {}
"""By name: `domain::Name`, or the bare name where onnxruntime puts an operator of its own into ai.onnx."""


def extension(
    names: str, *, inputs: str, outputs: str, attrs: Mapping[str, Attr] | None = None
) -> Callable[[Translation], Translation]:
    """Decorator: the translation of the operators `names` (space-separated); the rest is as in `ops.base.declare`."""

    def register(translate: Translation) -> Translation:
        for name in names.split():
            op = Op(name, tuple(inputs.split()), tuple(outputs.split()), attrs or {}, Flags(), Engine.HOST)
            EXTENSIONS[name] = Extension(op, translate)
        return translate

    return register
