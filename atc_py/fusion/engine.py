"""The fusion engine: grows groups from anchors by the rules, and says why they stop.

    conv ─▶ add(conv, r) ─▶ relu ─▶ y, z          relu is read twice

    group {conv}              add reads it, its operand r is made before the group        joins
    group {conv, add}         relu reads it                                               joins
    group {conv, add, relu}   y is no follower                                            one Fused, which makes relu

Rules are applied one after the other, each to all its anchors, from the last one back: where two branches meet in an
Add, the later branch takes it, when the other one has already been computed. A later rule may enlarge what an earlier
one has made. Nothing of the graph changes until all groups are known; then each becomes one task, in order, so that
ids follow the order again. An inner value that is also read outside becomes a result of the task: it is stored, as it
was before. Groups are convex (`places`), fit the target's buffers (`tiles`) and save time (`pricing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from atc_py.fusion.commit import Groups, commit
from atc_py.fusion.fitting import Fitting
from atc_py.fusion.forms import Form, Forms
from atc_py.fusion.growth import MOST, Grower, Growth, Roles, refused
from atc_py.fusion.places import Places
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.rule import Group, Match, Refusal, Result, Rule, named, saved_us
from atc_py.fusion.tiles import Misfit
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.build import lookup
from atc_py.target import Target

__all__ = ["MOST", "fuse"]

TRIES = 6
"""How often a group is grown anew without a node that kept it from fitting."""
TOLD = 4
"""Refusals of one group that are told."""


def fuse(graph: Graph, rules: Sequence[Rule], target: Target, hint: Mapping[str, int] | None = None) -> Result:
    """Apply the rules to one graph, weighed at the sizes that `hint` gives its symbols.

    Tasks that are there already stay, and tell again what they were told.
    """
    places = Places(graph, graph.order())
    forms = Forms(graph)
    grower = Grower(graph, target, places, forms, Pricer(graph, target, hint, forms))
    engine = _Engine(grower, Fitting(graph, target, forms))
    for rule in rules:
        roles = Roles(rule)
        for anchor in reversed(engine.anchors(rule)):
            engine.apply(roles, anchor)
    return commit(engine.groups(), {rule.name for rule in rules})


@dataclass
class _Engine:
    """The groups of one graph."""

    grower: Grower
    fitting: Fitting
    alone: list[Refusal] = field(default_factory=list)
    """What was refused to nodes that are in no group."""
    found: dict[int, tuple[Rule, Group]] = field(default_factory=dict)
    """By anchor the rule that replaces the group, and the group."""
    ends: dict[tuple[int, int, bool], list[bool]] = field(default_factory=dict)
    """By form, members before and whether it would go on: who of those that joined a chain of products stays."""

    def __post_init__(self) -> None:
        grower = self.grower
        self.graph, self.target, self.places = grower.graph, grower.target, grower.places
        self.pricer = grower.pricer
        self.by_op: dict[str, list[Node]] = {}
        for unit in self.places.slots:
            if isinstance(unit, Node):
                self.by_op.setdefault(unit.op, []).append(unit)

    def anchors(self, rule: Rule) -> list[Node]:
        """The nodes and groups from which a rule may grow one, in order."""
        at, group_of, heads = self.places.at, self.places.group_of, list[Node]()
        for name, nodes in self.by_op.items():
            if rule.anchors(lookup(name, nodes[0].attrs)) if callable(rule.anchors) else name in rule.anchors:
                heads += [n for n in nodes if n.id not in group_of or group_of[n.id].anchor is n]
        return sorted(heads, key=lambda n: at[n.id])

    def apply(self, roles: Roles, anchor: Node) -> None:
        """Let one rule grow a group from one anchor, and keep it if it fits and saves time."""
        rule, base = roles.rule, self.places.group_of.get(anchor.id)
        if base is not None and (base.anchor is not anchor or not rule.growing or self._replaced(base)):
            return
        if rule.least == 1 and (reason := self.grower.admitted(rule, anchor)) is not None:
            self.alone.append(reason)
            return
        if rule.least > 1 and not self.grower.anybody(roles, anchor, base):
            return
        banned: dict[int, Refusal] = {}
        for _ in range(TRIES):
            growth = self.grower.grow(roles, anchor, base, banned)
            if rule.weighed:
                self._stop_at_best(growth)
            if not self._misfit(growth):
                self._keep(growth, base)
                return
        cut = self._cut(self.grower.grow(roles, anchor, base, banned))
        if cut is not None:
            self._keep(cut, base)

    def _replaced(self, group: Group) -> bool:
        return self.found[group.anchor.id][0].replacement is not None

    # -- where a chain of products ends -----------------------------------------------------------------------------

    def _stop_at_best(self, growth: Growth) -> None:
        """Let the growth end with the product with which most is saved, also by a chain of those that are left over.

        One that is left of a chain that goes on is taken to save as much as those of the others that are left.
        """
        if not growth.joined:
            return
        endless = any(r.constraint == "depth" for r in growth.refusals)
        key = (growth.form().number, growth.start, endless)
        stays = self.ends.get(key)
        if stays is None:  # of groups that have grown alike, the same ones stay
            kept = {n.id for n in self._best(growth, endless)}
            stays = self.ends[key] = [n.id in kept for n in growth.joined]
        growth.keep(list(compress(growth.joined, stays)))

    def _best(self, growth: Growth, endless: bool) -> list[Node]:
        joined, uses_cube = growth.joined, self.pricer.uses_cube
        whole = self._needed(growth, len(joined))
        found: list[tuple[float, int, list[Node], list[Node]]] = []
        for count in [i for i, node in enumerate(joined, 1) if uses_cube(node)]:
            kept = self._needed(growth, count)
            saved = self._saved(growth.form_of(kept))
            if saved is not None:
                found.append((saved, -count, kept, [n for n in whole if n not in kept]))
        if not found:
            return whole
        rests = [(sum(map(uses_cube, rest)), rest) for _, _, _, rest in found]
        gains = [self._saved_by(rest) if number > 1 else 0.0 for number, rest in rests]
        rate = max(gain / max(number, 1) for gain, (number, _) in zip(gains, rests)) if endless else 0.0
        totals = [f[0] + (rate if n == 1 else gain) for f, gain, (n, _) in zip(found, gains, rests)]
        best = max(range(len(found)), key=lambda i: (totals[i], found[i][1]))
        return found[best][2]

    def _saved(self, form: Form) -> float | None:
        """Microseconds that a group saves as one task; None: it has no tile."""
        tile = self.fitting.fit_form(form)
        if isinstance(tile, Misfit):
            return None
        price = self.pricer.price(form, tile)
        return price.separate - price.fused

    def _saved_by(self, nodes: Sequence[Node]) -> float:
        """Microseconds that the nodes would save as a chain of their own; none where they are no chain."""
        form = self.grower.forms.of(self.places.ordered(nodes)).form()
        return max(0.0, self._saved(form) or 0.0) if self.pricer.chained(form) else 0.0

    def _needed(self, growth: Growth, count: int) -> list[Node]:
        """Of the first `count` that joined all but what has only come to bring a product along that then did not.

        Nobody without a product.
        """
        uses_cube, joined = self.pricer.uses_cube, growth.joined[:count]
        if not any(map(uses_cube, joined)):
            return []
        others = [n for n in joined if not uses_cube(n)]
        inside = set(list(growth.group.members)[: growth.start + count])
        if all(self._reads(n, inside) for n in others):
            return joined
        for node in self.places.ordered(others):
            if not self._reads(node, inside):
                inside.remove(node.id)
        return [n for n in joined if n.id in inside]

    def _reads(self, node: Node, inside: set[int]) -> bool:
        """Whether the node reads what one of the others makes."""
        values = self.graph.values
        return any(v != ABSENT and values[v].producer in inside for v in node.inputs)

    # -- tiles and profit -------------------------------------------------------------------------------------------

    def _misfit(self, growth: Growth) -> bool:
        """Whether the group has no tile; the node that is to blame is then banned from it."""
        if not growth.joined:
            return False
        found = self.fitting.fit_form(growth.form())
        if not isinstance(found, Misfit):
            growth.group.fit = found
            return False
        number, found = self._culprit(growth, found)
        node = growth.joined[number]
        why = (found.constraint, found.reason)
        growth.banned[node.id] = refused(self.graph, growth.group, growth.rule, node, why)
        return True

    def _culprit(self, growth: Growth, found: Misfit) -> tuple[int, Misfit]:
        """The number of the first node with which the group fits no more, and why."""
        low, high = 0, len(growth.joined)  # it fits with `low` nodes joined (or is what it was), not with `high`
        while high - low > 1:
            half = (low + high) // 2
            trial = self.fitting.fit_form(growth.form(half))
            if isinstance(trial, Misfit):
                high, found = half, trial
            else:
                low = half
        return high - 1, found

    def _cut(self, growth: Growth) -> Growth | None:
        """The group with the nodes that fit, when too many were to blame to grow it without them."""
        found = self.fitting.fit_form(growth.form())
        if not isinstance(found, Misfit):
            growth.group.fit = found
            return growth
        number, _ = self._culprit(growth, found)
        growth.keep(growth.joined[:number])
        return growth if not self._misfit(growth) else None

    def _keep(self, growth: Growth, base: Group | None) -> None:
        """Make the group a unit, or note why not."""
        rule, told = growth.rule, growth.refusals[:TOLD]
        if len(growth.group.members) < rule.least or (rule.least > 1 and not growth.joined):
            self._tell(base, told)
            return
        form, group = growth.form(), growth.group
        nodes = form.nodes
        price = self.pricer.price(form, group.fit)
        match = Match(self.graph, self.target, group.anchor, tuple(nodes), price, group.fit)
        profit = rule.profit(match)
        if profit <= 0:
            names, fused = " ─ ".join(named(self.graph, n) for n in nodes), price.separate - profit
            reason = f"{names} takes {price.separate:.1f} us in {len(nodes)} tasks, as one {fused:.1f} us"
            self._tell(base, [Refusal(group.anchor, rule.name, "profit", reason, tuple(group.members))])
            return
        before = 0.0 if base is None or base.price is None else base.price.separate - base.price.fused
        if rule.profit is saved_us and profit <= before:
            more = " ─ ".join(named(self.graph, n) for n in growth.joined)
            reason = f"with {more} the task saves {profit:.1f} us, without {before:.1f} us"
            self._tell(base, [Refusal(group.anchor, rule.name, "profit", reason, tuple(group.members))])
            return
        if not self.places.merge(group):
            reason = "a path leaves the task and comes back"
            self._tell(base, [Refusal(group.anchor, rule.name, "convex", reason, tuple(group.members))])
            return
        group.rules = (*group.rules, rule.name)
        group.price = price
        group.notes = [*group.notes, *told]
        first = self.found.get(group.anchor.id, (rule, group))[0]
        self.found[group.anchor.id] = (first, group)

    def _tell(self, base: Group | None, refusals: Sequence[Refusal]) -> None:
        if base is None:
            self.alone.extend(refusals)
        else:
            base.notes.extend(refusals)

    def groups(self) -> Groups:
        """What has been found, for `commit`."""
        return Groups(self.graph, self.target, self.places, self.pricer, self.found, self.alone)
