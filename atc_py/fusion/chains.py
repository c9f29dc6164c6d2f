"""Convolutions that feed each other, row by row, without storing the maps between them.

    Conv 1×1 16→64 ─ Relu ─ Conv 3×3 depthwise ─ Relu ─ Conv 1×1 64→24 ─ Add(x)        one task, [1, 16, 56, 56]

Each core makes its rows of the last map. The rows of earlier maps that a window reads beyond its core's are computed
twice, and every core fetches all weights: that pays for large maps and few channels, and is refused, with both numbers,
where it does not.
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, dims_of, elementwise
from atc_py.fusion.rule import FOLLOWER, Constraint, Join, Rule, exits, named
from atc_py.ops.base import Op
from atc_py.ops.shapes import show

DEEPEST = 4
"""Convolutions that feed each other in one task: each adds rows that cores compute twice."""

TOLD = 4
"""Readers that a refusal names."""


def _joins(op: Op) -> bool:
    return op.name == "Conv" or elementwise(op)


def _map(join: Join) -> str | None:
    """The value between is a map, and the left operand of who reads it; what follows keeps its shape."""
    if join.role == FOLLOWER:
        before, after = dims_of(join.graph, join.value), dims_of(join.graph, join.node.outputs[0])
        return None if before == after else f"its shape changes from {show(before or ())} to {show(after or ())}"
    value, members = join.graph.values[join.value], join.group.members
    for number, place in value.uses:
        if place and number in members and members[number].op == "Conv":
            return f"'{value.name}' is input {place} of Conv"
    rank = len(join.graph.tensor(join.value).dims)
    return None if rank == 4 else f"it has {rank} dims, no map"


def _alone(join: Join) -> str | None:
    """Nobody else reads it: it is never stored."""
    if join.role == FOLLOWER:
        return None
    graph, inside = join.graph, join.group.members
    if not exits(graph, [join.node], inside):
        return None
    uses = dict.fromkeys(n for v in join.node.outputs for n, _ in graph.values[v].uses if n not in inside)
    told = ", ".join([named(graph, graph.nodes[n]) for n in sorted(uses)[:TOLD]])
    name = graph.values[join.value].name
    what = f"its result '{name}'" if name else "its result"
    return f"{what} is read by {len(uses)} more: {told}"


def _depth(join: Join) -> str | None:
    if join.op.name != "Conv" or sum(n.op == "Conv" for n in join.group.members.values()) < DEEPEST:
        return None
    return f"the task has {DEEPEST} convolutions"


CHAIN = Rule(
    name="conv_chain",
    doc="convolutions that feed each other",
    anchors=frozenset({"Conv"}),
    admits=(ENGINE,),
    followers=elementwise,
    producers=_joins,
    constraints=(
        ENGINE,
        LABEL,
        KNOWN,
        BORDER,
        Constraint("readers", _alone),
        Constraint("map", _map),
        Constraint("depth", _depth),
    ),
    weighed=True,
)
