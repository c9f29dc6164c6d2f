"""Operators over two or more tensors with broadcasting: arithmetic, comparisons, logic, Min Max Sum Mean, Where.

One line of `_TABLE` is one operator:

    Add   np.add   numbers -> same type   commutative   0 + 0 = 0   symbolic: N + 1

Integers wrap as in C. Integer division and Pow: x / 0 and x mod 0 are 0 (ONNX leaves them undefined), and Div rounds
toward zero. Max and Min propagate NaN. Sums of more than two float16 or bfloat16 tensors are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from atc_py.ir.types import DType
from atc_py.ops import elementwise_values as values
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Op, Result, declare
from atc_py.ops.cast_convert import to_integer
from atc_py.ops.elementwise_base import (
    BLOCK,
    BOOLS,
    FLOATS,
    INTS,
    NUMBERS,
    apply,
    bits,
    check_dtype,
    check_same_dtype,
    fitting,
    joined,
    joint_shape,
    vector_cost,
    wide,
)

_FLAGS = Flags(elementwise=True, fusible=True, recomputable=True, layout_agnostic=True, fp16_safe=True)
_ARITHMETIC = replace(_FLAGS, inplace=(0, 1))
_EQUATABLE = NUMBERS | {DType.BOOL, DType.STRING}

Rule = Callable[..., Any]


def _infer(dtypes: frozenset[DType], result: DType | None) -> Callable[[Infer], Result]:
    def infer(n: Infer) -> Result:
        check_dtype(n, 0, dtypes)
        check_same_dtype(n, (0, 1))
        return joined(n, (0, 1), n.dtype(0) if result is None else result)

    return infer


@dataclass(frozen=True)
class Binary:
    """One line of the table: the kernel is a ufunc, `result` the output's element type when it is not the inputs'."""

    name: str
    ufunc: Any
    dtypes: frozenset[DType]
    symbolic: Rule | None = None
    result: DType | None = None
    swap: bool = True
    zero: bool = True
    cost: int = 1


_TABLE = (
    Binary("Add", np.add, NUMBERS, values.add),
    Binary("Sub", np.subtract, NUMBERS, values.sub, swap=False),
    Binary("Mul", np.multiply, NUMBERS, values.mul),
    Binary("BitwiseAnd", np.bitwise_and, INTS),
    Binary("BitwiseOr", np.bitwise_or, INTS),
    Binary("BitwiseXor", np.bitwise_xor, INTS),
    Binary("And", np.logical_and, BOOLS),
    Binary("Or", np.logical_or, BOOLS),
    Binary("Xor", np.logical_xor, BOOLS),
    Binary("Equal", np.equal, _EQUATABLE, values.equal, DType.BOOL, zero=False),
    Binary("Less", np.less, NUMBERS, values.less, DType.BOOL, swap=False),
    Binary("LessOrEqual", np.less_equal, NUMBERS, values.less_equal, DType.BOOL, swap=False, zero=False),
    Binary("Greater", np.greater, NUMBERS, lambda a, b: values.less(b, a), DType.BOOL, swap=False),
    Binary("GreaterOrEqual", np.greater_equal, NUMBERS, lambda a, b: values.less_equal(b, a), DType.BOOL,
           swap=False, zero=False),
)  # fmt: skip


def _declare(line: Binary) -> Op:
    flags = replace(_FLAGS if line.result else _ARITHMETIC, keeps_zero=line.zero, commutative=line.swap)
    op = declare(line.name, inputs="A B", outputs="C", flags=flags)
    op.infer(_infer(line.dtypes, line.result))
    op.cost(vector_cost(line.cost))
    ufunc, symbolic = line.ufunc, line.symbolic
    result = line.result.numpy if line.result else None

    @op.kernel
    def kernel(call: Call, a: Array, b: Array) -> Array:
        return apply(call, ufunc, a, b, dtype=result)

    values.propagate(op, None if symbolic is None else lambda n, a, b: symbolic(a, b), line.result)
    return op


for _line in _TABLE:
    _declare(_line)


div = declare("Div", inputs="A B", outputs="C", flags=_ARITHMETIC)
div.infer(_infer(NUMBERS, None))
div.cost(vector_cost(2))


@div.kernel
def _(call: Call, a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return apply(call, np.divide, a, b)
    if a.dtype.kind == "u":
        return apply(call, np.floor_divide, a, b)
    with np.errstate(all="ignore"):
        quotient = np.floor_divide(a, b)
        # Floor and truncation differ where the signs do and the division leaves a rest; b = 0 leaves the 0.
        rest = (np.subtract(a, quotient * b) != 0) & ((a < 0) != (b < 0)) & (b != 0)
        return apply(call, np.add, np.asarray(quotient), rest.astype(a.dtype))


values.propagate(div, lambda n, a, b: values.int_div(a, b) if n.dtype(0).is_int else values.true_div(a, b))


mod = declare("Mod", inputs="A B", outputs="C", attrs={"fmod": Attr("int", 0)}, flags=_ARITHMETIC)
mod.infer(_infer(NUMBERS, None))
mod.cost(vector_cost(4))


@mod.kernel
def _(call: Call, a: Array, b: Array) -> Array:
    return apply(call, np.fmod if call.attrs["fmod"] else np.mod, a, b, exact=False)


values.propagate(
    mod,
    lambda n, a, b: None if n.dtype(0).is_float else (values.int_fmod if n.attrs["fmod"] else values.int_mod)(a, b),
)


shift = declare("BitShift", inputs="X Y", outputs="Z", attrs={"direction": Attr("str")}, flags=_ARITHMETIC)
shift.infer(_infer(INTS, None))
shift.cost(vector_cost(1))


@shift.kernel
def _(call: Call, x: Array, y: Array) -> Array:
    # numpy defines shifts by a negative or too large number of bits as ONNX does: what is left is the sign.
    left = call.attrs["direction"] == "LEFT"
    return apply(call, np.left_shift if left else np.right_shift, x, y)


power = declare("Pow", inputs="X Y", outputs="Z", flags=replace(_FLAGS, inplace=(0,), fp16_safe=False))


@power.cost
def _(n: Infer) -> Cost:
    known = n.value(1)
    exponent = math.nan if known is None or known.size != 1 else known.reshape(-1)[0]
    steps = {2: 1, 3: 2, 0.5: 2, -0.5: 2, -1: 2}.get(exponent, 10)  # products and roots, else exp(y·log x)
    return vector_cost(steps)(Infer(n.types, n.attrs))


@power.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, FLOATS | {DType.INT32, DType.INT64})
    check_dtype(n, 1, NUMBERS)
    return joined(n, (0, 1), n.dtype(0))


@power.kernel
def _(call: Call, x: Array, y: Array) -> Array:
    if y.size == 1 and joint_shape((x, y)) == x.shape and y.reshape(-1)[0] == 2:
        return apply(call, np.multiply, x, x)
    if x.dtype.kind == "i":
        return _integer_power(call, x, y)
    if y.dtype != x.dtype:
        y = y.astype(wide(x.dtype))
    if y.size == 1 and joint_shape((x, y)) == x.shape and y.reshape(-1)[0] == 3 and x.dtype.itemsize >= 4:
        square = np.multiply(x, x, out=call.scratch(x.shape, x.dtype))
        return apply(call, np.multiply, square, x)
    out = fitting(call, 0, joint_shape((x, y)), x.dtype)
    with np.errstate(all="ignore"):
        np.power(x, y, out=out, dtype=wide(x.dtype), casting="unsafe")
    return out


def _integer_power(call: Call, x: Array, y: Array) -> Array:
    """Whole non-negative exponents: exact, wrapping; others: in float64, rounded toward zero."""
    if y.dtype.kind == "u" or (y.dtype.kind == "i" and (y.size == 0 or int(y.min()) >= 0)):
        # Modulo 2**64, of which the narrower result is the low half.
        return np.asarray(np.power(x.astype(np.int64).view(np.uint64), y.astype(np.uint64))).astype(x.dtype)
    with np.errstate(all="ignore"):
        return to_integer(np.asarray(np.power(x.astype(np.float64), y.astype(np.float64))), x.dtype)


values.propagate(power, lambda n, a, b: values.power(a, b) if n.dtype(0).is_int else None)


def _variadic(name: str, dtypes: frozenset[DType], symbolic: Rule | None, cost: int = 1) -> Op:
    op = declare(
        name,
        inputs="data*",
        outputs="result",
        flags=replace(_FLAGS, inplace=(0, 1), keeps_zero=True, commutative=True),
    )

    @op.infer
    def infer(n: Infer) -> Result:
        inputs = range(len(n.types))
        if not inputs:
            n.fail("at least one input is expected, but there is none")
        for i in inputs:
            check_dtype(n, i, dtypes)
        check_same_dtype(n, inputs)
        return joined(n, inputs, n.dtype(0))

    op.cost(vector_cost(cost))
    values.propagate(op, None if symbolic is None else lambda n, *given: _chain(symbolic, given))
    return op


def _chain(rule: Rule, given: tuple[Any, ...]) -> Any:
    return reduce(lambda a, b: None if a is None or b is None else rule(a, b), given)


def _accumulate(call: Call, ufunc: Any, arrays: tuple[Array, ...], dtype: np.dtype[Any]) -> Array:
    """The arrays joined by the ufunc in `dtype`, in a new array or in output 0."""
    shape = joint_shape(arrays)
    first = arrays[0]
    out = fitting(call, 0, shape, dtype)
    # The output may lie on one of the inputs: the others must not be read after it was written.
    if len(arrays) > 2 and any(np.may_share_memory(out, a) for a in arrays[2:]):
        out = np.empty(shape, dtype)
    with np.errstate(all="ignore"):
        if len(arrays) == 1:
            np.copyto(out, first)
            return out
        ufunc(first, arrays[1], out=out, dtype=dtype)
        for a in arrays[2:]:
            ufunc(out, a, out=out, dtype=dtype)
    return out


maximum = _variadic("Max", NUMBERS, values.maximum)
minimum = _variadic("Min", NUMBERS, values.minimum)
total = _variadic("Sum", NUMBERS, values.add)
mean = _variadic("Mean", FLOATS, None, cost=2)


@maximum.kernel
def _(call: Call, *arrays: Array) -> Array:
    return _accumulate(call, np.maximum, arrays, arrays[0].dtype)


@minimum.kernel
def _(call: Call, *arrays: Array) -> Array:
    return _accumulate(call, np.minimum, arrays, arrays[0].dtype)


def _summed(call: Call, arrays: tuple[Array, ...]) -> Array:
    dtype = arrays[0].dtype
    narrow = dtype.kind not in "iu" and dtype.itemsize < 4
    return _accumulate(call, np.add, arrays, np.dtype(np.float32) if narrow else dtype)


@total.kernel
def _(call: Call, *arrays: Array) -> Array:
    return _summed(call, arrays).astype(arrays[0].dtype, copy=False)


@mean.kernel
def _(call: Call, *arrays: Array) -> Array:
    summed = _summed(call, arrays)
    return np.divide(summed, len(arrays), out=summed).astype(arrays[0].dtype, copy=False)


where = declare(
    "Where", inputs="condition X Y", outputs="output", flags=replace(_FLAGS, inplace=(1, 2), keeps_zero=True)
)
where.cost(vector_cost(1))


@where.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, BOOLS)
    check_same_dtype(n, (1, 2))
    return joined(n, (0, 1, 2), n.dtype(1))


@where.kernel
def _(call: Call, condition: Array, x: Array, y: Array) -> Array:
    out = fitting(call, 0, joint_shape((condition, x, y)), x.dtype)
    on_x, on_y = np.may_share_memory(out, x), np.may_share_memory(out, y)
    if x.dtype.hasobject or x.dtype.itemsize not in (1, 2, 4, 8) or (on_x and on_y):
        return np.asarray(np.where(condition, x, y), dtype=x.dtype)
    lanes, parts = bits(out), [condition, bits(x), bits(y)]
    while lanes.ndim > 1 and lanes.shape[0] == 1:
        lanes, parts = lanes[0], [p[0] if p.ndim == lanes.ndim else p for p in parts]
    rows = max(1, BLOCK * lanes.shape[0] // max(lanes.size, 1)) if lanes.ndim else 1
    for i in range(0, lanes.shape[0] if lanes.ndim else 1, rows):
        c, a, b = [p[i : i + rows] if p.ndim == lanes.ndim > 0 and p.shape[0] > 1 else p for p in parts]
        _select(c, a, b, lanes[i : i + rows] if lanes.ndim else lanes, on_y)
    return out


def _select(condition: Array, x: Array, y: Array, out: Array, on_y: bool) -> None:
    """out = base ^ ((x ^ y) & mask) on bit patterns: three passes without a branch an element.

    The base is read last, so `out` must not lie on it: it is x when `out` lies on y, else y.
    """
    mask = condition.astype(out.dtype)
    np.negative(mask, out=mask)
    if on_y:
        np.invert(mask, out=mask)
    np.bitwise_xor(x, y, out=out)
    np.bitwise_and(out, mask, out=out)
    np.bitwise_xor(out, x if on_y else y, out=out)


@where.value
def _(n: Infer) -> Array | None:
    given = values.inputs_of(n)
    if given is None or any(v is None for v in given):
        return None
    condition, x, y = [v for v in given if v is not None]
    shape = joint_shape((condition, x, y))
    if int(np.prod(shape)) > values.LIMIT:
        return None
    picked = [a if c else b for c, a, b in zip(*[values.items(np.broadcast_to(v, shape)) for v in (condition, x, y)])]
    return values.pack(picked, shape, n.dtype(1))
