"""Sums, products of two tensors, concatenations and averages of dequantised operands, as operators on bytes.

DQ(a) ─ Add(·, DQ(b)) ─ Q           com.microsoft::QLinearAdd(a, b)
Concat(DQ(a), DQ(b)) ─ Q            Concat(a, b) where all have one scale, else com.microsoft::QLinearConcat
DQ(x) ─ GlobalAveragePool ─ Q       com.microsoft::QLinearGlobalAveragePool(x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.build import lookup
from atc_py.passes.quantized_params import BYTES, Scaled, dequantized, zero_point

_MICROSOFT = "com.microsoft::"
_PAIRS = {"Add": "QLinearAdd", "Mul": "QLinearMul"}
_POOLS = {"AveragePool": "QLinearAveragePool", "GlobalAveragePool": "QLinearGlobalAveragePool"}
_POOL_ATTRS = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


@dataclass(frozen=True)
class Replacement:
    """An operator on bytes: its name, inputs and attributes, and the nodes in whose place it stands."""

    op: str
    inputs: Sequence[int]
    attrs: Mapping[str, Any]
    gone: tuple[Node, ...]


def replacement_of(graph: Graph, node: Node, q: Scaled) -> Replacement | str | None:
    """The operator on bytes for a node whose result is quantised as `q`; a reason why not; None for other nodes."""
    if node.op not in _PAIRS and node.op not in _POOLS and node.op != "Concat":
        return None
    found = [dequantized(graph, v) for v in node.inputs if v != ABSENT]
    sides = [s for s in found if s is not None]
    if not sides:
        return None
    if len(sides) < len(found):
        place = found.index(None)
        return (
            f"operands: input {place} of {node.op} is made by {graph.producer(node.inputs[place]).op}, not dequantised"
        )
    if node.engine not in ("aicore", ""):
        return f"engine: {node.op} runs on {node.engine}"
    reason = next((r for s in sides if (r := _unfit(s, q))), None)
    if reason is not None:
        return reason
    gone = (node, *(s.node for s in sides))
    if node.op == "Concat":
        return _concat(graph, node, sides, q, gone)
    inputs = [v for s in sides for v in (s.value, s.scale, zero_point(graph, s, q.node))]
    inputs += [q.scale, zero_point(graph, q, q.node)]
    if node.op in _PAIRS:
        return Replacement(f"{_MICROSOFT}{_PAIRS[node.op]}", inputs, {}, gone)
    return _pool(node, inputs, gone)


def _unfit(side: Scaled, q: Scaled) -> str | None:
    if side.axis is not None:
        return f"scale: an operand has {side.scales.size} scales along axis {side.axis}; expected one"
    if side.dtype not in BYTES or side.dtype is not q.dtype:
        return f"dtype: an operand is {side.dtype.value}, the result {q.dtype.value}"
    return None


def _concat(graph: Graph, node: Node, sides: Sequence[Scaled], q: Scaled, gone: tuple[Node, ...]) -> Replacement:
    if all(s.same(q) for s in sides):
        return Replacement("Concat", [s.value for s in sides], node.attrs, gone)
    inputs = [v for s in sides for v in (s.value, s.scale, zero_point(graph, s, q.node))]
    axis = {"axis": node.attrs["axis"]}
    return Replacement(f"{_MICROSOFT}QLinearConcat", [q.scale, zero_point(graph, q, q.node), *inputs], axis, gone)


def _pool(node: Node, inputs: Sequence[int], gone: tuple[Node, ...]) -> Replacement | str:
    op = f"{_MICROSOFT}{_POOLS[node.op]}"
    given: dict[str, Any] = {}
    if node.op == "AveragePool":
        if any(d != 1 for d in node.attrs.get("dilations") or ()):
            return f"attributes: AveragePool has dilations {list(node.attrs['dilations'])}; expected 1"
        given = {k: node.attrs[k] for k in _POOL_ATTRS if k in node.attrs}
    return Replacement(op, inputs, lookup(op, {}).attributes(given), gone)
