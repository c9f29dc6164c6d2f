"""Symbolic scalars and how operators compute with them: the arithmetic behind value propagation.

A scalar is an int, a `Dim`, a `Ratio`, a bool or a float. A Ratio is an exact fraction with a symbolic numerator, which
lets the usual detour through floating point come back to sizes:

    Shape -> H   Cast(float32) -> H   Mul(0.5) -> Ratio(H, 2)   Floor -> H//2   Cast(int64) -> H//2

Floats enter fractions only where they are exact there and small (0.5, 1.25, 3.0, not 0.1 or 1/3), because only then is
the floating-point result of the operator, followed by Floor or Ceil, the same number for each size below 2**24: a
quotient a/b of such sizes rounds to a float that is on the same side of each integer. Every function returns None where
the result cannot be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from atc_py.ir.dims import (
    Dim,
    DimOverflow,
    Size,
    bounds,
    ceildiv,
    definitely_different,
    definitely_equal,
    definitely_le,
    dmax,
    dmin,
)
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Call, Infer, Op
from atc_py.ops.shapes import as_objects

LIMIT = 1024
"""Elements of the largest value that is propagated."""
_EXACT = 1 << 16
"""Largest numerator and denominator of a float that enters a fraction."""


@dataclass(frozen=True)
class Ratio:
    """The exact fraction num / den with den >= 2: an intermediate value of float dtype, never a size."""

    num: Size
    den: int

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is zero is not known")

    def __str__(self) -> str:
        return f"({self.num})/{self.den}"


def fraction(x: Any) -> tuple[Size, int] | None:
    """`x` as (numerator, denominator > 0), None when it is no exact small fraction."""
    if isinstance(x, Ratio):
        return x.num, x.den
    if isinstance(x, (int, Dim)):
        return x, 1
    if not math.isfinite(x):
        return None
    f = Fraction(x)
    return (f.numerator, f.denominator) if max(abs(f.numerator), f.denominator) <= _EXACT else None


def make(num: Size, den: int) -> Any:
    """num / den as a size when it divides for all values of the symbols, else as a Ratio; den > 0."""
    whole = num // den
    return whole if whole * den == num else Ratio(num, den)


def both(a: Any, b: Any) -> tuple[Size, Size, int] | None:
    """The two numerators over a common denominator."""
    p, q = fraction(a), fraction(b)
    if p is None or q is None:
        return None
    if p[1] == q[1]:
        return p[0], q[0], p[1]
    return p[0] * q[1], q[0] * p[1], p[1] * q[1]


def nonnegative(x: Any) -> bool:
    """Whether the scalar is known to be at least 0."""
    f = fraction(x)
    if f is None:
        return bool(x >= 0)
    low = bounds(f[0])[0]
    return low is not None and low >= 0


def neg(a: Any) -> Any:
    """-a."""
    f = fraction(a)
    return -a if f is None else make(-f[0], f[1])


def absolute(a: Any) -> Any:
    """|a|."""
    f = fraction(a)
    if f is None:
        return abs(a)
    return a if nonnegative(a) else make(dmax(f[0], -f[0]), f[1])


def floor(a: Any) -> Any:
    """The largest integer that is at most a."""
    f = fraction(a)
    if f is None:
        return math.floor(a) if math.isfinite(a) else a
    return f[0] // f[1]


def ceil(a: Any) -> Any:
    """The smallest integer that is at least a."""
    f = fraction(a)
    if f is None:
        return math.ceil(a) if math.isfinite(a) else a
    return ceildiv(f[0], f[1])


def truncate(a: Any) -> Any:
    """a rounded toward zero; None when its sign is not known."""
    f = fraction(a)
    if f is None:
        return math.trunc(a) if math.isfinite(a) else None
    if f[1] == 1:
        return f[0]
    if nonnegative(f[0]):
        return f[0] // f[1]
    return -((-f[0]) // f[1]) if nonnegative(-f[0]) else None


def add(a: Any, b: Any) -> Any:
    """a + b."""
    f = both(a, b)
    return None if f is None else make(f[0] + f[1], f[2])


def sub(a: Any, b: Any) -> Any:
    """a - b."""
    f = both(a, b)
    return None if f is None else make(f[0] - f[1], f[2])


def mul(a: Any, b: Any) -> Any:
    """a * b."""
    p, q = fraction(a), fraction(b)
    return None if p is None or q is None else make(p[0] * q[0], p[1] * q[1])


def int_div(a: Any, b: Any) -> Any:
    """a / b rounded toward zero, for integers."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else (abs(a) // abs(b)) * (-1 if (a < 0) != (b < 0) else 1)
    if isinstance(b, int) and b == 0:
        return None
    whole = a // b
    if (nonnegative(a) and nonnegative(b)) or whole * b == a:
        return whole
    return None


