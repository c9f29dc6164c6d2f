"""The cost model: units, peaks, what can never be cheaper, and the L2 cache."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Cost, Infer, Product
from atc_py.ops.build import lookup
from atc_py.target import Target, load, names
from atc_py.target.cache import Cache
from atc_py.target.cost import (
    Breakdown,
    Load,
    Traffic,
    Work,
    breakdowns,
    load_of,
    microseconds_of,
    task_cycles,
    work_of,
)
from atc_py.target.tiling import DMA_SETUP, Gemm, tile

P3 = load("Ascend310P3")
HALF, FLOAT = DType.FLOAT16, DType.FLOAT32
MIB = 1 << 20


def gemm(m: int, k: int, n: int, dtype: DType = HALF, target: Target = P3) -> Breakdown:
    size = dtype.itemsize
    work = Work((Gemm(m, k, n),))
    return task_cycles(work, Traffic((m * k + k * n) * size, m * n * size), dtype, target)


def seconds(b: Breakdown, target: Target = P3) -> float:
    return microseconds_of(b.total, target) / 1e6


# --- the cube ---------------------------------------------------------------------------------------------------


def test_a_large_product_comes_near_the_peak_and_never_above_it() -> None:
    flops = 2 * 8192**3
    reached = flops / seconds(gemm(8192, 8192, 8192)) / 1e12
    peak = 8 * 16 * 16 * 16 * 2 * 1.06e9 / 1e12
    assert peak == pytest.approx(69.5, abs=0.1)
    assert 0.8 * peak < reached < peak


@pytest.mark.parametrize("name", names())
def test_no_target_exceeds_its_peak(name: str) -> None:
    target = load(name)
    for dtype, shape in target.cube.items():
        flops = 2 * 4096**3 / seconds(gemm(4096, 4096, 4096, dtype, target), target)
        assert flops < 2 * shape.m * shape.k * shape.n * target.aicores * target.frequency_mhz * 1e6


def test_blocks_are_whole() -> None:
    assert gemm(4096, 4096, 4081).cube == gemm(4096, 4096, 4096).cube
    assert gemm(4096, 4096, 4097).cube > gemm(4096, 4096, 4096).cube


def test_int8_is_twice_as_fast_and_emulated_float32_three_times_slower() -> None:
    cube = gemm(4096, 4096, 4096).cube
    assert gemm(4096, 4096, 4096, DType.INT8).cube == pytest.approx(cube / 2)
    emulated = gemm(4096, 4096, 4096, FLOAT)
    assert emulated.cube == pytest.approx(3 * cube)
    assert emulated.vector > gemm(4096, 4096, 4096).vector, "cutting into halves is vector work"
    generic = load("Generic")
    assert gemm(4096, 4096, 4096, FLOAT, generic).cube == gemm(4096, 4096, 4096, HALF, generic).cube


def test_narrow_groups_share_blocks() -> None:
    dense = load_of(Work((Gemm(12544, 128, 128, taps=9),)), Traffic(), HALF, P3)
    grouped = load_of(Work((Gemm(12544, 4, 4, 32, 9, grouped=True),)), Traffic(), HALF, P3)
    alone = load_of(Work((Gemm(12544, 4, 4, 32, 9),)), Traffic(), HALF, P3)
    assert grouped.cube == dense.cube / 8, "four groups of 4 channels in a block of 16"
    assert alone.cube == grouped.cube * 4


def test_few_channels_share_a_block_where_the_operator_packs_them() -> None:
    dense, packed = Gemm(12544, 3, 64, taps=49, packs=False), Gemm(12544, 3, 64, taps=49)
    cube = P3.cube[HALF]
    assert tile(dense, cube, 2, P3).cube * ceil(4 * 49 / 16) == tile(packed, cube, 2, P3).cube * 49


def recurrent(kind: str, steps: int, batch: int, width: int, hidden: int, direction: str = "forward") -> Load:
    op, gates, directions = lookup(kind, {}), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind] * hidden, 1 + (direction[0] == "b")
    shapes = [(steps, batch, width), (directions, gates, width), (directions, gates, hidden)]
    types = tuple(Tensor(HALF, s) for s in shapes)
    outs = [Tensor(HALF, (steps, directions, batch, hidden))]
    attrs = op.attributes({"hidden_size": hidden, "direction": direction})
    traffic = Traffic(sum(prod(s) for s in shapes) * 2, prod(outs[0].dims) * 2)  # type: ignore[arg-type]
    return load_of(work_of(op.work(Infer(types, attrs), outs)), traffic, HALF, P3)


def cycles(load: Load) -> float:
    return breakdowns([load], P3)[0].total


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_steps_of_a_recurrence_wait_for_each_other(kind: str) -> None:
    """A step takes at least two transfers between memory and the core, however small the state is."""
    for hidden in (16, 64, 256):
        one, many = (cycles(recurrent(kind, steps, 1, hidden, hidden)) for steps in (1, 129))
        assert (many - one) / 128 > 2 * DMA_SETUP
        both = cycles(recurrent(kind, 129, 1, hidden, hidden, "bidirectional"))
        assert both == pytest.approx(2 * many, rel=0.02), "one direction after the other"
    assert recurrent(kind, 128, 16, 64, 64).vector == recurrent(kind, 128, 1, 64, 64).vector, "a block has 16 rows"


def test_weights_of_a_recurrence_stay_in_l1_if_they_fit() -> None:
    small, large = (recurrent("LSTM", 200, 1, h, h).fetched / (200 * 4 * h * h * 2) for h in (128, 512))
    assert small < 0.1 and large > 1


def test_a_strided_transposed_convolution_multiplies_the_zeros_between() -> None:
    op = lookup("ConvTranspose", {})
    x, w, out = (Tensor(HALF, s) for s in ((1, 64, 32, 32), (64, 32, 4, 4), (1, 32, 64, 64)))
    attrs = op.attributes({"strides": (2, 2), "pads": (1, 1, 1, 1)})
    work = work_of(op.work(Infer((x, w), attrs), [out]))
    assert work.macs == 64 * 64 * 16 * 64 * 32, "each position of the result sees a whole filter"
    assert work.vector == 64 * 64 * 64, "the input is spread out before"


@pytest.mark.parametrize(
    ("window", "operations"), [((2, 2), 8), ((3, 3), 18), ((13, 13), 78), ((1, 3, 3), 18), ((3, 3, 3), 27)]
)
def test_a_maximum_over_a_large_window_is_taken_along_one_axis_after_the_other(window: Any, operations: int) -> None:
    op, x = lookup("MaxPool", {"kernel_shape": window}), Tensor(HALF, (2, 16) + (20,) * len(window))
    out = x.with_shape((2, 16, *[21 - k for k in window]))
    work = work_of(op.work(Infer((x,), op.attributes({"kernel_shape": window})), [out]))
    assert work.vector == operations * prod([2, 16, *[21 - k for k in window]])


def test_a_product_without_cube_runs_on_the_vector_unit() -> None:
    work = task_cycles(Work((Gemm(512, 512, 512),)), Traffic(), DType.INT32, P3)
    assert work.cube == 0 and work.bound_by == "vector"


@given(
    m=st.integers(1, 5000), k=st.integers(1, 3000), n=st.integers(1, 3000), count=st.integers(1, 40),
    taps=st.sampled_from([1, 9, 49]), grouped=st.booleans(), name=st.sampled_from(["Ascend310P3", "Ascend310B1"]),
)  # fmt: skip
def test_a_tiling_does_all_the_work_in_the_buffers_that_there_are(
    m: int, k: int, n: int, count: int, taps: int, grouped: bool, name: str
) -> None:
    target = load(name)
    shape = target.cube[HALF]
    found = tile(Gemm(m, k, n, count, taps, grouped), shape, 2, target)
    assert 1 <= found.cores <= target.aicores
    assert found.l1 <= target.l1
    needed = count * m * k * taps * n / (shape.m * shape.k * shape.n)
    padded = prod(ceil(x / 16) * 16 / x for x in (m, n))
    if not grouped and not (taps > 1 and k <= 4):
        assert found.cube * found.cores >= needed * padded - 1e-6
    assert found.cube * found.cores * 16 >= needed
    assert found.fetched * found.cores >= min(found.left, found.right)


def test_the_split_uses_all_cores_where_there_is_work_for_them() -> None:
    assert tile(Gemm(4096, 512, 512), P3.cube[HALF], 2, P3).cores == 8
    assert tile(Gemm(16, 16, 16), P3.cube[HALF], 2, P3).cores == 1
    assert tile(Gemm(16, 512, 4096), P3.cube[HALF], 2, P3).cores == 8, "one row of blocks is split by columns"


# --- memory and vector ------------------------------------------------------------------------------------------


NOTHING = Work()


def moved(nbytes: int, ddr: float = 0.0, work: Work = NOTHING, dtype: DType = HALF) -> Breakdown:
    return task_cycles(work, Traffic(nbytes // 2, nbytes // 2, ddr), dtype, P3)


def test_bandwidth_is_that_of_the_chip() -> None:
    nbytes = 64 * MIB
    from_ddr = nbytes / seconds(moved(nbytes, nbytes)) / 1e9
    from_l2 = nbytes / seconds(moved(nbytes)) / 1e9
    assert 120 < from_ddr < 204.8, "GB/s of LPDDR4X"
    assert from_ddr < from_l2 < 985


def test_an_empty_task_costs_its_launch() -> None:
    nothing = moved(0)
    assert microseconds_of(nothing.total, P3) == pytest.approx(P3.rates.task_us)
    assert nothing.bound_by == "launch" and nothing.total == nothing.setup


def test_pieces_cost_more_than_rows() -> None:
    rows, pieces, crumbs = (moved(8 * MIB, 0.0, Work(run=run)) for run in (0, 64, 1))
    assert rows.total < pieces.total < crumbs.total


def test_float32_vector_work_takes_twice_as_long() -> None:
    work = Work(vector=10_000_000)
    assert moved(8 * MIB, 0, work, FLOAT).vector == pytest.approx(2 * moved(8 * MIB, 0, work).vector)
    wide = Work(wide=10_000_000)
    assert moved(8 * MIB, 0, wide).vector == moved(8 * MIB, 0, wide, FLOAT).vector


def test_a_reduction_over_more_than_the_unified_buffer_reads_twice() -> None:
    short, long = Work(row=1024), Work(row=P3.ub)
    assert load_of(long, Traffic(MIB, MIB), HALF, P3).read == 2 * load_of(short, Traffic(MIB, MIB), HALF, P3).read


@given(
    work=st.builds(
        Work,
        gemms=st.lists(
            st.builds(Gemm, st.integers(1, 3000), st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 8)),
            max_size=2,
        ).map(tuple),
        vector=st.integers(0, 10**8),
        wide=st.integers(0, 10**8),
        run=st.integers(0, 4096),
        row=st.integers(0, 10**6),
    ),
    traffic=st.builds(Traffic, st.integers(0, 10**8), st.integers(0, 10**8), st.floats(0, 10**8)),
    more=st.integers(1, 10**8),
    dtype=st.sampled_from([HALF, FLOAT, DType.INT8]),
    name=st.sampled_from(names()),
)
def test_more_is_never_cheaper(work: Work, traffic: Traffic, more: int, dtype: DType, name: str) -> None:
    target = load(name)
    base = task_cycles(work, traffic, dtype, target).total
    for field in ("read", "written", "ddr"):
        grown = replace(traffic, **{field: getattr(traffic, field) + more})
        assert task_cycles(work, grown, dtype, target).total * (1 + 1e-9) >= base, field
    for field in ("vector", "wide"):
        grown_work = replace(work, **{field: getattr(work, field) + more})
        assert task_cycles(grown_work, traffic, dtype, target).total * (1 + 1e-9) >= base
    longer = replace(work, gemms=(*work.gemms, Gemm(64, 64, 64)))
    operands = replace(traffic, read=traffic.read + 2 * 64 * 64 * 4)
    assert task_cycles(longer, operands, dtype, target).total * (1 + 1e-9) >= base


# --- evaluating costs -------------------------------------------------------------------------------------------


def test_symbolic_costs_are_evaluated() -> None:
    n = symbol("N")
    cost = Cost(vector=n * 8, products=(Product(n, 64, 32), Product(4, 4, 4, count=n)), reads={0: n * 2})
    assert cost.macs == n * 64 * 32 + n * 64
    work = work_of(cost, {"N": 3})
    assert work.vector == 24 and work.reads == {0: 6} and work.macs == 3 * 2048 + 3 * 64
    assert work_of(cost, {"N": 0}).gemms == ()
    assert work_of(Cost(macs=1000)).macs >= 1000, "only the amount is known"


# --- the cache --------------------------------------------------------------------------------------------------


def test_what_fits_stays() -> None:
    cache = Cache(16 * MIB)
    assert cache.write("a", 8 * MIB) == 0
    assert cache.read("a", 8 * MIB) == pytest.approx(0)
    assert cache.read("w", 4 * MIB) == 4 * MIB
    assert cache.read("w", 4 * MIB) == pytest.approx(0)


def test_what_is_dropped_makes_room_and_is_not_written_back() -> None:
    cache = Cache(16 * MIB)
    cache.write("a", 16 * MIB)
    cache.drop("a")
    assert cache.write("b", 16 * MIB) == pytest.approx(0)


def test_a_cyclic_walk_over_a_little_more_than_the_cache_finds_most() -> None:
    cache = Cache(16 * MIB)
    for _ in range(5):
        missed = sum(cache.read(i, 2 * MIB) for i in range(9))
    assert 0 < missed < 9 * MIB


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40 * MIB), st.booleans()), max_size=40))
def test_the_cache_holds_no_more_than_it_can(steps: list[tuple[int, int, bool]]) -> None:
    cache = Cache(16 * MIB)
    for key, nbytes, write in steps:
        ddr = cache.write(key, nbytes) if write else cache.read(key, nbytes)
        assert -1e-3 <= ddr <= nbytes + 16 * MIB + 1
        assert sum(cache.resident(k) for k in range(6)) <= 16 * MIB * (1 + 1e-9)
        assert cache.resident(key) <= nbytes * (1 + 1e-9)


def test_without_a_cache_everything_comes_from_memory() -> None:
    cache = Cache(0)
    assert cache.write("a", 100) == 100 and cache.read("a", 100) == 100


@given(st.lists(st.tuples(*[st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40 * MIB)), max_size=3)] * 3)))
def test_a_task_is_its_reads_and_writes_one_by_one(tasks: list[tuple[list[tuple[int, int]], ...]]) -> None:
    cache, other = Cache(16 * MIB), Cache(16 * MIB)
    for reads, writes, drops in tasks:
        dropped = [key for key, _ in drops]
        ddr = cache.task([_Access(*a) for a in reads], [_Access(*a) for a in writes], dropped)
        assert ddr == sum([*(other.read(*a) for a in reads), *(other.write(*a) for a in writes)])
        for key in dropped:
            other.drop(key)
        assert all(cache.resident(key) == other.resident(key) for key in range(6))


@dataclass
class _Access:
    key: Hashable
    nbytes: int
