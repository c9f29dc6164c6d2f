"""Where an import stands: a scope of tensor names, and a node in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atc_py.frontend.attributes import Attributes
from atc_py.frontend.draft import Draft
from atc_py.frontend.meaning import Meaning
from atc_py.frontend.topology import GraphInfo, NodeInfo
from atc_py.ops.build import Scope

POISONED = -2
"""Stands for the result of a node that is wrong."""


@dataclass(eq=False)
class Frame:
    """A graph, or a function's body that is being written out in its caller's graph.

    `names` maps tensor names to values of `scope.graph`; `env` holds the attributes of the function call, None outside
    of functions; `calls` are the functions that are being written out, outermost first.
    """

    scope: Scope
    info: GraphInfo
    opsets: Mapping[str, int]
    names: dict[str, int] = field(default_factory=dict)
    env: Attributes | None = None
    prefix: str = ""
    depth: int = 0
    calls: tuple[str, ...] = ()

    def place(self, node: NodeInfo) -> str:
        """A node of the frame as messages write it."""
        return f"node '{self.prefix}{node.label}' ({node.spelled})"

    def inside(self, info: GraphInfo, scope: Scope, prefix: str) -> Frame:
        """A frame for a body of one of this frame's nodes."""
        return Frame(scope, info, self.opsets, {}, self.env, prefix, self.depth + 1, self.calls)


@dataclass(slots=True)
class Site:
    """A node that is being imported: its meaning, input values, resolved attributes, and a name that is its own.

    `leading` is how many of its outputs are read, counted from the first to the last that is.
    """

    frame: Frame
    node: NodeInfo
    meaning: Meaning
    inputs: list[int]
    given: Attributes
    leading: int
    label: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the output values."""
        prefix = self.frame.prefix
        return tuple([prefix + n if n else "" for n in self.node.outputs]) if prefix else self.node.outputs

    def draft(self, attrs: dict[str, Any]) -> Draft:
        """The node as the adapters take it."""
        found, names = self.meaning, self.names
        return Draft(
            found.name, found.version, self.inputs, attrs, len(names), self.leading, self.frame.scope, self.label, names
        )

    def finish(self, op: str, inputs: list[int], attrs: dict[str, Any], outputs: int) -> list[int]:
        """The node as it is, with its attributes in the newest form; returns its results."""
        label = self.label
        return self.frame.scope.emit(op, inputs, attrs, outputs=outputs, name=label, origin=(label,), names=self.names)
