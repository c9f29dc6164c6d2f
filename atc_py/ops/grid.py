"""GridSample and AffineGrid: sampling an image at given coordinates, and making such coordinates.

Coordinates run from -1 to 1 over each axis, the last entry of a grid point being the first spatial axis. With
align_corners the ends are the centres of the outermost pixels, otherwise their outer edges: on 4 pixels, 0.5 is pixel
2.25 or 2.5.
"""

from __future__ import annotations

from itertools import product
from math import prod as product_of
from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.shapes import show

grid_sample = declare(
    "GridSample",
    inputs="X grid",
    outputs="Y",
    attrs={
        "align_corners": Attr("int", 0),
        "mode": Attr("str", "linear"),
        "padding_mode": Attr("str", "zeros"),
    },
    flags=Flags(splittable=(0, 1)),
)
grid_sample.layout(feature_maps(0))
affine_grid = declare(
    "AffineGrid",
    inputs="theta size",
    outputs="grid",
    attrs={"align_corners": Attr("int", 0)},
    flags=Flags(),
    host_inputs=(1,),
)


@grid_sample.infer
def _(n: Infer) -> Result:
    if n.attrs["mode"] not in ("linear", "nearest", "cubic"):
        n.fail(f"mode is '{n.attrs['mode']}'; expected linear, nearest or cubic")
    if n.attrs["padding_mode"] not in ("zeros", "border", "reflection"):
        n.fail(f"padding_mode is '{n.attrs['padding_mode']}'; expected zeros, border or reflection")
    if n.dtype(0) is DType.STRING:
        n.fail("X holds strings; expected numbers")
    x, grid = n.shape(0), n.shape(1)
    if x is None or grid is None:
        return Tensor(n.dtype(0), None)
    if len(x) < 3 or len(grid) != len(x) or (type(grid[-1]) is int and grid[-1] != len(x) - 2):
        n.fail(f"grid has shape {show(grid)}; expected rank {len(x)} and {len(x) - 2} as the last size")
    return Tensor(n.dtype(0), (x[0], x[1], *grid[1:-1]))


@grid_sample.cost
def _(n: Infer) -> Cost:
    x, grid = n.shape(0), n.shape(1)
    if x is None or grid is None:
        return Cost()
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[n.attrs["mode"]] ** (len(x) - 2)
    return Cost(vector=prod((x[0], x[1], *grid[1:-1])) * taps * 2)


def _reflect(x: Array, low: float, high: float) -> Array:
    """Coordinates outside [low, high] mirrored at the borders until they are inside."""
    extent = high - low
    if extent <= 0:
        return np.full_like(x, low)
    over = np.where(x < low, low - x, x - high)
    turns = np.trunc(over / extent)
    rest = over - turns * extent
    even = np.mod(turns, 2) == 0
    from_low = np.where(x < low, even, ~even)
    return np.where((x < low) | (x > high), np.where(from_low, low + rest, high - rest), x)


class _Sampler:
    """Coordinates and taps of one axis."""

    def __init__(self, normalized: Array, size: int, mode: str, padding: str, align: bool) -> None:
        self.size, self.padding = size, padding
        self.low, self.high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        x = (normalized + 1) / 2 * (size - 1) if align else ((normalized + 1) * size - 1) / 2
        if mode == "nearest":
            x = np.rint(x)
        outside = (x < self.low) | (x > self.high)
        if padding == "border" and mode != "cubic":  # the cubic filter's four taps are moved to the border one by one
            x = np.where(outside, np.clip(x, 0, size - 1), x)
        elif padding == "reflection":
            x = _reflect(x, self.low, self.high)
        base = x if mode == "nearest" else np.floor(x)
        self.taps = [self._tap(base, shift, w) for shift, w in self._weights(x - base, mode)]

    @staticmethod
    def _weights(t: Array, mode: str) -> list[tuple[int, Array | None]]:
        if mode == "nearest":
            return [(0, None)]
        if mode == "linear":
            return [(0, 1 - t), (1, t)]
        a = -0.75
        near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
        far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
        return [(-1, far[0]), (0, near[0]), (1, near[1]), (2, far[1])]

    def _tap(self, base: Array, shift: int, weight: Array | None) -> tuple[Array, Array | None, Array | None]:
        """(index, weight, whether it lies inside): None for a weight of one, or for always inside."""
        at = base + shift
        if self.padding == "reflection":
            at = np.trunc(_reflect(at, self.low, self.high))
        inside = (at >= 0) & (at < self.size) if self.padding == "zeros" else None
        return np.clip(np.nan_to_num(at), 0, self.size - 1).astype(np.intp), weight, inside


