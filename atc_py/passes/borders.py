"""Copies where a value crosses from one engine to another: one for each value and direction, shared by its readers.

    Conv (aicore) ─ a ─ NonZero (aicpu) ─ b ┬ Relu (aicore)       two readers of b on AI Core, one copy
                                            └ Exp (aicore)

    Conv ─ a ─ TensorMove to aicpu ─ NonZero ─ b ─ TensorMove to aicore ┬ Relu
                                                                        └ Exp

Nothing is copied that need not be: constants and what the caller gives lie where every engine reads them, what the
caller gets is written in its place, shapes and axes that launch a task are read by the host wherever they are, Shape
reads no bytes, and an If or a Loop hands its values on to its bodies. A run of nodes on one engine between such borders
is a subgraph of that engine.

A collective reads and writes AI Core's memory: there is no border between the two.

Copies that nothing crosses any more go again, so that the pass always leaves the fewest.
"""

from __future__ import annotations

from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import on_host
from atc_py.passes.base import PassContext
from atc_py.passes.crossings import is_copy, reads_bytes

Copies = dict[tuple[int, str], int]
"""(value, engine that reads it) → the value of its copy."""


def insert_borders(graph: Graph, ctx: PassContext) -> int:
    """Put copies where engines meet, take away those that are stale; returns how many came and went."""
    copies, changed = _standing(graph)
    crossing = [n for n in graph.nodes.values() if _memory(n) not in ("aicore", "") and not is_copy(n)]
    if not crossing:
        return changed
    edges: dict[tuple[int, int], None] = {}
    for node in crossing:
        edges.update(dict.fromkeys((node.id, i) for i in range(len(node.inputs))))
        for value in node.outputs:
            edges.update(dict.fromkeys(graph.values[value].uses))
    for number, index in sorted(edges):
        changed += _cross(graph, ctx, graph.nodes[number], index, copies)
    return changed


def _cross(graph: Graph, ctx: PassContext, node: Node, index: int, copies: Copies) -> int:
    """Let the node read a copy where the value has been made on another engine; returns how many copies were made."""
    value = node.inputs[index]
    if value == ABSENT or not _crosses(graph, ctx, value, node, index):
        return 0
    key = (value, _memory(node))
    made = key not in copies
    if made:
        source = graph.producer(value)
        copy = graph.insert_on_edge(node, index, "TensorMove", graph.type(value), {"to": key[1]})
        copy.name = f"{graph.values[value].name or source.name}.to_{key[1]}"
        copy.origin, copy.engine = source.origin or node.origin, "aicore"
        copies[key] = copy.outputs[0]
    else:
        graph.set_input(node, index, copies[key])
    return int(made)


def _crosses(graph: Graph, ctx: PassContext, value: int, node: Node, index: int) -> bool:
    """Whether the bytes of a value have to go to another engine for this reader."""
    source = graph.producer(value)
    if source.op in STRUCTURAL or is_copy(source) or is_copy(node) or on_host(graph.type(value)):
        return False
    if _memory(source) == _memory(node) or ctx.op(source).flags.control:
        return False
    return reads_bytes(graph, node, index)


def _memory(node: Node) -> str:
    """The engine whose memory a node reads and writes."""
    return "aicore" if node.engine == "hccl" else node.engine


def _standing(graph: Graph) -> tuple[Copies, int]:
    """The copies that are needed, and how many were not and are gone."""
    copies: Copies = {}
    gone = 0
    for copy in [n for n in graph.nodes.values() if is_copy(n)]:
        value, to = copy.inputs[0], copy.attrs["to"]
        for number, index in list(graph.values[copy.outputs[0]].uses):
            reader = graph.nodes[number]
            if _memory(reader) != to or not reads_bytes(graph, reader, index):
                graph.set_input(reader, index, value)
        source = graph.producer(value)
        if _memory(source) == to or source.op in STRUCTURAL or (value, to) in copies:
            other = copies.get((value, to), value)
            graph.replace_uses(copy.outputs[0], other)
        if graph.values[copy.outputs[0]].uses:
            copies[value, to] = copy.outputs[0]
        else:
            graph.remove(copy)
            gone += 1
    return copies, gone
