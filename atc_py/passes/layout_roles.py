"""What each node of a lowered graph takes: its operator's `Layout`, of a fused task what its whole body takes.

    Fused { Conv(x, w) ─ Add(·, r) ─ Relu }(x, w, r)      Layout(maps=(0, 2), needs=True, weights={1: FRACTAL_Z})
    Fused { MatMul(x, w) ─ Gelu }(x, w)                   Layout(weights={1: FRACTAL_NZ})
    Conv on AI CPU, or over a map of a late size          None: it reads and writes plain tensors

A body works in blocks when each of its operators can, and needs to when one of them does. What it reads as a map in one
place and as a plain tensor in another keeps it plain.
"""

from __future__ import annotations

from collections.abc import Mapping

from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Format, Tensor
from atc_py.ops.base import Layout
from atc_py.ops.build import known_value, lookup
from atc_py.ops.layouts import is_map, layout_of


class Roles:
    """Finds the layouts of a graph's nodes; `maps` are the values that may lie in blocks."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._elementwise: dict[tuple[object, ...], Layout | None] = {}
        runtime = frozenset(s for s, r in graph.symbols.items() if r.runtime)
        self.maps = frozenset(
            v for v, value in graph.values.items() if is_map(value.type) and not _late(value.tensor, runtime)
        )

    def of(self, node: Node) -> Layout | None:
        """The node's layout; None: every operand is plain."""
        if node.engine != "aicore" or node.op in STRUCTURAL:
            return None
        found = self._body(node) if node.op == "Fused" else self._of(self.graph, node)
        if found is not None and found.maps and not self._all_maps(node, found):
            return Layout(weights=_fractals(found.weights)) if found.weights else None
        return found

    def _all_maps(self, node: Node, found: Layout) -> bool:
        made = node.outputs if found.makes_maps else ()
        return self.maps.issuperset([node.inputs[i] for i in found.maps]) and self.maps.issuperset(made)

    def _body(self, node: Node) -> Layout | None:
        body = node.subgraphs["body"]
        if len(body.inputs) != len(node.inputs):
            return None
        uses = _Uses(body)
        able = all(map(is_map, map(body.type, body.outputs)))
        for inner in body.nodes.values():
            if inner.op in STRUCTURAL:
                continue
            if not uses.add(inner, self._of(body, inner)):
                able = False
        return uses.layout(able)

    def _of(self, graph: Graph, node: Node) -> Layout | None:
        op, known = lookup(node.op, node.attrs), graph.values
        if op.layout_fn is None and not (op.flags.elementwise and is_map(known[node.outputs[0]].type)):
            return None
        types = tuple([None if v == ABSENT else known[v].type for v in node.inputs])
        outs = tuple([known[v].type for v in node.outputs])
        if op.layout_fn is None:  # it follows from broadcasting, so from the types
            key = (op.name, types, outs)
            if key not in self._elementwise:
                self._elementwise[key] = layout_of(op, node.attrs, types, outs, ())
            return self._elementwise[key]
        host = op.host_inputs
        values = [known_value(graph.const(v)) if i in host else None for i, v in enumerate(node.inputs)] if host else ()
        return layout_of(op, node.attrs, types, outs, values)


class _Uses:
    """How the operators of a body read what the task reads."""

    def __init__(self, body: Graph) -> None:
        self.body = body
        self.place = {v: i for i, v in enumerate(body.inputs)}
        self.as_map: dict[int, None] = {}
        self.plain: set[int] = set()
        self.weights: dict[int, Format] = {}
        self.needs = False

    def add(self, node: Node, layout: Layout | None) -> bool:
        """Count one operator; whether it works in blocks."""
        if layout is None:
            self.plain.update(node.inputs)
            return False
        maps, weights = layout.maps, layout.weights
        for i, value in enumerate(node.inputs):
            if i in maps:
                self.as_map[value] = None
            elif i in weights and value in self.place:
                if self.weights.setdefault(value, weights[i]) is not weights[i]:
                    self.plain.add(value)
            else:
                self.plain.add(value)
        self.needs |= layout.needs
        return bool(maps) and layout.makes_maps

    def layout(self, able: bool) -> Layout | None:
        """What the task takes."""
        self.plain.discard(ABSENT)
        formats = {self.place[v]: f for v, f in self.weights.items() if v not in self.plain and v not in self.as_map}
        inner = any(v not in self.place and self.body.const(v) is None for v in self.plain)
        if able and self.as_map and not inner and not self.plain & self.as_map.keys():
            return Layout(tuple(sorted(self.place[v] for v in self.as_map if v in self.place)), self.needs, formats)
        fractals = _fractals(formats)
        return Layout(weights=fractals) if fractals else None


def _fractals(weights: Mapping[int, Format]) -> dict[int, Format]:
    """The weights' formats that do not ask for maps in blocks."""
    return {i: f for i, f in weights.items() if f is Format.FRACTAL_NZ}


def _late(type_: Tensor, runtime: frozenset[str]) -> bool:
    """Whether a size of the tensor is known only at run time: it is then made as its maker gives it."""
    return bool(runtime) and any(s in runtime for d in type_.dims for s in symbols_of(d))
