"""Softmax, LogSoftmax and Hardmax along one axis.

A tensor is seen as [outer, n, inner] with n the axis; a few rows at a time are worked on while they are in the cache:

    Softmax, x: [2, 3], axis -1:   m = max of a row    y = exp(x - m)    s = sum of y    y = y / s

Short last axes are turned round (n first) in scratch, because reducing many short rows costs a loop a row, and reducing
columns costs a loop a column block. A row that is -inf throughout has no softmax: its results are NaN.

ONNX defines both by functions of tensors of the input's type, so for float16 and bfloat16 each of these tensors is
rounded; sums run in float32. Rounding once at the end would come a little closer to the true value, but differs from
the function by up to two units in the last place (docs/oracles.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from atc_py.ir import dims
from atc_py.ops import tiles_rows
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Op, Result, declare
from atc_py.ops.elementwise_base import FLOATS, check_dtype, fitting, wide
from atc_py.ops.shapes import axis as checked_axis
from atc_py.ops.traits import Pattern

_ROWS = 1 << 18
"""Elements that are worked on at a time: 1 MiB of float32."""
_SHORT = 64
"""Up to this length a last axis is turned round."""

Formula = Callable[[Array, Array, int, Array, "np.dtype[Any]"], None]
"""`formula(x, y, axis, temporary, dtype)`: y from x (2-D, one type; y may be x), along axis 0 or 1.

`dtype` is the tensors' own type where x and y are wider.
"""


def _round(x: Array, dtype: np.dtype[Any]) -> Array:
    """Round x, in place, to the values of a narrower dtype."""
    if x.dtype != dtype:
        np.copyto(x, x.astype(dtype))
    return x


def _softmax(x: Array, y: Array, axis: int, temp: Array, dtype: np.dtype[Any]) -> None:
    peak = np.maximum.reduce(x, axis=axis, keepdims=True)
    if x.dtype == dtype and peak.min() >= -20 and peak.max() <= 60:
        # exp can neither overflow nor lose a row to underflow: the shift is not needed, and its rounding is saved.
        np.exp(x, out=y)
    else:
        np.subtract(x, peak, out=y)
        np.exp(_round(y, dtype), out=y)
    total = np.add.reduce(_round(y, dtype), axis=axis, keepdims=True)
    np.divide(y, _round(total, dtype), out=y)


def _log_softmax(x: Array, y: Array, axis: int, temp: Array, dtype: np.dtype[Any]) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=y)
    np.exp(_round(y, dtype), out=temp)
    total = np.add.reduce(_round(temp, dtype), axis=axis, keepdims=True)
    np.subtract(y, _round(np.log(_round(total, dtype)), dtype), out=y)


def _work(call: Call, rows: int, columns: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Two scratch arrays [rows, columns]."""
    size = -(-rows * columns // 64) * 64
    both = call.scratch((2, size), dtype)[:, : rows * columns].reshape(2, rows, columns)
    return both[0], both[1]


def _tile(call: Call, formula: Formula, x: Array, y: Array, axis: int, turned: bool) -> None:
    """One tile of x and y, 2-D views of any layout; `turned`: compute on the transposed tile."""
    if turned:
        x, y, axis = x.T, y.T, 1 - axis
    compute = wide(x.dtype)
    data, temp = _work(call, x.shape[0], x.shape[1], compute)
    if not turned and x.dtype == compute:
        formula(x, y, axis, temp, compute)
        return
    np.copyto(data, x)
    formula(data, data, axis, temp, x.dtype)
    np.copyto(y, data, casting="unsafe")


def _along(call: Call, formula: Formula, x: Array) -> Array:
    """`formula` along the operator's axis into output 0."""
    y = fitting(call, 0, x.shape, x.dtype)
    if x.size == 0:
        return y
    axis = call.attrs["axis"] % x.ndim if x.ndim else 0
    if not y.flags.c_contiguous:
        y = np.empty(x.shape, x.dtype)
    shape = x.shape or (1,)
    n, outer, inner = shape[axis], prod(shape[:axis]), prod(shape[axis + 1 :])
    x = np.ascontiguousarray(x)
    with np.errstate(all="ignore"):
        if inner == 1:
            rows, to = x.reshape(outer, n), y.reshape(outer, n)
            step = max(_ROWS // n, 1)
            for i in range(0, outer, step):
                _tile(call, formula, rows[i : i + step], to[i : i + step], 1, n <= _SHORT and outer >= 8)
        else:
            step = max(_ROWS // n, 64)
            for source, result in zip(x.reshape(outer, n, inner), y.reshape(outer, n, inner)):
                for j in range(0, inner, step):
                    _tile(call, formula, source[:, j : j + step], result[:, j : j + step], 0, False)
    return y


_FLAGS = Flags(deterministic=True, inplace=(0,), fp16_safe=True, pattern=Pattern.SOFTMAX)


def _declare(name: str, cost: int) -> Op:
    op = declare(name, inputs="input", outputs="output", attrs={"axis": Attr("int", -1)}, flags=_FLAGS)

    op.tile(tiles_rows.by_axis)

    @op.cost
    def work(n: Infer) -> Cost:
        shape = n.shape(0)
        if not shape:
            return Cost()
        row = dims.prod(shape[checked_axis(n.attrs["axis"], len(shape)) :])
        return Cost(wide=cost * dims.prod(shape), row=row)  # exponentials and their sum are float32

    @op.infer
    def infer(n: Infer) -> Result:
        check_dtype(n, 0, FLOATS)
        shape = n.shape(0)
        if shape:
            checked_axis(n.attrs["axis"], len(shape))
        return n.tensor(0)

    return op


softmax = _declare("Softmax", 8)
log_softmax = _declare("LogSoftmax", 9)
hardmax = _declare("Hardmax", 3)
hardmax.flags = replace(_FLAGS, inplace=())


@softmax.kernel
def _(call: Call, x: Array) -> Array:
    return _along(call, _softmax, x)


@log_softmax.kernel
def _(call: Call, x: Array) -> Array:
    return _along(call, _log_softmax, x)


@hardmax.kernel
def _(call: Call, x: Array) -> Array:
    y = fitting(call, 0, x.shape, x.dtype)
    y[...] = 0
    if x.size and x.ndim:
        axis = call.attrs["axis"]
        first = np.argmax(x, axis=axis, keepdims=True)
        np.put_along_axis(y, first, x.dtype.type(1), axis=axis)
    elif x.size:
        y[...] = 1
    return y
