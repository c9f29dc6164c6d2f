"""Tile rules of operators that move data: which part of the source a part of the result comes from.

Transpose (0, 2, 1), wanted y[0:1, 4:8, :]           →   x[0:1, :, 4:8]
Reshape [2, 8, 64] → [2, 8, 4, 16], y[:, :, 1:2, :]   →   x[:, :, 16:32]
Gather, axis 0, wanted y[3:5, :]                     →   the table by index, indices[3:5]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from atc_py.ops.tiles import (
    Dims,
    Need,
    Region,
    Untileable,
    Wanted,
    blocks,
    broadcast_region,
    hull,
    lengths,
    whole,
)


def transposed(w: Wanted) -> Need:
    """Each axis of the input is where `perm` has put it."""
    perm = w.attrs["perm"]
    rank = len(w.out)
    order = range(rank)[::-1] if perm is None else [p % rank for p in perm]
    region: list[tuple[int, int]] = [(0, 0)] * rank
    for r, p in zip(w.out, order):
        region[p] = r
    return Need((tuple(region),))


def gathered(w: Wanted) -> Need:
    """The table is read by index where it lies: all of the axis, and of the others what is wanted."""
    data, indices = w.shapes[0], w.shapes[1]
    assert data is not None and indices is not None
    at = w.attrs["axis"] % len(data)
    rank = len(indices)
    table = (*w.out[:at], (0, data[at]), *w.out[at + rank :])
    return Need((table, w.out[at : at + rank]), streamed=(0,))


def concatenated(w: Wanted) -> Need:
    """Of each input what overlaps the wanted part."""
    return Need(tuple(_overlaps(w, w.shapes)))


def concatenated_quantized(w: Wanted) -> Need:
    """QLinearConcat: (scale and zero point of the output, then tensor, scale and zero point of each input)."""
    parts = list(_overlaps(w, w.shapes[2::3]))
    rest = [w.all(i) for i in range(len(w.shapes))]
    rest[2::3] = parts
    return Need(tuple(rest))


def _overlaps(w: Wanted, shapes: Sequence[Dims | None]) -> Iterator[Region]:
    at = w.attrs["axis"] % len(w.out)
    start, length = w.out[at]
    begin = 0
    for s in shapes:
        assert s is not None
        if w.anywhere and length < w.out_shapes[0][at]:
            yield (*w.out[:at], (0, s[at]), *w.out[at + 1 :])
            continue
        low, high = max(start, begin), min(start + length, begin + s[at])
        span = (low - begin, high - low) if high > low else (0, 0)
        begin += s[at]
        yield (*w.out[:at], span, *w.out[at + 1 :])


def split(w: Wanted) -> Need:
    """All of the axis that is split, of the others what any output wants."""
    shape = w.shapes[0]
    assert shape is not None
    at = w.attrs["axis"] % len(shape)
    rest: Region | None = None
    for r in w.outs:
        if r is not None:
            rest = hull(rest, (*r[:at], *r[at + 1 :]))
    assert rest is not None
    made = tuple([(*rest[:at], (0, s[at]), *rest[at:]) for s in w.out_shapes])
    return Need(((*rest[:at], (0, shape[at]), *rest[at:]), *[w.all(i) for i in range(1, len(w.shapes))]), made)


def sliced(w: Wanted) -> Need:
    """The elements between the first and the last that are wanted; the kernel slices from the first on."""
    shape = w.shapes[0]
    assert shape is not None
    starts = w.ints(1)
    assert starts is not None
    axes = w.ints(3) or list(range(len(starts)))
    steps = w.ints(4) or [1] * len(starts)
    region, ends = list(w.out), []
    for axis, start, step in zip(axes, starts, steps, strict=True):
        axis %= len(shape)
        if step < 1:
            raise Untileable(f"a slice with step {step}")
        d = shape[axis]
        first = min(max(start + d if start < 0 else start, 0), d)
        begin, count = w.out[axis]
        span = (count - 1) * step + 1 if count else 0
        region[axis] = (first + begin * step, span)
        ends.append(span)
    values = {1: np.zeros(len(starts), np.int64), 2: np.array(ends, np.int64)}
    return Need((tuple(region), *[w.all(i) for i in range(1, len(w.shapes))]), values=values)


def expanded(w: Wanted) -> Need:
    """What broadcasts into the wanted part."""
    shape = w.shapes[0]
    assert shape is not None
    region = broadcast_region(w.out, shape, w.out_shapes[0])
    return Need((region, w.all(1)), values={1: np.array(lengths(w.out), np.int64)})


def reshaped(w: Wanted) -> Need:
    """Reshape: where dims are kept, split or joined, the part that has the same elements."""
    region, made = _remapped(w)
    return Need((region, w.all(1)), (made,), values={1: np.array(lengths(made), np.int64)})


def viewed(w: Wanted) -> Need:
    """Flatten, Unsqueeze, and Squeeze that names its axes: as Reshape, but the shape follows from attributes."""
    region, made = _remapped(w)
    return Need((region, *[w.all(i) for i in range(1, len(w.shapes))]), (made,))


def squeezed(w: Wanted) -> Need:
    """Squeeze; one that takes away all dims of size 1 would take those of a tile too."""
    if len(w.shapes) < 2 or w.shapes[1] is None:
        raise Untileable("Squeeze without axes")
    return viewed(w)


def _remapped(w: Wanted) -> tuple[Region, Region]:
    """(the input's region, the output's that has the same elements and holds what is wanted)."""
    shape, target = w.shapes[0], w.out_shapes[0]
    assert shape is not None
    source: list[tuple[int, int]] = []
    made: list[tuple[int, int]] = []
    at = 0
    for before, after in _groups(shape, target):
        wanted = w.out[at : at + len(after)]
        at += len(after)
        a, b = _group(before, after, wanted, w.anywhere)
        source += a
        made += b
    return tuple(source), tuple(made)


def _groups(shape: Dims, target: Dims) -> list[tuple[Dims, Dims]]:
    """Both shapes cut into the smallest runs of dims with equal products; one run where a dim is 0."""
    if 0 in shape or 0 in target:
        return [(shape, target)]
    found = []
    i = j = 0
    while i < len(shape) or j < len(target):
        a, b = i, j
        left = shape[i] if i < len(shape) else 1
        right = target[j] if j < len(target) else 1
        i, j = min(i + 1, len(shape)), min(j + 1, len(target))
        while left != right:
            if left < right:
                left, i = left * shape[i], i + 1
            else:
                right, j = right * target[j], j + 1
        found.append((shape[a:i], target[b:j]))
    return found


def _group(before: Dims, after: Dims, wanted: Region, anywhere: bool) -> tuple[Region, Region]:
    if before == after:
        return wanted, wanted
    if 0 in before:
        return whole(before), whole(after)
    if [d for d in before if d != 1] == [d for d in after if d != 1]:
        long = iter([r for r, d in zip(wanted, after) if d != 1])
        return tuple([(0, 1) if d == 1 else next(long) for d in before]), wanted
    ranged = _range(after, wanted)
    if anywhere and not _stays_inside(before, ranged):
        return whole(before), whole(after)
    while True:
        source = _box(before, ranged)
        made = _box(after, _range(before, source))
        again = _range(after, made)
        if again == ranged and _range(before, source) == ranged:
            return source, made
        ranged = again


def _stays_inside(shape: Dims, span: tuple[int, int]) -> bool:
    """Whether spans of this length, at multiples of it, never lie across a border of a dim but in whole dims."""
    first, end = span
    length = end - first
    borders = [prod(shape[k:]) for k in range(1, len(shape))]
    return first % length == 0 and all(b % length == 0 or length % b == 0 for b in borders)


def _range(shape: Dims, region: Region) -> tuple[int, int]:
    """The (first, end) of the row-major elements between which a region lies, dims behind a longer one in whole."""
    first = count = 0
    partial = False
    for k, ((start, length), d) in enumerate(zip(region, shape)):
        if partial:
            break
        stride = prod(shape[k + 1 :])
        first += start * stride
        count = length * stride
        partial = length != 1 and d != 1
    return (first, first + count) if shape else (0, 1)


def _box(shape: Dims, span: tuple[int, int]) -> Region:
    """The smallest region of neighbouring elements that holds the row-major elements [first, end)."""
    first, end = span
    region: list[tuple[int, int]] = []
    for k, _ in enumerate(shape):
        stride = prod(shape[k + 1 :])
        low, high = first // stride, -(-end // stride)
        region.append((low, high - low))
        if high - low > 1:
            return (*region, *whole(shape[k + 1 :]))
        first, end = first - low * stride, end - low * stride
    return tuple(region)


def padded(w: Wanted) -> Need:
    """Pad: what is there of the wanted part, and of a border what shows it again; the pads are what is not there.

    Axes that are repeated (wrap), or shown to and fro, or cut by negative pads, stay whole.
    """
    shape = w.shapes[0]
    pads = w.ints(1)
    assert shape is not None and pads is not None
    axes = [a % len(shape) for a in w.ints(3) or range(len(shape))]
    count = len(axes)
    region, made, left = list(w.out), list(w.out), list(pads)
    for i, a in enumerate(axes):
        ends = pads[i], pads[i + count]
        if ends != (0, 0):
            region[a], made[a], left[i], left[i + count] = _pad_axis(w, a, ends)
    rest = [w.all(i) for i in range(1, len(w.shapes))]
    return Need((tuple(region), *rest), (tuple(made),), values={1: np.array(left, np.int64)})


def _pad_axis(w: Wanted, a: int, pads: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """Along axis `a`: the span of the input, the span that is made of it, and the pads before and after it."""
    mode, (before, after) = w.attrs["mode"], pads
    start, length = w.out[a][0] - before, w.out[a][1]
    shape = w.shapes[0]
    assert shape is not None
    d = shape[a]
    if mode == "constant":
        if w.anywhere:
            return (start, length), w.out[a], before, after
        low = min(max(start, 0), d)
        high = max(min(start + length, d), low)
        first = min(low - start, length) if high > low else length
        return (low, high - low), w.out[a], first, length - (high - low) - first
    reach = 0 if mode == "edge" else 1
    if mode == "wrap" or min(pads) < 0 or (reach and max(pads) >= d) or not length or not d:
        return (0, d), (0, w.out_shapes[0][a]), before, after
    if w.anywhere:
        most = max(pads)
        return (start, max(length, reach * most + 1)), (w.out[a][0], max(length, (1 + reach) * most + 1)), before, after
    first, last = max(-start, 0), max(start + length - d, 0)
    low, high = max(start, 0), min(start + length, d)
    if first:
        high = max(high, reach * first + 1)
    if last:
        low = min(low, d - 1 - reach * last)
    return (low, high - low), (low + before - first, first + high - low + last), first, last


def blocks_to_pixels(w: Wanted) -> Need:
    """DepthToSpace: whole blocks of pixels, all channels."""
    shape, b = w.shapes[0], w.attrs["blocksize"]
    assert shape is not None
    batch, _, *image = w.out
    spans = [blocks(r, b, d, w.anywhere) for r, d in zip(image, w.out_shapes[0][2:])]
    made = (batch, (0, w.out_shapes[0][1]), *spans)
    return Need(((batch, (0, shape[1]), *[(s // b, n // b) for s, n in spans]),), (made,))


def pixels_to_blocks(w: Wanted) -> Need:
    """SpaceToDepth: a block of pixels for each wanted one, all channels."""
    shape, b = w.shapes[0], w.attrs["blocksize"]
    assert shape is not None
    batch, _, *image = w.out
    made = (batch, (0, w.out_shapes[0][1]), *image)
    return Need(((batch, (0, shape[1]), *[(s * b, n * b) for s, n in image]),), (made,))
