"""From groups to tasks: one node in the place of each group, ids that follow the order, and the reasons kept.

    places   a   {b, c}   d   {e, f}         nodes   a 0   Fused 1   d 2   Fused 3

A task keeps as notes what stopped it from growing, also where one rule was refused what another one then did in part:

    conv_chain     Conv 'a' ─ Relu ─ Conv 'b'     refused: the Relu's result is read by one more
    conv_epilogue  Conv 'b' ─ Add                 fused: the task tells why the Relu is not in it

What has come into the task after all is told no more. When fusion runs again on its own result, it tells the rest
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atc_py.fusion.bodies import fused_task
from atc_py.fusion.places import Places
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.rule import Group, Match, Refusal, Result, Rule
from atc_py.ir.graph import Graph, Node
from atc_py.target import Target


@dataclass(frozen=True)
class Groups:
    """The groups of one graph: by anchor the rule that replaces it and the group; `alone`: what was refused to nodes
    that were in none by then."""

    graph: Graph
    target: Target
    places: Places
    pricer: Pricer
    found: Mapping[int, tuple[Rule, Group]]
    alone: Sequence[Refusal]


def commit(groups: Groups, rules: set[str]) -> Result:
    """Replace the groups; what tasks of earlier runs were told by one of `rules` is told again."""
    result = Result()
    order: list[Node] = []
    inside = {m: g for _, g in groups.found.values() for m in g.members}
    for refusal in reversed(groups.alone):
        if refusal.node.id in inside:
            inside[refusal.node.id].notes.insert(0, refusal)
    for unit in groups.places.slots:
        if isinstance(unit, Node):
            order.append(unit)
            if unit.op == "Fused":
                result.refused += _retold(unit, rules)
        elif unit is not None:
            order.append(_replace(groups, unit, result))
    result.refused += [r for r in groups.alone if r.node.id not in inside]
    if result.made:
        _tidy(groups.graph, order)
    return result


def _replace(groups: Groups, group: Group, result: Result) -> Node:
    rule = groups.found[group.anchor.id][0]
    assert group.price is not None and group.outline is not None
    form = group.outline.form()
    again = () if group.fit is None else groups.pricer.repeated(form, group.fit)
    match = Match(groups.graph, groups.target, group.anchor, tuple(form.nodes), group.price, group.fit, again)
    made = (rule.replacement or fused_task)(match)
    result.made += 1
    still = [r for r in group.notes if any(n not in group.members for n in r.about)]
    for refusal in dict.fromkeys(still):
        # What stopped the group is now to be told of the task that came of it.
        result.refused.append(replace(refusal, node=made))
        made.note(f"{refusal.rule}: {refusal.text}")
    return made


def _tidy(graph: Graph, order: Sequence[Node]) -> None:
    """Constants that only bodies read go, and ids follow the order."""
    kept = [n for n in graph.nodes.values() if n.op == "Data"]
    for node in [n for n in graph.nodes.values() if n.op == "Const"]:
        if graph.values[node.outputs[0]].uses:
            kept.append(node)
        else:
            graph.remove(node)
    placed = [n for n in order if n.id in graph.nodes]
    graph.renumber([*kept, *placed, graph.net_output])


def _retold(fused: Node, rules: set[str]) -> list[Refusal]:
    found = []
    for note in fused.notes:
        rule, _, text = note.partition(": ")
        if rule in rules:
            constraint, _, reason = text.partition(": ")
            found.append(Refusal(fused, rule, constraint, reason))
    return found
