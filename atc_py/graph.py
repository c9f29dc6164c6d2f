"""Graphs made by hand: `Builder`, for tests and for whoever compiles what is in no ONNX file.

    b = Builder("mlp")
    x = b.data("x", "float32", ("N", 64))
    w = b.const(np.ones((64, 8), np.float32))
    h = b.op("MatMul", x, w, name="fc")
    y = b.op("Relu", h)
    om = compile_graph(b.build(y=y))                    # atc_py.compiler

Types follow from the operators' declarations, as in the frontend; the graph is checked and in canonical order. Bodies
of If, Loop and Scan are builders too, and read outer values as they are:

    then, other = b.body("then"), b.body("else")
    then.give(then.op("Neg", x))
    other.give(other.op("Mul", x, x))
    y = b.op("If", flag, then_branch=then, else_branch=other)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np

from atc_py.errors import error
from atc_py.ir.constants import Splat, blob
from atc_py.ir.dims import Size, symbol
from atc_py.ir.graph import ABSENT, Graph, Range
from atc_py.ir.order import canonicalize
from atc_py.ir.types import DType, Format, Tensor, Type
from atc_py.ir.validate import validate
from atc_py.ops.base import InferError, Op
from atc_py.ops.build import Scope, lookup

Dims: TypeAlias = "Sequence[Size | str]"
"""A shape; a string is a symbol."""


@dataclass(frozen=True)
class Ref:
    """A value of a graph that is being built."""

    builder: Builder
    value: int

    @property
    def type(self) -> Type:
        """The inferred type."""
        return self.builder.graph.type(self.value)


class Builder:
    """Builds one graph. Errors are `AtcError` E20030, with the node's name as the place."""

    def __init__(self, name: str = "graph", *, outer: Builder | None = None) -> None:
        self.graph: Graph = Graph(name, outer.graph.symbols if outer else None)
        self._outer = outer
        self._scope: Scope = outer._scope.inner(self.graph) if outer else Scope(self.graph)
        self._given: list[Ref] = []
        self._captured: dict[int, int] = {}
        """Value of the outer graph → the body's input for it."""

    # -- leaves ------------------------------------------------------------------------------------------------

    def symbol(self, name: str, low: int = 0, high: int | None = None) -> Size:
        """A named size; a string in a shape makes one without bounds."""
        self.graph.symbols.setdefault(name, Range(low, high))
        return symbol(name)

    def data(self, name: str, dtype: str | DType, shape: Dims, format: str | Format = "ND") -> Ref:
        """An input. `dtype` as in the text form (`float32`, `int8`, …); elements of `shape` may name symbols."""
        dims = tuple(self.symbol(d) if isinstance(d, str) else d for d in shape)
        try:
            type_ = Tensor(DType(dtype), dims, Format(format))
        except ValueError as e:
            raise error("E20030", name, str(e), "the names are those of the text form, 'float32' or 'NCHW'") from e
        return Ref(self, self.graph.add_input(name, type_))

    def const(self, array: Any, name: str = "") -> Ref:
        """A constant with an array's dtype, shape and bytes."""
        return Ref(self, self.graph.add_const(blob(np.asarray(array)), name))

    def splat(self, value: float, dtype: str | DType, shape: Dims, name: str = "") -> Ref:
        """A constant of one repeated value, which takes no bytes."""
        dims = tuple(self.symbol(d) if isinstance(d, str) else d for d in shape)
        return Ref(self, self.graph.add_const(Splat(DType(dtype), dims, value), name))

    # -- nodes -------------------------------------------------------------------------------------------------

    def op(self, op: str, *inputs: Ref | None, outputs: int = 1, name: str = "", **attrs: Any) -> Any:
        """Add a node: any operator of the table, our own and custom ones included.

        `inputs` has None for an optional input that is absent. Keywords are attributes, or the builders of bodies.
        Returns a `Ref`, or a list of them when `outputs` is not 1.
        """
        place = name or f"{op}_{len(self.graph.nodes)}"
        declared = lookup(op, attrs)
        bodies = {k: attrs.pop(k) for k in declared.bodies if isinstance(attrs.get(k), Builder)}
        _check_attributes(declared, attrs, place)
        values = [ABSENT if r is None else self._own(r, place) for r in inputs]
        captured = self._captures(bodies)
        graphs = {k: body._finished(list(captured)) for k, body in bodies.items()}
        try:
            made = self._scope.emit(
                op, [*values, *captured.values()], attrs, outputs=outputs, name=place, origin=(place,),
                subgraphs=graphs, captures=len(captured),
            )  # fmt: skip
        except InferError as e:
            raise error("E20030", place, e.cause, e.hint) from e
        refs = [Ref(self, v) for v in made]
        return refs[0] if outputs == 1 else refs

    def body(self, name: str) -> Builder:
        """A builder for a body of a node that is added to this graph later; end it with `give`."""
        return Builder(name, outer=self)

    def give(self, *results: Ref) -> None:
        """What a body gives, in order; an outer value is handed through."""
        self._given = [Ref(self, self._own(r, self.graph.name)) for r in results]

    def priority(self, ref: Ref, priority: int) -> None:
        """Among tasks that are ready, the one of higher priority runs first."""
        self.graph.producer(ref.value).priority = priority

    # -- the end -----------------------------------------------------------------------------------------------

    def build(self, **outputs: Ref) -> Graph:
        """The graph with the given outputs, validated and in canonical order. Raises `AtcError` (EI codes)."""
        if not outputs:
            raise error("E20030", self.graph.name, "the graph has no outputs", "build(y=y) names them")
        self.graph.set_outputs([self._own(r, n) for n, r in outputs.items()], list(outputs))
        canonicalize(self.graph)
        validate(self.graph)
        return self.graph

    def _own(self, ref: Ref, place: str) -> int:
        """The value in this graph; an outer one is captured."""
        if ref.builder is self:
            return ref.value
        if self._outer is None:
            raise error("E20030", place, "an input belongs to another graph", "use values of this builder")
        value = self._outer._own(ref, place)
        constant = self._outer.graph.const(value)
        if value not in self._captured:
            name, type_ = self._outer.graph.values[value].name, self._outer.graph.type(value)
            add = self.graph.add_input
            self._captured[value] = add(name, type_) if constant is None else self.graph.add_const(constant, name)
        return self._captured[value]

    def _captures(self, bodies: Mapping[str, Builder]) -> dict[int, int]:
        """Outer values that any of the bodies reads: what is handed to all of them, each once."""
        found: dict[int, int] = {}
        for body in bodies.values():
            found.update((v, v) for v in body._captured if self.graph.const(v) is None)
        return found

    def _finished(self, captured: Sequence[int]) -> Graph:
        """The body's graph, its captured inputs behind its own in the given order."""
        assert self._outer is not None
        held = {v: i for v, i in self._captured.items() if self._outer.graph.const(v) is None}
        own = [v for v in self.graph.inputs if v not in held.values()]
        for value in captured:
            if value not in held:
                held[value] = self.graph.add_input(self._outer.graph.values[value].name, self._outer.graph.type(value))
        self.graph.inputs = [*own, *(held[v] for v in captured)]
        for index, value in enumerate(self.graph.inputs):
            self.graph.producer(value).attrs["index"] = index
        results = [r.value for r in self._given]
        self.graph.set_outputs(results, [f"out_{i}" for i in range(len(results))])
        return self.graph


def _check_attributes(op: Op, given: Mapping[str, Any], place: str) -> None:
    """Attributes that the operator does not declare are spelling mistakes."""
    for name in given:
        if name not in op.attrs:
            near = get_close_matches(name, op.attrs, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(op.attrs) or 'none'}"
            raise error("E20030", place, f"{op.name} has no attribute '{name}'", hint)
