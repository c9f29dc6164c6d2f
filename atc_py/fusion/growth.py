"""How a rule makes one group grow: who is waiting to be looked at, who may join, and what was refused.

    conv ─▶ add(conv, r) ─▶ relu ─▶ y

    {conv}            waits: add, a follower                               joins
    {conv, add}       wait: relu, a follower; r's maker, a producer        relu joins, and the producer is refused

Followers and siblings are looked at in order, and when none is left producers from the last one back. Who joins brings
its neighbours along, so that the work is proportional to the edges of those that have joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from atc_py.fusion.forms import Form, Forms, Outline
from atc_py.fusion.places import REACH, Places
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.rule import ANCHOR, FOLLOWER, PRODUCER, SIBLING, Group, Join, Refusal, Rule, exits, named, nobody
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.target import Target

MOST = 128
"""Operators of one task: what a core's instruction cache holds of a tile program."""


class Kind:
    """The operators that a rule knows in one role; each is asked for once."""

    def __init__(self, test: Callable[[Op], bool]) -> None:
        self.test, self.nobody = test, test is nobody
        self._known: dict[str, bool] = {}

    def has(self, node: Node) -> bool:
        """Whether the node's operator is one of them."""
        found = self._known.get(node.op)
        if found is None:
            found = self._known[node.op] = bool(self.test(lookup(node.op, node.attrs)))
        return found


