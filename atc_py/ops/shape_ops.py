"""Operators on shapes: Shape, Size, Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile.

A model's shape arithmetic is followed on values, so that a chain like

    Shape(x: [N, 16, H]) = [N, 16, H];  Gather 0 = N;  Concat -1 = [N, -1];  Reshape(x)  ->  [N, 16*H]

is known up to symbols before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_moves
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, Shape, declare
from atc_py.ops.shape_values import (
    fresh_shape,
    inferred_target,
    known,
    length,
    nonnegative,
    plain,
    small,
    tidy,
    vector,
)
from atc_py.ops.shapes import axes, broadcast, concrete, show

VIEW = Flags(alias=True, recomputable=True, fp16_safe=True, moves=True)

shape_op = declare(
    "Shape",
    inputs="data",
    outputs="shape",
    attrs={"start": Attr("int", 0), "end": Attr("int", None)},
    flags=Flags(type_only=True),
    engine=Engine.HOST,
)
shape_op.cost(lambda n: Cost())  # the host reads what it has: no element of the tensor is looked at


@shape_op.infer
def _(n: Infer) -> Result:
    dims = n.shape(0)
    if dims is None:
        return Tensor(DType.INT64, (n.fresh("rank"),))
    return Tensor(DType.INT64, (len(dims[n.attrs["start"] : n.attrs["end"]]),))


@shape_op.value
def _(n: Infer) -> Array | None:
    dims = n.shape(0)
    return None if dims is None else vector(dims[n.attrs["start"] : n.attrs["end"]])


@shape_op.kernel
def _(call: Call, x: Array) -> Array:
    return np.array(np.shape(x)[call.attrs["start"] : call.attrs["end"]], dtype=np.int64)


size_op = declare("Size", inputs="data", outputs="size", flags=Flags(type_only=True), engine=Engine.HOST)
size_op.cost(lambda n: Cost())


@size_op.infer
def _(n: Infer) -> Result:
    n.tensor(0)
    return Tensor(DType.INT64, ())


@size_op.value
def _(n: Infer) -> Array | None:
    dims = n.shape(0)
    return None if dims is None else vector([prod(dims)], ())


@size_op.kernel
def _(call: Call, x: Array) -> Array:
    return np.array(np.size(x), dtype=np.int64)


reshape = declare(
    "Reshape",
    inputs="data shape",
    outputs="reshaped",
    attrs={"allowzero": Attr("int", 0)},
    flags=VIEW,
    host_inputs=(1,),
)


def _reshape_shape(n: Infer) -> Shape | None:
    data, target = n.shape(0), n.ints(1)
    if target is None:
        rank = length(n, 1)
        if rank == 1 and data is not None:
            return (prod(data),)
        return fresh_shape(n, rank, "dim")
    out = inferred_target(data, target, bool(n.attrs["allowzero"]))
    return None if out is None else tuple(n.fresh(f"dim{i}") if d is None else d for i, d in enumerate(out))


reshape.tile(tiles_moves.reshaped)


@reshape.infer
def _(n: Infer) -> Result:
    return n.tensor(0).with_shape(_reshape_shape(n))


@reshape.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    target = small(_reshape_shape(n)) if values else None
    return tidy(values[0].reshape(target)) if values and target is not None else None


@reshape.kernel
def _(call: Call, x: Array, shape: Array) -> Array:
    target = inferred_target(x.shape, shape.reshape(-1).tolist(), bool(call.attrs["allowzero"]))
    return x.reshape(tuple(target or ()))


flatten = declare("Flatten", inputs="input", outputs="output", attrs={"axis": Attr("int", 1)}, flags=VIEW)


def _flat(dims: Sequence[Size], at: int) -> tuple[Size, Size]:
    """Two dims: those before axis `at` multiplied, and the others; `at` is in [-rank, rank]."""
    rank = len(dims)
    if not -rank <= at <= rank:
        raise InferError(f"axis {at} is outside [{-rank}, {rank}] for a tensor of rank {rank}")
    at = at + rank if at < 0 else at
    return prod(tuple(dims[:at])), prod(tuple(dims[at:]))


flatten.tile(tiles_moves.viewed)


@flatten.infer
def _(n: Infer) -> Result:
    dims = n.shape(0)
    return n.tensor(0).with_shape(fresh_shape(n, 2, "dim") if dims is None else _flat(dims, n.attrs["axis"]))


@flatten.value
def _(n: Infer) -> Array | None:
    values = known(n, 0)
    return tidy(values[0].reshape(plain(_flat(values[0].shape, n.attrs["axis"])) or ())) if values else None


@flatten.kernel
def _(call: Call, x: Array) -> Array:
    return x.reshape(plain(_flat(x.shape, call.attrs["axis"])) or ())


squeeze = declare("Squeeze", inputs="data axes?", outputs="squeezed", flags=VIEW, host_inputs=(1,))


def _ones(dims: Sequence[Size]) -> list[int] | None:
    """Axes of size 1, None when a symbolic dim may or may not be 1."""
    if any(isinstance(d, Dim) and not nonnegative(d - 2) for d in dims):
        return None
    return [i for i, d in enumerate(dims) if type(d) is int and d == 1]


def _squeezed(dims: Shape, gone: Sequence[int]) -> Shape:
    for i in gone:
        if type(dims[i]) is int and dims[i] != 1:
            raise InferError(f"axis {i} of shape {show(dims)} cannot be squeezed: its size is {dims[i]}, not 1")
    return tuple(d for i, d in enumerate(dims) if i not in gone)


squeeze.tile(tiles_moves.squeezed)


@squeeze.infer
def _(n: Infer) -> Result:
    data = n.tensor(0)
    if data.shape is None:
        return data
    if not n.has(1):
        gone = _ones(data.shape)
        return data.with_shape(None if gone is None else _squeezed(data.shape, gone))
    where = concrete(n, 1)
    if where is None:
        count = length(n, 1)
        return data.with_shape(None if count is None else fresh_shape(n, len(data.shape) - count, "dim"))
    return data.with_shape(_squeezed(data.shape, axes(where, len(data.shape))))


@squeeze.value
def _(n: Infer) -> Array | None:
    values, where = known(n, 0), concrete(n, 1)
    if not values or (n.has(1) and where is None):
        return None
    gone = None if where is None else tuple(axes(where, values[0].ndim))
    return tidy(np.squeeze(values[0], axis=gone))


@squeeze.kernel
def _(call: Call, x: Array, where: Array | None = None) -> Array:
    return np.squeeze(x, axis=None if where is None else tuple(axes(where.reshape(-1).tolist(), x.ndim)))


unsqueeze = declare("Unsqueeze", inputs="data axes", outputs="expanded", flags=VIEW, host_inputs=(1,))


def _unsqueezed(dims: Sequence[Any], where: Sequence[int]) -> tuple[Any, ...]:
    rank = len(dims) + len(where)
    new, rest = axes(where, rank), iter(dims)
    return tuple(1 if i in new else next(rest) for i in range(rank))


unsqueeze.tile(tiles_moves.viewed)


@unsqueeze.infer
def _(n: Infer) -> Result:
    data, where = n.tensor(0), concrete(n, 1)
    if data.shape is None:
        return data
    if where is None:
        count = length(n, 1)
        return data.with_shape(None if count is None else fresh_shape(n, len(data.shape) + count, "dim"))
    return data.with_shape(_unsqueezed(data.shape, where))


@unsqueeze.value
def _(n: Infer) -> Array | None:
    values, where = known(n, 0), concrete(n, 1)
    return tidy(values[0].reshape(_unsqueezed(values[0].shape, where))) if values and where is not None else None


@unsqueeze.kernel
def _(call: Call, x: Array, where: Array) -> Array:
    return x.reshape(_unsqueezed(x.shape, where.reshape(-1).tolist()))


expand = declare(
    "Expand",
    inputs="input shape",
    outputs="output",
    flags=Flags(recomputable=True, fp16_safe=True, moves=True),
    host_inputs=(1,),
)


def _expanded(n: Infer) -> Shape | None:
    data, target = n.shape(0), n.ints(1)
    if target is not None:
        return broadcast(data, tuple(target))
    count = length(n, 1)
    return fresh_shape(n, None if data is None or count is None else max(len(data), count), "dim")


expand.tile(tiles_moves.expanded)


@expand.infer
def _(n: Infer) -> Result:
    return n.tensor(0).with_shape(_expanded(n))


@expand.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    shape = small(_expanded(n)) if values else None
    return tidy(np.array(np.broadcast_to(values[0], shape))) if values and shape is not None else None


@expand.kernel
def _(call: Call, x: Array, shape: Array) -> Array:
    wanted, out = tuple(shape.reshape(-1).tolist()), call.out(0)
    if out is not None and out.shape == wanted and out.dtype == x.dtype:
        np.copyto(out, x)
        return out
    rank = max(x.ndim, len(wanted))
    sizes = zip((1,) * (rank - x.ndim) + x.shape, (1,) * (rank - len(wanted)) + wanted, strict=True)
    y = np.empty([have if want == 1 else want for have, want in sizes], x.dtype)
    np.copyto(y, x)  # raises where a size is neither 1 nor the wanted one
    return y


tile = declare(
    "Tile",
    inputs="input repeats",
    outputs="output",
    flags=Flags(recomputable=True, fp16_safe=True, moves=True),
    host_inputs=(1,),
)


def _tiled(n: Infer) -> Shape | None:
    data, repeats = n.shape(0), n.ints(1)
    rank = length(n, 1) if data is None else len(data)
    if data is None or repeats is None:
        return fresh_shape(n, rank, "dim")
    if len(repeats) != len(data):
        raise InferError(f"repeats has {len(repeats)} elements, but the input {show(data)} has rank {len(data)}")
    return tuple(d * r for d, r in zip(data, repeats))


@tile.infer
def _(n: Infer) -> Result:
    return n.tensor(0).with_shape(_tiled(n))


@tile.value
def _(n: Infer) -> Array | None:
    values, repeats = known(n, 0, 1), concrete(n, 1)
    if not values or repeats is None or small(_tiled(n)) is None:
        return None
    return tidy(np.tile(values[0], repeats))


@tile.kernel
def _(call: Call, x: Array, repeats: Array) -> Array:
    times = repeats.reshape(-1).tolist()
    out = call.into(0, tuple(d * r for d, r in zip(x.shape, times)), x.dtype)
    if out.size:
        # One pass: axis i of the output is (repeats[i], d[i]); stride 0 repeats without an intermediate copy.
        pairs = tuple(s for d, r in zip(x.shape, times) for s in (r, d))
        spread = np.broadcast_to(x.reshape(tuple(s for d in x.shape for s in (1, d))), pairs)
        target = out if out.flags.c_contiguous else np.empty(out.shape, x.dtype)
        np.copyto(target.reshape(pairs), spread)
        if target is not out:
            np.copyto(out, target)
    return out
