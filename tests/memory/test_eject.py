"""The local search at one capacity: what it finds is a plan, from any plan, and it gives up when its steps are used."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from atc_py.memory.eject import _lightest, eject
from atc_py.memory.problem import Budget
from atc_py.memory.squeaky import first_fit
from tests.memory.test_chains import apart, in_no_order, in_order, relation, towers

ENOUGH = 1_000_000


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_a_plan(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 2, 5, 9]) for _ in range(24)]
    conflicts = relation(24, rng.choice([in_order, in_no_order])(rng, 24))
    given, peak = first_fit(sizes, conflicts, range(24), Budget())
    best = peak
    for capacity in range(peak, max(sizes) - 1, -1):
        budget = Budget(20_000)
        found = eject(sizes, conflicts, given, capacity, budget)
        if found is None:
            assert budget.left <= 0
            break
        best = capacity
        assert all(o >= 0 and o + s <= capacity for o, s in zip(found, sizes) if s)
        apart(sizes, conflicts, found)
        assert found == eject(sizes, conflicts, given, capacity, Budget(20_000))
    assert best <= peak


def test_a_capacity_below_a_clique_is_given_up() -> None:
    """Blocks of 2, 1 and 3 units are in conflict with each other."""
    sizes, conflicts = [2, 1, 3, 2], [[1, 2, 3], [0, 2], [0, 1], [0]]
    assert eject(sizes, conflicts, [0, 5, 2, 2], 6, Budget(ENOUGH)) is not None
    assert eject(sizes, conflicts, [0, 5, 2, 2], 5, Budget(2_000)) is None
    assert eject([6], [[]], [0], 5, Budget(ENOUGH)) is None


def test_it_comes_below_first_fit_on_towers() -> None:
    sizes, conflicts = towers(6, 2, range(21, 9, -1))
    given, peak = first_fit(sizes, conflicts, sorted(range(len(sizes)), key=lambda i: -sizes[i]), Budget())
    budget = Budget(ENOUGH)
    found = eject(sizes, conflicts, given, peak * 9 // 10, budget)
    assert found is not None and budget.left > 0
    apart(sizes, conflicts, found)


@pytest.mark.parametrize("seed", range(30))
def test_the_lightest_places_are_those_of_all_places(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.randint(0, 12)
    ranges = [
        (low := rng.randint(-4, 12), low + rng.randint(1, 6), rng.randint(1, 5)) for _ in range(rng.randint(0, 6))
    ]
    load = [sum(w for low, high, w in ranges if low < place < high) for place in range(most + 1)]
    begins: Counter[int] = Counter()
    ends: Counter[int] = Counter()
    for low, high, weight in ranges:
        begins[low] += weight
        ends[high] += weight
    found = _lightest(begins, ends, most)
    assert found and all(load[place] == min(load) for place in found)
