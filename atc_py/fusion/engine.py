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
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from atc_py.fusion.commit import Groups, commit
from atc_py.fusion.fitting import Fitting
from atc_py.fusion.places import REACH, Places
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.rule import (
    ANCHOR,
    FOLLOWER,
    PRODUCER,
    SIBLING,
    Group,
    Join,
    Match,
    Refusal,
    Result,
    Rule,
    named,
    nobody,
)
from atc_py.fusion.tiles import Misfit
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.target import Target

TRIES = 6
"""How often a group is grown anew without a node that kept it from fitting."""
TOLD = 4
"""Refusals of one group that are told."""
MOST = 128
"""Operators of one task: what a core's instruction cache holds of a tile program."""


def fuse(graph: Graph, rules: Sequence[Rule], target: Target, hint: Mapping[str, int] | None = None) -> Result:
    """Apply the rules to one graph, weighed at the sizes that `hint` gives its symbols.

    Tasks that are there already stay, and tell again what they were told.
    """
    order = graph.order()
    engine = _Engine(graph, target, Places(graph, order), Pricer(graph, target, hint), Fitting(graph, target))
    for rule in rules:
        for anchor in reversed(engine.anchors(rule)):
            engine.apply(rule, anchor)
    return commit(engine.groups(), {rule.name for rule in rules})


@dataclass
class _Growth:
    """A group while a rule makes it grow: who is waiting to be looked at, and what was refused."""

    rule: Rule
    group: Group
    start: int
    banned: dict[int, Refusal]
    later: list[tuple[int, int, int, str]] = field(default_factory=list)
    earlier: list[tuple[int, int, int, str]] = field(default_factory=list)
    seen: set[tuple[int, str]] = field(default_factory=set)
    joined: list[Node] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    first: int = 0
    tainted: set[int] | None = None
    scanned: int = -1


