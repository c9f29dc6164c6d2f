"""Tile rules of matrix products, convolutions, poolings and attention.

MatMul [64, 32] × [32, 128], wanted y[16:32, 0:64]        →   a[16:32, :], b[:, 0:64]
Conv 3×3, stride 2, pads 1, wanted rows 4:8 of y          →   rows 7:16 of x, no pads above and below
Conv of 4 groups, 8 filters each, wanted channels 8:16    →   the channels of group 1, group = 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from atc_py.ir.dims import Size
from atc_py.ops.base import Shape
from atc_py.ops.tiles import (
    Dims,
    Need,
    Region,
    Untileable,
    Wanted,
    blocks,
    blocks_nbytes,
    broadcast_region,
    lengths,
)
from atc_py.ops.window import Window, ints, kernel_of, transposed, window


def _batch(out: Region, out_shape: Dims, batch: Dims, rank: int) -> Region:
    """The part of an operand's batch dims, for a result whose first `rank` dims are the batch."""
    return broadcast_region(out[:rank], batch, out_shape[:rank])


def product(w: Wanted, a: int = 0, b: int = 1) -> Need:
    """MatMul of inputs `a` and `b`: rows and columns as wanted, all of k."""
    left, right = w.shapes[a], w.shapes[b]
    assert left is not None and right is not None
    rows, columns = len(left) > 1, len(right) > 1
    rank = len(w.out) - rows - columns
    out, shape = w.out, w.out_shapes[0]
    inputs = [w.all(i) for i in range(len(w.shapes))]
    row = out[rank : rank + 1] if rows else ()
    column = out[-1:] if columns else ()
    inputs[a] = (*_batch(out, shape, left[:-2], rank), *row, (0, left[-1]))
    k = right[-2] if columns else right[-1]
    inputs[b] = (*_batch(out, shape, right[:-2], rank), (0, k), *column)
    sums = blocks_nbytes(*lengths(out[:rank]), row[0][1] if row else 1, column[0][1] if column else 1)
    return Need(tuple(inputs), cube=(a, b), workspace={"L0C": sums})


def _parameters(w: Wanted, need: Need, rows: tuple[int, ...], columns: tuple[int, ...]) -> Need:
    """A product's need with its scales and zero points cut: vectors belong to rows or to columns."""
    inputs = list(need.inputs)
    out, shape = w.out, w.out_shapes[0]
    for group, axis in ((rows, -2), (columns, -1)):
        for i in group:
            s = w.shapes[i] if i < len(w.shapes) else None
            if s is None or len(s) == 0 or s == (1,):
                continue
            if len(s) == 1 and len(out) >= -axis:
                inputs[i] = (out[axis],) if s[0] == shape[axis] else w.all(i)
            else:
                inputs[i] = broadcast_region(out, s, shape)
    return replace(need, inputs=tuple(inputs))


def product_integer(w: Wanted) -> Need:
    """MatMulInteger."""
    return _parameters(w, product(w), (2,), (3,))


def product_quantized(w: Wanted) -> Need:
    """QLinearMatMul: the output's parameters may be vectors of rows."""
    return _parameters(w, product(w, 0, 3), (1, 2, 6, 7), (4, 5))


def gemm(w: Wanted) -> Need:
    """Gemm: rows and columns as wanted, all of k."""
    return _gemm(w, 0, 1, 2)


def gemm_quantized(w: Wanted) -> Need:
    """QGemm: A, B and C at 0, 3 and 6; the scales and zero points of B may be vectors of columns."""
    need = _gemm(w, 0, 3, 6)
    inputs = list(need.inputs)
    for i in (4, 5):
        s = w.shapes[i] if i < len(w.shapes) else None
        if s is not None and s not in ((), (1,)):
            inputs[i] = (w.out[1],)
    return replace(need, inputs=tuple(inputs))


def _gemm(w: Wanted, a: int, b: int, c: int) -> Need:
    left, right = w.shapes[a], w.shapes[b]
    assert left is not None and right is not None
    rows, columns = w.out
    inputs = [w.all(i) for i in range(len(w.shapes))]
    inputs[a] = ((0, left[0]), rows) if w.attrs["transA"] else (rows, (0, left[1]))
    inputs[b] = (columns, (0, right[1])) if w.attrs["transB"] else ((0, right[0]), columns)
    bias = w.shapes[c] if c < len(w.shapes) else None
    if bias is not None:
        inputs[c] = broadcast_region(w.out, bias, w.out_shapes[0])
    return Need(tuple(inputs), cube=(a, b), workspace={"L0C": blocks_nbytes(rows[1], columns[1])})


