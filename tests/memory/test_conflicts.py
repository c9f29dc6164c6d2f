"""The allocator on conflict relations: no two in conflict share a byte, and on intervals it does as well as on time."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from atc_py.memory import EFFORTS, Effort, plan_memory_conflicts
from atc_py.memory.cliques import cliques, graph_of, heaviest_clique, members, ride
from atc_py.memory.problem import Budget


def relation(rng: random.Random, count: int, density: float) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for i, j in combinations(range(count), 2):
        if rng.random() < density:
            found[i].append(j)
            found[j].append(i)
    return found


def least_peak(sizes: list[int], conflicts: list[list[int]]) -> int:
    """Every offset of every block, for one capacity after the other."""

    def fits(capacity: int, offsets: tuple[int, ...]) -> bool:
        i = len(offsets)
        if i == len(sizes):
            return True
        before = [j for j in conflicts[i] if j < i]
        return any(
            fits(capacity, (*offsets, at))
            for at in range(capacity - sizes[i] + 1)
            if all(at + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= at for j in before)
        )

    return next(c for c in range(sum(sizes) + 1) if fits(c, ()))


def heaviest(sizes: list[int], conflicts: list[list[int]]) -> int:
    """Of all sets of blocks the one that weighs most and is a clique."""
    best = 0
    for chosen in range(1 << len(sizes)):
        inside = [i for i in range(len(sizes)) if chosen >> i & 1]
        if all(j in conflicts[i] for i, j in combinations(inside, 2)):
            best = max(best, sum(sizes[i] for i in inside))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_least_peak_is_found(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(0, 4) for _ in range(rng.randint(1, 7))]
    conflicts = relation(rng, len(sizes), rng.choice([0.3, 0.6, 0.9]))
    best, bound = least_peak(sizes, conflicts), heaviest(sizes, conflicts)
    found = plan_memory_conflicts(sizes, conflicts, effort="max")
    assert (found.peak, found.optimal) == (best, True) and found.lower_bound <= bound
    assert found.lower_bound in (found.peak, bound)
    apart(sizes, conflicts, found.offsets, found.peak)


def apart(sizes: list[int], conflicts: list[list[int]], offsets: tuple[int, ...], peak: int) -> None:
    for i, others in enumerate(conflicts):
        assert offsets[i] >= 0 and offsets[i] + sizes[i] <= peak
        for j in others:
            empty = not sizes[i] or not sizes[j]
            assert empty or offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


@pytest.mark.parametrize("effort", EFFORTS[:2])
@pytest.mark.parametrize("density", [0.05, 0.3, 0.8])
def test_what_is_in_conflict_lies_apart(density: float, effort: Effort) -> None:
    rng = random.Random(5)
    sizes = [rng.choice([0, 1, 100, 513, 4000]) for _ in range(60)]
    conflicts = relation(rng, 60, density)
    found = plan_memory_conflicts(sizes, conflicts, alignment=32, effort=effort)
    rounded = [-(-s // 32) * 32 for s in sizes]
    apart(rounded, conflicts, found.offsets, found.peak)
    assert all(o % 32 == 0 for o in found.offsets) and found.lower_bound <= found.peak
    assert found == plan_memory_conflicts(sizes, conflicts, alignment=32, effort=effort)


def test_the_worked_example() -> None:
    found = plan_memory_conflicts([512, 1024, 512, 1024], [[1], [0, 2, 3], [1, 3], [1, 2]])
    assert (found.offsets, found.peak, found.optimal) == ((1024, 0, 2048, 1024), 2560, True)


def test_a_ring_of_five_takes_more_than_its_cliques() -> None:
    """Each conflicts with its two neighbours: at most two can share, so there are three places for cliques of two."""
    ring = [[(i - 1) % 5, (i + 1) % 5] for i in range(5)]
    found = plan_memory_conflicts([8] * 5, ring)
    assert (found.lower_bound, found.peak, found.optimal) == (16, 24, True)


@pytest.mark.parametrize("seed", range(10))
def test_cliques_hold_every_conflict(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 9) for _ in range(12)]
    conflicts = relation(rng, 12, rng.random())
    graph = graph_of(sizes, conflicts)
    everything = (1 << 12) - 1
    found = cliques(graph, everything)
    held = {(graph.order[i], graph.order[j]) for c in found for i in c for j in c if i != j}
    assert held == {(i, j) for i, others in enumerate(conflicts) for j in others}
    assert {i for c in found for i in c} == set(range(12))
    assert heaviest_clique(graph, everything, 0, Budget(1_000_000)) == heaviest(sizes, conflicts)
    alive, rides = ride(graph, Budget())
    assert len(rides) + len(list(members(alive))) == 12


@pytest.mark.parametrize(
    ("sizes", "conflicts", "said"),
    [
        ([1, -1], [[], []], "block 1 has a size of -1"),
        ([1], [[], []], "1 sizes"),
        ([1, 1], [[1], []], "conflicts with 1"),
        ([1], [[0]], "conflicts with 0"),
        ([1], [[7]], "conflicts with 7"),
    ],
)
def test_what_cannot_be_is_said(sizes: list[int], conflicts: list[list[int]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_memory_conflicts(sizes, conflicts)
