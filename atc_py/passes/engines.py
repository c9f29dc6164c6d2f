"""Which engine runs each node: AI Core, AI CPU or the host.

    x: [N, 3, H] ─ Shape ─ Gather 2 ─ Mul 2 ─┐                Shape, Gather, Mul    host   (small, and made by the host)
                  └─ Conv ─────────────────── Resize          Conv, Resize          aicore
    s: strings ─ StringNormalizer                             StringNormalizer      host   (no address on the device)
    x: float64 ─ Add                                          Add                   aicpu  (no float64 on AI Core)

An operator's declaration names its engine; the types overrule it downwards, never upwards.
"""

from __future__ import annotations

from math import prod

from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.base import Engine, Op
from atc_py.passes.base import PassContext

HOST_ELEMENTS = 1024
"""Integer values of at most so many elements that the host has made are worked on by the host."""


def assign_engines(graph: Graph, ctx: PassContext) -> int:
    """Set `engine` of every node; returns how many changed."""
    changed = 0
    for node in graph.order():
        if node.op in STRUCTURAL:
            continue
        engine = _engine(graph, ctx.op(node), node).value
        changed += node.engine != engine
        node.engine = engine
    return changed


def _engine(graph: Graph, op: Op, node: Node) -> Engine:
    values = graph.values
    types = [values[v].type for v in (*node.inputs, *node.outputs) if v != ABSENT]
    if op.engine is Engine.HOST or any(map(on_host, types)) or _host_arithmetic(graph, node):
        return Engine.HOST
    if op.flags.alias and node.inputs:
        return _producer_engine(graph, node)
    if op.reference or op.engine is Engine.AICPU or any(map(_too_wide, types)):
        return Engine.AICPU
    return Engine.AICORE


def _too_wide(type_: Type) -> bool:
    """Whether AI Core has no unit for the dtype."""
    return isinstance(type_, Tensor) and (type_.dtype is DType.FLOAT64 or type_.dtype.is_complex)


def _producer_engine(graph: Graph, node: Node) -> Engine:
    """A node that only renames bytes is counted where the bytes were made."""
    producer = graph.producer(node.inputs[0])
    return Engine(producer.engine) if producer.engine and producer.engine != "host" else Engine.AICORE


def _host_arithmetic(graph: Graph, node: Node) -> bool:
    """Whether the node computes small integers from small integers that the host has made."""
    made_by_host = False
    for value in node.inputs:
        if value == ABSENT:
            continue
        producer = graph.producer(value)
        if producer.const is None and producer.engine != "host":
            return False
        made_by_host = made_by_host or producer.const is None
    return made_by_host and all(_small_ints(graph.type(v)) for v in (*node.inputs, *node.outputs) if v != ABSENT)


def _small_ints(type_: Type) -> bool:
    if not isinstance(type_, Tensor) or not type_.static or not (type_.dtype.is_int or type_.dtype is DType.BOOL):
        return False
    return prod(d for d in type_.dims if type(d) is int) <= HOST_ELEMENTS
