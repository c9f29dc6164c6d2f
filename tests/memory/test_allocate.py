"""The allocator: live blocks never overlap, the peak is honest, and long chains are quick."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atc_py.memory import EFFORTS, Assignment, Block, Effort, lower_bound, plan_memory
from atc_py.memory.aligned import plan_aligned
from atc_py.memory.greedy import area, by_order, by_time, by_time_reversed, conflicts_of, size
from atc_py.memory.problem import Budget
from atc_py.memory.reduce import company_count, fill, join, peel, span_count
from tests.memory.checker import check, most_live
from tests.memory.packings import packing
from tests.timing import cpu_seconds

SPANS = st.tuples(st.integers(0, 12), st.integers(0, 6), st.sampled_from([0, 1, 2, 3, 5, 8, 512, 1024]))
BLOCKS = st.lists(SPANS.map(lambda s: Block(s[0], s[0] + s[1], s[2])), max_size=14)
OVERLAPPING = [(0, 4, 3), (2, 6, 3)]


def triples(blocks: list[Block]) -> list[tuple[int, int, int]]:
    return [(b.lower, b.upper, b.size) for b in blocks]


def checked(blocks: list[Block], found: Assignment) -> None:
    """The plan is one, its peak is the top of its highest block, and what it says of the bound is so."""
    check(triples(blocks), found.offsets, found.peak)
    assert found.peak == max((o + b.size for o, b in zip(found.offsets, blocks)), default=0)
    assert found.lower_bound == most_live(triples(blocks)) <= found.peak
    assert found.optimal or found.peak > found.lower_bound


def test_the_checker_sees_what_is_wrong() -> None:
    check(OVERLAPPING, [0, 3], 6)
    for offsets, peak in (([0, 2], 6), ([0, 3], 5), ([-1, 3], 6), ([0], 6), ([0, 0], 6)):
        with pytest.raises(AssertionError):
            check(OVERLAPPING, offsets, peak)


@given(BLOCKS)
@example([])
@example([Block(0, 0, 0)])
@example([Block(0, 2, 512), Block(1, 3, 1024), Block(2, 4, 512)])
def test_live_blocks_never_overlap(blocks: list[Block]) -> None:
    conflicts = conflicts_of(blocks, Budget())
    plans = [by_time(blocks, Budget()), by_time_reversed(blocks, Budget())]
    plans += [by_order(blocks, conflicts, key, Budget()) for key in (size, area)]
    for offsets, peak in plans:
        living = [(o, b) for o, b in zip(offsets, blocks) if b.lower < b.upper]
        check(triples([b for _, b in living]), [o for o, _ in living], peak)
    for effort in ("fast", "default"):
        found = plan_memory([b for b in blocks if b.lower < b.upper], effort=effort)
        checked([b for b in blocks if b.lower < b.upper], found)
    assert plan_memory(blocks, effort="default") == plan_memory(blocks, effort="default")


@given(BLOCKS)
def test_the_bound_is_the_greatest_sum_of_live_blocks(blocks: list[Block]) -> None:
    assert lower_bound(blocks) == most_live(triples(blocks))


@given(BLOCKS, st.sampled_from([1, 2, 32, 512]))
def test_offsets_are_aligned(blocks: list[Block], alignment: int) -> None:
    found = plan_memory(blocks, alignment=alignment)
    alive = [(b, o) for b, o in zip(blocks, found.offsets, strict=True) if b.lower < b.upper]
    check(triples([b for b, _ in alive]), [o for _, o in alive], found.peak)
    assert all(o % alignment == 0 for o in found.offsets)
    assert found.peak == max((o + b.size for b, o in alive), default=0)
    assert lower_bound(blocks) <= found.lower_bound <= found.peak and found.optimal >= (alignment == 1)


def test_the_worked_example() -> None:
    """Of the module's page: a and c share bytes, the peak is the bound."""
    found = plan_memory([Block(0, 2, 512), Block(1, 3, 1024), Block(2, 4, 512)])
    assert found.peak == found.lower_bound == 1536 and found.optimal
    assert found.offsets == (0, 512, 0)


def test_a_capacity_ends_the_work() -> None:
    blocks = network(3, 300)
    best, enough = plan_memory(blocks), plan_memory(blocks, capacity=2 * lower_bound(blocks))
    assert enough.steps < best.steps and best.peak <= enough.peak <= 2 * best.lower_bound


