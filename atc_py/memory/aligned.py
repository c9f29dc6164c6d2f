"""Buffers with alignments of their own: a plan for one alignment is let fall, each buffer to a place that fits it.

    a  [0, 1)  8 B at multiples of 64        planned at multiples of 64:   a 0, b 64            peak 65
    b  [0, 1)  1 B anywhere                  let fall:                     a 0, b 8             peak 9

Two plans are tried: that in which every offset is a multiple of all alignments, and that which knows none; of both, the
order of the buffers counts, lowest first. What no plan beats is what is live at once, whatever the alignments are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from atc_py.memory.allocate import plan_memory
from atc_py.memory.problem import Assignment, Block, Effort, lower_bound


def plan_aligned(
    blocks: Sequence[Block], alignments: Sequence[int], *, capacity: int | None = None, effort: Effort = "default"
) -> Assignment:
    """As `plan_memory`, with an alignment for each block: the lower of two plans, each let fall.

    Raises `ValueError` as `plan_memory` does.
    """
    if len(set(alignments)) < 2:
        return plan_memory(blocks, alignment=max(alignments, default=1), capacity=capacity, effort=effort)
    bound, steps = lower_bound(blocks), 0
    best: tuple[int, tuple[int, ...]] | None = None
    for alignment in (lcm(*alignments), 1):
        found = plan_memory(blocks, alignment=alignment, capacity=capacity, effort=effort)
        offsets = _fallen(blocks, alignments, found.offsets)
        peak = max((o + b.size for o, b in zip(offsets, blocks, strict=True) if b.lower < b.upper), default=0)
        steps += found.steps
        best = min(best, (peak, offsets)) if best else (peak, offsets)
        if best[0] <= max(bound, capacity or 0):
            break
    assert best is not None
    return Assignment(best[1], best[0], bound, best[0] == bound, steps)


def _fallen(blocks: Sequence[Block], alignments: Sequence[int], offsets: Sequence[int]) -> tuple[int, ...]:
    """Each block, from the lowest up, on top of those below it that are live with it."""
    times = {t: k for k, t in enumerate(sorted({t for b in blocks for t in (b.lower, b.upper)}))}
    top = np.zeros(len(times), np.int64)  # of what has fallen, at each time
    found = [0] * len(blocks)
    for i in sorted(range(len(blocks)), key=lambda i: (offsets[i], i)):
        b = blocks[i]
        lived = top[times[b.lower] : times[b.upper]]
        if lived.size:
            found[i] = -(-int(lived.max()) // alignments[i]) * alignments[i]
            lived[:] = found[i] + b.size
    return tuple(found)
