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

Greedy orders, exact search and local search take turns as in `allocate`. The bound is the heaviest antichain
(`chains`), for which blocks should come in the order in which they begin; the exact search is over cliques in place of
sections of time (`packing`), first for stacks of blocks (`stacks`). Elsewhere the problem is called the colouring of a
weighted graph with intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from atc_py.memory.cliques import bits_of, heaviest_clique
from atc_py.memory.eject import eject
from atc_py.memory.packing import Packing
from atc_py.memory.problem import Assignment, Budget, Effort
from atc_py.memory.squeaky import Conflicts, first_fit
from atc_py.memory.stacks import Stacks, stacked, unstacked


@dataclass(frozen=True)
class Limits:
    """Steps of the heaviest clique where it is no antichain, of an exact search and of the local search.

    A plan is good enough one part in `near` above the target (0: only at it).
    """

    clique: int = 0
    search: int = 0
    eject: int = 0
    near: int = 0


LIMITS: dict[str, Limits] = {
    "fast": Limits(),
    "default": Limits(clique=200_000, search=1_000_000, eject=2_000_000, near=50),
    "max": Limits(clique=4_000_000, search=20_000_000, eject=20_000_000),
}

PAIRS = 400_000
"""Above this many conflicts there are greedy orders only."""

MOST = 8192
"""Above this many blocks too, and no bound but the one that the caller knows: sets of blocks take bits squared."""

FEW = 128
"""Up to so many blocks the exact search looks at them as they are before it looks at stacks."""


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
    return plan_relation(sizes, conflicts, alignment=alignment, capacity=capacity, effort=effort, bound=bound)


def plan_relation(
    sizes: Sequence[int],
    conflicts: Conflicts,
    *,
    alignment: int = 1,
    capacity: int | None = None,
    effort: Effort = "default",
    bound: int = 0,
) -> Assignment:
    """`plan_memory_conflicts` of what is known to be right: sizes of at least 0, a relation that is symmetric."""
    rounded = [-(-s // alignment) for s in sizes]
    wanted = 0 if capacity is None else capacity // alignment
    task = _Task(rounded, conflicts, max(-(-bound // alignment), *rounded, 0), wanted)
    task.greedy()
    if len(sizes) <= MOST and sum(map(len, conflicts)) <= 2 * PAIRS:
        task.improve(LIMITS[effort])
    offsets = tuple(o * alignment for o in task.best)
    optimal = task.peak <= max(task.bound, task.proved)
    return Assignment(offsets, task.peak * alignment, task.bound * alignment, optimal, task.steps.used)


class _Task:
    """One call. `bound` is the heaviest clique known, `best` the best plan; none has a peak below `proved`."""

    def __init__(self, sizes: list[int], conflicts: Conflicts, bound: int, wanted: int) -> None:
        self.sizes, self.conflicts, self.bound, self.wanted = sizes, conflicts, bound, wanted
        self.proved, self.near, self.steps = 0, 0, Budget()
        self.best: list[int] = []
        self.peak = -1

    @property
    def target(self) -> int:
        """A peak at which the work is done."""
        return max(self.bound, self.proved, self.wanted)

    @property
    def enough(self) -> int:
        """A peak at which no more is tried than has been."""
        return self.target + (self.target // self.near if self.near else 0)

    @cached_property
    def blocks(self) -> Stacks:
        """The blocks with what they hand on to each other: made when a bound or a search asks for it."""
        return _relation(self.sizes, self.conflicts, self.steps)

    @cached_property
    def plain(self) -> Packing:
        """The blocks as they are, made ready for the exact search."""
        return Packing(self.blocks, self.sizes, self.steps)

    def _better(self, offsets: list[int]) -> None:
        peak = max((o + s for o, s in zip(offsets, self.sizes, strict=True)), default=0)
        if self.peak < 0 or peak < self.peak:
            self.best, self.peak = offsets, peak

    def greedy(self) -> None:
        """First fit in each of the orders, until one meets the target; cliques only raise a bound that is missed."""
        for k, order in enumerate(_orders(self.sizes, self.conflicts)):
            self._better(first_fit(self.sizes, self.conflicts, order, self.steps, self.peak if k else None)[0])
            if not k and self.peak > self.target and len(self.sizes) <= MOST:
                self.bound = max(self.bound, self.blocks.weight)
            if self.peak <= self.target:
                return

    def improve(self, limits: Limits) -> None:
        """Exact search over stacks and over the blocks as they are, with local search in between."""
        if not limits.search or self.peak <= self.target:
            return
        self.near = limits.near
        if not self.blocks.chains.proved():  # no order, then
            budget = Budget(limits.clique)
            self.bound = heaviest_clique(self.plain.graph, self.plain.alive, self.bound, budget)
            self.steps.used += budget.used
        few = len(self.sizes) <= FEW
        if few:
            self._search(self.plain, limits.search)
        if self.peak > self.target:
            capacity = self.enough if self.peak > self.enough else self.target
            stacks = stacked(self.sizes, self.blocks.near, capacity, self.steps)
            if stacks is not None:
                self._search(Packing(stacks, self.sizes, self.steps), limits.search)
        self._eject(limits.eject)
        if self.peak > self.enough and not few:
            self._search(self.plain, limits.search)

    def _search(self, packing: Packing, limit: int) -> None:
        """Exact search at the target, then at what is enough, then at half of what is open between that and the peak.

        What the blocks as they are cannot reach is proved impossible; stacks only say where not to look again.
        """
        low, left = max(self.target, packing.least), limit // 2
        while self.peak > low and left > 0:
            start = self.steps.used
            found = self._decide(packing, low, left)
            if found is not False:
                break
            low += 1
            self.proved = low if packing.exact else self.proved
            left -= self.steps.used - start
        if self.peak > self.enough > low:
            self._decide(packing, self.enough, limit // 4)
        low = max(low, self.enough) + 1
        while self.peak > low:
            capacity = (low + self.peak - 1) // 2
            found = self._decide(packing, capacity, limit // 8)
            if not found:
                low = capacity + 1
            if found is False and packing.exact:
                self.proved = low

    def _eject(self, limit: int) -> None:
        """Local search at what is enough, then at half of what is open between that and the peak."""
        low = capacity = self.enough
        while self.peak > low:
            budget = Budget(limit)
            found = eject(self.sizes, self.conflicts, self.best, capacity, budget)
            self.steps.used += budget.used
            limit //= 4
            if found is None:
                low = capacity + 1
            else:
                self._better(found)
            capacity = (low + self.peak - 1) // 2

    def _decide(self, packing: Packing, capacity: int, limit: int) -> bool | None:
        """Exact search for a plan within `capacity`; None when the steps ran out."""
        found, sure = packing.decide(capacity, limit)
        if found is not None:
            self._better(found)
        return found is not None if sure else None


def clique_bound(sizes: Sequence[int], conflicts: Conflicts) -> int:
    """Bytes that lie apart: of the heaviest clique, if blocks come in the order in which they begin (see `chains`)."""
    known = _relation(sizes, conflicts, Budget()).weight if len(sizes) <= MOST else 0
    return max(known, *sizes, 0)


def _relation(sizes: Sequence[int], conflicts: Conflicts, steps: Budget) -> Stacks:
    return unstacked(sizes, [bits_of(others, len(sizes)) for others in conflicts], steps)


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
