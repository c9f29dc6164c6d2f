"""Statistics of a map that does not fit the buffers are taken while the map is made, not from the stored one.

    Conv ─ x ─ InstanceNormalization ─ y      →    Conv ─ x ┬ BlockMoments ─ CombineMoments ┐
                                                            └───────────────────────── INInferV2 ─ y
    Conv ─ Relu ─ x ─ GlobalAveragePool       →    Conv ─ Relu ─ x ─ BlockMoments ─ CombineMoments

BlockMoments becomes part of the task that makes x, and INInferV2 may become part of those that read it: x is read once
less, and the cube hides what the vector unit does. Where whole planes of some channels fit the buffers beside what
makes them, one task does it all, and the operator stays; so it does where the target's prices say that three tasks take
longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atc_py.fusion.constraints import elementwise
from atc_py.fusion.epilogue import product
from atc_py.fusion.fitting import Fitting
from atc_py.fusion.forms import Forms
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.tiles import Misfit
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import Scope
from atc_py.passes.base import PassContext
from atc_py.passes.known import ints

PASS = "moments"
BLOCK = (8, 8)
"""Rows and columns of a block of pixels: the smallest tile of an image that the search for tiles makes."""
LONGEST = 8
"""Elementwise operators between what makes a map and its statistics."""
_NORMS = ("InstanceNormalization", "GroupNormalization")
_KINDS = frozenset({*_NORMS, "GlobalAveragePool", "ReduceMean"})
_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


def take_moments(graph: Graph, ctx: PassContext) -> int:
    """Cut statistics off where that pays; returns how many."""
    assert ctx.target is not None
    if not any(n.op in _KINDS and _is_over_planes(graph, n) for n in graph.nodes.values()):
        return 0
    found = [n for n in graph.order() if _is_over_planes(graph, n)]
    forms = Forms(graph)
    fitting, pricer = Fitting(graph, ctx.target, forms), Pricer(graph, ctx.target, ctx.input_hint, forms)
    splitter = _Splitter(graph, ctx, fitting, pricer)
    return sum(map(splitter.split, found))


def _is_over_planes(graph: Graph, node: Node) -> bool:
    """Whether a node takes statistics of whole planes of pixels of known size."""
    if node.op not in _KINDS or node.engine != "aicore" or len(node.outputs) != 1:
        return False
    if node.op == "ReduceMean":
        axes = ints(graph, node, 1) if len(node.inputs) > 1 else None
        if not node.attrs.get("keepdims", 1) or axes is None or {a % 4 for a in axes} != {2, 3}:
            return False
    t = graph.type(node.inputs[0])
    if not isinstance(t, Tensor) or t.shape is None or len(t.shape) != 4 or t.dtype not in _DTYPES:
        return False
    return all(type(d) is int and d > 0 for d in t.shape[1:])


@dataclass
class _Splitter:
    """One graph: finds what makes a map, and puts the pieces in the place of an operator."""

    graph: Graph
    ctx: PassContext
    fitting: Fitting
    pricer: Pricer

    def split(self, node: Node) -> int:
        """Cut one operator's statistics off; 1 when it was done."""
        makers = self._makers(node.inputs[0])
        if not makers or not isinstance(self.fitting.fit([*makers, node]), Misfit):
            return 0
        whole = self._us(makers) + self._us([node])
        pieces = self._pieces(node)
        apart = self._us([*makers, pieces[0]]) + sum([self._us([piece]) for piece in pieces[1:]])
        if apart < whole and not isinstance(self.fitting.fit([*makers, pieces[0]]), Misfit):
            self._replace(node, pieces[-1])
            return 1
        for piece in reversed(pieces):
            self.graph.remove(piece)
        reason = f"{node.op} and what makes its map take {whole:.1f} us, in parts {apart:.1f} us"
        self.ctx.decline(node, PASS, f"profit: {reason}")
        return 0

    def _us(self, nodes: Sequence[Node]) -> float:
        """Microseconds of one task of the nodes, given in order."""
        return self.pricer.together_us(self.pricer.forms.of(nodes).form())

    def _replace(self, node: Node, heir: Node) -> None:
        graph, made = self.graph, heir.outputs[0]
        heir.name, graph.values[made].name = node.name, graph.values[node.outputs[0]].name
        graph.replace_uses(node.outputs[0], made)
        graph.remove(node)
        for v in node.inputs[1:]:
            if v != ABSENT and graph.const(v) is not None and not graph.values[v].uses:
                graph.remove(graph.producer(v))

    def _makers(self, value: int) -> list[Node]:
        """What will be one task: a product or elementwise operator that makes the map, and those on the way."""
        graph, found = self.graph, list[Node]()
        while len(found) < LONGEST:
            node = graph.producer(value)
            if node.engine != "aicore":
                break
            op = self.ctx.op(node)
            if product(op):
                return [node, *found] if node.op in ("Conv", "ConvTranspose") else found
            if not elementwise(op):
                break
            found.insert(0, node)
            before = [v for v in node.inputs if v != ABSENT and self._is_map(v, value)]
            if not before:
                break
            value = max(before)  # of two branches the later one: fusion gives the operator to it
        return found

    def _is_map(self, value: int, like: int) -> bool:
        t, u = self.graph.type(value), self.graph.type(like)
        return isinstance(t, Tensor) and isinstance(u, Tensor) and t.shape == u.shape

    def _pieces(self, node: Node) -> list[Node]:
        """BlockMoments, CombineMoments, and for a norm what applies them."""
        t = self.graph.tensor(node.inputs[0])
        size = tuple(int(d) for d in t.dims[2:] if type(d) is int)
        at = {"block": tuple(map(min, BLOCK, size))}
        both = node.op in _NORMS
        blocks = self._emit("BlockMoments", node.inputs[:1], at, node, 1 + both)
        how = {"num_groups": node.attrs["num_groups"]} if node.op == "GroupNormalization" else {}
        how |= {} if both else {"dtype": t.dtype}
        combined = self._emit("CombineMoments", blocks.outputs, {**at, "size": size, **how}, node, 1 + both)
        if not both:
            return [blocks, combined]
        inputs = [*node.inputs, *combined.outputs]
        return [blocks, combined, self._emit("INInferV2", inputs, {"epsilon": node.attrs["epsilon"]}, node, 1)]

    def _emit(self, op: str, inputs: Sequence[int], attrs: Mapping[str, Any], heir: Node, outputs: int) -> Node:
        name = f"{heir.name or heir.op}.{op}"
        made = Scope(self.graph).emit(op, inputs, attrs, outputs=outputs, name=name, origin=heir.origin)
        node = self.graph.producer(made[0])
        node.engine, node.stream, node.priority = heir.engine, heir.stream, heir.priority
        node.precision = self.graph.tensor(made[0]).dtype.value
        return node