def network(seed: int, count: int) -> list[Block]:
    """Blocks that live for one to five positions, a few for long."""
    rng = random.Random(seed)
    blocks = []
    for k in range(count):
        length = rng.choice([1, 1, 1, 2, 3, 5]) if rng.random() < 0.97 else rng.randint(20, 60)
        blocks.append(Block(k, k + length + 1, 512 * rng.randint(1, 400)))
    return blocks


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_network_like_plan_meets_the_bound(seed: int) -> None:
    blocks = network(seed, 400)
    found = plan_memory(blocks, alignment=512)
    checked(blocks, found)
    assert found.peak == found.lower_bound
    assert plan_memory(blocks, effort="fast").peak <= 1.17 * found.lower_bound


@pytest.mark.parametrize("step", [lambda k: 512, lambda k: 512 * (1 + k % 17)])
def test_a_chain_of_10000_blocks_is_quick(step: Callable[[int], int]) -> None:
    blocks = [Block(k, k + 2, step(k)) for k in range(10_000)]
    with cpu_seconds(2):
        found = plan_memory(blocks, effort="fast")
    check(triples(blocks), found.offsets, found.peak)
    assert found.peak == found.lower_bound


def best_fit(blocks: list[Block]) -> list[int]:
    """What `by_time` is to do, by looking at all that is live for each block."""
    offsets = [0] * len(blocks)
    placed: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: (blocks[i].lower, -blocks[i].size, i)):
        if blocks[i].size and blocks[i].lower < blocks[i].upper:
            placed = [j for j in placed if blocks[j].upper > blocks[i].lower]
            at, gaps = 0, []
            for low, high in sorted((offsets[j], offsets[j] + blocks[j].size) for j in placed):
                gaps += [(low - at, at)] if low - at >= blocks[i].size else []
                at = high
            offsets[i] = min(gaps)[1] if gaps else at
            placed.append(i)
    return offsets


@given(BLOCKS)
@example([Block(0, 9, 1), Block(0, 2, 5), Block(0, 3, 4), Block(0, 9, 1), Block(3, 4, 2), Block(3, 6, 7)])
def test_by_time_is_best_fit(blocks: list[Block]) -> None:
    assert by_time(blocks, Budget())[0] == best_fit(blocks)


def scattered(count: int, times: int, longest: int, largest: int) -> list[Block]:
    """Blocks that begin at random and live for up to `longest` positions."""
    rng = random.Random(5)
    starts = [rng.randrange(times) for _ in range(count)]
    return [Block(s, s + rng.randint(1, longest), rng.randint(1, largest)) for s in starts]


def meeting(count: int) -> list[Block]:
    """Blocks of one size; a half ends where the other half begins."""
    half = count // 2
    return [*(Block(k, half, 512) for k in range(half)), *(Block(half, half + k + 1, 512) for k in range(half))]


@pytest.mark.parametrize(
    ("blocks", "effort", "seconds"),
    [
        (scattered(40_000, 40_000, 8_000, 100_000), "fast", 8),  # thousands of gaps at a time
        (scattered(2_000, 2_000, 1_500, 1_000), "default", 3),  # a thousand blocks and more at a time
        (scattered(20_000, 20_000, 40, 100_000), "default", 8),
        (meeting(40_000), "default", 3),
    ],
    ids=["gaps", "dense", "many", "meeting"],
)
def test_many_blocks_are_quick(blocks: list[Block], effort: Effort, seconds: float) -> None:
    with cpu_seconds(seconds):
        found = plan_memory(blocks, effort=effort)
    check(triples(blocks), found.offsets, found.peak)
    assert found.lower_bound == lower_bound(blocks)


def test_what_meets_at_one_time_is_joined_quickly() -> None:
    with cpu_seconds(2):
        assert len(join(meeting(40_000)).blocks) == 40_000


def test_a_target_out_of_reach_leaves_steps_for_lower_peaks() -> None:
    """Rectangles that fill the memory, each with a little less than its size: greedy orders are far above the bound."""
    rng = random.Random(1)
    blocks = [
        Block(lower, upper, size - int(size * rng.random() / 30))
        for lower, upper, size in packing(36, 4096, 4096, 300, 0.3, 0.15)
    ]
    greedy, found = plan_memory(blocks, effort="fast"), plan_memory(blocks)
    checked(blocks, found)
    assert greedy.peak > 1.2 * greedy.lower_bound and found.peak < 1.15 * found.lower_bound


