"""Tile rules of normalizations, softmax, reductions and quantization: full extent along the axes that are summed over.

LayerNormalization over the last axis, wanted y[2:4, 16:32]     →   x[2:4, :], scale and bias whole
ReduceSum over axis 1, keepdims 0, wanted y[2:4]                →   x[2:4, :]
DequantizeLinear, scale [C] along axis 1, wanted y[:, 8:16]     →   x[:, 8:16], scale[8:16]
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.ops.tiles import Dims, Need, Region, Untileable, Wanted, along, blocks, hull, widened


def by_axis(w: Wanted) -> Need:
    """Softmax and its like: all of attribute `axis`, one or several."""
    axis, rank = w.attrs["axis"], len(w.out_shapes[0])
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    return along(w, [a % rank for a in listed])


def by_axes(w: Wanted) -> Need:
    """All of attribute `axes`."""
    return along(w, [a % len(w.out_shapes[0]) for a in w.attrs["axes"]])


def by_axis_input(w: Wanted) -> Need:
    """CumSum and its like: all of the axis that input 1 names."""
    rank = len(w.out_shapes[0])
    return along(w, [a % rank for a in w.ints(1) or []])


def from_axis(w: Wanted) -> Need:
    """LayerNormalization and its like: all axes from `axis` on; further outputs have one entry a row."""
    shape = w.shapes[0]
    assert shape is not None
    first = w.attrs["axis"] % len(shape)
    rows: Region | None = None
    for r in w.outs:
        if r is not None:
            rows = hull(rows, r[:first])
    assert rows is not None
    region = rows + tuple([(0, d) for d in shape[first:]])
    one = rows + ((0, 1),) * (len(shape) - first)
    inputs = (region, *(w.all(i) for i in range(1, len(w.shapes))))
    return Need(inputs, (region, *[None if r is None else one for r in w.outs[1:]]))


def channels_second(w: Wanted) -> Need:
    """Channels along axis 1, each by itself, all of the axes behind; vectors of channels as further inputs."""
    return _by_channel(w, widened(w.out, w.out_shapes[0], range(2, len(w.out))))


def batch_norm(w: Wanted) -> Need:
    """Element by element, with vectors of channels."""
    if w.attrs["training_mode"]:
        raise Untileable("BatchNormalization in training needs all of its input")
    return _by_channel(w, w.out)


def _by_channel(w: Wanted, region: Region) -> Need:
    vectors = [None if s is None else (region[1],) for s in w.shapes[1:]]
    return Need((region, *vectors), (region, *w.outs[1:]))


def group_norm(w: Wanted) -> Need:
    """Whole groups of channels."""
    shape = w.out_shapes[0]
    size = shape[1] // w.attrs["num_groups"]
    region = widened(w.out, shape, range(2, len(shape)))
    span = blocks(region[1], size, shape[1], w.anywhere)
    region = (region[0], span, *region[2:])
    return Need((region, (span,), (span,)), (region,), {"num_groups": max(1, span[1] // max(1, size))})


def second_axis(w: Wanted) -> Need:
    """All of axis 1: neighbours along the channels are read."""
    return along(w, [1])


def reduction(w: Wanted) -> Need:
    """All of the axes that are reduced; input 1, where there is one, names them."""
    shape = w.shapes[0]
    assert shape is not None
    given = w.ints(1)
    if not given and w.attrs["noop_with_empty_axes"]:
        return Need((w.out, *[w.all(i) for i in range(1, len(w.shapes))]))
    axes = sorted({a % len(shape) for a in given}) if given else range(len(shape))
    return _reduced(w, shape, axes)


def arg_reduction(w: Wanted) -> Need:
    """All of attribute `axis`, which is reduced."""
    shape = w.shapes[0]
    assert shape is not None
    return _reduced(w, shape, [w.attrs["axis"] % len(shape)])


def _reduced(w: Wanted, shape: Dims, axes: Sequence[int]) -> Need:
    rest = iter(w.out)
    region = []
    for i, d in enumerate(shape):
        if i not in axes:
            region.append(next(rest))
            continue
        region.append((0, d))
        if w.attrs["keepdims"]:
            next(rest)
    return Need((tuple(region), *[w.all(i) for i in range(1, len(w.shapes))]))


def quantization(w: Wanted) -> Need:
    """Element by element; scales and zero points of the tensor, of each index of an axis, or of each block of it."""
    shape, block = w.out_shapes[0], w.attrs["block_size"]
    axis = w.attrs["axis"] % len(shape) if shape else 0
    out = w.out
    if block:
        span = blocks(out[axis], block, shape[axis], w.anywhere)
        out = (*out[:axis], span, *out[axis + 1 :])
    parts = [None if s is None else _parameter(s, out, shape, axis, block) for s in w.shapes[1:]]
    return Need((out, *parts), (out,))


def _parameter(s: Dims, out: Region, shape: Dims, axis: int, block: int) -> Region:
    if len(s) != len(shape) or (len(s) == 1 and not block):
        return (out[axis],) if len(s) == 1 and s[0] == shape[axis] else tuple([(0, d) for d in s])
    if not block:
        return tuple([r if d == n else (0, d) for r, d, n in zip(out, s, shape)])
    start, length = out[axis]
    return (*out[:axis], (start // block, -(-length // block)), *out[axis + 1 :])