# -- windows -------------------------------------------------------------------------------------------------------


def _int(size: Size) -> int:
    assert type(size) is int
    return size


def _window(attrs: Mapping[str, Any], spatial: Shape, kernel: Shape, ceil: bool) -> Window:
    given = [attrs.get(name) for name in ("strides", "dilations", "pads")]
    return _resolved(*[None if g is None else tuple(g) for g in given], attrs["auto_pad"], spatial, kernel, ceil)


@lru_cache(maxsize=4096)
def _resolved(
    strides: Dims | None,
    dilations: Dims | None,
    pads: Dims | None,
    auto: str,
    spatial: Shape,
    kernel: Shape,
    ceil: bool,
) -> Window:
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "auto_pad": auto}
    return window(attrs, spatial, kernel, ceil=ceil)


def _window_axis(win: Window, k: int, span: tuple[int, int], anywhere: bool) -> tuple[tuple[int, int], int, int]:
    """Along spatial axis `k`: the input's span for outputs `span`, and the pads before and after it."""
    size, kernel, before = _int(win.spatial[k]), _int(win.kernel[k]), _int(win.before[k])
    reach = (kernel - 1) * win.dilations[k] + 1
    start = span[0] * win.strides[k] - before
    end = start + (span[1] - 1) * win.strides[k] + reach
    if anywhere:
        return (start, end - start), 0, 0
    low = min(max(start, 0), size)
    high = max(min(end, size), low)
    return (low, high - low), low - start, end - high


def _windows(win: Window, out: Region, anywhere: bool) -> tuple[Region, dict[str, Any]]:
    """The input's spatial region for that of the output, and the attributes with the pads that are left.

    Windows that lie in the padding alone get one element that none of them reaches: all lie in the pads before it,
    where their distance does not matter, so that two or more keep a further window from the element's own place.
    """
    spans, firsts, lasts, strides = [], [], [], list(win.strides)
    for k, span in enumerate(out):
        inside, first, last = _window_axis(win, k, span, anywhere)
        if not inside[1]:
            size = _int(win.spatial[k])
            inside = (min(inside[0], max(size - 1, 0)), min(size, 1))
            strides[k] = max(strides[k], 2)
            first = (span[1] - 1) * strides[k] + (_int(win.kernel[k]) - 1) * win.dilations[k] + 1
            last = 0
        spans.append(inside)
        firsts.append(first)
        lasts.append(last)
    return tuple(spans), {"pads": (*firsts, *lasts), "auto_pad": "NOTSET", "strides": tuple(strides)}


