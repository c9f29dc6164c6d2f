"""Who works in blocks and who does not: two labels, chosen for the least cost of conversions and padding.

    x (plain) ─ a ─ b ─ Conv (blocks) ─ c ─ y (plain)         free: a, b, c

    a value whose maker and readers do not all agree is converted once: its weight is paid
    a node that works in blocks pays its bias (padding; negative where blocks are a gain)

This is a minimum cut: the labels are the two sides, and "they do not all agree" is a pair of auxiliary nodes, for the
term is submodular (D. Greig, B. Porteous, A. Seheult 1989; V. Kolmogorov, R. Zabih 2004; P. Kohli, P. Torr 2009 for the
auxiliary nodes). Most nodes need no flow: where the values around a node outweigh all that is open, its label is the
same in every cheapest assignment, and is fixed first (persistency). What is left falls into components. In most of them
all nodes work in blocks, and a flow that proves it is found greedily (`_all_blocks`); the others are cut exactly by
augmenting shortest paths (E. Dinic 1970). Beyond `LARGEST` terms, or `STEPS` steps, a component takes the better one of
its two uniform labellings.

Among assignments of one cost, the one with most nodes in blocks is taken; it is unique, so no order of nodes matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

PLAIN, BLOCKS, FREE = 0, 1, -1
LARGEST = 20_000
"""Terms of the largest component that is cut exactly."""
STEPS = 4_000_000
"""Arcs that the cutting of one component may look at."""
INFINITE = 1 << 60


@dataclass
class Labelling:
    """The problem: for each node its label (FREE: to be found) and the bias of BLOCKS, for each value its members.

    Weights and biases are whole numbers of one unit, so that sums are exact.
    """

    labels: list[int] = field(default_factory=list)
    biases: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    members: list[tuple[int, ...]] = field(default_factory=list)

    def node(self, label: int = FREE, bias: int = 0) -> int:
        """A new node; returns its number."""
        self.labels.append(label)
        self.biases.append(bias)
        return len(self.labels) - 1

    def value(self, weight: int, members: Sequence[int]) -> None:
        """A value that its members read or make; converting it costs `weight` (at least 0)."""
        distinct = tuple(dict.fromkeys(members))
        if len(distinct) > 1 and weight:
            self.weights.append(weight)
            self.members.append(distinct)

    def cost(self, labels: Sequence[int]) -> int:
        """What an assignment costs."""
        paid = sum(b for b, x in zip(self.biases, labels, strict=True) if x == BLOCKS)
        terms = zip(self.weights, self.members, strict=True)
        return paid + sum(w for w, m in terms if len({labels[i] for i in m}) > 1)

    def solve(self) -> list[int]:
        """The labels of all nodes."""
        around: list[list[int]] = [[] for _ in self.labels]
        for term, members in enumerate(self.members):
            for node in members:
                around[node].append(term)
        labels = list(self.labels)
        _persistent(self, labels, around)
        for nodes, terms in _components(self, labels, around):
            if _all_blocks(self, labels, nodes, terms, around):
                for node in nodes:
                    labels[node] = BLOCKS
            else:
                _cut(self, labels, nodes, terms)
        return labels


def _persistent(p: Labelling, labels: list[int], around: Sequence[Sequence[int]]) -> None:
    """Fix the nodes whose label is the same in every cheapest assignment that has most nodes in blocks."""
    waiting = deque(i for i, label in enumerate(labels) if label == FREE)
    queued = [label == FREE for label in labels]
    while waiting:
        node = waiting.popleft()
        queued[node] = False
        label = _forced(p, labels, node, around[node])
        if label == FREE:
            continue
        labels[node] = label
        for term in around[node]:
            for other in p.members[term]:
                if labels[other] == FREE and not queued[other]:
                    queued[other] = True
                    waiting.append(other)


def _forced(p: Labelling, labels: Sequence[int], node: int, terms: Sequence[int]) -> int:
    """The label that is cheaper whatever the free neighbours get, or FREE.

    `low` and `high` bound what the node saves when it works in blocks.
    """
    low = high = -p.biases[node]
    for term in terms:
        weight, free = p.weights[term], 0
        plain = blocks = False
        for other in p.members[term]:
            label = labels[other]
            if label == PLAIN:
                plain = True
            elif label == BLOCKS:
                blocks = True
            elif other != node:
                free += 1
        if plain and blocks:
            continue
        if not plain:
            high += weight
            low += weight if blocks and not free else 0
        if not blocks:
            low -= weight
            high -= weight if plain and not free else 0
    if low >= 0:
        return BLOCKS
    return PLAIN if high < 0 else FREE


def _components(
    p: Labelling, labels: Sequence[int], around: Sequence[Sequence[int]]
) -> list[tuple[list[int], list[int]]]:
    """Free nodes that share values, with those of their values whose price is still open."""
    found: list[tuple[list[int], list[int]]] = []
    seen: set[int] = set()
    taken: set[int] = set()
    for start, label in enumerate(labels):
        if label != FREE or start in seen:
            continue
        seen.add(start)
        nodes, terms, stack = [], [], [start]
        while stack:
            node = stack.pop()
            nodes.append(node)
            for term in around[node]:
                known = {labels[i] for i in p.members[term]}
                if term in taken or (PLAIN in known and BLOCKS in known):
                    continue
                taken.add(term)
                terms.append(term)
                fresh = [i for i in p.members[term] if labels[i] == FREE and i not in seen]
                seen.update(fresh)
                stack += fresh
        found.append((nodes, terms))
    return found


def _all_blocks(
    p: Labelling, labels: Sequence[int], nodes: Sequence[int], terms: Sequence[int], around: Sequence[Sequence[int]]
) -> bool:
    """Whether a component is proved to cost least with all nodes in blocks; False where the simple proof fails.

    The proof is a flow that fills every arc into the side of PLAIN: what a node would save in plain, and what a value
    costs that has a plain end, is drawn from values with an end in blocks. It is drawn directly, or through nodes that
    come before in one order or the other; those beside a plain end come last.
    """
    sources = {t for t in terms if any(labels[i] == BLOCKS for i in p.members[t])}
    plain = [t for t in terms if any(labels[i] == PLAIN for i in p.members[t])]
    ends = {i for t in plain for i in p.members[t] if labels[i] == FREE}
    inner = sorted(i for i in nodes if i not in ends)
    orders = ([*inner, *sorted(ends)], [*reversed(inner), *sorted(ends)])
    return any(_flows(p, order, terms, around, sources, plain) for order in orders)


def _flows(
    p: Labelling,
    order: Sequence[int],
    terms: Sequence[int],
    around: Sequence[Sequence[int]],
    sources: set[int],
    plain: Sequence[int],
) -> bool:
    """Whether each node's demand can be drawn from sources and from nodes earlier in the order, one after the other."""
    rank = {node: k for k, node in enumerate(order)}
    room = {t: p.weights[t] for t in terms}
    first = {t: min((i for i in p.members[t] if i in rank), key=lambda i: rank[i]) for t in terms}
    wanted = {node: max(0, p.biases[node]) for node in order}
    for t in plain:
        wanted[first[t]] += room.pop(t)
    for node in reversed(order):
        need = wanted[node]
        if not need:
            continue
        for t in sorted(around[node], key=lambda t: t not in sources):
            drawn = min(need, room.get(t, 0))
            if drawn and (t in sources or first[t] != node):
                if t not in sources:
                    wanted[first[t]] += drawn
                room[t] -= drawn
                need -= drawn
        if need:
            return False
    return True