def _sample(image: Array, axes: list[_Sampler], sizes: tuple[int, ...]) -> Array:
    """Sample `image` [channels, pixels] at all points: [channels, points]."""
    steps = [product_of(sizes[a + 1 :]) for a in range(len(sizes))]
    total: Array | None = None
    for chosen in product(*(axis.taps for axis in axes)):
        flat = sum(index * step for (index, _, _), step in zip(chosen, steps))
        values = np.take(image, flat, axis=1)
        weight: Array | None = None
        for _, w, _ in chosen:
            if w is not None:
                weight = w if weight is None else weight * w
        for _, _, inside in chosen:
            if inside is not None:
                values[:, ~inside] = 0
        if weight is not None:
            values = values * weight
        total = values if total is None else np.add(total, values, out=total)
    assert total is not None
    return total


@grid_sample.kernel
def _(call: Call, x: Array, grid: Array) -> Array:
    attrs, sizes = call.attrs, x.shape[2:]
    y = call.into(0, (*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    if y.size == 0:
        return y
    if x.size == 0:
        y[...] = 0
        return y
    double = x.dtype == np.float64 or (x.dtype.kind in "iu" and x.dtype.itemsize > 2)
    wide = np.dtype(np.float64 if double else np.float32)
    exact = attrs["mode"] == "nearest" or x.dtype.kind == "c"
    points = grid.reshape(grid.shape[0], product_of(grid.shape[1:-1]), len(sizes)).astype(wide, copy=False)
    images = x.reshape(*x.shape[:2], product_of(sizes))
    with np.errstate(all="ignore"):
        for sample, (image, place) in enumerate(zip(images, points)):
            axes = [
                _Sampler(place[:, -1 - a], size, attrs["mode"], attrs["padding_mode"], bool(attrs["align_corners"]))
                for a, size in enumerate(sizes)
            ]
            result = _sample(image if exact else image.astype(wide, copy=False), axes, sizes)
            np.copyto(y[sample], result.reshape(y.shape[1:]), casting="unsafe")
    return y


@affine_grid.infer
def _(n: Infer) -> Result:
    theta, size = n.shape(0), n.ints(1)
    if size is not None:
        if len(size) not in (4, 5):
            n.fail(f"size has {len(size)} entries; expected 4 or 5 (batch, channels, spatial)")
        return Tensor(n.dtype(0), (size[0], *size[2:], len(size) - 2))
    if theta is None or type(theta[1]) is not int:
        return Tensor(n.dtype(0), None)
    return Tensor(n.dtype(0), (theta[0], *(n.fresh(f"AffineGrid size{i}") for i in range(theta[1])), theta[1]))


def _line(count: int, align: bool, dtype: np.dtype[Any]) -> Array:
    """The normalized coordinates of `count` pixels."""
    if align:
        return np.linspace(-1, 1, count).astype(dtype) if count > 1 else np.zeros(count, dtype)
    return ((2 * np.arange(count) + 1) / max(1, count) - 1).astype(dtype)


@affine_grid.kernel
def _(call: Call, theta: Array, size: Array) -> Array:
    spatial = tuple(int(d) for d in size.reshape(-1)[2:])
    dtype = np.dtype(np.float64 if theta.dtype == np.float64 else np.float32)
    lines = [_line(d, bool(call.attrs["align_corners"]), dtype) for d in spatial]
    base = np.stack([*np.meshgrid(*lines, indexing="ij")][::-1] + [np.ones(spatial, dtype)], axis=-1)
    flat = base.reshape(product_of(spatial), len(spatial) + 1)
    with np.errstate(all="ignore"):
        result = flat @ theta.astype(dtype, copy=False).transpose(0, 2, 1)
    y = call.into(0, (theta.shape[0], *spatial, len(spatial)), theta.dtype)
    np.copyto(y, result.reshape(y.shape), casting="unsafe")
    return y
