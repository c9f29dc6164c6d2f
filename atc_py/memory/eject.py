"""Local search at one capacity: a block that fits nowhere throws out others, which then look for places themselves.

    capacity 4    a [0, 2)   c [3, 4)    d, of 3 units, waits and is in conflict with both:
                                         at 0 it throws out a, of weight 4; at 1 a and c, of weight 5
                  d [0, 3)   c [3, 4)    now a waits, and what throws d out again must be heavier

The largest waiting block goes where it throws out the least weight; a block that has just been placed stays for some
steps. Weight begins as the square of the size and grows each time that a block is thrown out or throws others out, so
that what is hard to place gets its place in the end.

Partial plans are searched as partial colourings are by I. Blöchliger and N. Zufferey, "A graph coloring heuristic using
partial solutions and a reactive tabu scheme" (Computers & Operations Research 35, 2008); the weights are the penalty
counters of Y. Nagata and O. Bräysy, "A powerful route minimization heuristic for the vehicle routing problem with time
windows" (Operations Research Letters 37, 2009).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from atc_py.memory.problem import Budget
from atc_py.memory.squeaky import Conflicts

STAYS = 5
"""A block stays for up to so many steps after it is placed, and for half as many more as blocks wait."""

STEP = 24
"""Steps of the budget for what is done however few blocks are in conflict."""


def eject(
    sizes: Sequence[int], conflicts: Conflicts, offsets: Sequence[int], capacity: int, budget: Budget, seed: int = 0
) -> list[int] | None:
    """Offsets within the capacity, from a plan that may reach beyond it; None when the budget ends first.

    A step of the budget is half a block looked at, about half a microsecond.
    """
    if max(sizes, default=0) > capacity:
        return None
    rng = random.Random(seed)
    spans = [(o, o + s) if s and o + s <= capacity else None for o, s in zip(offsets, sizes, strict=True)]
    waiting = [(-s, rng.random(), i) for i, s in enumerate(sizes) if s and spans[i] is None]
    heapify(waiting)
    weight = [size * size for size in sizes]
    until = [0] * len(sizes)
    firm = (1 + sum(weight)) << 32
    step = 0
    while waiting and budget.left > 0:
        step += 1
        i = heappop(waiting)[2]
        size = sizes[i]
        beside = [(j, *span) for j in conflicts[i] if (span := spans[j])]
        budget.used += 2 * len(beside) + STEP
        at = rng.choice(
            _lightest(
                [(low - size, high, weight[j] + (firm if until[j] > step else 0)) for j, low, high in beside],
                capacity - size,
            )
        )
        out = [j for j, low, high in beside if low < at + size and at < high]
        for j in out:
            spans[j] = None
            weight[j] += sizes[j] * sizes[j]
            heappush(waiting, (-sizes[j], rng.random(), j))
        if out:
            weight[i] += size * size
        spans[i] = at, at + size
        until[i] = step + rng.randint(1, STAYS) + len(waiting) // 2
    return None if waiting else [span[0] if span else 0 for span in spans]


def _lightest(ranges: Sequence[tuple[int, int, int]], most: int) -> list[int]:
    """Places from 0 to `most` on which the least weight lies, of those where ranges begin or end.

    A range (from, to, weight) lies on the places between its ends.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {0: 0, most: 0}
    for low, high, weight in ranges:
        begins[low] = begins.get(low, 0) + weight
        ends[high] = ends.get(high, 0) + weight
    total, least = 0, -1
    found: list[int] = []
    for place in sorted(begins.keys() | ends.keys()):
        if place > most:
            break
        total -= ends.get(place, 0)
        if place >= 0:
            if least < 0 or total < least:
                least, found = total, []
            if total == least:
                found.append(place)
        total += begins.get(place, 0)
    return found
