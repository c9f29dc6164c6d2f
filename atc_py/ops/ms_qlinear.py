"""com.microsoft's operators on bytes that stay quantised: QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu,
QLinearConcat.

What depends on one byte only is a table of 256 results, made at bind where scales and zero points are constant:

    QLinearSigmoid:   y[i] = saturate(round(σ((i - x_zero) · x_scale) / y_scale) + y_zero)      x  →  y[x]

What depends on two is computed a block at a time, or for large operands looked up in a table of all pairs:

    QLinearAdd:   c = saturate(round((a - a_zero) · a_scale / c_scale + (b - b_zero) · b_scale / c_scale + c_zero))

An absent zero point is 0. Rounding is to the nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_moves
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Op, Result, declare
from atc_py.ops.elementwise_base import BLOCK, check_dtype, check_same_dtype, fitting, joined, vector_cost
from atc_py.ops.layouts import joins
from atc_py.ops.quant import limits
from atc_py.ops.shapes import axis as checked_axis
from atc_py.ops.shapes import show

BYTES = frozenset({DType.INT8, DType.UINT8})
_REAL = frozenset({DType.FLOAT32})
_FLAGS = Flags(elementwise=True, fusible=True, recomputable=True, layout_agnostic=True)


def scalar(p: Array | None) -> np.float32:
    """A scale or zero point of one element as float32; 0 when absent."""
    return np.float32(0) if p is None else np.float32(p.reshape(-1)[0])


def check_parameters(n: Infer, data: int, scale: int, zero: int) -> None:
    """Bytes, a float32 scale of one element, and a zero point of the bytes' type where it is given."""
    check_dtype(n, data, BYTES)
    check_scale(n, scale)
    if n.has(zero):
        check_same_dtype(n, (data, zero))


def check_scale(n: Infer, i: int) -> None:
    """Input `i` must be a float32 of one element."""
    check_dtype(n, i, _REAL)
    shape = n.shape(i)
    if shape is not None and any(type(d) is int and d != 1 for d in shape):
        n.fail(f"the scale (input {i}) has shape {show(shape)}; expected one element")


def quantized(real: Array, scale: Any, zero: np.float32, dtype: np.dtype[Any]) -> Array:
    """saturate(round(real / scale) + zero) as bytes."""
    low, high = limits(dtype)
    return np.clip(np.rint(real / np.float32(scale)) + zero, low, high).astype(dtype)


