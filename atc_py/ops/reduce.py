"""Reductions along axes, ArgMax and ArgMin, cumulative sums and products.

A reduction is three steps, of which most operators need one or two:

    ReduceL2, x: [2, 3], axes [1]:   before x * x   join + along the axes   after sqrt

`axes` is an input. Absent or empty axes mean all of them, or none when `noop_with_empty_axes` (the steps before and
after are taken all the same). Sums and products of float16 and bfloat16 are accumulated in float32 and rounded once;
integers wrap as in C, except that ReduceMean and ReduceL2 of integers are computed without overflow and rounded toward
zero. A reduction over no elements gives the neutral element (ReduceMax -inf or the smallest integer, ReduceLogSum -inf,
ReduceMean NaN; 0 for integers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from atc_py.ir.dims import DimOverflow
from atc_py.ir.types import DType, Tensor
from atc_py.ops import elementwise_values as values
from atc_py.ops import tiles_rows
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Op, Result, declare, elements
from atc_py.ops.cast_convert import to_integer
from atc_py.ops.elementwise_base import FLOATS, NUMBERS, check_dtype, fitting, vector_cost
from atc_py.ops.layouts import reduces
from atc_py.ops.shapes import axes as checked_axes
from atc_py.ops.shapes import axis as checked_axis
from atc_py.ops.shapes import concrete, reduced
from atc_py.ops.traits import Pattern

Axes = tuple[int, ...]
Join = Callable[[Array, Axes, bool, "Array | None"], Array]
"""`join(x, axes, keepdims, out)` reduces x, which is of the type to compute in."""


def _none_left(n: Infer) -> bool | None:
    """Whether the axes are absent or empty; None when that is not known."""
    if not n.has(1):
        return True
    if (value := n.value(1)) is not None:
        return bool(value.size == 0)
    shape = n.shape(1)
    if shape is None or len(shape) != 1 or type(shape[0]) is not int:
        return None
    return shape[0] == 0


def _infer(n: Infer, dtypes: frozenset[DType]) -> Result:
    check_dtype(n, 0, dtypes)
    t, keepdims, noop = n.tensor(0), bool(n.attrs["keepdims"]), bool(n.attrs["noop_with_empty_axes"])
    empty = _none_left(n)
    if empty and noop:
        return t
    if t.shape is None:
        return Tensor(t.dtype, () if empty and not keepdims else None)
    rank = len(t.shape)
    over = list(range(rank)) if empty else concrete(n, 1)
    if over is not None:
        return Tensor(t.dtype, reduced(t.shape, checked_axes(over, rank), keepdims), t.format)
    if keepdims:
        dims = tuple(1 if d == 1 else n.fresh(f"reduced dim{i}") for i, d in enumerate(t.shape))
        return Tensor(t.dtype, dims, t.format)
    given = n.shape(1)
    if given is None or len(given) != 1 or type(given[0]) is not int or not given[0]:
        return Tensor(t.dtype, None)
    return Tensor(t.dtype, tuple(n.fresh(f"reduced dim{i}") for i in range(rank - given[0])))


def _axes_of(call: Call, x: Array, axes: Array | None) -> Axes:
    if axes is None or axes.size == 0:
        return () if call.attrs["noop_with_empty_axes"] else tuple(range(x.ndim))
    return tuple(sorted({int(a) % x.ndim for a in axes.reshape(-1)})) if x.ndim else ()


def _left(shape: tuple[int, ...], axes: Axes, keepdims: bool) -> tuple[int, ...]:
    return tuple(int(d) for d in reduced(shape, axes, keepdims) if isinstance(d, int))


def merged(x: Array, axes: Axes) -> tuple[Array, Axes]:
    """A contiguous x with neighbouring axes joined where both or neither are reduced: fewer, longer loops.

    [8, 64, 7, 7] over (2, 3)  ->  [512, 49] over (1,)
    """
    if not x.flags.c_contiguous or x.ndim < 2:
        return x, axes
    shape: list[int] = []
    kinds: list[bool] = []
    for i, d in enumerate(x.shape):
        inside = i in axes
        if kinds and kinds[-1] == inside:
            shape[-1] *= d
        else:
            shape.append(d)
            kinds.append(inside)
    return x.reshape(shape), tuple(i for i, inside in enumerate(kinds) if inside)


def _ufunc_join(ufunc: Any, initial: Callable[[np.dtype[Any]], Any] | None = None) -> Join:
    def join(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Array:
        shape = _left(x.shape, axes, keepdims)
        start = {"initial": initial(x.dtype)} if initial and prod(x.shape[a] for a in axes) == 0 else {}
        x, over = merged(x, axes)
        if out is not None and out.flags.c_contiguous:
            left = tuple(d for i, d in enumerate(x.shape) if i not in over)
            ufunc.reduce(x, axis=over, dtype=x.dtype, out=out.reshape(left), **start)
            return out
        return np.asarray(ufunc.reduce(x, axis=over, dtype=x.dtype, **start), dtype=x.dtype).reshape(shape)

    return join


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


_add = _ufunc_join(np.add)
_maximum = _ufunc_join(np.maximum, _lowest)


def _mean(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Array:
    total = _add(x, axes, keepdims, out)
    np.divide(total, prod(x.shape[a] for a in axes), out=total)
    return total


def _log_sum_exp(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Array:
    peak = _maximum(x, axes, True, None)
    np.copyto(peak, 0, where=~np.isfinite(peak))  # all -inf: log 0; some inf: inf
    shifted = np.subtract(x, peak, out=np.empty(x.shape, x.dtype))
    result = np.log(_add(np.exp(shifted, out=shifted), axes, keepdims, None))
    return np.asarray(np.add(result, peak.reshape(result.shape), out=out))


@dataclass(frozen=True)
class Reduction:
    """One line of the table; `float_ints`: integers are computed in float64 and rounded toward zero."""

    name: str
    join: Join
    before: Any = None
    after: Any = None
    dtypes: frozenset[DType] = NUMBERS
    float_ints: bool = False
    symbolic: Callable[[Any, Any], Any] | None = None
    start: int | None = None
    cost: int = 1
    fp16: bool = False


_ORDERED = NUMBERS | {DType.BOOL}
_TABLE = (
    Reduction("ReduceSum", _add, symbolic=values.add, start=0),
    Reduction("ReduceMean", _mean, float_ints=True, fp16=True),
    Reduction("ReduceProd", _ufunc_join(np.multiply), symbolic=values.mul, start=1),
    Reduction("ReduceMax", _maximum, dtypes=_ORDERED, symbolic=values.maximum, fp16=True),
    Reduction("ReduceMin", _ufunc_join(np.minimum, _highest), dtypes=_ORDERED, symbolic=values.minimum, fp16=True),
    Reduction("ReduceL1", _add, before=np.absolute, cost=2),
    Reduction("ReduceL2", _add, before=np.square, after=np.sqrt, float_ints=True, cost=2),
    Reduction("ReduceSumSquare", _add, before=np.square, cost=2),
    Reduction("ReduceLogSum", _add, after=np.log, dtypes=FLOATS),
    Reduction("ReduceLogSumExp", _log_sum_exp, dtypes=FLOATS, cost=7),
)


def _run(call: Call, line: Reduction, x: Array, axes: Array | None) -> Array:
    dtype = x.dtype
    over = _axes_of(call, x, axes)
    keepdims = bool(call.attrs["keepdims"])
    with np.errstate(all="ignore"):
        if line.float_ints and dtype.kind in "iu":
            return _integer_reduction(line, x, over, keepdims)
        if dtype.kind not in "iub" and dtype.itemsize < 4:
            x = x.astype(np.float32)
        if line.before is not None:
            x = line.before(x, out=call.scratch(x.shape, x.dtype))
        shape = _left(x.shape, over, keepdims)
        y = line.join(x, over, keepdims, fitting(call, 0, shape, dtype) if x.dtype == dtype else None)
        if line.after is not None:
            line.after(y, out=y)
        return y if y.dtype == dtype else y.astype(dtype)


def _integer_reduction(line: Reduction, x: Array, over: Axes, keepdims: bool) -> Array:
    """ReduceMean exactly where the sum fits 64 bits; ReduceL2 in float64."""
    if line.after is not None:
        total = _add(np.square(x.astype(np.float64)), over, keepdims, None)
        return to_integer(line.after(total, out=total), x.dtype)
    count = prod(x.shape[a] for a in over)
    total = _add(x.astype(np.uint64 if x.dtype.kind == "u" else np.int64), over, keepdims, None)
    if count == 0:
        return total.astype(x.dtype)
    quotient = np.asarray(np.floor_divide(np.absolute(total), total.dtype.type(count)))
    if x.dtype.kind == "i":
        np.negative(quotient, out=quotient, where=total < 0)
    return quotient.astype(x.dtype)


def _reduce_value(op: Op, line: Reduction, n: Infer) -> Array | None:
    """Known values: by the kernel, or with symbols by the table's scalar rule."""
    value = n.value(0)
    if value is None or value.size > values.LIMIT or (n.has(1) and n.value(1) is None):
        return None
    if not values.symbolic(value):
        return values.folded(op, n, [value, n.value(1) if n.has(1) else None])
    if line.symbolic is None:
        return None
    noop = bool(n.attrs["noop_with_empty_axes"])
    given = concrete(n, 1) if n.has(1) else []
    if given is None or (not given and noop):
        return None if given is None else value
    over = tuple(checked_axes(given, value.ndim)) if given else tuple(range(value.ndim))
    kept = [i for i in range(value.ndim) if i not in over]
    rows = np.transpose(value, (*kept, *over)).reshape(prod(value.shape[i] for i in kept), -1)
    try:
        results = [_fold(line, values.items(row)) for row in rows]
    except DimOverflow:
        return None
    return values.pack(results, _left(value.shape, over, bool(n.attrs["keepdims"])), n.dtype(0))


