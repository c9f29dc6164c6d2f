"""Local search over orders: place first fit in some order; what sticks out is moved forward ("squeaky wheel").

    order  a b c d     d lies at the top and reaches beyond the target
    order  a d b c     d squeaked, so it is placed earlier; the next round shows who sticks out now

Each round is one pass of first fit over conflict lists, so the search serves lifetimes on a line and any other
conflict relation. The idea is Joslin and Clements' "Squeaky Wheel" optimization (Journal of AI Research 10, 1999);
here a block's merit is how far its top lies above the target.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from atc_py.memory.problem import Budget

Conflicts = Sequence[Sequence[int]]
"""For each block those that must not share bytes with it (symmetric, without itself)."""


def first_fit(
    sizes: Sequence[int], conflicts: Conflicts, order: Sequence[int], budget: Budget, below: int | None = None
) -> tuple[list[int], int]:
    """Offsets and peak when the blocks are placed in `order`, each at the lowest offset that is free.

    With `below`, the work ends where the peak is no longer below it.
    """
    offsets = [0] * len(sizes)
    width = sum(sizes).bit_length()  # a span is one number, its start before its end: these sort faster than pairs
    spans, ends = [0] * len(sizes), (1 << width) - 1
    peak = 0
    for i in order:
        size, start = sizes[i], 0
        if size:
            taken = sorted(filter(None, map(spans.__getitem__, conflicts[i])))
            budget.used += len(taken) + 1
            for span in taken:
                if (span >> width) - start >= size:
                    break
                end = span & ends
                if end > start:
                    start = end
            offsets[i], spans[i] = start, start << width | (start + size)
            if start + size > peak:
                peak = start + size
                if below is not None and peak >= below:
                    break
    return offsets, peak


def squeak(
    sizes: Sequence[int], conflicts: Conflicts, order: Sequence[int], target: int, budget: Budget, seed: int = 0
) -> tuple[list[int], int]:
    """The best offsets and peak of rounds that start from `order`; ends at a peak of `target` or with the budget."""
    rng = random.Random(seed)
    rank = [0.0] * len(sizes)
    for position, i in enumerate(order):
        rank[i] = float(position)
    offsets, peak = best, least = first_fit(sizes, conflicts, order, budget)
    while least > target and budget.left > 0:
        goal = max(target, least - 1)
        for i, offset in enumerate(offsets):
            over = offset + sizes[i] - goal
            if over > 0 and sizes[i]:
                rank[i] -= len(sizes) * (0.05 + 0.5 * rng.random())
        current = sorted(range(len(sizes)), key=lambda i: (rank[i] + rng.random(), i))
        rank = [float(r) for r in _positions(current)]
        offsets, peak = first_fit(sizes, conflicts, current, budget)
        if peak < least:
            best, least = offsets, peak
    return best, least


def _positions(order: Sequence[int]) -> list[int]:
    """The place of each block in the order."""
    found = [0] * len(order)
    for position, i in enumerate(order):
        found[i] = position
    return found