def _cut(p: Labelling, labels: list[int], nodes: Sequence[int], terms: Sequence[int]) -> None:
    """Label one component."""
    flow = _Flow(2 + len(nodes))
    number = {node: 2 + k for k, node in enumerate(nodes)}
    for node in nodes:
        bias = p.biases[node]
        if bias > 0:
            flow.arc(number[node], _Flow.PLAIN_SIDE, bias)
        elif bias < 0:
            flow.arc(_Flow.BLOCKS_SIDE, number[node], -bias)
    for term in terms:
        _term(p, labels, flow, number, term)
    if len(terms) <= LARGEST and flow.run():
        plain = flow.plain_side()
        for node in nodes:
            labels[node] = PLAIN if number[node] in plain else BLOCKS
        return
    costs = []
    for label in (BLOCKS, PLAIN):
        for node in nodes:
            labels[node] = label
        paid = sum(p.weights[t] for t in terms if len({labels[i] for i in p.members[t]}) > 1)
        costs.append(paid + (sum(p.biases[n] for n in nodes) if label == BLOCKS else 0))
    if costs[0] <= costs[1]:
        for node in nodes:
            labels[node] = BLOCKS


def _term(p: Labelling, labels: Sequence[int], flow: _Flow, number: dict[int, int], term: int) -> None:
    """Arcs that are cut, at the term's weight, where its members do not all agree."""
    weight = p.weights[term]
    inside = [number[i] for i in p.members[term] if i in number]
    known = {labels[i] for i in p.members[term]} - {FREE}
    some_blocks = some_plain = -1
    if BLOCKS in known:
        some_blocks = _Flow.BLOCKS_SIDE
    if PLAIN in known:
        some_plain = _Flow.PLAIN_SIDE
    if some_blocks < 0:
        some_blocks = inside[0] if len(inside) == 1 else flow.node()
        for node in inside if len(inside) > 1 else ():
            flow.arc(node, some_blocks, INFINITE)
    if some_plain < 0:
        some_plain = inside[0] if len(inside) == 1 else flow.node()
        for node in inside if len(inside) > 1 else ():
            flow.arc(some_plain, node, INFINITE)
    if some_blocks != some_plain:
        flow.arc(some_blocks, some_plain, weight)