def every_byte(dtype: np.dtype[Any]) -> Array:
    """All values of a byte type in the order of their bit patterns, as float32."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def look_up(call: Call, table: Array, x: Array, y: Array | None = None) -> Array:
    """table[x] by bit pattern, into output 0 or `y`."""
    out = fitting(call, 0, x.shape, table.dtype) if y is None else y
    np.take(table, np.ascontiguousarray(x).view(np.uint8), out=out if out.flags.c_contiguous else None, mode="clip")
    if not out.flags.c_contiguous:
        np.copyto(out, table[np.ascontiguousarray(x).view(np.uint8)])
    return out


# -- one input ---------------------------------------------------------------------------------------------

Formula = Callable[[Array, Any], Array]


def _known(call: Call, *inputs: int) -> bool:
    """Whether these inputs are constants or absent."""
    return all(i >= len(call.in_types) or call.in_types[i] is None or i in call.consts for i in inputs)


def _unary(name: str, formula: Formula, attrs: dict[str, Attr]) -> Op:
    op = declare(
        f"com.microsoft::{name}",
        inputs="X X_scale X_zero_point? Y_scale Y_zero_point?",
        outputs="Y",
        attrs=attrs,
        flags=_FLAGS,
    )
    op.cost(vector_cost(1))

    def table(
        call: Call, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None, dtype: Any
    ) -> Array:
        with np.errstate(all="ignore"):
            real = (every_byte(dtype) - scalar(x_zero)) * scalar(x_scale)
            return quantized(formula(real, call.attrs), scalar(y_scale), scalar(y_zero), dtype)

    @op.infer
    def _(n: Infer) -> Result:
        check_parameters(n, 0, 1, 2)
        check_scale(n, 3)
        if n.has(4):
            check_same_dtype(n, (0, 4))
        return n.types[0]

    @op.prepare
    def _(call: Call) -> Array | None:
        x = call.in_types[0]
        if not isinstance(x, Tensor) or not _known(call, 1, 2, 3, 4):
            return None
        c = call.consts
        return table(call, c[1], c.get(2), c[3], c.get(4), x.dtype.numpy)

    @op.kernel
    def _(
        call: Call, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None
    ) -> Array:
        made = call.state if call.state is not None else table(call, x_scale, x_zero, y_scale, y_zero, x.dtype)
        return look_up(call, made, x)

    return op


def _sigmoid(x: Array, attrs: Any) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _leaky_relu(x: Array, attrs: Any) -> Array:
    return np.where(x < 0, x * np.float32(attrs["alpha"]), x)


sigmoid = _unary("QLinearSigmoid", _sigmoid, {})
leaky_relu = _unary("QLinearLeakyRelu", _leaky_relu, {"alpha": Attr("float", 0.01)})


# -- two inputs --------------------------------------------------------------------------------------------

_PAIR = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"


def _binary(name: str, add: bool) -> Op:
    op = declare(f"com.microsoft::{name}", inputs=_PAIR, outputs="C", flags=_FLAGS)
    op.cost(lambda n: vector_cost(3)(Infer((n.types[0], n.types[3]), n.attrs)))
    formula = _sums if add else _products

    @op.infer
    def _(n: Infer) -> Result:
        check_parameters(n, 0, 1, 2)
        check_parameters(n, 3, 4, 5)
        check_same_dtype(n, (0, 3))
        check_scale(n, 6)
        if n.has(7):
            check_same_dtype(n, (0, 7))
        return joined(n, (0, 3), n.dtype(0))

    @op.prepare
    def _(call: Call) -> Array | None:
        """Large operands with constant parameters look their pairs up: a table of 64 KiB, one load an element."""
        a, b = call.in_types[0], call.in_types[3]
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not _known(call, 1, 2, 4, 5, 6, 7):
            return None
        if not (a.static and b.static) or max(int(a.elements), int(b.elements)) < 1 << 14:  # type: ignore[arg-type]
            return None
        every = every_byte(a.dtype.numpy)
        with np.errstate(all="ignore"):
            return formula(every[:, None], every, [call.consts.get(i) for i in (1, 2, 4, 5, 6, 7)], a.dtype.numpy)

    @op.kernel
    def _(
        call: Call, a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None,
        c_scale: Array, c_zero: Array | None = None,
    ) -> Array:  # fmt: skip
        def direct(x: Array, y: Array) -> Array:
            return formula(x.astype(np.float32), y.astype(np.float32), parameters, a.dtype)

        parameters = [a_scale, a_zero, b_scale, b_zero, c_scale, c_zero]
        with np.errstate(all="ignore"):
            return _blocks(call, a, b, direct)

    return op


def _sums(a: Array, b: Array, parameters: list[Array | None], dtype: np.dtype[Any]) -> Array:
    """QLinearAdd in onnxruntime's arithmetic, two fused multiply-adds onto what is constant (float64 stands in)."""
    a_scale, a_zero, b_scale, b_zero, c_scale, c_zero = map(scalar, parameters)
    left, right = a_scale / c_scale, b_scale / c_scale
    fixed = c_zero - np.float32(np.float64(left) * a_zero + right * b_zero)
    t = (b * np.float64(right) + fixed).astype(np.float32)
    t = (a * np.float64(left) + t).astype(np.float32)
    low, high = limits(dtype)
    return np.clip(np.rint(t, out=t), low, high, out=t).astype(dtype)


def _products(a: Array, b: Array, parameters: list[Array | None], dtype: np.dtype[Any]) -> Array:
    """QLinearMul. The zero point goes in before rounding: ties are even in the result."""
    a_scale, a_zero, b_scale, b_zero, c_scale, c_zero = map(scalar, parameters)
    t = (a - a_zero) * (b - b_zero) * np.float32(a_scale * b_scale / c_scale) + c_zero
    low, high = limits(dtype)
    return np.clip(np.rint(t, out=t), low, high, out=t).astype(dtype)


