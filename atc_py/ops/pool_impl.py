"""Pooling by axis: every tap of the window is a strided view of the input, clipped to where it lies inside.

Maximum and sum are separable: a 3×3 pooling is three taps along the rows, then three along the columns. For a row of 5,
kernel 3, stride 2, pad 1, tap 0 meets positions 1.. (at 0 it lies in the padding), tap 1 all, tap 2 positions 0..1:

    input            a b c d e            tap 0:  -  b  d
    maximum          max(a,b) max(b,c,d) max(d,e)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from atc_py.ops.base import Array
from atc_py.ops.window import Window, ints

ALL = slice(None)


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that sums of `dtype` are taken in: float64 for float64, float32 otherwise."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def lowest(dtype: np.dtype[Any]) -> Any:
    """The smallest value of a type: -inf for floating point."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def clipped(size: int, out: int, stride: int, at: int) -> tuple[slice, slice] | None:
    """Positions and elements that a tap meets inside the input, as (slice of positions, slice of elements).

    Position o meets element `o * stride + at`. None where the tap lies outside everywhere.
    """
    low = max(0, -(at // stride))
    high = min(out, (size - 1 - at) // stride + 1)
    if high <= low:
        return None
    return slice(low, high), slice(low * stride + at, (high - 1) * stride + at + 1, stride)


def along(rank: int, axis: int, where: slice) -> tuple[slice, ...]:
    """An index that takes `where` along spatial axis `axis` of [batch, channels, spatial...]."""
    return (slice(None),) * (2 + axis) + (where,) + (slice(None),) * (rank - axis - 1)


def taps(w: Window, axis: int) -> Iterator[tuple[slice, slice]]:
    """The clipped slices of each tap of one axis."""
    kernel, out, size, before = (ints(v)[axis] for v in (w.kernel, w.out, w.spatial, w.before))
    stride, dilation = w.strides[axis], w.dilations[axis]
    for tap in _meeting(kernel, out, stride, dilation, before, size):
        found = clipped(size, out, stride, tap * dilation - before)
        if found is not None:
            yield found


def _meeting(kernel: int, out: int, stride: int, dilation: int, before: int, size: int) -> Sequence[int]:
    """The taps that can meet the input; of a window much larger than the input most do not."""
    if kernel <= max(64, out * size):
        return range(kernel)
    met: set[int] = set()
    for o in range(out):
        start = before - o * stride
        met.update(range(max(0, -(-start // dilation)), min(kernel, (size - 1 + start) // dilation + 1)))
    return sorted(met)


def _order(w: Window) -> list[int]:
    """Axes that shrink most come first; of equals the outer one, whose inner loops are long."""
    return sorted(range(w.rank), key=lambda a: (ints(w.out)[a] / max(1, ints(w.spatial)[a]), a))


def reduce(x: Array, w: Window, ufunc: np.ufunc, start: Any, dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """Fold the windows of `x` [batch, channels, spatial...] with `ufunc` from `start`, at last into `out` if given."""
    current = x if x.dtype == dtype else x.astype(dtype)
    order = _order(w)
    for step, axis in enumerate(order):
        shape = (*current.shape[: 2 + axis], ints(w.out)[axis], *current.shape[3 + axis :])
        final = out is not None and step == len(order) - 1
        result = out if final and out is not None else np.empty(shape, dtype)
        everywhere = slice(0, shape[2 + axis])
        fresh = True
        for where, elements in sorted(taps(w, axis), key=lambda pair: pair[0] != everywhere):
            source = current[along(w.rank, axis, elements)]
            target = result[along(w.rank, axis, where)]
            if fresh and where == everywhere:
                target[...] = source
            else:
                if fresh:
                    result[...] = start
                ufunc(target, source, out=target)
            fresh = False
        if fresh:
            result[...] = start
        current = result
    return current


def counts(w: Window, *, padded: bool) -> Array:
    """Elements of each window, [spatial...] float64: inside the input, or with its padding when `padded`.

    What a rounded-up last window has beyond the padding never counts.
    """
    total = np.ones((), np.float64)
    for axis in range(w.rank):
        size, before, after, kernel, out = (ints(v)[axis] for v in (w.spatial, w.before, w.after, w.kernel, w.out))
        start = np.arange(out) * w.strides[axis] - before
        # Tap t meets element start + t·dilation: the first tap at or behind 0, and the first one behind the end.
        dilation, end = w.dilations[axis], size + after if padded else size
        first = 0 if padded else np.clip(-(start // dilation), 0, kernel)
        inside = np.maximum(np.clip(-((start - end) // dilation), 0, kernel) - first, 0)
        total = total[..., None] * inside
    return total


def maximum_indices(x: Array, w: Window, column_major: bool) -> tuple[Array, Array]:
    """Maxima and the flat index (int64, over the whole input) of the first element of each window that attains it."""
    out = ints(w.out)
    best = np.full((*x.shape[:2], *out), lowest(x.dtype), x.dtype)
    where = np.full(best.shape, -1, np.int64)
    spatial = np.arange(int(np.prod(x.shape[2:], dtype=np.int64)), dtype=np.int64)
    place = spatial.reshape(x.shape[2:], order="F" if column_major else "C")
    for chosen in product(*(list(taps(w, axis)) for axis in range(w.rank))):
        positions: tuple[slice, ...] = tuple(p for p, _ in chosen)
        elements: tuple[slice, ...] = tuple(e for _, e in chosen)
        values = x[(ALL, ALL, *elements)]
        known, held = where[(ALL, ALL, *positions)], best[(ALL, ALL, *positions)]
        better = (values > held) | (known < 0)
        np.copyto(held, values, where=better)
        np.copyto(known, np.broadcast_to(place[elements], known.shape), where=better)
    planes = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(*x.shape[:2], *(1,) * w.rank)
    return best, where + planes * spatial.size
