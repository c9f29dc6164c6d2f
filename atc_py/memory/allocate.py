"""The allocator: blocks with a size and a lifetime get offsets in one arena so that live blocks never overlap.

    plan_memory([Block(0, 2, 512), Block(1, 3, 1024), Block(2, 4, 512)])
    →  Assignment(offsets=(0, 512, 0), peak=1536, lower_bound=1536, optimal=True, …)

Each step is made only while the peak is above the target, which is the greatest sum of live bytes (no plan can be
lower), or the capacity when that is given and higher:

    greedy orders    over the blocks, and over joined ones       `greedy`, `reduce`
    local search     orders, improved where the peak lies        `squeaky`
    exact search     backtracking over canonical plans           `search`

Half of the exact search's steps are for the target. The rest lowers the peak where that was not to be had: a search
well above the target takes few steps, since most of its first runs come through.

The searches see one part at a time: times at which nothing is live cut the problem into parts of their own. Each tries
the joined blocks, of which there are often a third, and then the blocks as they are; blocks that fit anyway are put
aside first. What ends a search is a number of counted steps, so that the same blocks get the same offsets everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from atc_py.memory.greedy import Plan, area, by_order, by_time, by_time_reversed, conflicts_of, size
from atc_py.memory.problem import Assignment, Block, Budget, Effort, lower_bound
from atc_py.memory.reduce import company_count, fill, join, peel, span_count
from atc_py.memory.search import search, sections_of
from atc_py.memory.squeaky import squeak

ALIGNMENT = 512
"""Bytes to which arena blocks are aligned (GE: MEM_ALIGN_SIZE)."""

PAIRS = 400_000
"""Above this many pairs of blocks that are live together no order is tried that looks at all of them."""

STRAIGHT = 3
"""To place a block, the exact search looks at each section: with less than a third of that for all it is not begun."""

FILL = 64
"""So many blocks are looked at in one step when those that fit anyway are placed."""

SHARES = 3
"""The exact search gives up a peak above the target after such a part of the steps for these."""

FEW = 64
"""Up to so many blocks the exact search comes before the local one: it soon ends, with a plan or a proof."""


@dataclass(frozen=True)
class Limits:
    """Steps of the local and of the exact search. A step is a block looked at, about half a microsecond."""

    squeak: int = 0
    search: int = 0


LIMITS: dict[str, Limits] = {
    "fast": Limits(),
    "default": Limits(squeak=300_000, search=6_000_000),
    "max": Limits(squeak=2_000_000, search=100_000_000),
}
"""`default` comes to about 2 CPU seconds, `max` to a minute."""


def plan_memory(
    blocks: Sequence[Block], *, alignment: int = 1, capacity: int | None = None, effort: Effort = "default"
) -> Assignment:
    """Offsets (multiples of `alignment`) for the blocks, and the peak.

    Each block's successor begins at the next multiple of the alignment; behind the last one nothing is rounded. With a
    `capacity` the work ends as soon as the peak is within it; a peak above it means that no such plan was found. Raises
    `ValueError` for a size below 0, a lifetime that ends before it begins, an alignment below 1, a capacity below 0, or
    an effort that there is not.
    """
    _check(blocks, alignment, capacity, effort)
    unit = gcd(*(-(-b.size // alignment) for b in blocks)) * alignment or alignment
    scaled = [Block(b.lower, b.upper, -(-b.size // unit)) for b in blocks]
    bound = lower_bound(scaled)
    task = _Task(scaled, bound if capacity is None else max(bound, capacity // unit), LIMITS[effort])
    offsets, peak = task.run()
    proved = peak == bound or (peak <= task.proved)
    placed, alive = tuple([o * unit for o in offsets]), [i for i, b in enumerate(blocks) if b.lower < b.upper]
    slack = max((-blocks[i].size % unit for i in alive), default=0)
    if not slack:
        return Assignment(placed, peak * unit, bound * unit, proved, task.steps)
    flipped = tuple([max(peak - o - s.size, 0) * unit for o, s in zip(offsets, scaled, strict=True)])
    end, placed = min((max(p[i] + blocks[i].size for i in alive), p) for p in (placed, flipped))
    least = max(lower_bound(blocks), bound * unit - slack)  # of what is live at once, one block is the last
    return Assignment(placed, end, least, end == least, task.steps)


def _check(blocks: Sequence[Block], alignment: int, capacity: int | None, effort: str) -> None:
    if alignment < 1:
        raise ValueError(f"the alignment is {alignment}, it must be at least 1")
    if capacity is not None and capacity < 0:
        raise ValueError(f"the capacity is {capacity}, it must be at least 0")
    if effort not in LIMITS:
        raise ValueError(f"the effort is {effort!r}, it must be one of {', '.join(LIMITS)}")
    for i, b in enumerate(blocks):
        if b.size < 0 or b.upper < b.lower:
            raise ValueError(f"block {i} has a size of {b.size} and lives from {b.lower} to {b.upper}")


class _Task:
    """One call: the target, the steps left for each search, and what has been proved on the way.

    No plan has a peak below `proved`.
    """

    def __init__(self, blocks: list[Block], target: int, limits: Limits) -> None:
        self.blocks, self.target, self.proved = blocks, target, 0
        self.greedy = Budget()
        self.squeak, self.search = Budget(limits.squeak), Budget(limits.search)

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self.greedy.used + self.squeak.used + self.search.used

    def run(self) -> Plan:
        """Greedy orders over everything, then the searches part by part: small ones leave steps for the larger."""
        offsets, peak = self._greedy()
        if peak <= self.target or not self.squeak.limit:
            return offsets, peak
        parts = _parts(self.blocks)
        parts.sort(key=len)
        tops = [max(offsets[i] + self.blocks[i].size for i in part) for part in parts]
        goal, peak = self.target, 0
        for k, part in enumerate(parts):
            top = tops[k]
            if top > goal:
                blocks = [self.blocks[i] for i in part]
                waiting = sum(other > goal for other in tops[k:])
                found, top = _Part(self, blocks, goal, ([offsets[i] for i in part], top), waiting).run()
                for i, offset in zip(part, found, strict=True):
                    offsets[i] = offset
            goal, peak = max(goal, top), max(peak, top)
        return offsets, peak

    def _greedy(self) -> Plan:
        """The best of the greedy orders, tried until one meets the target."""
        best: Plan | None = None
        for found in self._orders():
            if best is None or found[1] < best[1]:
                best = found
            if best[1] <= self.target:
                break
        assert best is not None
        return best

    def _orders(self) -> Iterator[Plan]:
        yield by_time(self.blocks, self.greedy)
        yield by_time_reversed(self.blocks, self.greedy)
        joined = join(self.blocks)
        for blocks in (joined.blocks, self.blocks):
            if not _pairs_fit(blocks):
                continue
            conflicts = conflicts_of(blocks, self.greedy)
            for key in (area, size):
                offsets, peak = by_order(blocks, conflicts, key, self.greedy)
                yield offsets if blocks is self.blocks else joined.expand(offsets), peak


def _pairs_fit(blocks: Sequence[Block]) -> bool:
    """Whether there are at most `PAIRS` pairs of blocks that are live together."""
    return len(blocks) * (len(blocks) - 1) // 2 <= PAIRS or company_count(blocks) <= PAIRS


def _parts(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks that have a size and a lifetime, cut at the times at which nothing is live."""
    living = [i for i, b in enumerate(blocks) if b.size and b.lower < b.upper]
    order = sorted(living, key=lambda i: (blocks[i].lower, i))
    parts: list[list[int]] = []
    end: int | None = None
    for i in order:
        if end is None or blocks[i].lower >= end:
            parts.append([])
            end = blocks[i].upper
        parts[-1].append(i)
        end = max(end, blocks[i].upper)
    return parts


