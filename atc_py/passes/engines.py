"""Which engine runs each node: AI Core, AI CPU or the host.

    x: [N, 3, H] ─ Shape ─ Gather 2 ─ Mul 2 ─┐                Shape, Gather, Mul    host   (small, and made by the host)
                  └─ Conv ─────────────────── Resize          Conv, Resize          aicore
    s: strings ─ StringNormalizer                             StringNormalizer      host   (no address on the device)
    x: float64 ─ Add                                          Add                   aicpu  (no float64 on AI Core)
    Unique ─ Neg ─ NonZero, a few elements                    Neg                   aicpu  (two copies cost more)

Three steps. By type: an operator's declaration names its engine, and what its operands are overrules that downwards,
never upwards. By size: small integers that the host has made are worked on by the host. By the cost of crossing: small
AI Core operators beside others go over to them where that costs less than the copies (`passes/crossings.py`). Each
node that is not on AI Core has a note that says why.
"""

from __future__ import annotations

from math import prod

from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.base import Engine, Op
from atc_py.ops.build import lookup
from atc_py.ops.engines import WIDE, engine_by_type
from atc_py.passes.base import PassContext
from atc_py.passes.collectives import refuse
from atc_py.passes.crossings import is_copy, settle
from atc_py.target.cost import Work

HOST_ELEMENTS = 1024
"""Integer values of at most so many elements that the host has made are worked on by the host."""

_NARROW = frozenset(id(d) for d in DType if d not in WIDE and not on_host(Tensor(d, ())))
"""Dtypes of AI Core, by identity: an enum's own hash takes longer than the rest of the look."""


def assign_engines(graph: Graph, ctx: PassContext) -> int:
    """Set `engine` of every node; returns how many changed. Raises `AtcError` E20043 for a collective in a body."""
    order = [n for n in graph.order() if n.op not in STRUCTURAL]
    chosen: dict[int, Engine] = {}
    reasons: dict[int, str] = {}
    everything = True
    for node in order:
        engine, reason = _by_type(graph, lookup(node.op, node.attrs), node, chosen)
        chosen[node.id] = engine
        everything &= engine is Engine.AICORE
        if reason:
            reasons[node.id] = reason
    if ctx.target is not None and not everything:
        works: dict[int, Work] = {}
        for away in (Engine.HOST, Engine.AICPU):
            moved = settle(graph, ctx.target, order, chosen, away, works, ctx.input_hint)
            reasons.update(moved)
            if moved:
                _follow(graph, ctx, order, chosen)
    if graph is not ctx.root and not everything:
        refuse(n for n in order if chosen[n.id] is Engine.HCCL)
    changed = 0
    for node in order:
        name = chosen[node.id]._value_
        if node.engine != name:
            node.engine = name
            changed += 1
    for number, reason in reasons.items():
        graph.nodes[number].note(f"engines: {reason}")
    return changed


def _by_type(graph: Graph, op: Op, node: Node, chosen: dict[int, Engine]) -> tuple[Engine, str]:
    """The engine by operator type and by size, and why it is not AI Core."""
    usual = op.engine is Engine.AICORE and not (op.flags.alias or op.reference) and _on_device(graph, node)
    if usual and not _host_arithmetic(graph, node, chosen):
        return Engine.AICORE, ""
    values = graph.values
    forced = engine_by_type(op, [values[v].type for v in (*node.inputs, *node.outputs) if v != ABSENT])
    if forced[0] is Engine.HOST:
        return forced
    if _host_arithmetic(graph, node, chosen):
        return Engine.HOST, f"host: the host has made its integers, at most {HOST_ELEMENTS} of them"
    if op.flags.alias and node.inputs:
        return _producer_engine(graph, node, chosen), ""
    return forced


def _on_device(graph: Graph, node: Node) -> bool:
    """Whether AI Core has units for all that the node reads and makes."""
    values = graph.values
    for edges in (node.inputs, node.outputs):
        for v in edges:
            if v != ABSENT:
                t = values[v].type
                if not isinstance(t, Tensor) or id(t.dtype) not in _NARROW:
                    return False
    return True


def _follow(graph: Graph, ctx: PassContext, order: list[Node], chosen: dict[int, Engine]) -> None:
    """What only renames bytes goes where they are made."""
    for node in order:
        if ctx.op(node).flags.alias and node.inputs and chosen[node.id] is not Engine.HOST:
            chosen[node.id] = _producer_engine(graph, node, chosen)


def _producer_engine(graph: Graph, node: Node, chosen: dict[int, Engine]) -> Engine:
    """A node that only renames bytes is counted where they were made, if that is AI Core or AI CPU.

    A view of what the host or a collective made is AI Core's.
    """
    producer = graph.producer(node.inputs[0])
    if is_copy(producer):
        return Engine(producer.attrs["to"])
    engine = chosen.get(producer.id, Engine.AICORE)
    return engine if engine is Engine.AICPU else Engine.AICORE


def _host_arithmetic(graph: Graph, node: Node, chosen: dict[int, Engine]) -> bool:
    """Whether the node computes small integers from small integers that the host has made."""
    made_by_host = False
    nodes, values = graph.nodes, graph.values
    for value in node.inputs:
        if value == ABSENT:
            continue
        producer = nodes[values[value].producer]
        if producer.const is None and chosen.get(producer.id) is not Engine.HOST:
            return False
        made_by_host = made_by_host or producer.const is None
    return made_by_host and all(_small_ints(graph.type(v)) for v in (*node.inputs, *node.outputs) if v != ABSENT)


def _small_ints(type_: Type) -> bool:
    if not isinstance(type_, Tensor) or not type_.static or not (type_.dtype.is_int or type_.dtype is DType.BOOL):
        return False
    return prod(d for d in type_.dims if type(d) is int) <= HOST_ELEMENTS
