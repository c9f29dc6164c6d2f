"""What the elementwise families share: dtype groups, type rules, costs, and three ways to run a formula over an array.

`apply` is one numpy ufunc from end to end. `looked_up` serves large arrays of 16-bit floats, of which there are only
65,536 values, by a table of the formula's results. `blockwise` runs a formula of several steps over one block after
another, so that its intermediate values stay in the cache; for y = 1 / (1 + exp(-x)) on a million float16 elements:

    block 0:  x[0:32768] -> float32   neg, exp, +1, 1/x in scratch   -> y[0:32768] float16
    block 1:  x[32768:65536] -> ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Call, Cost, CostFn, Flags, Infer, InferFn, Result, elements
from atc_py.ops.shapes import broadcast, show

HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOATS = HALVES | {DType.FLOAT32, DType.FLOAT64}
FLOAT8 = frozenset(d for d in DType if d.value.startswith("float8_e4") or d.value.startswith("float8_e5"))
INTS = frozenset(d for d in DType if d.is_int and d.bits >= 8)
SIGNED = FLOATS | frozenset(d for d in INTS if d.is_signed_int)
NUMBERS = FLOATS | INTS
BOOLS = frozenset({DType.BOOL})

BLOCK = 32768
"""Elements of one block: 128 KiB of float32, so that a formula's few arrays stay in a core's second-level cache, and
long enough to make a numpy call's own cost small."""

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

UNARY = Flags(elementwise=True, fusible=True, recomputable=True, inplace=(0,), layout_agnostic=True)
"""Flags of an operator that maps each element of one tensor to an element of the same type."""

Body = Callable[[Array, Array, Sequence[Array], Mapping[str, Any]], None]
"""A formula `body(x, y, temporaries, attrs)` that writes y. x and y may be one array: x is not read after y."""


def names(dtypes: frozenset[DType]) -> str:
    """The dtypes as people list them, in the order of `DType`."""
    return ", ".join(d.value for d in DType if d in dtypes)


def check_dtype(n: Infer, i: int, allowed: frozenset[DType]) -> None:
    """Fail when input `i` has an element type that the operator does not take."""
    if n.dtype(i) not in allowed:
        n.fail(f"input {i} must be one of {names(allowed)}, but is {n.dtype(i).value}", "cast the input first")


def same_type(allowed: frozenset[DType]) -> InferFn:
    """The type rule of unary operators: the output is like the input."""

    def infer(n: Infer) -> Result:
        check_dtype(n, 0, allowed)
        return n.tensor(0)

    return infer


def to_bool(allowed: frozenset[DType]) -> InferFn:
    """The type rule of unary tests: the input's shape, bool."""

    def infer(n: Infer) -> Result:
        check_dtype(n, 0, allowed)
        t = n.tensor(0)
        return Tensor(DType.BOOL, t.shape, t.format, t.storage)

    return infer


def joined(n: Infer, inputs: Sequence[int], dtype: DType) -> Tensor:
    """The type of the broadcast of the inputs; the format is that of the input of largest rank."""
    shape = broadcast(*[n.shape(i) for i in inputs])
    if shape is None:
        return Tensor(dtype, None)
    model = next(n.tensor(i) for i in inputs if n.tensor(i).rank == len(shape))
    return Tensor(dtype, shape, model.format, model.storage)


def check_same_dtype(n: Infer, inputs: Sequence[int]) -> None:
    """Fail when the inputs differ in element type."""
    first = n.dtype(inputs[0])
    for i in inputs[1:]:
        if n.dtype(i) is not first:
            n.fail(
                f"inputs {inputs[0]} and {i} must have one element type, but are {first.value} and {n.dtype(i).value}",
                "cast one of them",
            )


def check_fits(n: Infer, i: int, into: int) -> None:
    """Fail when input `i` does not broadcast into the shape of input `into` (unidirectional broadcasting)."""
    a, b = n.shape(i), n.shape(into)
    if a is None or b is None:
        return
    bad = len(a) > len(b) or any(
        type(x) is int and type(y) is int and x not in (1, y) for x, y in zip(a[::-1], b[::-1], strict=False)
    )
    if bad:
        n.fail(f"input {i} of shape {show(a)} does not broadcast to input {into} of shape {show(b)}")


def vector_cost(per_element: int) -> CostFn:
    """The cost of an operator that takes `per_element` vector operations for each element of its output."""

    def cost(n: Infer) -> Cost:
        given = [t for t in n.types if isinstance(t, Tensor)]
        shape = broadcast(*[t.shape for t in given])
        return Cost(vector=per_element * elements(Tensor(given[0].dtype, shape))) if given else Cost()

    return cost


