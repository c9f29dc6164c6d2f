"""Local search at one capacity: a block that fits nowhere throws out others, which then look for places themselves.

    capacity 4    a [0, 2)   c [3, 4)    d, of 3 units, waits and is in conflict with both:
                                         at 0 it throws out a, of weight 2; at 1 a and c, of weight 3
                  d [0, 3)   c [3, 4)    now a waits, and what throws d out again must be heavier

The largest waiting block goes where it throws out the least weight; a block that has just been placed stays for some
steps. Weight begins as the size and grows by it each time that a block is thrown out or throws others out, so
that what is hard to place gets its place in the end.

Partial plans are searched as partial colourings are by I. Blöchliger and N. Zufferey, "A graph coloring heuristic using
partial solutions and a reactive tabu scheme" (Computers & Operations Research 35, 2008); the weights are the penalty
counters of Y. Nagata and O. Bräysy, "A powerful route minimization heuristic for the vehicle routing problem with time
windows" (Operations Research Letters 37, 2009).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from atc_py.memory.problem import Budget
from atc_py.memory.squeaky import Conflicts

STAYS = 5
"""A block stays for up to so many steps after it is placed, and for half as many more as blocks wait."""

NONE = -1
"""The place of a block that waits."""

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
    places = [o if s and o + s <= capacity else NONE for o, s in zip(offsets, sizes, strict=True)]
    waiting = [(-s, rng.random(), i) for i, s in enumerate(sizes) if s and places[i] == NONE]
    heapify(waiting)
    weight = list(sizes)
    until = [0] * len(sizes)
    firm = (1 + sum(weight)) << 32
    step = 0
    while waiting and budget.left > 0:
        step += 1
        i = heappop(waiting)[2]
        size = sizes[i]
        beside = [j for j in conflicts[i] if places[j] >= 0]
        budget.used += 2 * len(beside) + STEP
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for j in beside:
            low, high, load = places[j] - size, places[j] + sizes[j], weight[j]
            if until[j] > step:
                load += firm
            begins[low] = begins[low] + load if low in begins else load
            ends[high] = ends[high] + load if high in ends else load
        at = rng.choice(_lightest(begins, ends, capacity - size))
        top = at + size
        out = [j for j in beside if places[j] < top and at < places[j] + sizes[j]]
        for j in out:
            places[j] = NONE
            weight[j] += sizes[j]
            heappush(waiting, (-sizes[j], rng.random(), j))
        if out:
            weight[i] += size
        places[i] = at
        until[i] = step + rng.randint(1, STAYS) + len(waiting) // 2
    return None if waiting else [max(place, 0) for place in places]


def _lightest(begins: Mapping[int, int], ends: Mapping[int, int], most: int) -> list[int]:
    """Places from 0 to `most` on which the least weight lies, of those where weight begins or ends.

    `begins` are the weights that lie on all places above one, up to those below where the same weights end.
    """
    total = sum([weight for place, weight in begins.items() if place < 0])
    least = -1
    found: list[int] = []
    for place in sorted({0, most, *begins, *ends}):
        if place < 0:
            continue
        if place > most:
            break
        if place in ends:
            total -= ends[place]
        if total == least:
            found.append(place)
        elif total < least or least < 0:
            least, found = total, [place]
        if place in begins:
            total += begins[place]
    return found