class Roles:
    """A rule, and whom it knows in which role."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.followers, self.producers = Kind(rule.followers), Kind(rule.producers)
        self.siblings = Kind(rule.siblings)


Waiting = list[tuple[int, int, int, str]]
"""Who waits, as a heap: (its place or, to come last first, minus that; the node; the connecting value; the role)."""


@dataclass(slots=True)
class Growth:
    """A group while a rule makes it grow; until something joins, `group` is the one that was there before.

    `start` is how many members it had then, `first` the place of its first one. `banned` were found not to fit;
    `before` are members on which the anchor depends.
    """

    forms: Forms
    rank: Mapping[int, int]
    roles: Roles
    group: Group
    start: int
    first: int
    banned: dict[int, Refusal]
    outline: Outline | None = None
    later: Waiting = field(default_factory=list)
    earlier: Waiting = field(default_factory=list)
    seen: set[tuple[int, str]] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    joined: list[Node] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    tainted: set[int] | None = None
    scanned: int = -1

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.roles.rule

    def own(self) -> Outline:
        """The outline; from now on the growth has a group of its own."""
        if self.outline is None:
            base = self.group.outline
            self.outline = self._of(self.group.members.values()) if base is None else base.copy()
            self.group = self.group.grown(self.outline)
        return self.outline

    def form(self, joined: int | None = None) -> Form:
        """The form of the group, or of what it was when so many nodes had joined."""
        return self.own().form(None if joined is None else self.start + joined)

    def form_of(self, joined: list[Node]) -> Form:
        """The form of the group if only these had joined, in this order."""
        if joined == self.joined[: len(joined)]:
            return self.form(len(joined))
        return self._of([*self._old(), *joined]).form()

    def keep(self, joined: list[Node]) -> None:
        """Let only these have joined, in this order."""
        outline = self.own()
        if joined == self.joined[: len(joined)]:
            while len(outline.members) > self.start + len(joined):
                outline.leave()
        else:
            outline = self._of([*self._old(), *joined])
        self.outline = self.group.outline = outline
        self.group.members, self.joined = outline.members, joined

    def _old(self) -> list[Node]:
        return list(self.group.members.values())[: self.start]

    def _of(self, nodes: Iterable[Node]) -> Outline:
        return self.forms.of(list(nodes), self.rank)


@dataclass
class Grower:
    """Makes the groups of one graph grow, and checks what every rule obeys."""

    graph: Graph
    target: Target
    places: Places
    forms: Forms
    pricer: Pricer

    def grow(self, roles: Roles, anchor: Node, base: Group | None, banned: dict[int, Refusal]) -> Growth:
        """The group from an anchor, or the larger one from a group, that the rule allows."""
        group = Group(anchor, {anchor.id: anchor}) if base is None else base
        start, first = len(group.members), self.places.at[anchor.id]
        growth = Growth(self.forms, self.places.rank, roles, group, start, first, banned)
        if base is not None and roles.rule.producers is not nobody:
            growth.before = self._before(base)
        self._wait_at_first(growth)
        while growth.later or growth.earlier:
            _, number, value, role = heappop(growth.later or growth.earlier)
            if number in growth.group.members:
                continue
            alone = base is None and not growth.joined
            if alone and (reason := self.admitted(growth.rule, anchor)) is not None:
                growth.refusals.append(reason)
                break
            node = self.graph.nodes[number]
            refusal = self._refused(growth, node, value, role)
            if refusal is None:
                self._join(growth, node, role)
            elif refusal.reason:
                growth.refusals.append(refusal)
        return growth

    def _before(self, group: Group) -> set[int]:
        """The members on which the group's anchor depends."""
        values, found, waiting = self.graph.values, set[int](), [group.anchor]
        while waiting:
            for v in waiting.pop().inputs:
                made = ABSENT if v == ABSENT else values[v].producer
                if made in group.members and made not in found:
                    found.add(made)
                    waiting.append(group.members[made])
        return found

    def admitted(self, rule: Rule, anchor: Node) -> Refusal | None:
        """Why no group may begin with the anchor."""
        if not rule.admits:
            return None
        op = lookup(anchor.op, anchor.attrs)
        group = Group(anchor, {anchor.id: anchor})
        join = Join(self.graph, self.target, group, anchor, op, anchor.outputs[0], ANCHOR)
        for constraint in rule.admits:
            why = constraint.refused(join)
            if why is not None:
                return refused(self.graph, group, rule, anchor, why)
        return None

    # -- who waits --------------------------------------------------------------------------------------------------

    def anybody(self, roles: Roles, anchor: Node, base: Group | None) -> bool:
        """Whether anybody waits at first."""
        values = self.graph.values
        if base is None or base.outline is None:
            made, read = anchor.outputs, anchor.inputs
        else:
            made, read = base.outline.border()
        if not roles.followers.nobody:
            for v in made:
                for number, _ in values[v].uses:
                    if self._comes(number, roles.followers):
                        return True
        if not roles.producers.nobody:
            for v in read:
                if v != ABSENT and self._comes(values[v].producer, roles.producers):
                    return True
        if not roles.siblings.nobody and anchor.inputs and anchor.inputs[0] != ABSENT:
            for number, _ in values[anchor.inputs[0]].uses:
                if number != anchor.id and self._comes(number, roles.siblings):
                    return True
        return False

    def _comes(self, number: int, kind: Kind) -> bool:
        """Whether a node is of the kind and in no group."""
        if number not in self.places.rank or number in self.places.group_of:
            return False
        node = self.graph.nodes[number]
        return node.op != "Fused" and kind.has(node)

    def _wait_at_first(self, growth: Growth) -> None:
        """The neighbours of the group as it is; of a group, those at its border."""
        anchor, outline = growth.group.anchor, growth.group.outline
        if outline is None:
            self._wait_around(growth, anchor.outputs, anchor.inputs)
        else:
            self._wait_around(growth, *outline.border())
        siblings = growth.roles.siblings
        if siblings.nobody:  # a value may have thousands of readers, each an anchor: they are not gone through
            return
        if anchor.inputs and anchor.inputs[0] != ABSENT:
            value = anchor.inputs[0]
            for number, _ in self.graph.values[value].uses:
                self._wait(growth, growth.later, number, value, SIBLING, siblings)

    def _wait_around(self, growth: Growth, made: Iterable[int], read: Iterable[int]) -> None:
        """Who reads one of the values that are made, or makes one that is read."""
        values, members = self.graph.values, growth.group.members
        followers, producers = growth.roles.followers, growth.roles.producers
        if not followers.nobody:
            for value in made:
                for number, _ in values[value].uses:
                    if number not in members:
                        self._wait(growth, growth.later, number, value, FOLLOWER, followers)
        if not producers.nobody:
            for value in read:
                if value != ABSENT and (number := values[value].producer) not in members:
                    self._wait(growth, growth.earlier, number, value, PRODUCER, producers)

    def _wait(self, growth: Growth, queue: Waiting, number: int, value: int, role: str, kind: Kind) -> None:
        """Put a node on the list that is of the kind and in no group."""
        rank = self.places.rank.get(number)
        if rank is None or number in self.places.group_of or (number, role) in growth.seen:
            return
        growth.seen.add((number, role))
        node = self.graph.nodes[number]
        if node.op != "Fused" and number not in growth.group.members and kind.has(node):
            heappush(queue, (-rank if role == PRODUCER else rank, number, value, role))

    def _join(self, growth: Growth, node: Node, role: str) -> None:
        growth.own().join(node)
        growth.joined.append(node)
        place = self.places.at[node.id]
        if role != FOLLOWER or place < growth.scanned:
            growth.tainted = None
        growth.first = min(growth.first, place)
        self._wait_around(growth, node.outputs, node.inputs)

    # -- what every rule obeys --------------------------------------------------------------------------------------

    def _refused(self, growth: Growth, node: Node, value: int, role: str) -> Refusal | None:
        """Why a node of the right kind may not join; None: it may."""
        rule, group = growth.rule, growth.group
        if node.id in growth.banned:
            return growth.banned[node.id]
        if len(group.members) >= MOST:
            return refused(self.graph, group, rule, node, ("size", f"the task has {MOST} operators"))
        join = Join(self.graph, self.target, group, node, lookup(node.op, node.attrs), value, role)
        for constraint in rule.constraints:
            found = constraint.check(join)
            if found is not None:
                told = constraint.told(found)
                silent = Refusal(group.anchor, rule.name, told[0], "")
                return refused(self.graph, group, rule, node, told) if told[1] else silent
        why = self._path(growth, node, role)
        if why is not None:
            return refused(self.graph, group, rule, node, ("convex", why))
        why = self._loses(growth, node) if rule.weighed else None
        if why is not None:
            return refused(self.graph, group, rule, node, ("profit", why))
        why = self._serialised(growth, node, role)
        if why is not None:
            return refused(self.graph, group, rule, node, ("critical path", why))
        return None

    def _path(self, growth: Growth, node: Node, role: str) -> str | None:
        """Why the group would not be convex with the node."""
        if role != FOLLOWER:
            return self._path_from(growth, node, role)
        places, members, values = self.places, growth.group.members, self.graph.values
        late = []
        for v in node.inputs:
            if v != ABSENT:
                made = values[v].producer
                if made not in members and places.at.get(made, -1) > growth.first:
                    late.append(made)
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

    def _path_from(self, growth: Growth, node: Node, role: str) -> str | None:
        members, places = growth.group.members, self.places
        if role == PRODUCER and not exits(self.graph, [node], members):
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

    def _loses(self, growth: Growth, node: Node) -> str | None:
        """Why a product does not pay in the task."""
        price = self.pricer
        if not price.uses_cube(node):
            return None
        apart = price.joined_us(growth.form()) + price.alone_us(node)
        joined = price.joined_us(growth.own().with_(node))
        return None if joined < apart else f"in two tasks the work takes {apart:.1f} us, in one {joined:.1f} us"

    def _serialised(self, growth: Growth, node: Node, role: str) -> str | None:
        """Why two branches that could run beside each other on different units should not share a task."""
        anchor, price = growth.group.anchor, self.pricer
        if role == FOLLOWER or not price.uses_cube(anchor):
            return None
        if role == PRODUCER:
            for v in node.outputs:
                for u, _ in self.graph.values[v].uses:
                    if u == anchor.id or u in growth.before:
                        growth.before.add(node.id)
                        return None
        if role == SIBLING and price.uses_cube(node):
            return None
        one, other = price.together_us(growth.form()), price.alone_us(node)
        both = price.together_us(growth.own().with_(node))
        beside = max(one, other) + self.target.rates.task_us
        if both <= beside:
            return None
        return f"as one task the two branches take {both:.1f} us, beside each other {beside:.1f} us"


def refused(graph: Graph, group: Group, rule: Rule, node: Node, why: tuple[str, str]) -> Refusal:
    """Why `node` does not join the group: (name of the constraint, reason)."""
    text = f"{named(graph, node)} is not fused: {why[1]}"
    return Refusal(group.anchor, rule.name, why[0], text, (node.id,))