def _fold(line: Reduction, row: list[Any]) -> Any:
    rule = line.symbolic
    if rule is None or (not row and line.start is None):
        return None
    start = row if line.start is None else [line.start, *row]
    return reduce(lambda a, b: None if a is None else rule(a, b), start)


def _declare(line: Reduction) -> Op:
    op = declare(
        line.name,
        inputs="data axes?",
        outputs="reduced",
        attrs={"keepdims": Attr("int", 1), "noop_with_empty_axes": Attr("int", 0)},
        flags=Flags(recomputable=True, fp16_safe=line.fp16, pattern=Pattern.REDUCTION),
        host_inputs=(1,),
    )
    op.infer(lambda n: _infer(n, line.dtypes))
    op.value(lambda n: _reduce_value(op, line, n))
    op.kernel(lambda call, x, axes=None: _run(call, line, x, axes))
    op.cost(lambda n: _reduction_cost(n, line))
    op.tile(tiles_rows.reduction)
    op.layout(reduces)
    return op


def _reduction_cost(n: Infer, line: Reduction) -> Cost:
    work = elements(n.types[0]) * line.cost
    return Cost(vector=work) if line.symbolic in (values.maximum, values.minimum) else Cost(wide=work)


for _line in _TABLE:
    _declare(_line)


