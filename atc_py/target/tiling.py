"""How a matrix product is cut for the cores, their first-level buffers and the cube unit.

    [12544, 64·9] × [576, 64] float16 on 8 cores with 16×16×16 cubes, weights and pixels in blocks of 16:

    blocks            784 × 36 × 4                        (m, k, n); one block is one cycle of the cube
    split             8 × 1                               98 × 36 × 4 blocks, 14,112 cycles a core
    L1                pixels 196 KiB + weights 72 KiB     both fit: each is fetched once
    L0C               64 × 4 blocks of sums at once       k streams past; pixels go to L0A once, weights twice

Narrow groups of a grouped convolution are multiplied as one block-diagonal product (GE does so when it packs the
weights): groups of 4 channels come four at a time, and 3/4 of the block is zeros; a depthwise one has 15/16 zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, lcm
from typing import NamedTuple

from atc_py.target.target import CubeShape, Target

L1_TO_A = 512
"""Bytes a cycle from L1 to L0A, on every Da Vinci core (CANN's platform configuration)."""
L1_TO_B = 256
"""Bytes a cycle from L1 to L0B."""
L0C_TO_UB = 512
"""Bytes a cycle from L0C to the unified buffer."""
DMA_SETUP = 422
"""Cycles from the start of a transfer between memory and a core's buffers to its first bytes (a public CANN header)."""
ACCUMULATOR = 4
"""Bytes of an element in L0C: float32 or int32."""
FEW_CHANNELS = 4
"""A convolution over planes of at most so many channels packs several filter positions into one block (GE: small
channel)."""


@dataclass(frozen=True)
class Gemm:
    """`count` products [m, k·taps] × [k·taps, n] of one dtype; `left` bytes are fetched for the left operand.

    With `taps` > 1 a left element serves several filter positions, so that fewer bytes than m·k·taps elements are
    fetched; `left` 0 stands for m·k elements each. `inner`: none are, for the task makes the operand itself. `rows`: a
    core makes whole rows, so that only they are split. `packs`: few channels share a block. `serial`: the products come
    one after the other, on one core, with one right operand, which stays in L1 if half of that holds it.
    """

    m: int
    k: int
    n: int
    count: int = 1
    taps: int = 1
    grouped: bool = False
    left: int = 0
    inner: bool = False
    rows: bool = False
    packs: bool = True
    serial: bool = False


class Tiling(NamedTuple):
    """What the busiest core does: cycles of the cube, of L1 → L0 and of L0C → UB, bytes fetched and written.

    `cores` is how many work (GE: block dim), `l1` the bytes of one step in L1; `left` and `right` are the bytes of the
    operands of all cores together.
    """

    cores: int
    cube: int
    feed: int
    drain: int
    fetched: int
    written: int
    l1: int
    left: int
    right: int


@dataclass(slots=True)
class _Blocks:
    """A product in blocks of the cube: its size, and the bytes of the two operands of one product.

    `shared`: all products have one right operand.
    """

    m: int
    k: int
    n: int
    count: int
    left: int
    right: int
    shared: bool


@lru_cache(maxsize=65536)
def tile(gemm: Gemm, cube: CubeShape, itemsize: int, target: Target) -> Tiling:
    """The cheapest cut over the target's cores, for operands of `itemsize` bytes. All sizes must be positive."""
    b = _blocks(gemm, cube, itemsize)
    best: Tiling | None = None
    best_key: tuple[float, ...] = ()
    for split in _splits(target.aicores):
        rows, columns, groups = split
        if rows > b.m or columns > b.n or groups > b.count or (gemm.rows and columns * groups > 1):
            continue
        if gemm.serial and rows * columns * groups > 1:
            continue
        found = _core(b, split, cube, itemsize, target)
        memory = (found.fetched + found.written) / target.l2_read_bytes_per_cycle
        key = (max(found.cube, found.feed, found.drain, memory), found.cube + memory, float(found.cores))
        if best is None or key < best_key:
            best, best_key = found, key
    assert best is not None  # (1, 1, 1) always fits
    return best


@lru_cache(maxsize=64)
def _splits(cores: int) -> tuple[tuple[int, int, int], ...]:
    """(parts of the rows, of the columns, of the products) that make at most `cores` parts."""
    return tuple(
        (rows, columns, groups)
        for groups in range(1, cores + 1)
        for columns in range(1, cores // groups + 1)
        for rows in range(1, cores // (groups * columns) + 1)
    )


def _blocks(gemm: Gemm, cube: CubeShape, itemsize: int) -> _Blocks:
    k, n, count = gemm.k, gemm.n, gemm.count
    merged = 1
    if gemm.grouped and count > 1:
        merged = min(count, lcm(lcm(k, cube.k) // k, lcm(n, cube.n) // n))
        k, n, count = k * merged, n * merged, ceil(count / merged)
    depth = ceil(k / cube.k) * gemm.taps
    if gemm.packs and gemm.taps > 1 and gemm.k <= FEW_CHANNELS and gemm.count == 1:
        depth = ceil(FEW_CHANNELS * gemm.taps / cube.k)
    rows, columns = ceil(gemm.m / cube.m), ceil(n / cube.n)
    left = gemm.left * merged if gemm.left else rows * cube.m * ceil(k / cube.k) * cube.k * itemsize
    left = 0 if gemm.inner else left
    return _Blocks(rows, depth, columns, count, left, depth * columns * cube.k * cube.n * itemsize, gemm.serial)


def _core(b: _Blocks, split: tuple[int, int, int], cube: CubeShape, itemsize: int, target: Target) -> Tiling:
    rows, columns, groups = split
    m, n, count = ceil(b.m / rows), ceil(b.n / columns), ceil(b.count / groups)
    left, right = b.left * m // b.m, b.right * n // b.n
    block = ACCUMULATOR * cube.m * cube.n
    high, wide = _l0_tile(m, n, left, right, target.l1 // 2, target.l0c // block)
    again_left, again_right = ceil(n / wide), ceil(m / high)
    a = cube.m * cube.k * itemsize / L1_TO_A * m * again_left
    w = cube.k * cube.n * itemsize / L1_TO_B * n * again_right
    fetched = _fetched(left, right, again_left, again_right, target.l1 // 2) * count
    if b.shared and right <= target.l1 // 2:
        fetched -= right * (count - 1)
    return Tiling(
        cores=rows * columns * groups,
        cube=m * b.k * n * count,
        feed=ceil((a + w) * b.k * count),
        drain=ceil(m * n * count * block / L0C_TO_UB),
        fetched=fetched,
        written=m * n * count * cube.m * cube.n * itemsize,
        l1=min(left, target.l1 // 2) + min(right, target.l1 // 2),
        left=b.left * b.count,
        right=b.right * b.count,
    )


def _fetched(left: int, right: int, again_left: int, again_right: int, half: int) -> int:
    """Bytes fetched into L1: an operand that fits half of it once, a longer one for each tile that needs it."""
    return (left if left <= half else left * again_left) + (right if right <= half else right * again_right)


@lru_cache(maxsize=65536)
def _l0_tile(m: int, n: int, left: int, right: int, half: int, most: int) -> tuple[int, int]:
    """Rows and columns of blocks that accumulate in L0C at once, at most `most`: those that fetch the fewest bytes.

    The other operand streams past along k, so that a tile of rows and columns needs each of its operands once.
    """
    best = (1, 1)
    best_key: tuple[int, int] = (1 << 62, 0)
    wide = 1
    while wide <= n:
        high = min(m, most // wide)
        if high < 1:
            break
        key = (_fetched(left, right, ceil(n / wide), ceil(m / high), half), ceil(n / wide) * m + 2 * ceil(m / high) * n)
        if key < best_key:
            best, best_key = (high, wide), key
        wide = min(n, wide * 2) if wide < n else n + 1
    return best
