"""Slice and Pad, on ints and on Dims.

Slice(x: [N, 10], starts=[1], ends=[INT_MAX], axes=[1], steps=[3])   ->  [N, 3]
Slice(x: [N], starts=[0], ends=[K])                                  ->  [min(K, N)]
Pad(x: [N, 4], pads=[0, -1, 2, 3])                                   ->  [N + 2, 6]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, ceildiv, dmax, dmin
from atc_py.ir.types import DType
from atc_py.ops import tiles_moves
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, Shape, declare
from atc_py.ops.layouts import pads, slices
from atc_py.ops.move_costs import cut_out
from atc_py.ops.shape_values import FAR, fresh_shape, known, negative, nonnegative, small, tidy
from atc_py.ops.shapes import axes, concrete, show
from atc_py.ops.traits import Pattern

slice_op = declare(
    "Slice",
    inputs="data starts ends axes? steps?",
    outputs="output",
    flags=Flags(recomputable=True, fp16_safe=True, moves=True),
    host_inputs=(1, 2, 3, 4),
)
slice_op.layout(slices)


def _bound(at: Any, d: Size, low: int, high: Size) -> Size | None:
    """A start or end on an axis of size `d`, from the front and clamped to [low, high]; None if unknown."""
    if type(at) is int and type(d) is not int and abs(at) >= FAR:
        return high if at > 0 else dmin(low, high)
    if negative(at):
        return dmin(dmax(at + d, low), high)
    if nonnegative(at):
        return dmin(at, high)
    return None


def sliced_dim(d: Size, start: Any, end: Any, step: int) -> Size | None:
    """How many elements [start:end:step] takes of an axis of size `d`; None when a sign is not known.

    As ONNX has it, a start is clamped to [0, d] forward, [0, d - 1] backward; an end to [0, d], [-1, d - 1].
    """
    if step > 0 and type(end) is int and end >= FAR and (type(d) is not int or d < end):
        # To the end of the axis: forms that simplify further than a difference of clamped bounds.
        if nonnegative(start):
            return ceildiv(dmax(d - start, 0), step)
        return ceildiv(dmin(d, -start), step) if negative(start) else None
    high = d if step > 0 else d - 1
    first, last = _bound(start, d, 0, high), _bound(end, d, 0 if step > 0 else -1, high)
    if first is None or last is None:
        return None
    return dmax(0, ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step))


def _slice_shape(n: Infer) -> Shape | None:
    data, starts, ends = n.shape(0), n.ints(1), n.ints(2)
    if data is None:
        return None
    if n.has(3) and n.value(3) is None:
        return fresh_shape(n, len(data), "dim")
    count = len(starts if starts is not None else ends if ends is not None else data)
    where = axes(concrete(n, 3) or (), len(data)) if n.has(3) else list(range(count))
    steps = concrete(n, 4) if n.has(4) else [1] * len(where)
    if steps is not None and 0 in steps:
        raise InferError("a step of Slice is 0")
    out: list[Size] = list(data)
    for i, at in enumerate(where):
        if starts is None or ends is None or steps is None:
            size = None
        elif max(len(starts), len(ends), len(steps), i + 1) > min(len(starts), len(ends), len(steps), len(where)):
            raise InferError(
                f"starts, ends, axes and steps of Slice differ in length: {starts}, {ends}, {where}, {steps}"
            )
        else:
            size = sliced_dim(data[at], starts[i], ends[i], steps[i])
        out[at] = n.fresh(f"dim{at}") if size is None else size
    return tuple(out)


slice_op.tile(tiles_moves.sliced)


@slice_op.infer
def _(n: Infer) -> Result:
    return n.tensor(0).with_shape(_slice_shape(n))


@slice_op.cost
def _(n: Infer) -> Cost:
    data, part = n.shape(0), _slice_shape(n)
    return Cost() if data is None or part is None else cut_out(data, part)


def _slices(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    where: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> tuple[slice, ...]:
    """Python's slices: clamped, and None where a backward one ends before the first element."""
    out = [slice(None)] * len(shape)
    at = range(len(starts)) if where is None else axes(where, len(shape))
    for i, start, end, step in zip(at, starts, ends, [1] * len(starts) if steps is None else steps):
        d = shape[i]
        end = end + d if end < 0 else end
        start = start + d if start < 0 else start
        if step < 0:
            first, last = min(max(start, 0), d - 1), min(max(end, -1), d - 1)
            out[i] = slice(first, last if last >= 0 else None, step) if first > last else slice(0, 0)
        else:
            out[i] = slice(min(max(start, 0), d), min(max(end, 0), d), step)
    return tuple(out)


@slice_op.value
def _(n: Infer) -> Array | None:
    values = known(n, 0)
    bounds = [concrete(n, i) for i in range(1, 5)]
    if not values or any(b is None and n.has(i + 1) for i, b in enumerate(bounds)):
        return None
    starts, ends, where, steps = bounds
    return tidy(values[0][_slices(values[0].shape, starts or (), ends or (), where, steps)])