def _groups(span: tuple[int, int], channels: int, group: int, inputs: int, anywhere: bool) -> tuple[Any, Any, int]:
    """(output channels made, input channels needed, groups): whole groups where there are several."""
    if group == 1:
        return span, (0, inputs), 1
    size = channels // group
    made = blocks(span, size, channels, anywhere)
    first, count = made[0] // size, made[1] // size
    return made, (first * (inputs // group), count * (inputs // group)), count


def convolution(w: Wanted, x: int = 0, filters: int = 1, vectors: tuple[int, ...] = (2,)) -> Need:
    """Conv: the halo of the windows, the pads that are left at the borders; whole groups of channels."""
    data, weight = w.shapes[x], w.shapes[filters]
    assert data is not None and weight is not None
    win = _window(w.attrs, data[2:], kernel_of(w.attrs, weight, len(data) - 2), False)
    batch, span, *spatial = w.out
    region, attrs = _windows(win, tuple(spatial), w.anywhere)
    made, channels, group = _groups(span, w.out_shapes[0][1], w.attrs["group"], data[1], w.anywhere)
    inputs = [w.all(i) for i in range(len(w.shapes))]
    inputs[x] = (batch, channels, *region)
    inputs[filters] = (made, *[(0, d) for d in weight[1:]])
    for i in vectors:
        s = w.shapes[i] if i < len(w.shapes) else None
        if s is not None and len(s) == 1 and s[0] == w.out_shapes[0][1]:
            inputs[i] = (made,)
    sums = {"L0C": blocks_nbytes(batch[1], made[1], prod([n for _, n in spatial]))}
    outputs = ((batch, made, *spatial),)
    return Need(tuple(inputs), outputs, {**attrs, "group": group}, cube=(x, filters), workspace=sums)


def convolution_integer(w: Wanted) -> Need:
    """ConvInteger."""
    return convolution(w, vectors=(3,))


def convolution_quantized(w: Wanted) -> Need:
    """QLinearConv: the scales and zero points of the weights may be vectors of channels."""
    return convolution(w, 0, 3, (4, 5, 8))


def convolution_transposed(w: Wanted) -> Need:
    """ConvTranspose: the inputs whose patches reach the wanted part; what they give beside it is cut off by pads."""
    data, weight = w.shapes[0], w.shapes[1]
    assert data is not None and weight is not None
    win = transposed(w.attrs, data[2:], kernel_of(w.attrs, weight, len(data) - 2))
    batch, span, *spatial = w.out
    spans, firsts, lasts, extra = [], [], [], []
    for k, (start, length) in enumerate(spatial):
        size, stride, before = _int(win.spatial[k]), win.strides[k], _int(win.before[k])
        reach = (_int(win.kernel[k]) - 1) * win.dilations[k] + 1
        if w.anywhere:
            spans.append((0, min(size, (length + reach - 2) // stride + 2)))
            continue
        low = min(max(-((reach - 1 - start - before) // stride), 0), size - 1)
        high = min(max((start + length - 1 + before) // stride + 1, low + 1), size)
        if start < low * stride - before and low > 0:
            low -= 1  # the part begins in a gap between two patches
        first = start - (low * stride - before)
        last = (high - 1) * stride + reach - before - (start + length)
        if first < 0:
            raise Untileable("a part of a transposed convolution that no input reaches")
        spans.append((low, high - low))
        firsts.append(first)
        lasts.append(max(last, 0))
        extra.append(max(-last, 0))
    made, channels, group = _groups(span, w.out_shapes[0][1], w.attrs["group"], data[1], w.anywhere)
    per = made if w.attrs["group"] == 1 else (0, weight[1])
    attrs = {"pads": (*firsts, *lasts), "output_padding": tuple(extra), "auto_pad": "NOTSET", "output_shape": None}
    filters = (channels, per, *[(0, d) for d in weight[2:]])
    inputs = ((batch, channels, *spans), filters, *[None if s is None else (made,) for s in w.shapes[2:]])
    sums = {"L0C": blocks_nbytes(batch[1], made[1], prod([n for _, n in spatial]))}
    outputs = ((batch, made, *spatial),)
    return Need(inputs, outputs, {**attrs, "group": group}, cube=(0, 1), workspace=sums)


def pooling(w: Wanted) -> Need:
    """Pools: the halo of the windows. Indices count the elements of the whole, and cannot be made in parts."""
    data = w.shapes[0]
    assert data is not None
    if len(w.outs) > 1:
        raise Untileable("indices into the whole input")
    _channels_second(w)
    ceil = bool(w.attrs["ceil_mode"])
    win = _window(w.attrs, data[2:], tuple(w.attrs["kernel_shape"]), ceil)
    batch, span, *spatial = w.out
    if ceil and w.attrs.get("count_include_pad"):
        # Windows beyond the padding count fewer elements there, which no pads of a part can say.
        spatial = [(0, d) for d in ints(win.out)]
        region: Region = tuple([(0, d) for d in data[2:]])
        made = (batch, span, *spatial)
        return Need(((batch, span, *region), *[w.all(i) for i in range(1, len(w.shapes))]), (made,))
    region, attrs = _windows(win, tuple(spatial), w.anywhere)
    rest = [w.all(i) for i in range(1, len(w.shapes))]
    return Need(((batch, span, *region), *rest), attrs={**attrs, "ceil_mode": 0})


def _channels_second(w: Wanted) -> None:
    if w.attrs.get("channels_last"):
        raise Untileable("channels behind the pixels")


def pooling_global(w: Wanted) -> Need:
    """Global pools: all spatial positions."""
    data = w.shapes[0]
    assert data is not None
    _channels_second(w)
    return Need(((*w.out[:2], *[(0, d) for d in data[2:]]), *[w.all(i) for i in range(1, len(w.shapes))]))