def test_a_part_that_is_hard_leaves_steps_for_the_others() -> None:
    """What comes after 300 blocks that take all steps is placed as it is when it is alone."""
    hard = [Block(*b) for b in packing(36, 4096, 4096, 300, 0.3, 0.15)]
    easy = [Block(b[0] + 5000, b[1] + 5000, b[2] * 4) for b in packing(1, 1024, 1024, 60, 0.7, 0.0)]
    found = plan_memory([*hard, *easy])
    checked([*hard, *easy], found)
    assert plan_memory([*hard, *easy], effort="fast").peak > 1.2 * found.lower_bound
    assert found.peak <= 1.15 * found.lower_bound


@pytest.mark.parametrize(
    ("blocks", "alignment", "said"),
    [
        ([Block(0, 1, -1)], 1, "block 0 has a size of -1"),
        ([Block(0, 1, 1), Block(2, 1, 1)], 1, "block 1 .* from 2 to 1"),
        ([], 0, "alignment"),
    ],
)
def test_what_cannot_be_is_said(blocks: list[Block], alignment: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_memory(blocks, alignment=alignment)


@given(BLOCKS)
def test_a_plan_of_joined_blocks_is_a_plan_of_their_parts(blocks: list[Block]) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    joined = join(living)
    assert lower_bound(joined.blocks) == lower_bound(living) and len(joined.blocks) <= len(living)
    offsets, peak = by_time(joined.blocks, Budget())
    check(triples(living), joined.expand(offsets), peak)


def test_joining_takes_guillotine_cuts_back() -> None:
    """Stacks in chains in stacks become one."""
    blocks = [Block(0, 4, 3), Block(0, 4, 2), Block(4, 9, 5), Block(0, 9, 1)]
    assert join(blocks).blocks == [Block(0, 9, 6)]


@given(BLOCKS, st.integers(0, 40))
def test_what_is_peeled_fits_afterwards(blocks: list[Block], room: int) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    capacity = lower_bound(living) + room
    kept, later = peel(living, capacity)
    assert sorted(kept + later) == list(range(len(living)))
    offsets = [0] * len(living)
    placed, peak = by_time([living[i] for i in kept], Budget())
    for i, offset in zip(kept, placed):
        offsets[i] = offset
    fill(living, kept, offsets, later, Budget())
    check(triples(living), offsets, max(peak, capacity))


@given(BLOCKS)
def test_counts_of_pairs_and_spans(blocks: list[Block]) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    assert company_count(living) == sum(map(len, conflicts_of(living, Budget()))) // 2
    times = sorted({t for b in living for t in (b.lower, b.upper)})
    assert span_count(living) == sum(times.index(b.upper) - times.index(b.lower) for b in living)


@pytest.mark.parametrize("effort", EFFORTS)
def test_large_numbers_stay_exact(effort: Effort) -> None:
    unit = (1 << 45) + 1
    blocks = [Block(0, 2, unit), Block(1, 3, 2 * unit), Block(2, 4, unit + 7), Block(-(1 << 60), 1 << 60, 5)]
    found = plan_memory(blocks, effort=effort)
    checked(blocks, found)
    assert found.peak == 3 * unit + 12


def test_what_cannot_be_asked_is_refused() -> None:
    for wrong in ({"capacity": -1}, {"alignment": 0}, {"effort": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            plan_memory([Block(0, 1, 1)], **wrong)


@given(BLOCKS, st.randoms(use_true_random=False))
def test_alignments_of_their_own(blocks: list[Block], rng: random.Random) -> None:
    alignments = [rng.choice([1, 2, 3, 4]) for _ in blocks]
    found = plan_aligned(blocks, alignments)
    alive = [(b, o) for b, o in zip(blocks, found.offsets, strict=True) if b.lower < b.upper]
    check(triples([b for b, _ in alive]), [o for _, o in alive], found.peak)
    assert all(o % a == 0 for o, a in zip(found.offsets, alignments, strict=True))
    assert lower_bound(blocks) <= found.lower_bound <= found.peak
