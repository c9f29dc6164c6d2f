"""Operators that make tensors from sizes and masks: Range, ConstantOfShape, EyeLike, NonZero, OneHot, Trilu.

Range(2, N, 3)   has max(0, ceil((N - 2) / 3)) elements, known as a Dim before N is
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isfinite
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, ceildiv, dmax
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Flags, Infer, InferError, Result, declare
from atc_py.ops.shape_values import constant_array, fresh_shape, known, length, plain, scalar, small
from atc_py.ops.shapes import axis, show

MAKE = Flags(recomputable=True, fp16_safe=True)

range_op = declare(
    "Range",
    inputs="start limit delta",
    outputs="output",
    attrs={"stash_type": Attr("int", 1)},
    flags=MAKE,
    host_inputs=(0, 1, 2),
)


def _steps(start: Any, limit: Any, delta: Any, dtype: DType) -> int:
    """max(ceil((limit - start) / delta), 0): exact on integers, floats subtracted in 32 bits or more."""
    if delta == 0:
        raise InferError("delta of Range is 0")
    if dtype.is_int:
        return max(-((int(start) - int(limit)) // int(delta)), 0)
    wide = np.float64 if dtype is DType.FLOAT64 else np.float32
    steps = float(wide(limit) - wide(start)) / float(wide(delta))
    if not isfinite(steps):
        raise InferError(f"Range from {start} to {limit} by {delta} has no finite number of elements")
    return max(ceil(steps), 0)


def _range_count(n: Infer) -> Size | None:
    given: list[Any] = [scalar(n, i) for i in range(3)]
    if any(x is None for x in given):
        return None
    if any(isinstance(x, Dim) for x in given):
        # A size that was cast to floating point is still a whole number.
        given = [int(x) if isinstance(x, float) and x.is_integer() else x for x in given]
        if any(isinstance(x, float) for x in given):
            return None
    start, limit, delta = given
    if not any(isinstance(x, Dim) for x in given):
        return _steps(start, limit, delta, n.dtype(0))
    if isinstance(delta, Dim):
        return None
    if delta == 0:
        raise InferError("delta of Range is 0")
    return dmax(0, ceildiv(limit - start, delta) if delta > 0 else ceildiv(start - limit, -delta))


@range_op.infer
def _(n: Infer) -> Result:
    count = _range_count(n)
    return Tensor(n.dtype(0), (n.fresh("count") if count is None else count,))


def _range(start: Any, delta: Any, count: int, dtype: DType) -> Array:
    with np.errstate(all="ignore"):  # wraps, or becomes infinite
        if dtype.is_int:
            return (np.int64(start) + np.arange(count, dtype=np.int64) * np.int64(delta)).astype(dtype.numpy)
        wide: Any = np.float64 if dtype is DType.FLOAT64 else np.float32
        steps: Array = np.arange(count).astype(wide)
        steps = wide(start) + steps * wide(delta)
        return steps.astype(dtype.numpy)


@range_op.value
def _(n: Infer) -> Array | None:
    shape = small((_range_count(n),)) if known(n, 0, 1, 2) else None
    start, delta = scalar(n, 0), scalar(n, 2)
    if shape is None or isinstance(start, Dim) or isinstance(delta, Dim):
        return None
    return _range(start, delta, shape[0], n.dtype(0))


@range_op.kernel
def _(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    dtype = DType.of(start.dtype)
    with np.errstate(all="ignore"):
        return _range(first, step, _steps(first, last, step, dtype), dtype)


constant_of_shape = declare(
    "ConstantOfShape",
    inputs="input",
    outputs="output",
    attrs={"value": Attr("tensor", None)},
    flags=MAKE,
    host_inputs=(0,),
)


def _filler(attrs: Any) -> Array:
    value = attrs["value"]
    return np.zeros((), np.float32) if value is None else constant_array(value).reshape(-1)[:1].reshape(())


@constant_of_shape.infer
def _(n: Infer) -> Result:
    dtype, dims = DType.of(_filler(n.attrs).dtype), n.ints(0)
    if dims is None:
        return Tensor(dtype, fresh_shape(n, length(n, 0), "dim"))
    if any(not isinstance(d, Dim) and d < 0 for d in dims):
        raise InferError(f"shape {show(tuple(dims))} has a negative dim")
    return Tensor(dtype, tuple(dims))


@constant_of_shape.value
def _(n: Infer) -> Array | None:
    values = known(n, 0)
    shape = small(n.ints(0)) if values else None
    return None if shape is None else np.full(shape, _filler(n.attrs))


@constant_of_shape.kernel
def _(call: Call, shape: Array) -> Array:
    filler = _filler(call.attrs)
    out = call.into(0, tuple(shape.reshape(-1).tolist()), filler.dtype)
    out[...] = filler
    return out


eye_like = declare(
    "EyeLike",
    inputs="input",
    outputs="output",
    attrs={"dtype": Attr("dtype", None), "k": Attr("int", 0)},
    flags=replace(MAKE, type_only=True),
)


@eye_like.infer
def _(n: Infer) -> Result:
    shape = n.shape(0)
    if shape is not None and len(shape) != 2:
        raise InferError(f"EyeLike takes a matrix, but the input has shape {show(shape)}")
    return Tensor(n.attrs["dtype"] or n.dtype(0), shape)


@eye_like.kernel
def _(call: Call, x: Array) -> Array:
    dtype: DType | None = call.attrs["dtype"]
    rows, cols = x.shape
    k = max(-rows, min(call.attrs["k"], cols))
    out = call.into(0, x.shape, x.dtype if dtype is None else dtype.numpy)
    out[...] = 0
    i = np.arange(max(0, -k), max(0, -k, min(rows, cols - k)))
    out[i, i + k] = 1
    return out


nonzero = declare("NonZero", inputs="X", outputs="Y", engine=Engine.AICPU)


def _indices(x: Array) -> Array:
    """[rank, count] indices of what is not 0, false or empty, row-major; [0, count] for a scalar."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.stack(np.nonzero(x)).astype(np.int64)