def _declare_arg(name: str, pick: Any) -> Op:
    op = declare(
        name,
        inputs="data",
        outputs="reduced",
        attrs={"axis": Attr("int", 0), "keepdims": Attr("int", 1), "select_last_index": Attr("int", 0)},
        flags=Flags(fp16_safe=True),
    )
    op.cost(vector_cost(2))
    op.tile(tiles_rows.arg_reduction)

    @op.infer
    def infer(n: Infer) -> Result:
        check_dtype(n, 0, NUMBERS)
        shape = n.shape(0)
        if shape is None:
            return Tensor(DType.INT64, None)
        over = [checked_axis(n.attrs["axis"], len(shape))] if shape else []
        return Tensor(DType.INT64, reduced(shape, over, bool(n.attrs["keepdims"])))

    @op.kernel
    def kernel(call: Call, x: Array) -> Array:
        if x.ndim == 0:
            return np.zeros((), np.int64)
        axis, keepdims = call.attrs["axis"] % x.ndim, bool(call.attrs["keepdims"])
        if x.dtype.isbuiltin != 1:
            x = x.astype(np.float32)
        if not call.attrs["select_last_index"]:
            return np.asarray(pick(x, axis=axis, keepdims=keepdims), dtype=np.int64)
        back = pick(np.flip(x, axis), axis=axis, keepdims=keepdims)
        return np.asarray(x.shape[axis] - 1 - back, dtype=np.int64)

    return op


arg_max = _declare_arg("ArgMax", np.argmax)
arg_min = _declare_arg("ArgMin", np.argmin)


def _declare_cumulative(name: str, ufunc: Any, neutral: int) -> Op:
    op = declare(
        name,
        inputs="x axis",
        outputs="y",
        attrs={"exclusive": Attr("int", 0), "reverse": Attr("int", 0)},
        flags=Flags(recomputable=True),
        host_inputs=(1,),
    )
    op.cost(lambda n: vector_cost(2)(Infer(n.types[:1], n.attrs)))
    op.tile(tiles_rows.by_axis_input)

    @op.infer
    def infer(n: Infer) -> Result:
        check_dtype(n, 0, NUMBERS)
        shape, given = n.shape(0), concrete(n, 1)
        if shape and given:
            checked_axis(given[0], len(shape))
        return n.tensor(0)

    @op.kernel
    def kernel(call: Call, x: Array, axis: Array) -> Array:
        narrow = x.dtype.kind not in "iu" and x.dtype.itemsize < 4
        compute = np.dtype(np.float32) if narrow else x.dtype
        y = fitting(call, 0, x.shape, compute)
        along = int(np.reshape(axis, ()))
        source, result = (np.flip(x, along), np.flip(y, along)) if call.attrs["reverse"] else (x, y)
        if call.attrs["exclusive"] and x.shape[along]:
            source, result = np.moveaxis(source, along, 0), np.moveaxis(result, along, 0)
            result[:1] = neutral
            source, result, along = source[:-1], result[1:], 0
        with np.errstate(all="ignore"):
            ufunc.accumulate(source, axis=along, dtype=compute, out=result)
            return y.astype(x.dtype, copy=False)

    return op


cum_sum = _declare_cumulative("CumSum", np.add, 0)
cum_prod = _declare_cumulative("CumProd", np.multiply, 1)
