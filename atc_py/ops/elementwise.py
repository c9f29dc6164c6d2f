"""Operators that map each element of one tensor by itself: rounding, roots, exponentials, trigonometry, tests.

One line of `_TABLE` is one operator:

    Sqrt   np.sqrt   float types   about 2 vector operations an element   sqrt(0) = 0   safe in float16

Abs, Neg and Sign are exact in each type's own arithmetic; the others compute float16 and bfloat16 in float32 and round
once. Integers wrap as in C (Abs and Neg of the smallest integer are that integer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops import elementwise_values as values
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Op, Result, declare
from atc_py.ops.elementwise_base import (
    BOOLS,
    FLOAT8,
    FLOATS,
    INTS,
    NUMBERS,
    SIGNED,
    TABLE_FROM,
    UNARY,
    apply,
    blockwise,
    fitting,
    half_table,
    is_half,
    looked_up,
    same_type,
    to_bool,
    vector_cost,
)
from atc_py.ops.elementwise_erf import erf32, erf64


@dataclass(frozen=True)
class Unary:
    """One line of the table: `zero` says that f(0) = 0, `fp16` that float16 has range and precision enough."""

    name: str
    ufunc: Any
    dtypes: frozenset[DType]
    cost: int
    zero: bool = False
    fp16: bool = False
    exact: bool = False
    symbolic: Callable[[Any], Any] | None = None


_TABLE = (
    Unary("Abs", np.absolute, NUMBERS, 1, zero=True, fp16=True, exact=True, symbolic=values.absolute),
    Unary("Neg", np.negative, SIGNED, 1, zero=True, fp16=True, exact=True, symbolic=values.neg),
    Unary("Sign", np.sign, NUMBERS, 2, zero=True, fp16=True, exact=True),
    Unary("Ceil", np.ceil, FLOATS, 1, zero=True, fp16=True, symbolic=values.ceil),
    Unary("Floor", np.floor, FLOATS, 1, zero=True, fp16=True, symbolic=values.floor),
    Unary("Round", np.rint, FLOATS, 1, zero=True, fp16=True),
    Unary("Sqrt", np.sqrt, FLOATS, 2, zero=True, fp16=True),
    Unary("Reciprocal", np.reciprocal, FLOATS, 2),
    Unary("Exp", np.exp, FLOATS, 4),
    Unary("Log", np.log, FLOATS, 4),
    Unary("Sin", np.sin, FLOATS, 8, zero=True, fp16=True),
    Unary("Cos", np.cos, FLOATS, 8, fp16=True),
    Unary("Tan", np.tan, FLOATS, 10, zero=True),
    Unary("Asin", np.arcsin, FLOATS, 10, zero=True),
    Unary("Acos", np.arccos, FLOATS, 10),
    Unary("Atan", np.arctan, FLOATS, 10, zero=True, fp16=True),
    Unary("Sinh", np.sinh, FLOATS, 8, zero=True),
    Unary("Cosh", np.cosh, FLOATS, 8),
    Unary("Asinh", np.arcsinh, FLOATS, 10, zero=True, fp16=True),
    Unary("Acosh", np.arccosh, FLOATS, 10, fp16=True),
    Unary("Atanh", np.arctanh, FLOATS, 8, zero=True),
    Unary("Tanh", np.tanh, FLOATS, 8, zero=True, fp16=True),
    Unary("BitwiseNot", np.invert, INTS, 1, exact=True),
    Unary("Not", np.logical_not, BOOLS, 1, fp16=True, exact=True),
)


def _declare(line: Unary) -> Op:
    op = declare(line.name, inputs="X", outputs="Y", flags=replace(UNARY, keeps_zero=line.zero, fp16_safe=line.fp16))
    op.infer(same_type(line.dtypes))
    op.cost(vector_cost(line.cost))
    ufunc, exact, symbolic = line.ufunc, line.exact, line.symbolic

    def direct(x: Array) -> Array:
        return apply(Call({}), ufunc, x, exact=False)

    @op.kernel
    def kernel(call: Call, x: Array) -> Array:
        if not exact and x.size >= TABLE_FROM and is_half(x.dtype):
            return looked_up(call, half_table(direct, x.dtype, ()), x)
        return apply(call, ufunc, x, exact=exact)

    values.propagate(op, None if symbolic is None else lambda n, a: symbolic(a))
    return op


for _line in _TABLE:
    _declare(_line)


erf = declare("Erf", inputs="input", outputs="output", flags=replace(UNARY, keeps_zero=True, fp16_safe=True))
erf.infer(same_type(FLOATS))
erf.cost(vector_cost(24))


def _erf(call: Call, x: Array) -> Array:
    if x.dtype == np.float64:
        return blockwise(call, lambda a, y, t, _: erf64(a, y), x, 0)
    return blockwise(call, lambda a, y, t, _: erf32(a, y, t[0], t[1], t[2]), x, 3)


def _direct_erf(x: Array) -> Array:
    return _erf(Call({}), x)


@erf.kernel
def _(call: Call, x: Array) -> Array:
    if x.size >= TABLE_FROM and is_half(x.dtype):
        return looked_up(call, half_table(_direct_erf, x.dtype, ()), x)
    return _erf(call, x)


_TEST = Flags(elementwise=True, fusible=True, recomputable=True, layout_agnostic=True, fp16_safe=True)

is_nan = declare("IsNaN", inputs="X", outputs="Y", flags=replace(_TEST, keeps_zero=True))
is_nan.infer(to_bool(FLOATS | FLOAT8))
is_inf = declare(
    "IsInf",
    inputs="X",
    outputs="Y",
    attrs={"detect_negative": Attr("int", 1), "detect_positive": Attr("int", 1)},
    flags=replace(_TEST, keeps_zero=True),
)
is_inf.infer(to_bool(FLOATS | FLOAT8))


def _at_least_16_bits(x: Array) -> Array:
    return x if x.dtype.itemsize > 1 else x.astype(np.float32)


def _test(call: Call, ufunc: Any, x: Array) -> Array:
    """isnan or isinf; numpy's loops for them (2.4, AVX-512) leave gaps in results that are not contiguous."""
    y = fitting(call, 0, x.shape, np.bool_)
    with np.errstate(all="ignore"):
        return np.asarray(ufunc(x, out=y) if y.flags.c_contiguous else ufunc(x))


@is_nan.kernel
def _(call: Call, x: Array) -> Array:
    return _test(call, np.isnan, _at_least_16_bits(x))


@is_inf.kernel
def _(call: Call, x: Array) -> Array:
    x = _at_least_16_bits(x)
    low, high = bool(call.attrs["detect_negative"]), bool(call.attrs["detect_positive"])
    if low and high:
        return _test(call, np.isinf, x)
    if not low and not high:
        y = fitting(call, 0, x.shape, np.bool_)
        y[...] = False
        return y
    limit = np.array(np.inf if high else -np.inf, dtype=x.dtype)
    return apply(call, np.equal, x, limit, dtype=np.bool_)


identity = declare(
    "Identity",
    inputs="input",
    outputs="output",
    flags=Flags(alias=True, elementwise=True, fusible=True, recomputable=True, layout_agnostic=True,
                keeps_zero=True, fp16_safe=True, moves=True),
)  # fmt: skip


@identity.infer
def _(n: Infer) -> Result:
    if not n.has(0):
        n.fail("input 0 is absent")
    return n.types[0]


@identity.value
def _(n: Infer) -> Array | None:
    return n.value(0) if isinstance(n.types[0], Tensor) else None


@identity.kernel
def _(call: Call, x: Any) -> Any:
    return x
