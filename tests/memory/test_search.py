"""The exact search against plain enumeration of all plans, and `plan_memory` at `max` against both."""

from __future__ import annotations

import random

import pytest

from atc_py.memory import Block, lower_bound, plan_memory, plan_memory_conflicts
from atc_py.memory.greedy import conflicts_of
from atc_py.memory.problem import Budget
from atc_py.memory.search import _luby, search, sections_of
from tests.memory.checker import check, most_live

ABOVE = [
    *(Block(1, 6, 1), Block(4, 6, 2), Block(0, 2, 2), Block(3, 5, 1), Block(0, 1, 3)),
    *(Block(5, 6, 2), Block(2, 3, 2), Block(1, 5, 1), Block(1, 4, 1), Block(3, 4, 1)),
]
"""Five bytes are live at once, and no plan takes less than six."""


def fits(blocks: list[Block], capacity: int, offsets: tuple[int, ...] = ()) -> bool:
    """Whether there is a plan: each offset of each block, one block after the other."""
    if len(offsets) == len(blocks):
        return True
    b = blocks[len(offsets)]
    for at in range(capacity - b.size + 1):
        clear = all(
            b.lower >= o.upper or o.lower >= b.upper or at + b.size <= other or other + o.size <= at
            for o, other in zip(blocks, offsets)
        )
        if clear and fits(blocks, capacity, (*offsets, at)):
            return True
    return False


def least_peak(blocks: list[Block]) -> int:
    """By trying every capacity from the bytes live at once on; what begins early comes first: dead ends show early."""
    blocks = sorted(blocks, key=lambda b: (b.lower, b.upper, b.size))
    capacity = most_live([(b.lower, b.upper, b.size) for b in blocks])
    while not fits(blocks, capacity):
        capacity += 1
    return capacity


def tight(rng: random.Random) -> list[Block]:
    """Blocks that leave no byte free at any time, where the sizes allow; seldom is there a plan without a gap."""
    capacity, times = rng.choice([3, 4, 5]), rng.randint(3, 5)
    free = [capacity] * times
    blocks: list[Block] = []
    while len(blocks) < 7 and any(free):
        lower = rng.choice([t for t in range(times) if free[t]])
        size, upper = rng.randint(1, min(3, free[lower])), lower + 1
        while upper < times and free[upper] >= size and rng.random() < 0.6:
            upper += 1
        blocks.append(Block(lower, upper, size))
        for t in range(lower, upper):
            free[t] -= size
    return blocks


def loose(rng: random.Random) -> list[Block]:
    blocks = []
    for _ in range(rng.randint(1, 7)):
        lower = rng.randint(0, 5)
        blocks.append(Block(lower, lower + rng.randint(1, 4), rng.randint(1, 5)))
    return blocks


def agrees(blocks: list[Block]) -> None:
    """Search, allocator and conflict allocator all find the least peak, and say that it is."""
    triples = [(b.lower, b.upper, b.size) for b in blocks]
    best = least_peak(blocks)
    for capacity in range(lower_bound(blocks), best + 2):
        found, sure = search([b.size for b in blocks], sections_of(blocks), capacity, Budget(10_000_000))
        assert sure and (found is not None) == (capacity >= best)
        if found is not None:
            check(triples, found, capacity)
    plan = plan_memory(blocks, effort="max")
    check(triples, plan.offsets, plan.peak)
    assert plan.peak == best and plan.optimal
    other = plan_memory_conflicts([b.size for b in blocks], conflicts_of(blocks, Budget()), effort="max")
    check(triples, other.offsets, other.peak)
    assert other.peak == best and other.optimal


@pytest.mark.parametrize("seed", range(30))
def test_the_least_peak_is_found(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        agrees(tight(rng))
        agrees(loose(rng))


def test_a_peak_above_the_bound_is_proved() -> None:
    assert most_live([(b.lower, b.upper, b.size) for b in ABOVE]) == 5
    assert not fits(ABOVE, 5) and fits(ABOVE, 6)
    agrees(ABOVE)
    scaled = plan_memory([Block(b.lower, b.upper, 4096 * b.size) for b in ABOVE], alignment=512)
    assert (scaled.peak, scaled.lower_bound, scaled.optimal) == (6 * 4096, 5 * 4096, True)


def test_a_budget_ends_the_search() -> None:
    for steps in (0, 50, 100):
        budget = Budget(steps)
        found, sure = search([b.size for b in ABOVE], sections_of(ABOVE), 5, budget)
        assert found is None and not sure and budget.used < steps + 400


def test_sections_hold_all_that_live_at_once() -> None:
    rng = random.Random(3)
    for _ in range(200):
        blocks = loose(rng)
        sections = sections_of(blocks)
        together = {frozenset(i for i, b in enumerate(blocks) if b.lower <= t < b.upper) for t in range(12)}
        largest = {s for s in together if s and not any(s < other for other in together)}
        assert {frozenset(s) for s in sections} == largest


def test_lengths_of_runs() -> None:
    assert [_luby(k) for k in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
