"""Mean and variance of a feature map's pixels, taken in blocks while the map is made, and put together afterwards.

    x: [1, 64, 20, 256] ─ BlockMoments(8×8) ─ mean, deviation: [1, 64, 3, 32]       the last row of blocks has 4 pixels
                        ─ CombineMoments    ─ mean, variance: [1, 64, 1, 1]         of all 20 · 256 pixels
    InstanceNormalization(x, s, b) = INInferV2(x, s, b, mean, variance)

A block's moments depend on its pixels alone, so the task that makes a tile of the map makes those of the tile's blocks
in passing. `deviation` is the sum of squared distances from the block's own mean; sums are put together by the formula
of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances", 1979), which
loses nothing where the mean is large: δ = Σ deviation + Σ count · (mean of the block - mean)². `INInferV2` is GE's
operator; GE's tasks that take statistics (INTrainingReduceV2) add up squares, which does lose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce
from math import prod as count
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, ceildiv, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, Result, Shape, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.tiles import Need, Region, Wanted, blocks, hull
from atc_py.ops.traits import Pattern

_FLAGS = Flags(fusible=True, recomputable=True, splittable=(0, 1), fp16_safe=True)

block_moments = declare(
    "BlockMoments",
    inputs="x",
    outputs="mean deviation?",
    attrs={"block": Attr("ints", REQUIRED)},
    flags=replace(_FLAGS, pattern=Pattern.MOMENTS),
)
combine_moments = declare(
    "CombineMoments",
    inputs="mean deviation?",
    outputs="mean variance?",
    attrs={
        "block": Attr("ints", REQUIRED),
        "size": Attr("ints", REQUIRED),
        "num_groups": Attr("int", 0),
        "dtype": Attr("dtype", DType.FLOAT32),
    },
    flags=replace(_FLAGS, pattern=Pattern.COMBINE),
)
instance_infer = declare(
    "INInferV2",
    inputs="x gamma beta mean variance",
    outputs="y",
    attrs={"epsilon": Attr("float", 1e-5)},
    flags=replace(_FLAGS, wide_inputs=(1, 2, 3, 4), pattern=Pattern.SCALE),
)
block_moments.layout(feature_maps(0))
instance_infer.layout(feature_maps(0, 3, 4))


@combine_moments.layout
def _(n: Infer, outs: Any) -> Any:
    return feature_maps(*range(1 + n.has(1)))(n, outs)


# -- types -------------------------------------------------------------------------------------------------------


def _map(n: Infer, i: int) -> Shape | None:
    """The shape of a map; it has four dims."""
    x = n.shape(i)
    if x is not None and len(x) != 4:
        n.fail(f"input {i} has rank {len(x)}; expected [batch, channels, rows, columns]")
    return x


def _pair(n: Infer, name: str) -> tuple[int, int]:
    """An attribute of two positive sizes."""
    found = tuple(n.attrs[name])
    if len(found) != 2 or min(found) < 1:
        n.fail(f"{name} is {list(found)}; expected rows and columns, at least 1")
    return found


@block_moments.infer
def _(n: Infer) -> Result:
    x, block = _map(n, 0), _pair(n, "block")
    if not n.dtype(0).is_float:
        n.fail(f"x is {n.dtype(0).value}; expected floating-point numbers")
    shape = None if x is None else (*x[:2], *map(ceildiv, x[2:], block))
    return [Tensor(DType.of(_wide(n.dtype(0).numpy)), shape)] * n.outputs


@combine_moments.infer
def _(n: Infer) -> Result:
    x, block, size = _map(n, 0), _pair(n, "block"), _pair(n, "size")
    if n.outputs > 1 and not n.has(1):
        n.fail("a variance is asked for, but there are no deviations")
    if n.has(1) and n.shape(1) != x:
        n.fail(f"means and deviations have the shapes {x} and {n.shape(1)}")
    if x is None:
        return [Tensor(n.attrs["dtype"], None)] * n.outputs
    number = tuple(map(ceildiv, size, block))
    if any(type(d) is int and d != e for d, e in zip(x[2:], number)):
        n.fail(f"there are {list(map(str, x[2:]))} blocks; {list(size)} pixels have {list(number)}")
    _check_groups(n, x[1])
    return [Tensor(n.attrs["dtype"], (*x[:2], 1, 1))] * n.outputs


def _check_groups(n: Infer, channels: Size) -> None:
    groups = n.attrs["num_groups"]
    if groups < 0 or (groups and type(channels) is int and channels % groups):
        n.fail(f"num_groups is {groups}, which does not divide the {channels} channels")


@instance_infer.infer
def _(n: Infer) -> Result:
    x = _map(n, 0)
    for i in (1, 2):
        if x is not None and n.shape(i) not in (None, (x[1],)):
            n.fail(f"input {i} has shape {n.shape(i)}; expected [{x[1]}], one entry a channel")
    for i in (3, 4):
        if x is not None and n.shape(i) not in (None, (*x[:2], 1, 1)):
            n.fail(f"input {i} has shape {n.shape(i)}; expected one entry for each of the channels of {x}")
    return n.types[0]


# -- work: together as much as an InstanceNormalization, 7 operations an element in float32 -----------------------


def _work(each: int, all_of: int) -> Any:
    """So many operations in float32 for each element of input 0: `each` for the mean alone, `all_of` with variance."""

    def cost(n: Infer) -> Cost:
        x = n.shape(0)
        return Cost() if x is None else Cost(wide=prod(x) * (all_of if n.outputs > 1 else each))

    return cost


block_moments.cost(_work(1, 4))  # a sum; a difference, its square, their sum
combine_moments.cost(_work(2, 6))
instance_infer.cost(_work(3, 3))  # a difference, a product, a sum

# -- regions -----------------------------------------------------------------------------------------------------


def _asked(w: Wanted) -> Region:
    """The region that holds what is wanted of each result."""
    first, *others = [r for r in w.outs if r is not None]
    return reduce(hull, others, first)


@block_moments.tile
def _(w: Wanted) -> Need:
    """Whole blocks of pixels."""
    shape, block = w.shapes[0], w.attrs["block"]
    assert shape is not None
    out = _asked(w)
    pixels = []
    for (start, length), b, d in zip(out[2:], block, shape[2:]):
        end = (start + length) * b
        pixels.append((start * b, (end if w.anywhere else min(end, d)) - start * b))
    return Need(((*out[:2], *pixels),), tuple([None if r is None else out for r in w.outs]))


@combine_moments.tile
def _(w: Wanted) -> Need:
    """All blocks of the channels, of whole groups of them."""
    shape, groups = w.shapes[0], w.attrs["num_groups"]
    assert shape is not None
    out = _asked(w)
    span, attrs = out[1], {}
    if groups:
        size = shape[1] // groups
        span = blocks(span, size, shape[1], w.anywhere)
        attrs = {"num_groups": max(1, span[1] // max(1, size))}
    made: Region = (out[0], span, (0, 1), (0, 1))
    need = (out[0], span, (0, shape[2]), (0, shape[3]))
    inputs = tuple([None if s is None else need for s in w.shapes])
    return Need(inputs, tuple([None if r is None else made for r in w.outs]), attrs)


@instance_infer.tile
def _(w: Wanted) -> Need:
    """Element by element, with vectors of channels."""
    batch, channels = w.out[:2]
    vector, moment = (channels,), (batch, channels, (0, 1), (0, 1))
    return Need((w.out, vector, vector, moment, moment))


# -- numbers -----------------------------------------------------------------------------------------------------


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


@lru_cache(maxsize=1024)
def _lengths(size: int, block: int) -> tuple[int, ...]:
    """The lengths of the blocks along an axis: the last one is what is left."""
    return tuple([min(block, size - start) for start in range(0, size, block)])


def _counts(size: tuple[int, ...], block: tuple[int, ...]) -> Array:
    """How many pixels each block has."""
    rows, columns = (np.array(_lengths(d, b)) for d, b in zip(size, block, strict=True))
    found: Array = rows[:, None] * columns
    return found


def _block_sums(x: Array, block: tuple[int, ...]) -> Array:
    """The sum over each block of pixels."""
    for axis, b in ((2, block[0]), (3, block[1])):
        x = np.add.reduceat(x, range(0, x.shape[axis], b), axis=axis)
    return x


@block_moments.kernel
def _(call: Call, x: Array) -> Any:
    block, wide = tuple(call.attrs["block"]), _wide(x.dtype)
    rows, columns = (_lengths(d, b) for d, b in zip(x.shape[2:], block))
    shape = (*x.shape[:2], len(rows), len(columns))
    results = [call.into(i, shape, wide) for i in range(max(len(call.outs), len(call.out_types), 1))]
    if not count(x.shape):
        return results[0] if len(results) == 1 else tuple(results)
    number = _counts(x.shape[2:], block).astype(wide)
    with np.errstate(all="ignore"):
        mean = np.divide(_block_sums(x.astype(wide, copy=False), block), number, out=results[0])
        if len(results) == 1:
            return mean
        near = np.repeat(np.repeat(mean, rows, axis=2), columns, axis=3)
        away = np.subtract(x, near, out=near)
        np.copyto(results[1], _block_sums(np.square(away, out=away), block))
    return tuple(results)


@combine_moments.kernel
def _(call: Call, mean: Array, deviation: Array | None = None) -> Any:
    block, size, groups = call.attrs["block"], call.attrs["size"], call.attrs["num_groups"]
    n, c, *_ = mean.shape
    wide = mean.dtype
    number = _counts(tuple(size), tuple(block)).reshape(-1).astype(wide)
    parts = groups or c
    number = np.tile(number, c // parts if parts else 1)
    total = wide.type(max(number.sum(), 1))
    with np.errstate(all="ignore"):
        means = mean.reshape(n, parts, number.size)
        first = means[:, :, :1]
        near = np.where(np.isfinite(first), first, wide.type(0))  # to infinity no distance can be taken
        middle = near + ((means - near) * number).sum(axis=2, keepdims=True) / total
        found = [middle]
        if deviation is not None:
            spread = deviation.reshape(n, parts, number.size).sum(axis=2, keepdims=True)
            spread += (np.square(means - middle) * number).sum(axis=2, keepdims=True)
            found.append(spread / total)
        outputs = max(len(call.outs), len(call.out_types), 1)
        results = []
        for i, value in enumerate(found[:outputs]):
            y = call.into(i, (n, c, 1, 1), call.attrs["dtype"].numpy)
            np.copyto(y.reshape(n, parts, c // parts if parts else 0), value, casting="unsafe")
            results.append(y)
    return results[0] if len(results) == 1 else tuple(results)


@instance_infer.kernel
def _(call: Call, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
    wide = _wide(x.dtype)
    y = call.into(0, x.shape, x.dtype)
    work = y if y.dtype == wide else np.empty(x.shape, wide)
    with np.errstate(all="ignore"):
        factor = 1 / np.sqrt(variance.astype(wide, copy=False) + wide.type(call.attrs["epsilon"]))
        factor = factor * gamma.astype(wide, copy=False).reshape(-1, 1, 1)
        np.subtract(x, mean, out=work, casting="unsafe")
        np.multiply(work, factor, out=work)
        np.add(work, beta.astype(wide, copy=False).reshape(-1, 1, 1), out=work)
        if work is not y:
            np.copyto(y, work, casting="unsafe")
    return y
