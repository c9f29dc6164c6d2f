"""A node on its way to the canonical form, and the table of adapters that bring it there.

    Squeeze-11 (x) {axes: [0]}   →  @before("Squeeze", 13)  →   Squeeze (x, const [0])

An adapter changes the draft in place, or emits nodes itself and returns their results. Adapters of one operator run
in the order of their bounds, so each starts from the form of the opset before its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Union

import numpy as np

from atc_py.ir.dims import Dim, Size
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.base import Array, InferError
from atc_py.ops.build import Scope, dims_constant

Adapter = Callable[["Draft"], Union["list[int]", None]]


@dataclass
class Draft:
    """One node. `version` is the version of its operator's schema, `wanted` how many leading outputs are read.

    `attrs` holds numbers, strings, tuples and constants as the file gives them, defaults of the old version filled in
    where the newest version has another default.
    """

    op: str
    version: int
    inputs: list[int]
    attrs: dict[str, Any]
    outputs: int
    wanted: int
    scope: Scope
    label: str
    names: tuple[str, ...] = ()
    _made: int = field(default=0, repr=False)

    def has(self, i: int) -> bool:
        """Whether input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] != ABSENT

    def type(self, i: int) -> Type:
        """The type of input `i`, which must be given."""
        if not self.has(i):
            self.fail(f"input {i} is missing")
        return self.scope.graph.type(self.inputs[i])

    def tensor(self, i: int) -> Tensor:
        """The type of input `i`, which must be a tensor."""
        found = self.type(i)
        if not isinstance(found, Tensor):
            self.fail(f"input {i} must be a tensor")
        return found

    def known(self, i: int) -> Array | None:
        """The value of input `i` where it is known."""
        return self.scope.known(self.inputs[i]) if self.has(i) else None

    def set_input(self, i: int, value: int) -> None:
        """Give input `i`, absent inputs before it where needed."""
        self.inputs += [ABSENT] * (i + 1 - len(self.inputs))
        self.inputs[i] = value

    def ints(self, values: Sequence[Size]) -> int:
        """An int64 vector constant; symbolic sizes are allowed."""
        return self.scope.graph.add_const(dims_constant([v if isinstance(v, Dim) else int(v) for v in values]))

    def const(self, array: Any, dtype: DType | None = None) -> int:
        """A constant."""
        return self.scope.constant(np.asarray(array, None if dtype is None else dtype.numpy))

    def emit(self, op: str, inputs: Sequence[int], attrs: dict[str, Any] | None = None, outputs: int = 1) -> list[int]:
        """A helper node; its name follows from the node's."""
        self._made += 1
        return self.scope.emit(
            op, inputs, attrs, outputs=outputs, name=f"{self.label}/{op}_{self._made}", origin=(self.label,)
        )

    def finish(self, op: str, inputs: Sequence[int], attrs: dict[str, Any] | None = None) -> list[int]:
        """The last node, which makes the ONNX node's own outputs."""
        return self.scope.emit(
            op, inputs, attrs, outputs=self.outputs, name=self.label, origin=(self.label,), names=self.names
        )

    def fail(self, cause: str, hint: str = "") -> NoReturn:
        """Say that the node cannot be converted."""
        raise InferError(f"{self.op}-{self.version}: {cause}", hint)


ADAPTERS: dict[str, list[tuple[int, Adapter]]] = {}
"""Operator (domain::name outside of ai.onnx) → (bound, adapter): the adapter takes versions below the bound."""

ALWAYS = 1 << 30


def before(ops: str, bound: int) -> Callable[[Adapter], Adapter]:
    """Decorator: the adapter takes the operators `ops` (space-separated) at versions below `bound`."""

    def register(adapter: Adapter) -> Adapter:
        for op in ops.split():
            ADAPTERS.setdefault(op, []).append((bound, adapter))
            ADAPTERS[op].sort(key=lambda entry: entry[0])
        return adapter

    return register


def adapt(draft: Draft) -> list[int] | None:
    """Run the operator's adapters; returns the results when an adapter has emitted the nodes itself."""
    op = draft.op
    for bound, adapter in ADAPTERS.get(op, ()):
        if draft.version < bound:
            results = adapter(draft)
            if results is not None:
                return results
            if draft.op != op:
                return None
    return None
