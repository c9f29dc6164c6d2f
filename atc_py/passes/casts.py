"""Chains of casts become one cast, where the first one loses nothing.

    x: float16 ─ Cast float32 ─ Cast float64 ─ y        →        x ─ Cast float64 ─ y
    x: float16 ─ Cast float32 ─ Cast float16 ─ y        →        x ─ y
    x: float32 ─ Cast float16 ─ Cast float32 ─ y                 stays: the first cast rounds

Law: Cast_c(Cast_b(x)) = Cast_c(x) when b holds every value of x's type. Text is left alone: "0.1" as float16 and as
float32 are printed differently.
"""

from __future__ import annotations

from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.passes.base import PassContext
from atc_py.passes.known import same_types
from atc_py.passes.lineage import Lineage

_FLOATS = {
    # (bits of the significand, smallest exponent, largest exponent) of IEEE 754 and bfloat16, subnormals included
    DType.FLOAT16: (11, -24, 15),
    DType.BFLOAT16: (8, -133, 127),
    DType.FLOAT32: (24, -149, 127),
    DType.FLOAT64: (53, -1074, 1023),
}


def lossless(source: DType, target: DType) -> bool:
    """Whether `target` holds every value of `source` (numbers and bools; not the 8-bit floats, not text)."""
    if source is target:
        return source is not DType.STRING
    if source is DType.BOOL:
        return target in _FLOATS or (target.is_int and target.bits > 1)
    if source.is_int:
        bits = source.bits - source.is_signed_int
        if target in _FLOATS:
            return bits <= _FLOATS[target][0]
        if not target.is_int or (source.is_signed_int and not target.is_signed_int):
            return False
        return bits <= target.bits - target.is_signed_int
    if source in _FLOATS and target in _FLOATS:
        (p, low, high), (q, lowest, highest) = _FLOATS[source], _FLOATS[target]
        return p <= q and lowest <= low and high <= highest
    return False


def merge_casts(graph: Graph, ctx: PassContext) -> int:
    """Let the second of two casts read what the first one reads; returns how many chains were shortened."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.order() if n.op == "Cast"]:
            first = graph.producer(node.inputs[0])
            if first.op != "Cast":
                continue
            source, middle = graph.type(first.inputs[0]), graph.type(node.inputs[0])
            target = graph.type(node.outputs[0])
            if not (isinstance(source, Tensor) and isinstance(middle, Tensor) and isinstance(target, Tensor)):
                continue
            if target.dtype is DType.STRING:
                continue
            if not lossless(source.dtype, middle.dtype):
                ctx.decline(node, "casts", f"{source.dtype.value} → {middle.dtype.value} may lose something")
                continue
            graph.set_input(node, 0, first.inputs[0])
            if lineage.drop(first):
                lineage.inherit(node, first)
            if same_types(graph, node.inputs[0], node.outputs[0]):
                lineage.bypass(node, node.inputs[0])
            changed += 1
    return changed
