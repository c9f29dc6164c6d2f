"""Where each unit (a node, or a group that stands for one task) comes in a topological order that is kept current.

    slots     0 x·a   1 Relu   2 MatMul q   3 Cos   4 MatMul k        {q, k} shall be one task

    between q and k nothing depends on q       slots  0 x·a   1 Relu   2 Cos   3 {q, k}

A set of units may become one when no path leaves it and comes back: the set is convex. Only units between its first and
its last place can lie on such a path, so a check looks at no others. Merging puts those that depend on the set behind
it and the others before it, which keeps the order topological, also of groups with several results.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from atc_py.fusion.rule import Group
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node, Value
from atc_py.ir.symbols import node_symbols

REACH = 512
"""Places that may lie between the first and the last member of a group."""


class Places:
    """The order of a graph's units; structural nodes have no place."""

    def __init__(self, graph: Graph, order: Sequence[Node]) -> None:
        self.graph = graph
        self.slots: list[Node | Group | None] = [n for n in order if n.op not in STRUCTURAL]
        self.at: dict[int, int] = {n.id: i for i, n in enumerate(self.slots) if isinstance(n, Node)}
        self.rank = dict(self.at)
        """Where each node stood at first: members of a group are run in this order."""
        self.group_of: dict[int, Group] = {}
        self.sizes_from = _sizes_from(graph, order)

    def ordered(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes in the order in which they stood at first: a task runs them so."""
        return sorted(nodes, key=lambda n: self.rank[n.id])

    def producer_of(self, value: int) -> int:
        """The id of the node with a place that makes the value, else -1."""
        if value == ABSENT:
            return -1
        made = self.graph.values[value].producer
        return made if made in self.at else -1

    def taint(self, members: dict[int, Node], found: set[int], first: int, last: int) -> None:
        """Add to `found` the nodes outside that depend on members or on `found`, with places from `first` to `last`."""
        values = self.graph.values
        for unit in self.slots[first : last + 1]:
            if unit is None:
                continue
            nodes = (unit,) if isinstance(unit, Node) else tuple(unit.members.values())
            if nodes[0].id in members:
                continue
            for node in nodes:
                if _reads(node, values, members, found) or any(
                    m in members or m in found for m in self.sizes_from.get(node.id, ())
                ):
                    found.update([n.id for n in nodes])
                    break

    def tainted(self, members: dict[int, Node], first: int, last: int) -> set[int]:
        """The nodes outside that depend on members, as far as they have places from `first` to `last`."""
        found: set[int] = set()
        self.taint(members, found, first, last)
        return found

    def reads(self, nodes: Iterable[Node], made: Container[int]) -> int | None:
        """The first of the nodes in `made` of which one of `nodes` reads a result; None: there is none."""
        values = self.graph.values
        for node in nodes:
            for v in node.inputs:
                if v != ABSENT and values[v].producer in made:
                    return values[v].producer
        return None

    def merge(self, group: Group) -> bool:
        """Give the group one place; False, and nothing changes, when it is not convex or reaches too far."""
        members = group.members
        places = [self.at[m] for m in members]
        first, last = min(places), max(places)
        if last - first > REACH:
            return False
        tainted = self.tainted(members, first, last)
        if tainted and self.reads(members.values(), tainted) is not None:
            return False
        before: list[Node | Group] = []
        after: list[Node | Group] = []
        for slot in range(first, last + 1):
            unit = self.slots[slot]
            if unit is None:
                continue
            head = unit if isinstance(unit, Node) else unit.anchor
            if head.id not in members:
                (after if head.id in tainted else before).append(unit)
        self._fill(first, last, [*before, group, *after])
        return True

    def _fill(self, first: int, last: int, units: Iterable[Node | Group]) -> None:
        slot = first
        for unit in units:
            self.slots[slot] = unit
            if isinstance(unit, Node):
                self.at[unit.id] = slot
            else:
                for member in unit.members:
                    self.at[member], self.group_of[member] = slot, unit
            slot += 1
        for empty in range(slot, last + 1):
            self.slots[empty] = None


def _sizes_from(graph: Graph, order: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """By node, those that find out a size at run time which the node speaks of: they come first, read or not."""
    runtime = {name for name, r in graph.symbols.items() if r.runtime}
    found: dict[int, tuple[int, ...]] = {}
    if not runtime:
        return found
    binder: dict[str, int] = {}
    for node in order:
        if node.op in STRUCTURAL:
            continue
        constants = [graph.producer(v) for v in node.inputs if graph.const(v) is not None]
        spoken = [s for n in (node, *constants) for s in node_symbols(graph, n) if s in runtime]
        needs = dict.fromkeys(m for s in spoken if (m := binder.setdefault(s, node.id)) != node.id)
        if needs:
            found[node.id] = tuple(needs)
    return found


def _reads(node: Node, values: Mapping[int, Value], members: Container[int], found: Container[int]) -> bool:
    """Whether the node reads what one of the others makes."""
    for v in node.inputs:
        if v != ABSENT:
            made = values[v].producer
            if made in members or made in found:
                return True
    return False
