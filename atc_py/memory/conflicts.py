"""The allocator for lifetimes that are no intervals: which blocks must not share bytes is a relation, given in full.

    sizes      a 512   b 1024   c 512   d 1024        two streams: a–b–c on one, d beside b and c on the other
    conflicts  a: b    b: a c d    c: b d    d: b c

    plan_memory_conflicts([512, 1024, 512, 1024], [[1], [0, 2, 3], [1, 3], [1, 2]])
    →  offsets (1024, 0, 2048, 1024), peak 2560 = the clique b c d

    plan_memory_conflicts(
        sizes: Sequence[int],                  # bytes, in any unit
        conflicts: Sequence[Sequence[int]],    # for each block the others; symmetric, no block names itself
        *, alignment: int = 1,                 # offsets are multiples of it (sizes are rounded up to it)
        capacity: int | None = None,           # stop as soon as the peak is within it
        effort: Effort = "default",            # "fast" | "default" | "max"
        bound: int = 0,                        # a lower bound that the caller knows: the most bytes live at once
    ) -> Assignment                            # offsets, peak, lower_bound, optimal, steps

Greedy orders, local search and exact search take turns as in `allocate`, the exact search over cliques in place of
sections of time (`cliques`). Elsewhere the problem is called the colouring of a weighted graph with intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atc_py.memory.cliques import Graph, cliques, graph_of, heaviest_clique, members, peel_graph, ride
from atc_py.memory.problem import Assignment, Budget, Effort
from atc_py.memory.search import search
from atc_py.memory.squeaky import Conflicts, first_fit, squeak


@dataclass(frozen=True)
class Limits:
    """Steps of the bound by cliques, of the exact search and of the local search."""

    clique: int = 0
    search: int = 0
    squeak: int = 0


LIMITS: dict[str, Limits] = {
    "fast": Limits(),
    "default": Limits(clique=200_000, search=1_000_000, squeak=1_500_000),
    "max": Limits(clique=4_000_000, search=20_000_000, squeak=30_000_000),
}

PAIRS = 400_000
"""Above this many conflicts there are greedy orders only."""

CLIQUES = 64
"""From how many blocks a clique is grown for the lower bound, the ones with most conflicting bytes first."""


def plan_memory_conflicts(
    sizes: Sequence[int],
    conflicts: Conflicts,
    *,
    alignment: int = 1,
    capacity: int | None = None,
    effort: Effort = "default",
    bound: int = 0,
) -> Assignment:
    """Offsets such that no two blocks in conflict share bytes (see the module's page for the parameters).

    Raises `ValueError` for a negative size, an alignment below 1, or a relation that is not symmetric.
    """
    _check(sizes, conflicts, alignment)
    rounded = [-(-s // alignment) for s in sizes]
    least = max(-(-bound // alignment), clique_bound(rounded, conflicts))
    wanted = 0 if capacity is None else capacity // alignment
    task = _Task(rounded, conflicts, least, wanted)
    task.greedy()
    if sum(map(len, conflicts)) <= 2 * PAIRS:
        task.improve(LIMITS[effort])
    offsets = tuple(o * alignment for o in task.best)
    optimal = task.peak <= max(task.bound, task.proved)
    return Assignment(offsets, task.peak * alignment, task.bound * alignment, optimal, task.steps.used)


class _Task:
    """One call. `bound` is the heaviest clique known, `best` the best plan; none has a peak below `proved`."""

    def __init__(self, sizes: list[int], conflicts: Conflicts, bound: int, wanted: int) -> None:
        self.sizes, self.conflicts, self.bound, self.wanted = sizes, conflicts, bound, wanted
        self.proved, self.steps = 0, Budget()
        self.best: list[int] = []
        self.peak = -1
        self.orders = list(_orders(sizes, conflicts))
        self.graph, self.alive = Graph([], [], []), 0
        self.rides: list[tuple[int, int]] = []

    @property
    def target(self) -> int:
        """A peak at which the work is done."""
        return max(self.bound, self.proved, self.wanted)

    def _better(self, offsets: list[int]) -> None:
        peak = max((o + s for o, s in zip(offsets, self.sizes, strict=True)), default=0)
        if self.peak < 0 or peak < self.peak:
            self.best, self.peak = offsets, peak

    def greedy(self) -> None:
        """First fit in each of the orders, until one meets the target."""
        for order in self.orders:
            self._better(first_fit(self.sizes, self.conflicts, order, self.steps)[0])
            if self.peak <= self.target:
                return

    def improve(self, limits: Limits) -> None:
        """Better bound, exact search at it, local search from each order, exact search between bound and peak."""
        if not limits.search or self.peak <= self.target:
            return
        self.graph = graph_of(self.sizes, self.conflicts)
        self.alive, self.rides = ride(self.graph, self.steps)
        counted = Budget(limits.clique)
        self.bound = heaviest_clique(self.graph, self.alive, self.bound, counted)
        self.steps.used += counted.used
        sure = self._prove(limits.search // 2)
        for order in self.orders:
            if self.peak > self.target:
                budget = Budget(limits.squeak // len(self.orders))
                self._better(squeak(self.sizes, self.conflicts, order, self.target, budget)[0])
                self.steps.used += budget.used
        low = self.target if sure else self.target + 1
        while self.peak > low:
            capacity = (low + self.peak - 1) // 2
            if not self._decide(capacity, limits.search // 8):
                low = capacity + 1

    def _prove(self, limit: int) -> bool:
        """Search for a plan at the target, and raise that as long as it is proved that there is none; or give up."""
        while self.peak > self.target:
            start = self.steps.used
            found = self._decide(self.target, limit)
            if found is None:
                return False
            if not found:
                self.proved = self.target + 1
            limit -= self.steps.used - start
        return True

    def _decide(self, capacity: int, limit: int) -> bool | None:
        """Exact search for a plan within `capacity`; None when the steps ran out."""
        graph, budget = self.graph, Budget(limit)
        kept, later = peel_graph(graph, self.alive, capacity)
        nodes = list(members(kept))
        index = {node: k for k, node in enumerate(nodes)}
        sections = [[index[node] for node in clique] for clique in cliques(graph, kept)]
        found, sure = search([graph.size[node] for node in nodes], sections, capacity, budget)
        self.steps.used += budget.used
        if found is None:
            return False if sure else None
        places = {graph.order[node]: offset for node, offset in zip(nodes, found, strict=True)}
        self._better(self._completed(places, graph.order, later))
        return True

    def _completed(self, placed: dict[int, int], order: Sequence[int], later: Sequence[int]) -> list[int]:
        """A plan of all blocks: those peeled at the lowest free places, then those that ride on others."""
        offsets = [placed.get(i, 0) for i in range(len(self.sizes))]
        present = set(placed)
        for number in later:
            i = order[number]
            start = 0
            for low, high in sorted(
                (offsets[j], offsets[j] + self.sizes[j]) for j in self.conflicts[i] if j in present
            ):
                if low - start >= self.sizes[i]:
                    break
                start = max(start, high)
            offsets[i] = start
            present.add(i)
        for number, carrier in reversed(self.rides):
            offsets[order[number]] = offsets[order[carrier]]
        return offsets


def clique_bound(sizes: Sequence[int], conflicts: Conflicts) -> int:
    """The heaviest of some cliques, each grown by the largest block that fits: its blocks lie apart."""
    graph = graph_of(sizes, conflicts)
    weight = [s + sum(map(sizes.__getitem__, conflicts[i])) for i, s in zip(graph.order, graph.size, strict=True)]
    best = 0
    for i in sorted(range(len(weight)), key=lambda i: (-weight[i], i))[:CLIQUES]:
        total, common = graph.size[i], graph.near[i]
        while common:
            largest = (common & -common).bit_length() - 1
            total += graph.size[largest]
            common &= graph.near[largest]
        best = max(best, total)
    return best


def _orders(sizes: Sequence[int], conflicts: Conflicts) -> Iterator[list[int]]:
    """Orders worth a try, the likeliest first: by size, as given, by the bytes in conflict, by both."""
    everything = range(len(sizes))
    yield sorted(everything, key=lambda i: (-sizes[i], i))
    yield list(everything)
    weight = [s + sum(map(sizes.__getitem__, conflicts[i])) for i, s in enumerate(sizes)]
    yield sorted(everything, key=lambda i: (-weight[i], -sizes[i], i))
    yield sorted(everything, key=lambda i: (-sizes[i] * len(conflicts[i]), i))


def _check(sizes: Sequence[int], conflicts: Conflicts, alignment: int) -> None:
    if alignment < 1:
        raise ValueError(f"the alignment is {alignment}, it must be at least 1")
    if len(sizes) != len(conflicts):
        raise ValueError(f"{len(sizes)} sizes, but conflicts of {len(conflicts)} blocks")
    for i, size in enumerate(sizes):
        if size < 0:
            raise ValueError(f"block {i} has a size of {size}")
    sets = [frozenset(c) for c in conflicts]
    for i, others in enumerate(sets):
        for j in others:
            if j == i or not 0 <= j < len(sizes) or i not in sets[j]:
                raise ValueError(f"block {i} conflicts with {j}, which is itself, unknown, or does not say so too")