class _Flow:
    """A flow network: node 0 is the source, on the side of BLOCKS, node 1 the sink, on the side of PLAIN."""

    BLOCKS_SIDE, PLAIN_SIDE = 0, 1

    def __init__(self, nodes: int) -> None:
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]
        self.heads: list[int] = []
        self.room: list[int] = []
        self.steps = STEPS

    def node(self) -> int:
        """A new node; returns its number."""
        self.arcs.append([])
        return len(self.arcs) - 1

    def arc(self, tail: int, head: int, room: int) -> None:
        """An arc; arc k's opposite is arc k ^ 1."""
        self.arcs[tail].append(len(self.heads))
        self.arcs[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.room += (room, 0)

    def run(self) -> bool:
        """Send the greatest flow; False when it takes too many steps."""
        while (levels := self._levels())[1] >= 0:
            at = [0] * len(self.arcs)
            while self._augment(levels, at):
                if self.steps < 0:
                    return False
        return self.steps >= 0

    def _levels(self) -> list[int]:
        levels = [-1] * len(self.arcs)
        levels[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for k in self.arcs[node]:
                head = self.heads[k]
                if self.room[k] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
            self.steps -= len(self.arcs[node])
        return levels

    def _augment(self, levels: list[int], at: list[int]) -> bool:
        """Fill one path to the sink that goes up a level with each arc; False when there is none left."""
        path: list[int] = []
        node = 0
        while node != 1:
            self.steps -= 1
            if at[node] < len(self.arcs[node]):
                k = self.arcs[node][at[node]]
                if self.room[k] and levels[self.heads[k]] == levels[node] + 1:
                    path.append(k)
                    node = self.heads[k]
                else:
                    at[node] += 1
            elif path:
                node = self.heads[path.pop() ^ 1]
                at[node] += 1
            else:
                return False
        amount = min(self.room[k] for k in path)
        for k in path:
            self.room[k] -= amount
            self.room[k ^ 1] += amount
        return True

    def plain_side(self) -> set[int]:
        """The nodes from which the sink can still be reached: the smallest side of PLAIN."""
        found, stack = {1}, [1]
        while stack:
            for k in self.arcs[stack.pop()]:
                tail = self.heads[k]
                if self.room[k ^ 1] and tail not in found:
                    found.add(tail)
                    stack.append(tail)
        return found
