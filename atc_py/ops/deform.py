"""Deformable convolution over two spatial axes: every kernel tap reads its own, data-dependent place of the image.

A tap at row 1 with offset 0.25 reads ¾ of row 1 and ¼ of row 2; what lies outside counts as zero. The values that the
taps read are gathered as columns [channels, taps, positions], and one matrix product a group does the rest.
"""

from __future__ import annotations

from math import prod as product_of
from typing import Any

import numpy as np

from atc_py.ir.dims import floordiv, prod
from atc_py.ir.types import Format, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Product, Result, Shape, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.shapes import show
from atc_py.ops.window import Window, ints, kernel_of, window

deform_conv = declare(
    "DeformConv",
    inputs="X W offset B? mask?",
    outputs="Y",
    attrs={
        "dilations": Attr("ints", None),
        "group": Attr("int", 1),
        "kernel_shape": Attr("ints", None),
        "offset_group": Attr("int", 1),
        "pads": Attr("ints", None),
        "strides": Attr("ints", None),
    },
    flags=Flags(splittable=(0,), cube=(0, 1)),
)
deform_conv.layout(feature_maps(0, needs=True, weights={1: Format.FRACTAL_Z}, groups="group"))


def _resolve(n: Infer) -> tuple[Shape, Window] | None:
    """Output shape and window; None when the input's rank is unknown."""
    x, w, offset = n.shape(0), n.shape(1), n.shape(2)
    if x is None or w is None:
        return None
    if len(x) != 4:
        n.fail(f"X has shape {show(x)}; DeformConv takes two spatial axes", "expected rank 4")
    group, offset_group = n.attrs["group"], n.attrs["offset_group"]
    if type(x[1]) is int and type(w[1]) is int and x[1] != w[1] * group:
        n.fail(f"X has {x[1]} channels; W expects {w[1]} in each of {group} groups")
    if type(x[1]) is int and x[1] % offset_group:
        n.fail(f"{offset_group} offset groups do not divide {x[1]} channels")
    win = window(n.attrs, x[2:], kernel_of(n.attrs, w, 2))
    wanted = prod(win.kernel) * 2 * offset_group
    if offset is not None and type(offset[1]) is int and type(wanted) is int and offset[1] != wanted:
        n.fail(f"offset has {offset[1]} channels; expected {wanted}")
    return (x[0], w[0], *win.out), win


@deform_conv.infer
def _(n: Infer) -> Result:
    found = _resolve(n)
    return Tensor(n.dtype(0), None if found is None else found[0])


@deform_conv.cost
def _(n: Infer) -> Cost:
    found, w = _resolve(n), n.shape(1)
    if found is None or w is None:
        return Cost()
    out, win = found
    taps = prod(win.kernel)
    group, places = n.attrs["group"], out[0] * prod(win.out)
    product = Product(places, w[1], floordiv(out[1], group), group, taps, grouped=group > 1)
    return Cost(products=(product,), vector=places * w[1] * group * taps * 8)


def _corners(at: Array, size: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(index, weight) of the lower and the upper neighbour of coordinates `at`; weight 0 outside."""
    base = np.floor(at)
    upper = at - base
    found = []
    for index, weight in ((base, 1 - upper), (base + 1, upper)):
        inside = (index >= 0) & (index < size)
        found.append((np.where(inside, index, 0).astype(np.intp), np.where(inside, weight, 0).astype(at.dtype)))
    return found[0], found[1]


def _read(image: Array, rows: Array, columns: Array, height: int, width: int) -> Array:
    """Bilinear values of `image` [channels, height·width] at flat coordinates: [channels, points]."""
    total: Array | None = None
    for y, wy in _corners(rows, height):
        for x, wx in _corners(columns, width):
            part = np.take(image, y * width + x, axis=1)
            part *= wy * wx
            total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def _columns(image: Array, offset: Array, mask: Array | None, win: Window) -> Array:
    """The values that all taps read, [offset groups, channels, taps, positions].

    `image` is [offset groups, channels, height, width], `offset` [offset groups, taps, 2, positions], `mask`
    [offset groups, taps, positions].
    """
    groups, channels, height, width = image.shape
    (kh, kw), (oh, ow) = ints(win.kernel), ints(win.out)
    dtype = image.dtype
    out = np.empty((groups, channels, kh * kw, oh * ow), dtype)
    top, left = ints(win.before)
    rows = np.repeat(np.arange(oh, dtype=dtype) * win.strides[0] - top, ow)
    columns = np.tile(np.arange(ow, dtype=dtype) * win.strides[1] - left, oh)
    for g in range(groups):
        flat = image[g].reshape(channels, height * width)
        for tap in range(kh * kw):
            y = rows + tap // kw * win.dilations[0] + offset[g, tap, 0]
            x = columns + tap % kw * win.dilations[1] + offset[g, tap, 1]
            values = _read(flat, y, x, height, width)
            out[g, :, tap] = values if mask is None else values * mask[g, tap]
    return out


@deform_conv.kernel
def _(call: Call, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None) -> Array:
    attrs = call.attrs
    group, parts = attrs["group"], attrs["offset_group"]
    win = window(attrs, x.shape[2:], kernel_of(attrs, w.shape, 2))
    out = ints(win.out)
    dtype: np.dtype[Any] = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    y = call.into(0, (x.shape[0], w.shape[0], *out), x.dtype)
    if y.size == 0:
        return y
    taps, points = product_of(w.shape[2:]), product_of(out)
    weights = w.reshape(group, w.shape[0] // group, w.shape[1] * taps).astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        for n in range(x.shape[0]):
            image = x[n].reshape(parts, x.shape[1] // parts, *x.shape[2:]).astype(dtype, copy=False)
            moved = offset[n].reshape(parts, taps, 2, points).astype(dtype, copy=False)
            held = None if mask is None else mask[n].reshape(parts, taps, points).astype(dtype, copy=False)
            columns = _columns(image, moved, held, win).reshape(group, w.shape[1] * taps, points)
            result = np.matmul(weights, columns).reshape(w.shape[0], *out)
            if bias is not None:
                result += bias.reshape(-1, 1, 1)
            np.copyto(y[n], result, casting="unsafe")
    return y
