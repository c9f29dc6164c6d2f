"""The cost model: cycles of one task on a target, from its operator's work and the bytes that it moves.

    Conv 64 → 64 channels, 3×3, [1, 64, 56, 56] float16 ─ Relu, on Ascend310P3, per core:

    cube      25 × 36 × 4 blocks                         ┐ side by side: the longest counts
    L2 → L1   pixels once, weights once                  │
    DDR       what L2 does not have (of all cores)       ┘
    vector    bias and Relu, 128 elements a cycle        ┐ one after the other
    L2 ↔ UB   the result leaves                          ┘
    task      launch + the longer of the two sides + the share of the shorter one that is not hidden

Every number is a rate or a set-up cost of the chip (`Target`, `Rates`); nothing here knows an operator's name, let
alone a model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from atc_py.ir.dims import Size, evaluate
from atc_py.ir.types import DType
from atc_py.ops.base import Array, Cost, Product
from atc_py.target.target import CubeShape, Rates, Target
from atc_py.target.tiling import DMA_SETUP, Gemm, tile

if TYPE_CHECKING:
    from atc_py.ir.graph import Range

UNKNOWN = 16
"""The size that a symbol counts with when only the run time knows it."""

VECTOR_BYTES = 256
"""Bytes that the vector unit of a core works on in a cycle (CANN: vec_calc_size is 128 elements of float16)."""
WIDE = 4
"""Bytes of an element where statistics are taken: float32."""
CORE_BYTES = 4096
"""Bytes that are worth a core of their own."""
PASSES = 3
"""Products of float16 parts that make a float32 one: high·high, high·low, low·high."""
STEP = 2 * DMA_SETUP
"""Cycles between the steps of a recurrence: the state goes to memory, and comes back to the cube's side of the core."""
SPLITTING = 3
"""Vector operations in float32 that cut an element into a high and a low part."""