def _nonzero_value(n: Infer) -> Array | None:
    value = n.value(0)
    if value is None or value.size > 1024 or plain(value.reshape(-1).tolist() if value.dtype == object else ()) is None:
        return None
    return _indices(value)


@nonzero.infer
def _(n: Infer) -> Result:
    value, shape = _nonzero_value(n), n.shape(0)
    rank = n.fresh("rank") if shape is None else len(shape)
    return Tensor(DType.INT64, (rank, n.fresh("count") if value is None else value.shape[1]))


@nonzero.value
def _(n: Infer) -> Array | None:
    return _nonzero_value(n)


@nonzero.kernel
def _(call: Call, x: Array) -> Array:
    return _indices(x)


one_hot = declare(
    "OneHot",
    inputs="indices depth values",
    outputs="output",
    attrs={"axis": Attr("int", -1)},
    flags=Flags(fp16_safe=True),
    host_inputs=(1,),
)


@one_hot.infer
def _(n: Infer) -> Result:
    dims, depth = n.shape(0), scalar(n, 1)
    if dims is None:
        return Tensor(n.dtype(2), None)
    if depth is None or isinstance(depth, Dim):
        size: Size = n.fresh("depth") if depth is None else depth
    else:
        size = int(depth)
        if size < 1:
            raise InferError(f"depth of OneHot must be positive, but is {size}")
    at = axis(n.attrs["axis"], len(dims) + 1)
    return Tensor(n.dtype(2), (*dims[:at], size, *dims[at:]))


@one_hot.kernel
def _(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    at = axis(call.attrs["axis"], indices.ndim + 1)
    size = int(depth.reshape(-1)[0])
    with np.errstate(all="ignore"):
        where = np.expand_dims(indices.astype(np.int64), at)
    classes = np.arange(size).reshape((size,) + (1,) * (indices.ndim - at))
    hot = np.where(where < 0, where + size, where) == classes
    out = call.into(0, hot.shape, values.dtype)
    out[...] = values[0]
    np.copyto(out, values[1], where=hot)
    return out


trilu = declare(
    "Trilu",
    inputs="input k?",
    outputs="output",
    attrs={"upper": Attr("int", 1)},
    flags=Flags(fp16_safe=True, keeps_zero=True),
    host_inputs=(1,),
)


@trilu.infer
def _(n: Infer) -> Result:
    shape = n.shape(0)
    if shape is not None and len(shape) < 2:
        raise InferError(f"Trilu takes matrices, but the input has shape {show(shape)}")
    return n.tensor(0)


@trilu.kernel
def _(call: Call, x: Array, k: Array | None = None) -> Array:
    rows, cols = x.shape[-2:]
    offset = 0 if k is None else max(-rows, min(int(k.reshape(-1)[0]), cols))
    below = np.arange(cols) - np.arange(rows)[:, None]
    keep = below >= offset if call.attrs["upper"] else below <= offset
    out = call.into(0, x.shape, x.dtype)
    out[...] = 0
    np.copyto(out, x, where=keep)
    return out