@dataclass
class _Engine:
    """The groups of one graph."""

    graph: Graph
    target: Target
    places: Places
    pricer: Pricer
    fitting: Fitting
    alone: list[Refusal] = field(default_factory=list)
    """What was refused to nodes that are in no group."""
    found: dict[int, tuple[Rule, Group]] = field(default_factory=dict)
    """By anchor the rule that replaces the group, and the group."""

    def anchors(self, rule: Rule) -> list[Node]:
        """The nodes and groups from which a rule may grow one, in order."""
        heads = [u if isinstance(u, Node) else u.anchor for u in self.places.slots if u is not None]
        names = rule.anchors
        if callable(names):
            kinds = {n.op: n for n in heads}
            names = frozenset(name for name, n in kinds.items() if names(lookup(name, n.attrs)))
        return [n for n in heads if n.op in names]

    def apply(self, rule: Rule, anchor: Node) -> None:
        """Let one rule grow a group from one anchor, and keep it if it fits and saves time."""
        base = self.places.group_of.get(anchor.id)
        if base is not None and (base.anchor is not anchor or not rule.growing or self._replaced(base)):
            return
        if rule.least == 1 and (reason := self._admitted(rule, anchor)) is not None:
            self.alone.append(reason)
            return
        banned: dict[int, Refusal] = {}
        for _ in range(TRIES):
            growth = self._grow(rule, anchor, base, banned)
            if rule.weighed:
                growth = self._best(growth)
            if not self._misfit(growth):
                self._keep(growth, base)
                return
        cut = self._cut(self._grow(rule, anchor, base, banned))
        if cut is not None:
            self._keep(cut, base)

    def _admitted(self, rule: Rule, anchor: Node) -> Refusal | None:
        """Why no group may begin with the anchor."""
        if not rule.admits:
            return None
        op = lookup(anchor.op, anchor.attrs)
        group = Group(anchor, {anchor.id: anchor})
        join = Join(self.graph, self.target, group, anchor, op, anchor.outputs[0], ANCHOR)
        for constraint in rule.admits:
            why = constraint.refused(join)
            if why is not None:
                return _refusal(self.graph, group, rule, anchor, why)
        return None

    def _replaced(self, group: Group) -> bool:
        return self.found[group.anchor.id][0].replacement is not None

    # -- growing --------------------------------------------------------------------------------------------------

    def _grow(self, rule: Rule, anchor: Node, base: Group | None, banned: dict[int, Refusal]) -> _Growth:
        members = {anchor.id: anchor} if base is None else dict(base.members)
        group = Group(anchor, members) if base is None else replace(base, members=members)
        growth = _Growth(rule, group, len(members), banned)
        growth.first = min(self.places.at[m] for m in members)
        for member in list(members.values()):
            self._look_around(growth, member)
        while growth.later or growth.earlier:
            queue = growth.later or growth.earlier
            _, number, value, role = heappop(queue)
            node = self.graph.nodes[number]
            if number in members:
                continue
            if base is None and len(members) == 1 and (reason := self._admitted(rule, anchor)) is not None:
                growth.refusals.append(reason)
                break
            refusal = self._refused(growth, node, value, role)
            if refusal is not None:
                growth.refusals += [refusal] if refusal.reason else []
                continue
            self._join(growth, node, role)
        return growth

    def _look_around(self, growth: _Growth, member: Node) -> None:
        """Put the neighbours of a member that are of a kind to join on the list."""
        graph, rule = self.graph, growth.rule
        for value in member.outputs if rule.followers is not nobody else ():
            for number, _ in graph.values[value].uses:
                self._wait(growth, growth.later, number, value, FOLLOWER, rule.followers, 1)
        for value in dict.fromkeys(member.inputs):
            if value == ABSENT or graph.values[value].producer not in self.places.at:
                continue
            self._wait(growth, growth.earlier, graph.values[value].producer, value, PRODUCER, rule.producers, -1)
        if rule.siblings is nobody:  # a value may have thousands of readers, each an anchor: they are not gone through
            return
        if member is growth.group.anchor and member.inputs and member.inputs[0] != ABSENT:
            value = member.inputs[0]
            for number, _ in graph.values[value].uses:
                self._wait(growth, growth.later, number, value, SIBLING, rule.siblings, 1)

    def _wait(
        self, growth: _Growth, queue: list[tuple[int, int, int, str]], number: int, value: int, role: str,
        wanted: object, sign: int,
    ) -> None:  # fmt: skip
        rank = self.places.rank.get(number)
        if rank is None or (number, role) in growth.seen or number in growth.group.members:
            return
        node = self.graph.nodes[number]
        if number in self.places.group_of or node.op == "Fused":
            return
        growth.seen.add((number, role))
        if callable(wanted) and wanted(lookup(node.op, node.attrs)):
            heappush(queue, (sign * rank, number, value, role))

    def _refused(self, growth: _Growth, node: Node, value: int, role: str) -> Refusal | None:
        """Why a node of the right kind may not join; None: it may."""
        rule, group = growth.rule, growth.group
        if node.id in growth.banned:
            return growth.banned[node.id]
        op: Op = lookup(node.op, node.attrs)
        join = Join(self.graph, self.target, group, node, op, value, role)
        if len(group.members) >= MOST:
            return _refusal(self.graph, group, rule, node, ("size", f"the task has {MOST} operators"))
        for constraint in rule.constraints:
            told = constraint.refused(join)
            if told is not None:
                silent = Refusal(group.anchor, rule.name, told[0], "")
                return _refusal(self.graph, group, rule, node, told) if told[1] else silent
        why = self._path(growth, node, role)
        if why is not None:
            return _refusal(self.graph, group, rule, node, ("convex", why))
        why = self._loses(growth, node) if rule.weighed else None
        if why is not None:
            return _refusal(self.graph, group, rule, node, ("profit", why))
        why = self._serialised(growth, node, role)
        if why is not None:
            return _refusal(self.graph, group, rule, node, ("critical path", why))
        return None

    def _join(self, growth: _Growth, node: Node, role: str) -> None:
        growth.group.members[node.id] = node
        growth.joined.append(node)
        place = self.places.at[node.id]
        if role != FOLLOWER or place < growth.scanned:
            growth.tainted = None
        growth.first = min(growth.first, place)
        self._look_around(growth, node)

    def _best(self, growth: _Growth) -> _Growth:
        """The growth, stopped after the product with which it saves most."""
        found: list[tuple[float, int, _Growth]] = []
        for count, node in enumerate(growth.joined, 1):
            if self.pricer.uses_cube(node):
                trial = replace(growth, group=self._with(growth, count), joined=growth.joined[:count])
                self._trim(trial)
                nodes = self._nodes(trial.group)
                tile = self.fitting.fit(nodes)
                if not isinstance(tile, Misfit):
                    price = self.pricer.price(nodes, tile, len(nodes))
                    found.append((price.separate - price.fused, -count, trial))
        if found:
            return max(found, key=lambda f: f[:2])[2]
        self._trim(growth)
        return growth

    def _trim(self, growth: _Growth) -> None:
        """Give back what has only come to bring a product along that then did not join; nothing without one."""
        uses_cube, members = self.pricer.uses_cube, growth.group.members
        for node in self.places.ordered(growth.joined):
            if not uses_cube(node) and not any(growth.group.made(self.graph, v) for v in node.inputs):
                del members[node.id]
        growth.joined = [n for n in growth.joined if n.id in members]
        if not any(uses_cube(n) for n in growth.joined):
            for node in growth.joined:
                del members[node.id]
            growth.joined = []

    # -- what every rule obeys --------------------------------------------------------------------------------------

    def _path(self, growth: _Growth, node: Node, role: str) -> str | None:
        """Why the group would not be convex with the node."""
        if role != FOLLOWER:
            return self._path_from(growth, node, role)
        places, members = self.places, growth.group.members
        sources = [p for v in node.inputs if (p := places.producer_of(v)) >= 0]
        late = [p for p in sources if p not in members and places.at[p] > growth.first]
        if not late:
            return None
        place = places.at[node.id]
        if place - growth.first > REACH:
            return f"{place - growth.first} tasks lie between the two, more than {REACH}"
        if growth.tainted is None:
            growth.tainted, growth.scanned = set(), growth.first - 1
        if growth.scanned < place:
            places.taint(members, growth.tainted, growth.scanned + 1, place)
            growth.scanned = place
        back = next((p for p in late if p in growth.tainted), None)
        return None if back is None else self._leaves(back)

    def _path_from(self, growth: _Growth, node: Node, role: str) -> str | None:
        members, places = growth.group.members, self.places
        uses = [u for v in node.outputs for u, _ in self.graph.values[v].uses]
        if role == PRODUCER and all(u in members for u in uses):
            return None
        here = [places.at[node.id], *(places.at[m] for m in members)]
        first, last = min(here), max(here)
        both = {**members, node.id: node}
        if not self._reads_late(both, first):
            return None
        if last - first > REACH:
            return f"{last - first} tasks lie between the two, more than {REACH}"
        tainted = places.tainted(both, first, last)
        back = places.reads(both.values(), tainted) if tainted else None
        return None if back is None else self._leaves(back)

    def _reads_late(self, members: dict[int, Node], first: int) -> bool:
        """Whether a member reads a value from outside that is made behind the first one's place."""
        at, values = self.places.at, self.graph.values
        for member in members.values():
            for v in member.inputs:
                if v != ABSENT and (made := values[v].producer) not in members and at.get(made, -1) > first:
                    return True
        return False

    def _leaves(self, back: int) -> str:
        return f"a path leaves the task and comes back through {named(self.graph, self.graph.nodes[back])}"

    def _loses(self, growth: _Growth, node: Node) -> str | None:
        """Why a product does not pay in the task."""
        price = self.pricer
        if not price.uses_cube(node):
            return None
        before = self._nodes(growth.group)
        after = self.places.ordered([*before, node])
        apart = price.joined_us(before) + price.alone_us(node)
        joined = price.joined_us(after)
        return None if joined < apart else f"in two tasks the work takes {apart:.1f} us, in one {joined:.1f} us"

    def _serialised(self, growth: _Growth, node: Node, role: str) -> str | None:
        """Why two branches that could run beside each other on different units should not share a task."""
        if role == FOLLOWER or not self.pricer.uses_cube(growth.group.anchor):
            return None
        members = growth.group.members
        uses = [u for v in node.outputs for u, _ in self.graph.values[v].uses]
        if role == PRODUCER and any(u == growth.group.anchor.id or u in _before(growth) for u in uses):
            growth.seen.add((node.id, "before"))
            return None
        price = self.pricer
        if role == SIBLING and price.uses_cube(node):
            return None
        one, other = price.together_us(self._nodes(growth.group)), price.alone_us(node)
        both = price.together_us(self.places.ordered([*members.values(), node]))
        beside = max(one, other) + self.target.rates.task_us
        if both <= beside:
            return None
        return f"as one task the two branches take {both:.1f} us, beside each other {beside:.1f} us"

    # -- tiles and profit -------------------------------------------------------------------------------------------

    def _nodes(self, group: Group) -> list[Node]:
        return self.places.ordered(group.members.values())

    def _misfit(self, growth: _Growth) -> bool:
        """Whether the group has no tile; the node that is to blame is then banned from it."""
        if not growth.joined:
            return False
        found = self.fitting.fit(self._nodes(growth.group))
        if not isinstance(found, Misfit):
            growth.group.fit = found
            return False
        number, found = self._culprit(growth, found)
        node = growth.joined[number]
        why = (found.constraint, found.reason)
        growth.banned[node.id] = _refusal(self.graph, growth.group, growth.rule, node, why)
        return True

    def _culprit(self, growth: _Growth, found: Misfit) -> tuple[int, Misfit]:
        """The number of the first node with which the group fits no more, and why."""
        low, high = 0, len(growth.joined)  # it fits with `low` nodes joined (or is what it was), not with `high`
        while high - low > 1:
            half = (low + high) // 2
            members = self._with(growth, half)
            trial = self.fitting.fit(self._nodes(members))
            if isinstance(trial, Misfit):
                high, found = half, trial
            else:
                low = half
        return high - 1, found

    def _with(self, growth: _Growth, count: int) -> Group:
        """The group as it was when `count` nodes had joined."""
        kept = dict(list(growth.group.members.items())[: growth.start + count])
        return replace(growth.group, members=kept)

    def _cut(self, growth: _Growth) -> _Growth | None:
        """The group with the nodes that fit, when too many were to blame to grow it without them."""
        found = self.fitting.fit(self._nodes(growth.group))
        if not isinstance(found, Misfit):
            growth.group.fit = found
            return growth
        number, _ = self._culprit(growth, found)
        growth.group, growth.joined = self._with(growth, number), growth.joined[:number]
        return growth if not self._misfit(growth) else None

    def _keep(self, growth: _Growth, base: Group | None) -> None:
        """Make the group a unit, or note why not."""
        rule, group = growth.rule, growth.group
        told = growth.refusals[:TOLD]
        if len(group.members) < rule.least or (rule.least > 1 and not growth.joined):
            self._tell(base, told)
            return
        nodes = self._nodes(group)
        price = self.pricer.price(nodes, group.fit, len(nodes))
        match = Match(self.graph, self.target, group.anchor, tuple(nodes), price, group.fit)
        profit = rule.profit(match)
        if profit <= 0:
            names, fused = " ─ ".join(named(self.graph, n) for n in nodes), price.separate - profit
            reason = f"{names} takes {price.separate:.1f} us in {len(nodes)} tasks, as one {fused:.1f} us"
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


def _refusal(graph: Graph, group: Group, rule: Rule, node: Node, why: tuple[str, str]) -> Refusal:
    """Why `node` does not join the group: (name of the constraint, reason)."""
    text = f"{named(graph, node)} is not fused: {why[1]}"
    return Refusal(group.anchor, rule.name, why[0], text, (node.id,))


def _before(growth: _Growth) -> set[int]:
    """Members on which the anchor depends."""
    return {number for number, role in growth.seen if role == "before"}
