"""One `Fused` node in the place of a group: its body is the group, its inputs are what the group reads.

    a ─ MatMul q ─┐                                        Fused(a, Wq, Wk) → q, k
      └ MatMul k ─┴─ …                                     body: Data a, Wq, Wk ─ MatMul, MatMul ─ NetOutput

What is read outside becomes the node's outputs, in the order in which the body makes it. Small constants that operators
read on the host (axes, starts, shapes) lie in the body itself, where tiles can be cut by them; all others are inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.fusion.rule import Match, exits, outer_inputs
from atc_py.ir.graph import Graph, Node
from atc_py.ir.part import part_of
from atc_py.ops.build import lookup


def body_of(graph: Graph, nodes: Sequence[Node]) -> tuple[Graph, list[int], list[int]]:
    """(body, the values that it reads, those of its results that are read outside), for nodes in order."""
    own = host_constants(graph, nodes)
    outer = [v for v in outer_inputs(nodes) if v not in own]
    made = exits(graph, nodes, {n.id: n for n in nodes})
    return part_of(graph, nodes, outer, own, made), outer, made


def host_constants(graph: Graph, nodes: Sequence[Node]) -> list[int]:
    """Constants that only the host reads."""
    read = [(node, positions) for node in nodes if (positions := lookup(node.op, node.attrs).host_inputs)]
    host: dict[int, None] = {}
    for node, positions in read:
        host.update((v, None) for i, v in enumerate(node.inputs) if i in positions and graph.const(v) is not None)
    if not host:
        return []
    for node in nodes:
        positions = lookup(node.op, node.attrs).host_inputs
        for i, v in enumerate(node.inputs):
            if i not in positions:
                host.pop(v, None)
    return list(host)


def fused_task(match: Match) -> Node:
    """One `Fused` node in place of the group, with all origins.

    Engine and stream label are the anchor's, the priority is the highest of the group.
    """
    graph, anchor = match.graph, match.anchor
    body, outer, made = body_of(graph, match.nodes)
    attrs = {} if match.fit is None else match.fit.attrs()
    if match.again:
        attrs["again"] = match.again
    fused = graph.replace_nodes(
        match.nodes, "Fused", outer, made, attrs, name=body.name, subgraphs={"body": body}, captures=len(outer)
    )
    fused.engine, fused.precision = anchor.engine, anchor.precision
    fused.stream, fused.priority = anchor.stream, max(n.priority for n in match.nodes)
    return fused