class _Part:
    """The searches over blocks that hang together. `best` is the best plan so far; the goal is a peak of `low`.

    They may use one of so many `shares` of the steps that are left.
    """

    def __init__(self, task: _Task, blocks: list[Block], goal: int, best: Plan, shares: int) -> None:
        self.task, self.blocks, self.low, self.best = task, blocks, goal, best
        self.limit, self.local = task.search.left // shares, Budget(task.squeak.left // shares)
        self.joined = join(blocks)

    def run(self) -> Plan:
        """The best plan; `low` rises when the exact search proves that there is none."""
        limit, before = self.limit, self.task.search.used
        few = len(self.blocks) <= FEW
        if few:
            self._lower(False, limit // 4)
        if self._above():
            self._local()
        if self._above():
            start = self.task.search.used
            refuted = self._decide(self.low, True, limit // 2) is False
            if not few:  # where joining has cost the plan, the blocks as they are get the steps that are left of this
                left = limit // 2 - (self.task.search.used - start)
                self._lower(False, max(left, limit // 8) if refuted else limit // 8)
        self._lower(True, limit - (self.task.search.used - before), SHARES)
        return self.best

    def _above(self) -> bool:
        return self.best[1] > self.low

    def _better(self, offsets: list[int]) -> None:
        """Keep a plan if it is better."""
        peak = max(o + b.size for o, b in zip(offsets, self.blocks, strict=True))
        if peak < self.best[1]:
            self.best = offsets, peak

    def _local(self) -> None:
        """Local search over orders of the joined blocks."""
        blocks = self.joined.blocks
        if not _pairs_fit(blocks):
            return
        conflicts = conflicts_of(blocks, self.local)
        order = sorted(range(len(blocks)), key=lambda i: (-area(blocks[i]), i))
        offsets, _ = squeak([b.size for b in blocks], conflicts, order, self.low, self.local)
        self.task.squeak.used += self.local.used
        self._better(self.joined.expand(offsets))

    def _lower(self, joined: bool, limit: int, shares: int = 1) -> None:
        """Exact searches within `limit` steps for ever lower peaks, each with at most one of so many shares of them.

        At each time a quarter of what is open between `low` and the best peak is asked for: a search that comes to
        nothing costs all its steps, one that finds a plan few.

        What the blocks as they are cannot reach is proved impossible; joined ones only say where not to look again.
        """
        low, share = self.low + joined, limit // shares
        while self._above() and self.best[1] > low and limit > 0:
            open_ = self.best[1] - low
            capacity = low if not joined and low == self.low else self.best[1] - (open_ + 3) // 4
            start = self.task.search.used
            found = self._decide(capacity, joined, min(share, limit))
            limit -= self.task.search.used - start
            if not found:
                low = capacity + 1
            if found is False and not joined:
                self.low = self.task.proved = low
            elif found is None and not joined:
                return

    def _decide(self, capacity: int, joined: bool, limit: int) -> bool | None:
        """Exact search for a plan within `capacity`; None when the steps ran out."""
        blocks = self.joined.blocks if joined else self.blocks
        kept, later = peel(blocks, capacity)
        budget = Budget(min(limit, self.task.search.left))
        left = [blocks[i] for i in kept]
        if span_count(left) > budget.limit or len(later) * len(blocks) > FILL * budget.limit:
            return None
        sections = sections_of(left)
        if len(left) * len(sections) > STRAIGHT * budget.limit:
            return None
        found, sure = search([b.size for b in left], sections, capacity, budget)
        self.task.search.used += budget.used
        if found is None:
            return False if sure else None
        offsets = [0] * len(blocks)
        for i, offset in zip(kept, found, strict=True):
            offsets[i] = offset
        fill(blocks, kept, offsets, later, self.task.greedy)
        self._better(self.joined.expand(offsets) if joined else offsets)
        return True
