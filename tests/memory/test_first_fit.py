"""First fit over a relation, and sets of blocks as numbers."""

from __future__ import annotations

import random

import pytest

from atc_py.memory.cliques import bits_of, members
from atc_py.memory.problem import Budget
from atc_py.memory.squeaky import first_fit

from .test_conflicts import relation


def lowest(sizes: list[int], conflicts: list[list[int]], order: list[int]) -> list[int]:
    """The lowest free offset of each block in turn, found one offset after the other."""
    taken: list[set[int]] = [set() for _ in sizes]
    offsets = [0] * len(sizes)
    for i in order:
        if not sizes[i]:
            continue
        near = set().union(*(taken[j] for j in conflicts[i]))
        while near & set(range(offsets[i], offsets[i] + sizes[i])):
            offsets[i] += 1
        taken[i] = set(range(offsets[i], offsets[i] + sizes[i]))
    return offsets


@pytest.mark.parametrize("seed", range(20))
def test_each_block_gets_the_lowest_place(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(0, 6) for _ in range(25)]
    conflicts = relation(rng, 25, rng.random())
    order = rng.sample(range(25), 25)
    offsets, peak = first_fit(sizes, conflicts, order, Budget())
    assert offsets == lowest(sizes, conflicts, order)
    assert peak == max(o + s for o, s in zip(offsets, sizes, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_an_order_that_is_no_better_is_given_up(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 6) for _ in range(25)]
    conflicts = relation(rng, 25, 0.5)
    whole, less = Budget(), Budget()
    offsets, peak = first_fit(sizes, conflicts, list(range(25)), whole)
    assert first_fit(sizes, conflicts, list(range(25)), Budget(), peak + 1) == (offsets, peak)
    assert first_fit(sizes, conflicts, list(range(25)), less, peak // 2)[1] >= peak // 2
    assert less.used < whole.used


def test_sets_are_numbers() -> None:
    rng = random.Random(0)
    for some in (0, 1, 3, 40, 400):
        numbers = sorted(rng.sample(range(1000), some))
        assert list(members(bits_of(numbers, 1000))) == numbers