def _blocks(call: Call, a: Array, b: Array, direct: Callable[[Array, Array], Array]) -> Array:
    """The result along the first axis, as many indices at once as a block has elements for."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    y = fitting(call, 0, shape, a.dtype)
    if a.shape == b.shape and y.flags.c_contiguous:
        left, right, out = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1), y.reshape(-1)
    else:
        left, right, out = np.broadcast_to(a, shape), np.broadcast_to(b, shape), y
    if not out.ndim:
        out[()] = direct(left, right)
        return y
    step = max(1, BLOCK // max(1, out.size // max(1, len(out))))
    table: Array | None = None if call.state is None else call.state.reshape(-1)
    for at in range(0, len(out), step):
        u, v, to = (part[at : at + step] for part in (left, right, out))
        if table is None:
            np.copyto(to, direct(u, v))
            continue
        index = call.scratch(to.shape, np.int64)
        np.multiply(u.view(np.uint8), 256, out=index, dtype=np.int64)
        np.add(index, v.view(np.uint8), out=index)
        if to.flags.c_contiguous:
            np.take(table, index, out=to, mode="wrap")
        else:
            np.copyto(to, table[index])
    return y


add_op = _binary("QLinearAdd", add=True)
mul_op = _binary("QLinearMul", add=False)


# -- concatenation -----------------------------------------------------------------------------------------

concat = declare(
    "com.microsoft::QLinearConcat",
    inputs="Y_scale Y_zero_point inputs*",
    outputs="Y",
    attrs={"axis": Attr("int")},
    flags=Flags(recomputable=True),
)
concat.layout(joins(2, 3))


concat.tile(tiles_moves.concatenated_quantized)


@concat.infer
def _(n: Infer) -> Result:
    check_scale(n, 0)
    check_dtype(n, 1, BYTES)
    given = len(n.types) - 2
    if given < 3 or given % 3:
        n.fail(f"{given} inputs follow Y's scale and zero point; expected a tensor, a scale and a zero point each")
    shapes = []
    for i in range(2, len(n.types), 3):
        check_parameters(n, i, i + 1, i + 2)
        shapes.append(n.shape(i))
    if any(s is None for s in shapes):
        return Tensor(n.dtype(1), None)
    known = [s for s in shapes if s is not None]
    at = checked_axis(n.attrs["axis"], len(known[0]))
    if any(len(s) != len(known[0]) for s in known):
        n.fail(f"the tensors have shapes {', '.join(map(show, known))}; expected one rank")
    size = known[0][at]
    for s in known[1:]:
        size = size + s[at]
    return Tensor(n.dtype(1), (*known[0][:at], size, *known[0][at + 1 :]))


@concat.kernel
def _(call: Call, y_scale: Array, y_zero: Array, *inputs: Array) -> Array:
    parts = inputs[::3]
    at = call.attrs["axis"] % parts[0].ndim
    shape = list(parts[0].shape)
    shape[at] = sum(p.shape[at] for p in parts)
    y = fitting(call, 0, tuple(shape), y_zero.dtype)
    start = 0
    with np.errstate(all="ignore"):
        for x, scale, zero in zip(parts, inputs[1::3], inputs[2::3], strict=True):
            where = tuple(slice(start, start + x.shape[at]) if i == at else slice(None) for i in range(x.ndim))
            start += x.shape[at]
            same = x.dtype == y.dtype and scalar(scale) == scalar(y_scale) and scalar(zero) == scalar(y_zero)
            if same:
                np.copyto(y[where], x)
                continue
            real = (every_byte(x.dtype) - scalar(zero)) * scalar(scale)
            table = quantized(real, scalar(y_scale), scalar(y_zero), y.dtype)
            np.copyto(y[where], table[np.ascontiguousarray(x).view(np.uint8)])
    return y
