"""Operators that move data: Transpose, Concat, Split, DepthToSpace, SpaceToDepth, ReverseSequence, Col2Im.

Split(x: [7, H], num_outputs=3, axis=0)   ->  [3, H], [3, H], [1, H]
Split(x: [N, H], num_outputs=2, axis=0)   ->  [ceil(N/2), H], [N - ceil(N/2), H]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod as int_prod
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, ceildiv, dmax, dmin, prod
from atc_py.ir.types import Tensor
from atc_py.ops import tiles_moves
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, Shape, declare
from atc_py.ops.layouts import feature_maps, joins, splits
from atc_py.ops.move_costs import joined_along, transposed
from atc_py.ops.shape_values import fresh_shape, known, length, plain, same_memory, tidy
from atc_py.ops.shapes import assume, axes, axis, concrete, show

MOVE = Flags(recomputable=True, fp16_safe=True, moves=True)

transpose = declare("Transpose", inputs="data", outputs="transposed", attrs={"perm": Attr("ints", None)}, flags=MOVE)


def _perm(attrs: Any, rank: int) -> list[int]:
    perm = attrs["perm"]
    if perm is None:
        return list(range(rank))[::-1]
    if len(perm) != rank:
        raise InferError(f"perm {list(perm)} has {len(perm)} axes, but the input has rank {rank}")
    return axes(perm, rank)


transpose.tile(tiles_moves.transposed)


@transpose.infer
def _(n: Infer) -> Result:
    data = n.tensor(0)
    if data.shape is None:
        return data.with_shape(fresh_shape(n, len(n.attrs["perm"]) if n.attrs["perm"] else None, "dim"))
    return data.with_shape(tuple(data.shape[i] for i in _perm(n.attrs, len(data.shape))))


@transpose.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    return Cost() if shape is None else transposed(shape, _perm(n.attrs, len(shape)))


@transpose.value
def _(n: Infer) -> Array | None:
    values = known(n, 0)
    return values[0].transpose(_perm(n.attrs, values[0].ndim)) if values else None


@transpose.kernel
def _(call: Call, x: Array) -> Array:
    return x.transpose(_perm(call.attrs, x.ndim))


concat = declare(
    "Concat",
    inputs="inputs*",
    outputs="concat_result",
    attrs={"axis": Attr("int")},
    flags=replace(MOVE, joins=True),
)
concat.layout(joins())


def joined(shapes: Sequence[Shape], at: int) -> Shape:
    """The shape of tensors laid one after the other along axis `at`; other dims agree (known ones win)."""
    rank = len(shapes[0])
    out: list[Size] = []
    for i in range(rank):
        dims = [s[i] for s in shapes]
        if i == at:
            total: Size = 0
            for d in dims:
                total = total + d
            out.append(total)
            continue
        fixed = [d for d in dims if type(d) is int]
        if len(set(fixed)) > 1:
            raise InferError(f"shapes {' and '.join(map(show, shapes))} differ in axis {i}, which is not joined")
        out.append(fixed[0] if fixed else dims[0])
        for d in dims:
            assume(d, out[-1])
    return tuple(out)


concat.tile(tiles_moves.concatenated)


@concat.infer
def _(n: Infer) -> Result:
    if not n.types:
        raise InferError("Concat needs at least one input")
    tensors = [n.tensor(i) for i in range(len(n.types))]
    shapes = [t.shape for t in tensors if t.shape is not None]
    if any(t.dtype is not tensors[0].dtype for t in tensors):
        raise InferError(f"inputs of Concat differ in dtype: {', '.join(t.dtype.value for t in tensors)}")
    if not shapes:
        return tensors[0].with_shape(None)
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        raise InferError(f"inputs of Concat differ in rank: {', '.join(map(show, shapes))}")
    at = axis(n.attrs["axis"], rank)
    out = list(joined(shapes, at))
    if len(shapes) < len(tensors):
        out[at] = n.fresh(f"dim{at}")
    return tensors[0].with_shape(tuple(out))


@concat.cost
def _(n: Infer) -> Cost:
    shapes = [s for i in range(len(n.types)) if (s := n.shape(i)) is not None]
    return joined_along(shapes, axis(n.attrs["axis"], len(shapes[0]))) if shapes else Cost()


@concat.value
def _(n: Infer) -> Array | None:
    values = known(n, *range(len(n.types)))
    if not values:
        return None
    return tidy(np.concatenate(values, axis=n.attrs["axis"]))


@concat.kernel
def _(call: Call, *parts: Array) -> Array:
    at = axis(call.attrs["axis"], parts[0].ndim)
    out = call.into(0, plain(joined([p.shape for p in parts], at)) or (), parts[0].dtype)
    start = 0
    for part in parts:
        end = start + part.shape[at]
        target = out[(slice(None),) * at + (slice(start, end),)]
        if not same_memory(target, part):  # the plan may have had it produced in place
            target[...] = part
        start = end
    return out


split = declare(
    "Split",
    inputs="input split?",
    outputs="outputs*",
    attrs={"axis": Attr("int", 0), "num_outputs": Attr("int", None)},
    flags=replace(MOVE, cuts=True),
    host_inputs=(1,),
)
split.layout(splits)


def split_sizes(d: Size, count: int) -> list[Size]:
    """`count` parts of an axis of size `d`: ceil(d / count) each, the last ones what is left."""
    if type(d) is int:
        part = -(-d // count)
        return [max(min(part, d - i * part), 0) for i in range(count)]
    each = ceildiv(d, count)
    if d - each * count == 0:  # a multiple of count
        return [each] * count
    return [dmax(dmin(each, d - each * i), 0) for i in range(count)]


def _parts(n: Infer, d: Size) -> list[Size]:
    sizes = n.ints(1)
    count = n.attrs["num_outputs"] or n.outputs
    if sizes is None and n.has(1):
        return [n.fresh(f"part{i}") for i in range(n.outputs)]
    if sizes is None:
        return split_sizes(d, count)
    if len(sizes) != n.outputs:
        raise InferError(f"split has {len(sizes)} sizes, but the node has {n.outputs} outputs")
    if type(d) is int and plain(sizes) is not None and (sum(sizes) != d or min(sizes, default=0) < 0):
        raise InferError(f"sizes {sizes} of split do not add up to the axis's size {d}")
    return sizes


split.tile(tiles_moves.split)


@split.infer
def _(n: Infer) -> Result:
    data = n.tensor(0)
    if data.shape is None:
        return [data] * n.outputs
    at = axis(n.attrs["axis"], len(data.shape))
    return [data.with_shape((*data.shape[:at], size, *data.shape[at + 1 :])) for size in _parts(n, data.shape[at])]


def _cuts(x: Array, at: int, sizes: Sequence[int]) -> list[Array]:
    ends = list(accumulate(sizes))
    if ends and ends[-1] != x.shape[at]:
        raise InferError(f"sizes {list(sizes)} of split do not add up to the axis's size {x.shape[at]}")
    return [x[(slice(None),) * at + (slice(end - size, end),)] for size, end in zip(sizes, ends)]


@split.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    if shape is None or (n.has(1) and n.ints(1) is None):
        return Cost()
    at = axis(n.attrs["axis"], len(shape))
    return joined_along([(*shape[:at], size, *shape[at + 1 :]) for size in _parts(n, shape[at])], at)


@split.value
def _(n: Infer) -> Sequence[Array | None] | None:
    values, sizes = known(n, 0), concrete(n, 1)
    if not values or (n.has(1) and sizes is None):
        return None
    at = axis(n.attrs["axis"], values[0].ndim)
    if sizes is None:
        sizes = list(plain(split_sizes(values[0].shape[at], n.attrs["num_outputs"] or n.outputs)) or ())
    return [tidy(part) for part in _cuts(values[0], at, sizes)]


@split.kernel
def _(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    at = axis(call.attrs["axis"], x.ndim)
    count = call.attrs["num_outputs"] or len(call.outs) or len(call.out_types)
    given = split_sizes(x.shape[at], count) if sizes is None else sizes.reshape(-1).tolist()
    return tuple(_cuts(x, at, list(plain(given) or ())))


depth_to_space = declare(
    "DepthToSpace",
    inputs="input",
    outputs="output",
    attrs={"blocksize": Attr("int"), "mode": Attr("str", "DCR")},
    flags=MOVE,
)
space_to_depth = declare(
    "SpaceToDepth",
    inputs="input",
    outputs="output",
    attrs={"blocksize": Attr("int"), "mode": Attr("str", "DCR")},
    flags=MOVE,
)
depth_to_space.tile(tiles_moves.blocks_to_pixels)
space_to_depth.tile(tiles_moves.pixels_to_blocks)
depth_to_space.layout(feature_maps(0))
space_to_depth.layout(feature_maps(0))


def _image(n: Infer) -> Shape | None:
    shape = n.shape(0)
    if shape is not None and len(shape) != 4:
        raise InferError(f"the input must have shape [N, C, H, W], but has {show(shape)}")
    if n.attrs["mode"] not in ("DCR", "CRD") or n.attrs["blocksize"] < 1:
        raise InferError(f"mode {n.attrs['mode']} or blocksize {n.attrs['blocksize']} is not one that ONNX defines")
    return shape


def _divided(d: Size, by: int, what: str) -> Size:
    if type(d) is int and d % by:
        raise InferError(f"{what} {d} is no multiple of {by}")
    return d // by


@depth_to_space.infer
def _(n: Infer) -> Result:
    shape, b = _image(n), n.attrs["blocksize"]
    if shape is None:
        return n.tensor(0).with_shape(fresh_shape(n, 4, "dim"))
    batch, c, h, w = shape
    return n.tensor(0).with_shape((batch, _divided(c, b * b, "channel count"), h * b, w * b))


@depth_to_space.cost
def _(n: Infer) -> Cost:
    return Cost(run=1)  # neighbours of a row come from different channels


@depth_to_space.kernel
def _(call: Call, x: Array) -> Array:
    b = call.attrs["blocksize"]
    n, c, h, w = x.shape
    out = call.into(0, (n, c // (b * b), h * b, w * b), x.dtype)
    if call.attrs["mode"] == "DCR":
        blocks = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    out[...] = blocks.reshape(out.shape)
    return out


@space_to_depth.infer
def _(n: Infer) -> Result:
    shape, b = _image(n), n.attrs["blocksize"]
    if shape is None:
        return n.tensor(0).with_shape(fresh_shape(n, 4, "dim"))
    batch, c, h, w = shape
    return n.tensor(0).with_shape((batch, c * (b * b), _divided(h, b, "height"), _divided(w, b, "width")))


@space_to_depth.cost
def _(n: Infer) -> Cost:
    return Cost(run=1)


@space_to_depth.kernel
def _(call: Call, x: Array) -> Array:
    b = call.attrs["blocksize"]
    n, c, h, w = x.shape
    out = call.into(0, (n, c * b * b, h // b, w // b), x.dtype)
    order = (0, 3, 5, 1, 2, 4) if call.attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    out[...] = x.reshape(n, c, h // b, b, w // b, b).transpose(order).reshape(out.shape)
    return out


reverse_sequence = declare(
    "ReverseSequence",
    inputs="input sequence_lens",
    outputs="Y",
    attrs={"batch_axis": Attr("int", 1), "time_axis": Attr("int", 0)},
    flags=MOVE,
)


@reverse_sequence.infer
def _(n: Infer) -> Result:
    data, used = n.tensor(0), (n.attrs["batch_axis"], n.attrs["time_axis"])
    if used not in ((0, 1), (1, 0)):
        raise InferError(f"batch_axis and time_axis must be 0 and 1 (in any order), but are {used}")
    if data.shape is not None and len(data.shape) < 2:
        raise InferError(f"ReverseSequence takes rank 2 and more, but the input has shape {show(data.shape)}")
    return data


@reverse_sequence.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    return Cost() if shape is None else Cost(run=prod(shape[2:]))


@reverse_sequence.kernel
def _(call: Call, x: Array, lengths: Array) -> Array:
    by_batch = x if call.attrs["batch_axis"] == 0 else x.swapaxes(0, 1)
    time = np.arange(by_batch.shape[1])
    ends = lengths.reshape(-1, 1)
    source = np.where(time < ends, ends - 1 - time, time)
    got = by_batch[np.arange(by_batch.shape[0])[:, None], source]
    return got if call.attrs["batch_axis"] == 0 else got.swapaxes(0, 1)


col2im = declare(
    "Col2Im",
    inputs="input image_shape block_shape",
    outputs="output",
    attrs={"dilations": Attr("ints", None), "pads": Attr("ints", None), "strides": Attr("ints", None)},
    flags=Flags(),
    engine=Engine.AICPU,
    host_inputs=(1, 2),
)


@col2im.infer
def _(n: Infer) -> Result:
    data, image, block = n.tensor(0), n.ints(1), n.ints(2)
    if data.shape is None or image is None or block is None:
        dims = length(n, 1)
        return Tensor(data.dtype, fresh_shape(n, None if dims is None else dims + 2, "dim"))
    if len(data.shape) != 3 or len(image) != len(block):
        raise InferError(f"Col2Im takes [N, C·prod(block), L], found {show(data.shape)} with block {block}")
    area = prod(tuple(block))
    channels = data.shape[1]
    if isinstance(area, Dim) or isinstance(channels, Dim):
        return data.with_shape((data.shape[0], channels // area, *image))
    return data.with_shape((data.shape[0], _divided(channels, area, "channel count"), *image))


@col2im.kernel
def _(call: Call, x: Array, image_shape: Array, block_shape: Array) -> Array:
    image, block = image_shape.reshape(-1).tolist(), block_shape.reshape(-1).tolist()
    k = len(image)
    strides = call.attrs["strides"] or [1] * k
    dilations = call.attrs["dilations"] or [1] * k
    pads = call.attrs["pads"] or [0] * (2 * k)
    padded = [image[i] + pads[i] + pads[i + k] for i in range(k)]
    steps = [(padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(k)]
    n, c = x.shape[0], x.shape[1] // int_prod(block)
    wide = np.float32 if x.dtype.kind not in "fciub" or (x.dtype.itemsize < 4 and x.dtype.kind == "f") else x.dtype
    total = np.zeros((n, c, *padded), wide)
    columns = x.reshape(n, c, int_prod(block), *steps)
    for i, offset in enumerate(np.ndindex(*block)):
        at = tuple(
            slice(o * dilations[j], o * dilations[j] + strides[j] * (steps[j] - 1) + 1, strides[j])
            for j, o in enumerate(offset)
        )
        total[(slice(None), slice(None), *at)] += columns[:, :, i]
    inner = tuple(slice(pads[i], pads[i] + image[i]) for i in range(k))
    return total[(slice(None), slice(None), *inner)].astype(x.dtype, copy=False)
