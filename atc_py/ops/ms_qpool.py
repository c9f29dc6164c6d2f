"""com.microsoft's QLinearGlobalAveragePool, QLinearAveragePool and QGemm: sums of bytes, requantised once.

    x: uint8 [1, 2, 2, 2], zero point 10, scale 0.5     [[10, 12], [14, 16]]  →  mean of x - 10 is 3  →  1.5
    y_scale 0.25, y_zero 0                              →  6

Sums are exact integers; the mean times x_scale / y_scale is rounded to the nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops import tiles_cube
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Layout, Product, Result, Shape, declare
from atc_py.ops.elementwise_base import check_dtype, fitting
from atc_py.ops.layouts import feature_maps
from atc_py.ops.ms_qlinear import BYTES, check_parameters, check_scale, quantized, scalar
from atc_py.ops.pool import POOL_ATTRS
from atc_py.ops.pool_impl import counts, reduce
from atc_py.ops.quant import limits
from atc_py.ops.quant_compute import Weights, centred, int32_of, reach, working_type
from atc_py.ops.shapes import show
from atc_py.ops.window import ints, window

_FLAGS = Flags(recomputable=True, fp16_safe=True)
_POOL = "X x_scale x_zero_point? y_scale y_zero_point?"

global_pool = declare(
    "com.microsoft::QLinearGlobalAveragePool",
    inputs=_POOL,
    outputs="Y",
    attrs={"channels_last": Attr("int", 0)},
    flags=_FLAGS,
)
average_pool = declare(
    "com.microsoft::QLinearAveragePool",
    inputs=_POOL,
    outputs="Y",
    attrs={
        **{k: v for k, v in POOL_ATTRS.items() if k != "dilations"},
        "channels_last": Attr("int", 0),
        "count_include_pad": Attr("int", 0),
    },
    flags=_FLAGS,
)

global_pool.tile(tiles_cube.pooling_global)
average_pool.tile(tiles_cube.pooling)


@global_pool.layout
@average_pool.layout
def _(n: Infer, outs: Sequence[Type]) -> Layout | None:
    return None if n.attrs["channels_last"] else feature_maps(0)(n, outs)


def _first(shape: Shape, attrs: Mapping[str, Any]) -> Shape:
    """The shape with the channels behind the batch."""
    return (shape[0], shape[-1], *shape[1:-1]) if attrs["channels_last"] else shape


def _last(shape: Shape, attrs: Mapping[str, Any]) -> Shape:
    """The inverse of `_first`."""
    return (shape[0], *shape[2:], shape[1]) if attrs["channels_last"] else shape


def _check_pool(n: Infer) -> Shape | None:
    check_parameters(n, 0, 1, 2)
    check_scale(n, 3)
    if n.has(4):
        check_dtype(n, 4, frozenset({n.dtype(0)}))
    shape = n.shape(0)
    if shape is not None and len(shape) < 3:
        n.fail(f"X has shape {show(shape)}; expected batch, channels and at least one spatial axis")
    return None if shape is None else _first(shape, n.attrs)


@global_pool.infer
def _(n: Infer) -> Result:
    shape = _check_pool(n)
    if shape is None:
        return Tensor(n.dtype(0), None)
    return Tensor(n.dtype(0), _last((*shape[:2], *(1,) * (len(shape) - 2)), n.attrs))


@global_pool.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    return Cost() if shape is None else Cost(wide=prod(shape) * 2)


@global_pool.kernel
def _(call: Call, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None) -> Array:
    axes = tuple(range(1, x.ndim - 1)) if call.attrs["channels_last"] else tuple(range(2, x.ndim))
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    with np.errstate(all="ignore"):
        sums = np.add.reduce(x, axis=axes, dtype=np.int64, keepdims=True) - int(scalar(x_zero)) * count
        factor = scalar(x_scale) / (scalar(y_scale) * np.float32(count))
        low, high = limits(x.dtype)
        t = np.rint(sums.astype(np.float32) * factor) + scalar(y_zero)
        y = fitting(call, 0, t.shape, x.dtype)
        np.copyto(y, np.clip(t, low, high), casting="unsafe")
    return y


@average_pool.infer
def _(n: Infer) -> Result:
    shape = _check_pool(n)
    if shape is None:
        return Tensor(n.dtype(0), None)
    w = window({**n.attrs, "dilations": None}, shape[2:], n.attrs["kernel_shape"], ceil=bool(n.attrs["ceil_mode"]))
    return Tensor(n.dtype(0), _last((*shape[:2], *w.out), n.attrs))


@average_pool.kernel
def _(call: Call, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None) -> Array:
    attrs = {**call.attrs, "dilations": None}
    source: Array = np.moveaxis(x, -1, 1) if attrs["channels_last"] else x
    w = window(attrs, source.shape[2:], attrs["kernel_shape"], ceil=bool(attrs["ceil_mode"]))
    with np.errstate(all="ignore"):
        # Centred first: what is padded counts as the real number 0, not as the byte 0.
        real = np.subtract(source, scalar(x_zero), dtype=np.float32)
        total = np.empty((*source.shape[:2], *ints(w.out)), np.float32)
        total = reduce(real, w, np.add, 0, np.dtype(np.float32), total)
        size = np.maximum(counts(w, padded=bool(attrs["count_include_pad"])), 1).astype(np.float32)
        mean = total / size * scalar(x_scale)
        result = quantized(mean, scalar(y_scale), scalar(y_zero), x.dtype)
    if attrs["channels_last"]:
        result = np.moveaxis(result, 1, -1)
    y = fitting(call, 0, result.shape, x.dtype)
    np.copyto(y, result)
    return y


# -- QGemm -------------------------------------------------------------------------------------------------

gemm = declare(
    "com.microsoft::QGemm",
    inputs="A a_scale a_zero_point B b_scale b_zero_point? C? y_scale? y_zero_point?",
    outputs="Y",
    attrs={"alpha": Attr("float", 1.0), "transA": Attr("int", 0), "transB": Attr("int", 0)},
    flags=Flags(fusible=True, fp16_safe=True),
)


def _sizes(n: Infer) -> tuple[Any, Any, Any] | None:
    a, b = n.shape(0), n.shape(3)
    for name, shape in (("A", a), ("B", b)):
        if shape is not None and len(shape) != 2:
            n.fail(f"{name} has shape {show(shape)}; expected rank 2")
    if a is None or b is None:
        return None
    rows, inner = (a[1], a[0]) if n.attrs["transA"] else a
    other, columns = (b[1], b[0]) if n.attrs["transB"] else b
    if type(inner) is int and type(other) is int and inner != other:
        n.fail(f"the inner sizes of {show(a)} and {show(b)} differ: {inner} and {other}", "check transA and transB")
    return rows, columns, inner


gemm.tile(tiles_cube.gemm_quantized)


@gemm.infer
def _(n: Infer) -> Result:
    for i in (0, 3):
        check_dtype(n, i, BYTES)
    check_scale(n, 1)
    if n.has(6):
        check_dtype(n, 6, frozenset({DType.INT32}))
    if n.has(7) != n.has(8):
        n.fail("y_scale and y_zero_point must be given together")
    dtype = n.dtype(8) if n.has(8) else DType.FLOAT32
    found = _sizes(n)
    if found is None:
        return Tensor(dtype, (n.fresh("rows"), n.fresh("columns")))
    return Tensor(dtype, found[:2])


@gemm.cost
def _(n: Infer) -> Cost:
    found = _sizes(n)
    if found is None:
        return Cost()
    rows, columns, inner = found
    return Cost(products=(Product(rows, inner, columns),), vector=rows * columns)


def _right(b: Array, zero: Array | None, turned: int) -> Weights:
    values = centred(b.T if turned else b, zero if zero is None or zero.size > 1 else zero.reshape(()), np.float32)
    return Weights(np.ascontiguousarray(values), float(np.max(np.abs(values).sum(axis=0, dtype=np.float64), initial=0)))


@gemm.prepare
def _(call: Call) -> Weights | None:
    absent = len(call.in_types) <= 5 or call.in_types[5] is None
    if 3 not in call.consts or not (absent or 5 in call.consts):
        return None
    return _right(call.consts[3], call.consts.get(5), call.attrs["transB"])


@gemm.kernel
def _(
    call: Call, a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None = None,
    c: Array | None = None, y_scale: Array | None = None, y_zero: Array | None = None,
) -> Array:  # fmt: skip
    right: Weights = call.state or _right(b, b_zero, call.attrs["transB"])
    left = a.T if call.attrs["transA"] else a
    zero = None if a_zero is None else a_zero.reshape(())
    bound = right.bound * reach(a.dtype, zero)
    dtype = working_type(bound)
    with np.errstate(all="ignore"):
        sums: Array = int32_of(np.matmul(centred(left, zero, dtype), right.typed(dtype)), bound)
        if c is not None:
            sums = np.add(sums, c)
        scale = np.float32(call.attrs["alpha"]) * scalar(a_scale) * b_scale.astype(np.float32).reshape(-1)
        if y_scale is None or y_zero is None:
            y = fitting(call, 0, sums.shape, np.float32)
            np.multiply(sums, scale, out=y, dtype=np.float32, casting="unsafe")
            return y
        low, high = limits(y_zero.dtype)
        t = np.multiply(sums, scale / scalar(y_scale), dtype=np.float32, casting="unsafe")
        np.rint(t, out=t)
        np.add(t, scalar(y_zero), out=t)
        y = fitting(call, 0, sums.shape, y_zero.dtype)
        np.copyto(y, np.clip(t, low, high, out=t), casting="unsafe")
        return y
