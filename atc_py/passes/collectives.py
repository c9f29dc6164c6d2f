"""Collectives come one after the other, in an order that the model alone says.

    AllReduce(a) → b, done     AllReduce(c) → d, done       →       AllReduce(a) → b, e     AllReduce(c, e) → d, done

First come those that need no other one, then those that need only these, and so on, each time in the canonical order;
so branches take turns, and one's collective runs beside what another one computes. All devices of a group run the same
model, and the canonical order of a graph follows from its structure: neither names, nor the order of the file, nor the
values of weights change it. So all have the same chain. It is made before any other pass has rewritten anything, and
from then on it is in the data.

In a body there can be none: devices that take different branches, or leave a loop at different times, would wait for
each other for ever. What is still in one when engines are chosen is refused (`refuse`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from atc_py.errors import Problems
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ops.base import Engine
from atc_py.passes.base import PassContext

_AFTER, _DONE = 1, 1
"""The position of the input that orders a collective, and of the output."""


def order_collectives(graph: Graph, ctx: PassContext) -> int:
    """Let each collective take what the one before it gives; returns how many did not."""
    kinds = {n.op: n for n in graph.nodes.values()} if graph is ctx.root else {}
    if not any(_is_collective(n, ctx) for n in kinds.values()):
        return 0
    changed = 0
    for before, node in pairwise(_in_turn(graph, ctx)):
        if len(node.inputs) <= _AFTER or node.inputs[_AFTER] != before.outputs[_DONE]:
            inputs = [*node.inputs, ABSENT][: _AFTER + 1]
            inputs[_AFTER] = before.outputs[_DONE]
            graph.set_inputs(node, inputs)
            changed += 1
    return changed


def _in_turn(graph: Graph, ctx: PassContext) -> list[Node]:
    """The collectives by how many there are at the most on a way to them, then in the order of the graph."""
    before: dict[int, int] = {}
    found: list[tuple[int, int, Node]] = []
    for place, node in enumerate(graph.order()):
        depth = max([before[graph.values[v].producer] for v in node.inputs if v != ABSENT], default=0)
        if _is_collective(node, ctx):
            found.append((depth, place, node))
            depth += 1
        before[node.id] = depth
    return [node for _, _, node in sorted(found, key=lambda item: item[:2])]


def _is_collective(node: Node, ctx: PassContext) -> bool:
    return node.op not in STRUCTURAL and ctx.op(node).engine is Engine.HCCL


def refuse(found: Iterable[Node]) -> None:
    """Raise `AtcError` E20043 for the collectives of a body."""
    problems = Problems()
    for node in found:
        place = f"node '{node.origin[0] if node.origin else node.name}' ({node.op})"
        cause = "it is a collective in a branch or a loop: devices that part there would wait for each other for ever"
        problems.add("E20043", place, cause, "export the model with the collective outside")
    problems.raise_any()