def true_div(a: Any, b: Any) -> Any:
    """a / b for floats: by a known fraction, or by a symbol that divides a."""
    p, q = fraction(a), fraction(b)
    if p is None or q is None:
        return None
    num, den = p[0] * q[1], q[0] * p[1]
    if isinstance(den, int):
        if den == 0:
            return None
        return make(num, den) if den > 0 else make(-num, -den)
    whole = num // den
    return whole if whole * den == num else None


def int_mod(a: Any, b: Any) -> Any:
    """a modulo b with the sign of b."""
    return None if isinstance(b, int) and b == 0 else a % b


def int_fmod(a: Any, b: Any) -> Any:
    """a modulo b with the sign of a; None where a sign is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else int(math.copysign(abs(a) % abs(b), a))
    return int_mod(a, b) if nonnegative(a) and nonnegative(b) else None


def power(a: Any, b: Any) -> Any:
    """a to a small whole power."""
    if isinstance(a, (int, Dim)) and float(b).is_integer() and 0 <= b <= 8:
        return a ** int(b)
    return None


def minimum(a: Any, b: Any) -> Any:
    """The smaller one."""
    f = both(a, b)
    return None if f is None else make(dmin(f[0], f[1]), f[2])


def maximum(a: Any, b: Any) -> Any:
    """The larger one."""
    f = both(a, b)
    return None if f is None else make(dmax(f[0], f[1]), f[2])


def equal(a: Any, b: Any) -> bool | None:
    """Whether a == b for all values of the symbols; None when it is so for some only."""
    f = both(a, b)
    if f is None:
        return None
    if definitely_equal(f[0], f[1]):
        return True
    return False if definitely_different(f[0], f[1]) else None


def less_equal(a: Any, b: Any) -> bool | None:
    """Whether a <= b for all values of the symbols; None when it is so for some only."""
    f = both(a, b)
    if f is None:
        return None
    if definitely_le(f[0], f[1]):
        return True
    return False if definitely_le(f[1] + 1, f[0]) else None


def less(a: Any, b: Any) -> bool | None:
    """Whether a < b for all values of the symbols; None when it is so for some only."""
    swapped = less_equal(b, a)
    return None if swapped is None else not swapped


def symbolic(array: Array) -> bool:
    """Whether the value holds Dims or Ratios."""
    return array.dtype == object and any(isinstance(x, (Dim, Ratio)) for x in array.reshape(-1))


def items(array: Array) -> list[Any]:
    """The elements in C order as Python scalars and Dims."""
    return [x.item() if isinstance(x, np.generic) else x for x in array.reshape(-1)]


def pack(results: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Array | None:
    """The scalars as a value of element type `dtype`; None when one of them is not known."""
    if any(r is None for r in results):
        return None
    if any(isinstance(r, (Dim, Ratio)) for r in results):
        return as_objects(results, shape)
    try:
        return np.array(results, dtype=dtype.numpy).reshape(shape)
    except OverflowError:
        return None


def inputs_of(n: Infer) -> list[Array | None] | None:
    """The values of the inputs (None where an optional one is absent); None when a given one is unknown or large."""
    found: list[Array | None] = []
    for i, t in enumerate(n.types):
        value = n.value(i)
        if t is not None and (value is None or value.size > LIMIT):
            return None
        found.append(value if t is not None else None)
    return found if any(v is not None for v in found) else None


def folded(op: Op, n: Infer, values: Sequence[Array | None]) -> Array | None:
    """The operator's kernel on values that hold no symbols."""
    arrays = [
        None if v is None or not isinstance(t, Tensor) else np.asarray(v, dtype=t.dtype.numpy)
        for v, t in zip(values, n.types)
    ]
    if op.infer_fn is None or op.kernel_fn is None:
        return None
    types = op.infer_fn(n)
    first = types if isinstance(types, Tensor) else None
    with np.errstate(all="ignore"):
        result = op.kernel_fn(Call(n.attrs, (first,), (None,), {}, n.types), *arrays)
    return np.asarray(result) if np.size(result) <= LIMIT else None


def propagate(op: Op, rule: Callable[..., Any] | None, dtype: DType | None = None) -> None:
    """Give `op` its value function: the kernel on plain values, `rule(n, *scalars)` by element on symbolic ones.

    The output's element type is `dtype`, by default that of input 0.
    """

    @op.value
    def value(n: Infer) -> Array | None:
        values = inputs_of(n)
        if values is None:
            return None
        given = [v for v in values if v is not None]
        if not any(symbolic(v) for v in given):
            return folded(op, n, values)
        if rule is None:
            return None
        shape = np.broadcast_shapes(*[v.shape for v in given])
        if math.prod(shape) > LIMIT:
            return None
        columns = [items(np.broadcast_to(v, shape)) for v in given]
        try:
            results = [rule(n, *row) for row in zip(*columns)]
        except DimOverflow:
            return None
        return pack(results, shape, n.dtype(0) if dtype is None else dtype)
