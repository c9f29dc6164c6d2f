"""Greedy orders: each block gets an offset once, in one pass; the orders differ in who comes first.

by time   blocks in order of their start, each into the smallest hole that holds it (near linear for chains)
by size   larger blocks first, each at the lowest offset that is free during its whole lifetime
by area   the same, larger size x lifetime first

hole 1024 ┤ [   b   ]            by time, at the start of d (512 B): holes are 512 and 1024 bytes,
  512 hole┤ [a]   [c]            d goes into the one of 512
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from atc_py.memory.problem import Block, Budget
from atc_py.memory.squeaky import Conflicts, first_fit

Plan = tuple[list[int], int]
"""Offsets in the order of the blocks, and the peak."""


def by_time(blocks: Sequence[Block], budget: Budget) -> Plan:
    """Blocks in order of `lower` (larger ones first), each into the smallest free gap that holds it."""
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].lower, -blocks[i].size, i))
    ends = sorted(range(len(blocks)), key=lambda i: (blocks[i].upper, i))
    offsets = [0] * len(blocks)
    gaps = _Gaps()
    peak = released = 0
    for i in order:
        block = blocks[i]
        size = block.size
        if not size or block.lower >= block.upper:
            continue
        while blocks[ends[released]].upper <= block.lower:
            gone = blocks[ends[released]]
            if gone.size and gone.lower < gone.upper:
                start = offsets[ends[released]]
                gaps.release(start, start + gone.size)
            released += 1
        budget.used += 1
        offsets[i] = gaps.take(size)
        peak = max(peak, gaps.top)
    return offsets, peak


class _Gaps:
    """What is free below `top`: gaps that never touch, by address and by length, so that none is looked at in vain."""

    def __init__(self) -> None:
        self.top = 0
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}
        """The end of the gap at each of the starts."""
        self.lengths: list[tuple[int, int]] = []
        """Length and start."""

    def take(self, size: int) -> int:
        """Where `size` units go: to the start of the smallest gap that holds them (the lowest such), or on top."""
        at = bisect.bisect_left(self.lengths, (size, 0))
        if at == len(self.lengths):
            self.top += size
            return self.top - size
        start = self.lengths[at][1]
        end = self._remove(start)
        if end > start + size:
            self._add(start + size, end)
        return start

    def release(self, start: int, end: int) -> None:
        """Give [start, end) back, and merge it with its neighbours."""
        if end in self.ends:
            end = self._remove(end)
        at = bisect.bisect_left(self.starts, start)
        if at and self.ends[self.starts[at - 1]] == start:
            start = self.starts[at - 1]
            self._remove(start)
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        bisect.insort(self.starts, start)
        bisect.insort(self.lengths, (end - start, start))
        self.ends[start] = end

    def _remove(self, start: int) -> int:
        """Take a gap out; returns its end."""
        end = self.ends.pop(start)
        del self.starts[bisect.bisect_left(self.starts, start)]
        del self.lengths[bisect.bisect_left(self.lengths, (end - start, start))]
        return end


def by_time_reversed(blocks: Sequence[Block], budget: Budget) -> Plan:
    """`by_time` with time running backwards."""
    return by_time([Block(-b.upper, -b.lower, b.size) for b in blocks], budget)


def by_order(blocks: Sequence[Block], conflicts: Conflicts, key: Callable[[Block], int], budget: Budget) -> Plan:
    """Blocks with the greatest `key` first, each at the lowest offset that is free during its whole lifetime."""
    order = sorted(range(len(blocks)), key=lambda i: (-key(blocks[i]), blocks[i].lower, i))
    return first_fit([b.size for b in blocks], conflicts, order, budget)


def size(block: Block) -> int:
    """A key of `by_order`: bytes."""
    return block.size


def area(block: Block) -> int:
    """A key of `by_order`: bytes x lifetime."""
    return block.size * (block.upper - block.lower)


def conflicts_of(blocks: Sequence[Block], budget: Budget) -> list[list[int]]:
    """For each block those that are live with it at some time; nothing for blocks without size or lifetime."""
    found: list[list[int]] = [[] for _ in blocks]
    live: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: (blocks[i].lower, i)):
        block = blocks[i]
        if block.size and block.lower < block.upper:
            live = [j for j in live if blocks[j].upper > block.lower]
            for j in live:
                found[j].append(i)
            found[i] = live.copy()
            live.append(i)
            budget.used += len(live)
    return found
