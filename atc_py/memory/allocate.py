"""The allocator: blocks with a size and a lifetime get offsets in one arena so that live blocks never overlap.

Three blocks, lifetimes in task positions (both ends included):

    a  live 0–1, 512 B        b  live 1–2, 1024 B        c  live 2–3, 512 B

    offset 1536 ┤
           1024 ┤ [b b]              a and c are never live together and share [1024, 1536):
              … ┤ [b b]              peak 1536 = lower bound (a + b are live together at task 1)

Two greedy orders are tried, each deterministic, and the lower peak wins: by time with best fit (linear for long
chains), and by size with first fit among the blocks that are live at the same time.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 512
"""Bytes to which arena blocks are aligned (GE: MEM_ALIGN_SIZE)."""

BY_SIZE_LIMIT = 3000
"""Above this many blocks the quadratic order by size is not tried."""


@dataclass(frozen=True)
class Block:
    """A block of `size` units that is needed from position `first` to position `last`, both included."""

    first: int
    last: int
    size: int


def lower_bound(blocks: Sequence[Block]) -> int:
    """The greatest sum of sizes of blocks live at one position: no plan can have a lower peak."""
    change: dict[int, int] = {}
    for b in blocks:
        change[b.first] = change.get(b.first, 0) + b.size
        change[b.last + 1] = change.get(b.last + 1, 0) - b.size
    live = peak = 0
    for position in sorted(change):
        live += change[position]
        peak = max(peak, live)
    return peak


def plan_memory(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Offsets for the blocks, in their order, and the peak (the least arena size), in the blocks' units."""
    bound = lower_bound(blocks)
    best = _by_time(blocks)
    if best[1] > bound and len(blocks) <= BY_SIZE_LIMIT:
        other = _by_size(blocks)
        if other[1] < best[1]:
            best = other
    return best


def _by_time(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Blocks in order of `first` (larger ones first), each into the smallest free gap that holds it."""
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].first, -blocks[i].size, i))
    ends = sorted(range(len(blocks)), key=lambda i: (blocks[i].last, i))
    offsets = [0] * len(blocks)
    gaps: list[tuple[int, int]] = []  # free (start, end) below `top`, sorted, never touching
    top = peak = released = 0
    for i in order:
        while blocks[ends[released]].last < blocks[i].first:
            j = ends[released]
            top = _release(gaps, top, offsets[j], offsets[j] + blocks[j].size)
            released += 1
        size = blocks[i].size
        fitting = [(end - start, start) for start, end in gaps if end - start >= size]
        if size and fitting:
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
    if start == end:
        return top
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


def _by_size(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Larger blocks first, each at the lowest offset that is free during its whole lifetime."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, blocks[i].first, i))
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, int, int]] = []  # (start, end, first, last), sorted by start
    peak = 0
    for i in order:
        b = blocks[i]
        if not b.size:
            continue
        start = 0
        for s, e, first, last in placed:
            if first <= b.last and b.first <= last:
                if s - start >= b.size:
                    break
                start = max(start, e)
        offsets[i] = start
        bisect.insort(placed, (start, start + b.size, b.first, b.last))
        peak = max(peak, start + b.size)
    return offsets, peak