def fitting(call: Call, i: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """The planned view of output `i` when it has this shape and dtype, else a new array."""
    view = call.out(i)
    if view is not None and view.shape == shape and view.dtype == dtype:
        return view
    return np.empty(shape, dtype)


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a formula over `dtype` is computed: float64 for float64, float32 for every other."""
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def joint_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    """The broadcast shape of the arrays."""
    first: tuple[int, ...] = arrays[0].shape
    for a in arrays:
        if a.shape != first:
            break
    else:
        return first
    return tuple(int(d) for d in np.broadcast_shapes(*[a.shape for a in arrays]))


def apply(call: Call, ufunc: Any, *arrays: Array, dtype: Any = None, exact: bool = True) -> Array:
    """One ufunc into output 0 (`dtype`, by default the first array's), broadcasting the arrays.

    `exact`: the result of the narrow type's own loop is right; otherwise types below 32 bits are computed in float32
    and rounded once.
    """
    dtype = arrays[0].dtype if dtype is None else np.dtype(dtype)
    out = fitting(call, 0, joint_shape(arrays), dtype)
    if exact or dtype.itemsize >= 4 or dtype.kind in "iub":
        ufunc(*arrays, out=out)
    else:
        ufunc(*arrays, out=out, dtype=np.float32, casting="unsafe")
    return out


def flat(x: Array) -> Array:
    """The elements in C order as one row: a view where the array is contiguous, else a copy."""
    return x.reshape(-1)


def blockwise(
    call: Call,
    body: Body,
    x: Array,
    temps: int = 1,
    dtype: Any = None,
    compute: Any = None,
    attrs: Mapping[str, Any] | None = None,
) -> Array:
    """Run `body` over x, block by block, into output 0 of element type `dtype` (by default x's).

    Blocks are computed in `compute` (by default `wide`): converted on the way in and rounded once on the way out.
    Values that leave the body must fit `dtype`.
    """
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    compute = wide(x.dtype) if compute is None else np.dtype(compute)
    attrs = call.attrs if attrs is None else attrs
    y = fitting(call, 0, x.shape, dtype)
    if not y.flags.c_contiguous:
        y = np.empty(x.shape, dtype)
    source, result = flat(x), y.reshape(-1)
    if 0 < source.size <= BLOCK and x.dtype == compute and dtype == compute:
        rows: Any = call.scratch((temps, source.size), compute)
        body(source, result, rows, attrs)
        return y
    size = min(BLOCK, max(source.size, 1))
    work = call.scratch((temps + 2, size), compute)
    for start in range(0, source.size, BLOCK):
        stop = min(start + BLOCK, source.size)
        part = work[:, : stop - start]
        a, b = source[start:stop], result[start:stop]
        if a.dtype != compute:
            np.copyto(part[0], a, casting="unsafe")
            a = part[0]
        to = b if dtype == compute else part[1]
        body(a, to, list(part[2:]), attrs)
        if to is not b:
            np.copyto(b, to, casting="unsafe")
    return y


TABLE_FROM = 1 << 15
"""Elements from which on a function of float16 or bfloat16 is looked up rather than computed."""


def is_half(dtype: np.dtype[Any]) -> bool:
    """float16 or bfloat16."""
    if dtype.isbuiltin == 1:  # a name takes microseconds to make
        return dtype.char == "e"
    return bool(dtype == np.float16) or dtype.name == "bfloat16"


@lru_cache(maxsize=64)
def half_table(fn: Callable[..., Array], dtype: np.dtype[Any], key: tuple[Any, ...]) -> Array:
    """`fn(x, *key)` for all 65,536 values x of a 16-bit float type, as bit patterns in the order of x's pattern."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    return fn(every, *key).view(np.uint16)


def looked_up(call: Call, table: Array, x: Array) -> Array:
    """A function of one 16-bit float by its table: one load an element, where converting alone costs three."""
    y = fitting(call, 0, x.shape, x.dtype)
    if not y.flags.c_contiguous:
        y = np.empty(x.shape, x.dtype)
    source, result = flat(x).view(np.uint16), y.reshape(-1).view(np.uint16)
    index = call.scratch((min(BLOCK, source.size),), np.int64)
    for start in range(0, source.size, BLOCK):
        part = source[start : start + BLOCK]
        where = index[: part.size]
        np.copyto(where, part)
        np.take(table, where, out=result[start : start + BLOCK], mode="wrap")
    return y


_LANES = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


def bits(array: Array) -> Array:
    """The array's elements (1, 2, 4 or 8 bytes) as unsigned integers of the same width, without a copy."""
    return array.view(_LANES[array.dtype.itemsize])


def keep_where(mask: Array, x: Array, y: Array, temp: Array) -> None:
    """y = x where `mask`, +0 elsewhere, without a branch an element (infinities and NaN do not leak)."""
    lanes = bits(temp)
    np.copyto(lanes, mask, casting="unsafe")
    np.negative(lanes, out=lanes)
    np.bitwise_and(bits(x), lanes, out=bits(y))
