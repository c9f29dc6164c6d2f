"""What takes few elements of a table takes them before the table is computed.

    q: int8 [30522, 384] ─ DequantizeLinear(s, z) ─ Gather(ids: [1, 16])
                                                       →    q ─ Gather(ids) ─ DequantizeLinear(s, z)
    q: int8 [30522, 384] ─ Cast ─ Mul(s: [30522, 1]) ─ Gather(ids)
                                                       →    q ─ Gather(ids) ─ Cast ─ Mul(s ─ Gather(ids))

Law: pick(f(a, b)) = f(pick(a), pick(b)) for an elementwise f; an operand that is one number, or that Gather's axis does
not run through, is not picked. A table is what elementwise operators make of constants alone: it would be computed
whole in each run. It is done where that makes fewer elements, and everything that reads the table is a pick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc_py.ir.dims import evaluate
from atc_py.ir.dims import prod as size_of
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of
from atc_py.passes.lineage import Lineage
from atc_py.passes.rewriting import become, emit, shaped, sweep
from atc_py.target.cost import Sized, counted_sizes

PASS = "picks"
PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators whose elements are elements of input 0, at places that do not depend on them."""

Whole = tuple[int, ...]


@dataclass(frozen=True)
class _Operand:
    """An input of f: it is picked too, by Gather along `axis`, or it is read in the shape `dims`."""

    value: int
    picked: bool = False
    axis: int | None = None
    dims: Whole = ()

    def build(self, graph: Graph, pick: Node) -> int:
        """The value that f reads behind the pick."""
        if self.value == ABSENT:
            return ABSENT
        if not self.picked:
            return shaped(graph, self.value, self.dims, pick)
        attrs = pick.attrs if self.axis is None else {**pick.attrs, "axis": self.axis}
        return emit(graph, pick.op, [self.value, *pick.inputs[1:]], attrs, pick)


def pick_first(graph: Graph, ctx: PassContext) -> int:
    """Move picks before the operators that compute the table; returns how many operators they have passed."""
    if not any(n.op in PICKS for n in graph.nodes.values()):
        return 0
    changed = 0
    sizes = counted_sizes(graph.symbols, ctx.input_hint)
    with Lineage(graph) as lineage:
        for node in reversed(_tables(graph, ctx)):
            changed += _pass(graph, ctx, lineage, node, sizes)
    return changed


def _tables(graph: Graph, ctx: PassContext) -> list[Node]:
    """The operators that compute tables, producers first."""
    found: dict[int, Node] = {}
    for node in graph.order():
        if node.op in STRUCTURAL or len(node.outputs) != 1 or not node.inputs:
            continue
        if any(v != ABSENT and v not in found and graph.const(v) is None for v in node.inputs):
            continue
        if _is_elementwise(ctx, node) and _whole(graph, node.outputs[0]) is not None:
            found[node.outputs[0]] = node
    return list(found.values())


def _is_elementwise(ctx: PassContext, node: Node) -> bool:
    if node.op == "DequantizeLinear":
        return not node.attrs.get("block_size", 0)
    flags = ctx.op(node).flags
    return flags.elementwise and not flags.random and node.op != "BitCast"  # which may change the last axis


def _whole(graph: Graph, value: int) -> Whole | None:
    """The shape of a tensor of which all dims are known, else None."""
    dims = dims_of(graph, value)
    found = tuple([d for d in dims or () if type(d) is int])
    return None if dims is None or len(found) < len(dims) else found


def _pass(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node, sizes: Sized) -> int:
    """f, which computes a table, comes behind the picks that read it."""
    result = node.outputs[0]
    table, picks = _whole(graph, result), graph.consumers(result)
    if table is None or not picks or len(graph.values[result].uses) != len(picks):
        return 0
    if any(n.op not in PICKS or n.inputs[0] != result for n in picks):
        return 0
    plans = [plan for pick in picks if (plan := _operands(graph, node, pick, table)) is not None]
    if len(plans) < len(picks):
        ctx.decline(node, PASS, "an operand changes along the axes along which the result is picked")
        return 0
    made = sum(_made(graph, pick, plan, table, sizes) for pick, plan in zip(picks, plans))
    if made >= prod(table):
        ctx.decline(node, PASS, f"picking first would make {made} elements instead of {prod(table)}")
        return 0
    for pick, plan in zip(picks, plans):
        _swap(graph, lineage, node, pick, plan)
    return 1


def _made(graph: Graph, pick: Node, plan: Sequence[_Operand], table: Whole, sizes: Sized) -> int:
    """Elements that f makes behind the pick, and that picks make of operands beside the largest one."""
    count = evaluate(size_of(dims_of(graph, pick.outputs[0]) or ()), sizes)
    picked = sorted(prod(_whole(graph, v) or ()) for v in {o.value for o in plan if o.picked})
    return count + sum(count * n // max(1, prod(table)) for n in picked[:-1])


def _operands(graph: Graph, node: Node, pick: Node, table: Whole) -> list[_Operand] | None:
    """f's inputs behind the pick; None where one does not allow it."""
    out = dims_of(graph, pick.outputs[0])
    if out is None:
        return None
    plan: list[_Operand] = []
    for i, value in enumerate(node.inputs):
        dims = () if value == ABSENT else _whole(graph, value)
        found: _Operand | None = None
        if dims is not None and all(d == 1 for d in dims):
            found = _Operand(value, dims=dims if len(dims) <= len(out) else ())
        elif dims is not None and not (node.op == "DequantizeLinear" and i > 0):  # whose scales follow rules of its own
            found = _operand(graph, pick, value, dims, table)
        if found is None:
            return None
        plan.append(found)
    return plan if any(o.picked for o in plan) else None


def _operand(graph: Graph, pick: Node, value: int, dims: Whole, table: Whole) -> _Operand | None:
    """An operand of more than one element, which is broadcast to the table."""
    if pick.op != "Gather":
        return _Operand(value, True) if dims == table else None
    axis, indices = int(pick.attrs.get("axis", 0)) % len(table), dims_of(graph, pick.inputs[1])
    own = axis - (len(table) - len(dims))
    if own >= 0 and dims[own] == table[axis]:
        return _Operand(value, True, own)
    if indices is None or own < 0:
        return None if indices is None else _Operand(value, dims=dims)
    if indices and all(d == 1 for d in dims[:own]):
        return _Operand(value, dims=dims)
    return _Operand(value, dims=(*dims[:own], *[1] * len(indices), *dims[own + 1 :]))


def _swap(graph: Graph, lineage: Lineage, node: Node, pick: Node, plan: Sequence[_Operand]) -> None:
    """The pick becomes f of picks."""
    made = {operand: operand.build(graph, pick) for operand in dict.fromkeys(plan)}
    attrs = {k: v for k, v in node.attrs.items() if (node.op, k) != ("DequantizeLinear", "axis")}  # of no number
    constants = [v for v in node.inputs if v != ABSENT and graph.const(v) is not None]
    become(graph, pick, node.op, [made[o] for o in plan], attrs)
    sweep(graph, lineage, pick, [node], constants)