@slice_op.kernel
def _(
    call: Call, x: Array, starts: Array, ends: Array, where: Array | None = None, steps: Array | None = None
) -> Array:
    lists = [None if v is None else v.reshape(-1).tolist() for v in (starts, ends, where, steps)]
    return x[_slices(x.shape, lists[0] or (), lists[1] or (), lists[2], lists[3])]


pad = declare(
    "Pad",
    inputs="data pads constant_value? axes?",
    outputs="output",
    attrs={"mode": Attr("str", "constant")},
    flags=Flags(recomputable=True, fp16_safe=True, moves=True, pattern=Pattern.PAD),
    host_inputs=(1, 3),
)
pad.layout(pads)
pad.tile(tiles_moves.padded)


def _pairs(pads: Sequence[Any], where: Sequence[int] | None, rank: int) -> list[tuple[Any, Any]]:
    """(begin, end) pad of every axis."""
    at = list(range(rank)) if where is None else axes(where, rank)
    if len(pads) != 2 * len(at):
        raise InferError(f"pads has {len(pads)} elements, expected two for each of the {len(at)} axes")
    out: list[tuple[Any, Any]] = [(0, 0)] * rank
    for i, a in enumerate(at):
        out[a] = (pads[i], pads[i + len(at)])
    return out


@pad.infer
def _(n: Infer) -> Result:
    data, pads, where = n.tensor(0), n.ints(1), concrete(n, 3)
    if n.attrs["mode"] not in ("constant", "reflect", "edge", "wrap"):
        raise InferError(f"mode of Pad is '{n.attrs['mode']}', expected constant, reflect, edge or wrap")
    if data.shape is None:
        return data
    if pads is None or (n.has(3) and where is None):
        return data.with_shape(fresh_shape(n, len(data.shape), "dim"))
    pairs = _pairs(pads, where, len(data.shape))
    out = tuple(d + a + b for d, (a, b) in zip(data.shape, pairs))
    if any(type(d) is int and d < 0 for d in out):
        raise InferError(f"pads {pads} take more from shape {show(data.shape)} than it has")
    return data.with_shape(out)


@pad.cost
def _(n: Infer) -> Cost:
    data, pads = n.shape(0), n.ints(1)
    if data is None or pads is None or (n.has(3) and concrete(n, 3) is None):
        return Cost()
    pairs = _pairs(pads, concrete(n, 3) if n.has(3) else None, len(data))
    padded = tuple(d + before + after for d, (before, after) in zip(data, pairs, strict=True))
    return Cost(run=cut_out(padded, data).run)


def _source(d: int, before: int, after: int, mode: str) -> Array:
    """For each place of the padded axis, the place of the axis that it shows, for reflect, edge and wrap."""
    at = np.arange(-before, d + after)
    if d == 0 and at.size:
        raise InferError(f"mode {mode} cannot pad an axis that has no elements")
    if mode == "edge" or d <= 1:
        return np.clip(at, 0, max(d - 1, 0))
    if mode == "wrap":
        return at % d
    at = at % (2 * (d - 1))
    return np.where(at < d, at, 2 * (d - 1) - at)


def _padded(x: Array, pairs: Sequence[tuple[int, int]], mode: str, fill: Any, out: Array | None) -> Array:
    """Negative pads cut first; then the rest is filled or shown again."""
    cut = tuple(slice(max(-a, 0), max(d - max(-b, 0), -a, 0)) for d, (a, b) in zip(x.shape, pairs))
    x = x[cut]
    add = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode == "constant":
        shape = tuple(d + a + b for d, (a, b) in zip(x.shape, add))
        out = np.empty(shape, x.dtype) if out is None else out
        out[...] = fill
        out[tuple(slice(a, a + d) for d, (a, _) in zip(x.shape, add))] = x
        return out
    for i, (a, b) in enumerate(add):
        if a or b:
            x = np.take(x, _source(x.shape[i], a, b, mode), axis=i)
    return x


def _zero(dtype: Any) -> Any:
    return "" if DType.of(dtype) is DType.STRING else 0


@pad.value
def _(n: Infer) -> Array | None:
    values, pads, where = known(n, 0), concrete(n, 1), concrete(n, 3)
    fill = n.value(2)
    if not values or pads is None or (n.has(3) and where is None) or (n.has(2) and fill is None):
        return None
    pairs = _pairs(pads, where, values[0].ndim)
    if small([d + max(a, 0) + max(b, 0) for d, (a, b) in zip(values[0].shape, pairs)]) is None:
        return None
    return tidy(_padded(values[0], pairs, n.attrs["mode"], 0 if fill is None else fill.reshape(-1)[0], None))


@pad.kernel
def _(call: Call, x: Array, pads: Array, fill: Array | None = None, where: Array | None = None) -> Array:
    pairs = _pairs(pads.reshape(-1).tolist(), None if where is None else where.reshape(-1).tolist(), x.ndim)
    value = _zero(x.dtype) if fill is None or not fill.size else fill.reshape(-1)[0]
    return _padded(x, pairs, call.attrs["mode"], value, call.out(0))