@dataclass(slots=True)
class Work:
    """An operator's `Cost` with its sizes evaluated. Counts are element operations, `run` and `row` elements."""

    gemms: tuple[Gemm, ...] = ()
    vector: int = 0
    wide: int = 0
    run: int = 0
    row: int = 0
    reads: Mapping[int, int] = field(default_factory=dict)
    sent: int = 0
    messages: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates without padding."""
        return sum(g.count * g.m * g.k * g.taps * g.n for g in self.gemms)


@dataclass(slots=True)
class Traffic:
    """Bytes that a task reads and writes, and how many of them DDR has to deliver or take."""

    read: int = 0
    written: int = 0
    ddr: float = 0.0


@dataclass(slots=True)
class Breakdown:
    """Cycles of a task: busy cycles of each unit, launch, and the total, with what it is bound by."""

    cube: float
    vector: float
    memory: float
    setup: float
    total: float

    @property
    def bound_by(self) -> str:
        """`cube`, `vector`, `memory`, or `launch` where setting up takes longer than the work."""
        units = {"cube": self.cube, "vector": self.vector, "memory": self.memory}
        name = max(units, key=lambda u: units[u])
        return name if units[name] >= self.setup else "launch"


@dataclass(slots=True)
class Load:
    """A task in the units' own measures, at full rates, for the busiest core: what `Rates` make cycles of.

    `cube`, `vector`: cycles; `feed`: cycles in which the cube's operands and sums move. `fetched`: bytes from L2 to
    L1; `read`, `written`: bytes between L2 and the unified buffer. `pieces`: separate pieces of data. `ddr`: bytes
    of all cores together. `steps`: how often the vector unit's result is the cube's next operand.
    """

    cube: float = 0.0
    feed: float = 0.0
    vector: float = 0.0
    fetched: float = 0.0
    read: float = 0.0
    written: float = 0.0
    pieces: float = 0.0
    ddr: float = 0.0
    steps: float = 0.0


def work_of(cost: Cost, env: Mapping[str, int] | None = None, left_bytes: int = 0) -> Work:
    """A cost with its sizes evaluated under `env`; products without size are left out.

    `left_bytes` are those of the first product's left operand, where they are known.
    """
    at = env or {}

    def number(size: Size) -> int:
        return evaluated(size, at)

    gemms: list[Gemm] = []
    for product in cost.products:
        gemm = gemm_of(product, at, 0 if gemms else left_bytes)
        if gemm is not None:
            gemms.append(gemm)
    if not cost.products and (macs := number(cost.macs)):
        side = ceil(macs ** (1 / 3))  # only the amount is known: a product without padding
        gemms.append(Gemm(side, side, side))
    reads = {i: number(size) for i, size in cost.reads.items()}
    work = Work(tuple(gemms), number(cost.vector), number(cost.wide), number(cost.run), number(cost.row), reads)
    if cost.messages:
        work.sent, work.messages = number(cost.sent), number(cost.messages)
    return work


def gemm_of(product: Product, env: Mapping[str, int], left_bytes: int = 0) -> Gemm | None:
    """A product with its sizes evaluated; None where one of them is nothing."""
    m, k, n = evaluated(product.m, env), evaluated(product.k, env), evaluated(product.n, env)
    count, taps = evaluated(product.count, env), evaluated(product.taps, env)
    if not (m and k and n and count and taps):
        return None
    shape = (m, k, n, count, taps, product.grouped, left_bytes // count)
    return Gemm(*shape, product.inner, product.rows, product.packs, product.serial)


def evaluated(size: Size, env: Mapping[str, int]) -> int:
    """A size under `env`, at least 0; one that has no value there (a division by 0) counts nothing."""
    if type(size) is int:
        return size if size > 0 else 0
    try:
        return max(0, evaluate(size, env))
    except ZeroDivisionError:
        return 0


class Sized(dict[str, int]):
    """Values of symbols; `other` is that of one that nobody has named."""

    def __init__(self, known: Mapping[str, int], other: int) -> None:
        super().__init__(known)
        self.other = other

    def __missing__(self, name: str) -> int:
        return self.other


def counted_sizes(symbols: Mapping[str, Range], hint: Mapping[str, int] | None = None) -> Sized:
    """The sizes that symbols count with: those of the hint, else `UNKNOWN`, unless their range excludes it."""
    usual = {name: max(r.lo, UNKNOWN if r.hi is None else min(UNKNOWN, r.hi)) for name, r in symbols.items()}
    return Sized({**usual, **(hint or {})}, UNKNOWN)


def load_of(work: Work, traffic: Traffic, dtype: DType, target: Target) -> Load:
    """What the task asks of the units of the busiest core."""
    steps = sum(gemm.count for gemm in work.gemms if gemm.serial)
    units = 1 if steps else target.vector_units
    read, cube, feed, fetched = float(traffic.read), 0.0, 0.0, 0.0
    lanes = VECTOR_BYTES / dtype.itemsize
    vector = work.vector / lanes + work.wide * WIDE / VECTOR_BYTES
    shape, itemsize, passes = cube_for(dtype, target)
    for gemm in work.gemms:
        if shape is None:  # no cube for this dtype: the vector unit multiplies
            vector += gemm.count * gemm.m * gemm.k * gemm.taps * gemm.n / lanes
            continue
        found = tile(gemm, shape, itemsize, target)
        cube, feed = cube + found.cube * passes, feed + (found.feed + found.drain) * passes
        fetched += found.fetched * passes
        read = max(0.0, read - found.left - found.right)  # what is left comes to the unified buffer
        if passes > 1:
            split = gemm.count * (gemm.m * gemm.k + gemm.k * gemm.taps * gemm.n)
            vector += split * SPLITTING * WIDE / VECTOR_BYTES
    if work.row and work.row * dtype.itemsize > target.ub // 2:  # two rows at a time: one is moved, one worked on
        read *= 2
    read, written = _spread(read, CORE_BYTES, units), _spread(traffic.written, CORE_BYTES, units)
    pieces = (read + written) / (work.run * dtype.itemsize) if work.run else 0.0
    vector = _spread(vector, CORE_BYTES / VECTOR_BYTES, units)
    return Load(cube, feed, vector, fetched, read, written, pieces, traffic.ddr, steps)


def _spread(amount: float, grain: float, units: int) -> float:
    """The part of the busiest of `units` cores, none of which gets less than `grain`."""
    return max(amount / units, min(amount, grain))


def cube_for(dtype: DType, target: Target) -> tuple[CubeShape | None, int, int]:
    """(block, bytes of an element, passes) with which the cube multiplies a dtype; None: it does not."""
    if dtype in target.cube:
        return target.cube[dtype], dtype.itemsize, 1
    if dtype in (DType.FLOAT32, DType.BFLOAT16) and DType.FLOAT16 in target.cube:
        return target.cube[DType.FLOAT16], DType.FLOAT16.itemsize, PASSES
    return None, dtype.itemsize, 1


def task_cycles(work: Work, traffic: Traffic, dtype: DType, target: Target) -> Breakdown:
    """Cycles of one AI Core task whose operands have the given dtype."""
    return breakdowns([load_of(work, traffic, dtype, target)], target)[0]


def breakdowns(loads: Sequence[Load], target: Target) -> list[Breakdown]:
    """Cycles of each task."""
    names = tuple(f.name for f in fields(Load))
    rows = [(x.cube, x.feed, x.vector, x.fetched, x.read, x.written, x.pieces, x.ddr, x.steps) for x in loads]
    table = np.array(rows, float).reshape(-1, len(names))
    columns = price(dict(zip(names, table.T, strict=True)), target, target.rates)
    return [Breakdown(*row) for row in np.stack(columns, axis=1).tolist()]


def price(load: Mapping[str, Array], target: Target, rates: Rates) -> tuple[Any, ...]:
    """(cube, vector, memory, setup, total) in cycles for arrays of loads: the formula, and all of it.

    A core has two sides. The cube's: the cube itself, the moves that feed it, and L2 → L1, all at once; what DDR
    delivers comes at the same time. The vector unit's: data comes into the unified buffer, is worked on, and goes. In
    the steps of a recurrence one side waits for the other.
    """
    into, out = target.l2_read_bytes_per_cycle, target.l2_write_bytes_per_cycle
    cube = np.maximum(load["cube"] / rates.cube, load["feed"])
    vector = load["vector"] / rates.vector
    ddr = load["ddr"] / (target.ddr_bytes_per_cycle * target.aicores * rates.ddr)
    fetch = np.maximum(load["fetched"] / (into * rates.l1), ddr)
    moved = load["read"] + load["pieces"] * rates.piece_bytes
    pass_ub = moved / (into * rates.ub) + load["written"] / (out * rates.ub)
    one, other = np.maximum(cube, fetch), vector + pass_ub
    setup, between = np.full_like(cube, cycles_of(rates.task_us, target)), load["steps"] * STEP
    exposed = np.where(load["steps"] > 0, 1.0, rates.exposed)
    total = setup + between + np.maximum(one, other) + exposed * np.minimum(one, other)
    return cube, vector, np.maximum(fetch, pass_ub) + between, setup, total


def cycles_of(microseconds: float, target: Target) -> float:
    """Cycles of the target's clock."""
    return microseconds * target.frequency_mhz


def microseconds_of(cycles: float, target: Target) -> float:
    """Microseconds at the target's clock."""
    return cycles / target.frequency_mhz
