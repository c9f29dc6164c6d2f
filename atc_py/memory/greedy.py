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
    gaps: list[tuple[int, int]] = []  # free (start, end) below `top`, sorted, never touching
    top = peak = released = 0
    for i in order:
        block = blocks[i]
        size = block.size
        if not size or block.lower >= block.upper:
            continue
        while blocks[ends[released]].upper <= block.lower:
            gone = blocks[ends[released]]
            if gone.size and gone.lower < gone.upper:
                start = offsets[ends[released]]
                top = _release(gaps, top, start, start + gone.size)
            released += 1
        fitting = [(end - start, start) for start, end in gaps if end - start >= size]
        budget.used += len(gaps) + 1
        if fitting:
            _, start = min(fitting)
            at = bisect.bisect_left(gaps, (start, 0))
            if gaps[at][1] - start == size:
                del gaps[at]
            else:
                gaps[at] = (start + size, gaps[at][1])
        else:
            start, top = top, top + size
        offsets[i] = start
        peak = max(peak, top)
    return offsets, peak


def _release(gaps: list[tuple[int, int]], top: int, start: int, end: int) -> int:
    """Give [start, end) back, merge it with its neighbours, and return the new top."""
    at = bisect.bisect_left(gaps, (start, 0))
    if at < len(gaps) and gaps[at][0] == end:
        end = gaps.pop(at)[1]
    if at and gaps[at - 1][1] == start:
        at -= 1
        start = gaps.pop(at)[0]
    if end == top:
        return start
    gaps.insert(at, (start, end))
    return top


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
