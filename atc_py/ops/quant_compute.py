"""Products of quantised tensors: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, with exact int32 sums.

The sums are taken by floating-point matrix products where those are exact, which is many times faster than integer
loops: every partial sum of w * x is a whole number of at most

    bound = max over outputs of sum |w|  *  max |x|         int8 weights, K = 512:   sum |w| ~ 10,000   * 255 < 2**24

and float32 holds all whole numbers up to 2**24, float64 up to 2**53, in whatever order they are added. Where the bound
is larger, K is cut into parts that each keep below it; their sums are added in float64, which costs one addition an
output and part. The weights decide where to cut, at bind where they are constant. Sums beyond 32 bits wrap as in int32.

Results are requantised as `round(sum * (a_scale * b_scale / y_scale)) + zero_point` in float32, ties to even, then
saturated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import DType, Format, Tensor
from atc_py.ops import get, tiles_cube
from atc_py.ops.base import Array, Call, Cost, Flags, Infer, Op, Result, Shape, declare
from atc_py.ops.cast_convert import convert, is_integer
from atc_py.ops.conv import ATTRS as CONV_ATTRS
from atc_py.ops.elementwise_base import FLOAT8, HALVES, check_dtype, check_same_dtype, fitting
from atc_py.ops.layouts import feature_maps, right_operand
from atc_py.ops.linear import matmul_product, matmul_result
from atc_py.ops.quant import limits, to_integers
from atc_py.ops.traits import Pattern

BYTES = frozenset({DType.INT8, DType.UINT8})
_EXACT32 = float(1 << 24)
_WRAP = float(1 << 31)
_REACH = 255.0
"""The largest |x - zero| of any byte."""
_ROWS = 64
"""Indices of the inner axis of a matrix product that are not cut apart."""


@dataclass(frozen=True)
class Weights:
    """One factor, made ready: its values minus the zero point, and a bound on any sum of products with bytes.

    `cuts` are the places at which the inner axis is cut so that float32 holds the sums of each part.
    """

    values: Array
    bound: float
    cuts: tuple[int, ...] = ()

    def typed(self, dtype: Any) -> Array:
        """The values in `dtype`."""
        return self.values.astype(dtype, copy=False)


def working_type(bound: float) -> np.dtype[Any]:
    """float32 where sums up to `bound` are exact in it, else float64."""
    return np.dtype(np.float32 if bound < _EXACT32 else np.float64)


def cuts_of(steps: Array, width: int) -> tuple[int, ...]:
    """Where to cut the inner axis so that the sums of each part with bytes are exact in float32.

    `steps`: [steps, outputs], the sum of |w| of each `width` indices of the axis. Nothing where one step is too much.
    """
    if not steps.size or float(steps.max()) * _REACH >= _EXACT32:
        return ()
    cuts: list[int] = []
    total = np.zeros(steps.shape[1])
    for i, step in enumerate(steps):
        total = total + step
        if float(total.max()) * _REACH >= _EXACT32:
            cuts.append(i * width)
            total = step.astype(np.float64)
    return tuple(cuts)


def centred(x: Array, zero: Array | None, dtype: Any) -> Array:
    """x - zero as floats; a zero point of 0 costs nothing."""
    y = x.astype(dtype)
    if zero is not None and zero.any():
        np.subtract(y, zero.astype(dtype), out=y)
    return y


def reach(dtype: np.dtype[Any], zero: Array | None) -> float:
    """The largest |x - zero| that an element of type `dtype` can have."""
    if not is_integer(dtype):
        return np.inf
    low, high = limits(dtype)
    if zero is None:
        return float(max(-low, high))
    z = zero.astype(np.int64)
    return float(max(np.max(np.abs(z - low), initial=0), np.max(np.abs(high - z), initial=0)))


def int32_of(sums: Array, bound: float) -> Array:
    """Exact sums as int32, wrapping where they are too large."""
    if bound >= _WRAP:
        return sums.astype(np.int64).astype(np.int32)
    return sums.astype(np.int32)


def requantized(
    call: Call, sums: Array, bound: float, factor: Array, zero: Array | None, dtype: np.dtype[Any]
) -> Array:
    """`sums` times `factor` as the quantised type; overwrites `sums`."""
    with np.errstate(all="ignore"):
        if bound >= _WRAP and is_integer(dtype):
            sums = int32_of(sums, bound)
        t = sums.astype(np.float32, copy=False)
        np.multiply(t, factor.astype(np.float32), out=t)
        if not is_integer(dtype):
            if zero is not None:
                t += zero.astype(np.float32)
            return convert(t, DType.of(dtype))
        to_integers(t, np.float32(0) if zero is None else zero.astype(np.float32), *limits(dtype))
        y = fitting(call, 0, t.shape, dtype)
        np.copyto(y, t, casting="unsafe")
        return y


# --- matrix products --------------------------------------------------------------------------------------------


def _product_shape(n: Infer, i: int, j: int) -> Shape | None:
    return matmul_result(n.shape(i), n.shape(j))


def _matmul_cost(i: int, j: int) -> Any:
    def cost(n: Infer) -> Cost:
        shape, product = _product_shape(n, i, j), matmul_product(n.shape(i), n.shape(j))
        return Cost() if shape is None or product is None else Cost(products=(product,), vector=prod(shape))

    return cost


def _by_row(p: Array | None, rank: int) -> Array | None:
    """A parameter of the left factor: one, one a row, or shaped to broadcast already."""
    if p is None or p.size == 1:
        return None if p is None else p.reshape(())
    return p.reshape(-1, 1) if p.ndim == 1 and rank > 1 else p


def _by_column(p: Array | None) -> Array | None:
    return p.reshape(()) if p is not None and p.size == 1 else p


def right_factor(b: Array, zero: Array | None) -> Weights:
    """The right factor [..., K, N], made ready."""
    values = centred(b, _by_column(zero), np.float32)
    magnitudes = np.abs(values)
    bound = float(np.max(magnitudes.sum(axis=-2 if b.ndim > 1 else 0, dtype=np.float64), initial=0))
    if b.ndim != 2 or bound * _REACH < _EXACT32:
        return Weights(values, bound)
    steps = np.add.reduceat(magnitudes, np.arange(0, len(b), _ROWS), axis=0, dtype=np.float64)
    return Weights(values, bound, cuts_of(steps, _ROWS))


def multiply(call: Call, a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> tuple[Array, float]:
    """The exact product of the centred factors and the bound on it."""
    right: Weights = call.state if isinstance(call.state, Weights) else right_factor(b, b_zero)
    zero = _by_row(a_zero, a.ndim)
    bound = right.bound * reach(a.dtype, zero)
    dtype = working_type(bound) if is_integer(a.dtype) else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        if dtype == np.float64 and right.cuts:
            return _multiply_parts(centred(a, zero, np.float32), right), bound
        return np.asarray(np.matmul(centred(a, zero, dtype), right.typed(dtype))), bound


def _multiply_parts(a: Array, right: Weights) -> Array:
    """The product in parts of the inner axis, each of them exact in float32."""
    ends = (0, *right.cuts, a.shape[-1])
    total: Array = np.matmul(a[..., : ends[1]], right.values[: ends[1]]).astype(np.float64)
    for start, stop in pairwise(ends[1:]):
        total += np.matmul(a[..., start:stop], right.values[start:stop])
    return total


def _prepare_right(b: int, zero: int) -> Any:
    def prepare(call: Call) -> Weights | None:
        has_zero = zero < len(call.in_types) and call.in_types[zero] is not None
        if b not in call.consts or (has_zero and zero not in call.consts):
            return None
        return right_factor(call.consts[b], call.consts[zero] if has_zero else None)

    return prepare


_PRODUCT = Flags(fusible=True, fp16_safe=True, pattern=Pattern.QUANTIZED_PRODUCT)

matmul_integer = declare("MatMulInteger", inputs="A B a_zero_point? b_zero_point?", outputs="Y", flags=_PRODUCT)
matmul_integer.layout(right_operand(1))
matmul_integer.cost(_matmul_cost(0, 1))
matmul_integer.prepare(_prepare_right(1, 3))


matmul_integer.tile(tiles_cube.product_integer)


@matmul_integer.infer
def _(n: Infer) -> Result:
    for i, zero in ((0, 2), (1, 3)):
        check_dtype(n, i, BYTES)
        if n.has(zero):
            check_same_dtype(n, (i, zero))
    return Tensor(DType.INT32, _product_shape(n, 0, 1))


@matmul_integer.kernel
def _(call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return int32_of(*multiply(call, a, a_zero, b, b_zero))


qlinear_matmul = declare(
    "QLinearMatMul",
    inputs="a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point",
    outputs="y",
    flags=_PRODUCT,
)
qlinear_matmul.layout(right_operand(3))
qlinear_matmul.cost(_matmul_cost(0, 3))
qlinear_matmul.prepare(_prepare_right(3, 5))


qlinear_matmul.tile(tiles_cube.product_quantized)


@qlinear_matmul.infer
def _(n: Infer) -> Result:
    for i in (0, 3):
        check_dtype(n, i, BYTES | FLOAT8)
        check_dtype(n, i + 1, HALVES | {DType.FLOAT32})
        check_same_dtype(n, (i, i + 2))
    check_dtype(n, 7, BYTES | FLOAT8)
    return Tensor(n.dtype(7), _product_shape(n, 0, 3))


@qlinear_matmul.kernel
def _(
    call: Call, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array,
    y_zero: Array,
) -> Array:  # fmt: skip
    sums, bound = multiply(call, a, a_zero, b, b_zero)
    scales = [_by_row(a_scale, a.ndim), _by_column(b_scale), _by_row(y_scale, a.ndim)]
    left, right, out = [np.asarray(s, dtype=np.float32) for s in scales]
    return requantized(call, sums, bound, np.asarray(left * right / out), _by_row(y_zero, a.ndim), y_zero.dtype)


# --- convolutions -----------------------------------------------------------------------------------------------


def _conv() -> Op:
    op = get("Conv")
    assert op is not None and op.infer_fn is not None and op.kernel_fn is not None and op.prepare_fn is not None
    return op


def _as_floats(n: Infer, x: int, w: int) -> Infer:
    """The same convolution of float32 tensors, whose shape rule and work are Conv's."""
    types = tuple(Tensor(DType.FLOAT32, n.shape(i)) for i in (x, w))
    return Infer(types, n.attrs, 1, (), n.new_symbol)


def _conv_type(n: Infer, x: int, w: int, dtype: DType) -> Tensor:
    fn = _conv().infer_fn
    t = fn(_as_floats(n, x, w)) if fn is not None else None
    return Tensor(dtype, t.shape if isinstance(t, Tensor) else None)


def _conv_cost(x: int, w: int) -> Any:
    def cost(n: Infer) -> Cost:
        fn = _conv().cost_fn
        work = fn(_as_floats(n, x, w)) if fn is not None else Cost()
        t = _conv_type(n, x, w, DType.INT32)
        return Cost(products=work.products, vector=prod(t.shape) if t.shape is not None else 0)

    return cost


@dataclass(frozen=True)
class Filters:
    """Weights at bind, and Conv's own call on them where the input's shape and the type to compute in are known.

    `parts` are the calls on parts of the input channels, where the weights are cut.
    """

    weights: Weights
    inner: Call | None = None
    parts: tuple[Call, ...] = ()


def _filters(w: Array, zero: Array | None, group: int) -> Weights:
    by_channel = zero.reshape(-1, *(1,) * (w.ndim - 1)) if zero is not None and zero.size > 1 else _by_column(zero)
    values = centred(w, by_channel, np.float32)
    by_input = np.abs(values).reshape(*w.shape[:2], -1).sum(axis=2, dtype=np.float64)
    bound = float(np.max(by_input.sum(axis=1), initial=0))
    cut = group == 1 and bound * _REACH >= _EXACT32
    return Weights(values, bound, cuts_of(by_input.T, 1) if cut else ())


def _bound(weights: Weights, dtype: np.dtype[Any], zero: Array | None, bias: Array | None) -> float:
    most = float(np.max(np.abs(bias.astype(np.int64)), initial=0)) if bias is not None else 0.0
    return weights.bound * reach(dtype, zero) + most


def _prepare_filters(x_zero: int, w: int, w_zero: int, bias: int) -> Any:
    def prepare(call: Call) -> Filters | None:
        def known(i: int) -> bool:
            return i >= len(call.in_types) or call.in_types[i] is None or i in call.consts

        if w not in call.consts or not known(w_zero):
            return None
        weights = _filters(call.consts[w], call.consts.get(w_zero), call.attrs["group"])
        x = call.in_types[0]
        if not (isinstance(x, Tensor) and x.static and known(x_zero) and known(bias)):
            return Filters(weights)
        bound = _bound(weights, x.dtype.numpy, call.consts.get(x_zero), call.consts.get(bias))
        shape = tuple(int(d) for d in x.dims if isinstance(d, int))
        if weights.cuts and working_type(bound) == np.float64:
            return Filters(weights, parts=_part_calls(call.attrs, weights, shape))
        return Filters(weights, _inner_call(call.attrs, weights.typed(working_type(bound)), shape))

    return prepare


def _convolve(
    call: Call, x: Array, x_zero: Array | None, w: Array, w_zero: Array | None, bias: Array | None
) -> tuple[Array, float]:
    """The exact convolution of the centred tensors plus `bias`, and the bound on it."""
    filters = call.state if isinstance(call.state, Filters) else Filters(_filters(w, w_zero, call.attrs["group"]))
    zero = _by_column(x_zero)
    bound = _bound(filters.weights, x.dtype, zero, bias)
    dtype = working_type(bound)
    if dtype == np.float64 and filters.weights.cuts:
        return _convolve_parts(call, filters, x, zero, bias), bound
    inner = filters.inner
    if inner is None or inner.in_types[0] != Tensor(DType.of(dtype), x.shape):
        inner = _inner_call(call.attrs, filters.weights.typed(dtype), x.shape)
    kernel = _conv().kernel_fn
    assert kernel is not None
    added = None if bias is None else bias.astype(dtype)
    return kernel(inner, centred(x, zero, dtype), inner.consts[1], added), bound


def _ends(weights: Weights) -> list[tuple[int, int]]:
    """The parts of the input channels as (start, stop)."""
    ends = (0, *weights.cuts, weights.values.shape[1])
    return list(pairwise(ends))


def _part_calls(attrs: Mapping[str, Any], weights: Weights, x: tuple[int, ...]) -> tuple[Call, ...]:
    return tuple(
        _inner_call(attrs, np.ascontiguousarray(weights.values[:, start:stop]), (x[0], stop - start, *x[2:]))
        for start, stop in _ends(weights)
    )


def _convolve_parts(call: Call, filters: Filters, x: Array, zero: Array | None, bias: Array | None) -> Array:
    """The convolution in parts of the input channels, each of them exact in float32."""
    parts = filters.parts
    first = parts[0].in_types[0] if parts else None
    if not isinstance(first, Tensor) or first.dims[:1] + first.dims[2:] != x.shape[:1] + x.shape[2:]:
        parts = _part_calls(call.attrs, filters.weights, x.shape)
    kernel = _conv().kernel_fn
    assert kernel is not None
    total: Array | None = None
    for inner, (start, stop) in zip(parts, _ends(filters.weights), strict=True):
        sums = kernel(inner, centred(x[:, start:stop], zero, np.float32), inner.consts[1], None)
        total = sums.astype(np.float64) if total is None else np.add(total, sums, out=total)
    assert total is not None
    if bias is not None:
        total += bias.reshape(-1, *(1,) * (x.ndim - 2))
    return total


def _inner_call(attrs: Mapping[str, Any], w: Array, x_shape: tuple[int, ...]) -> Call:
    dtype = DType.of(w.dtype)
    types = (Tensor(dtype, x_shape), Tensor(dtype, w.shape), None)
    inner = Call(attrs, (None,), (None,), {1: w}, types)
    prepare = _conv().prepare_fn
    inner.state = prepare(inner) if prepare is not None else None
    return inner


conv_integer = declare(
    "ConvInteger",
    inputs="x w x_zero_point? w_zero_point?",
    outputs="y",
    attrs=CONV_ATTRS,
    flags=replace(_PRODUCT, splittable=(0, 1)),
)
conv_integer.layout(feature_maps(0, needs=True, weights={1: Format.FRACTAL_Z}, groups="group"))
conv_integer.cost(_conv_cost(0, 1))
conv_integer.prepare(_prepare_filters(2, 1, 3, 4))


conv_integer.tile(tiles_cube.convolution_integer)


@conv_integer.infer
def _(n: Infer) -> Result:
    for i, zero in ((0, 2), (1, 3)):
        check_dtype(n, i, BYTES)
        if n.has(zero):
            check_same_dtype(n, (i, zero))
    return _conv_type(n, 0, 1, DType.INT32)


@conv_integer.kernel
def _(call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    return int32_of(*_convolve(call, x, x_zero, w, w_zero, None))


qlinear_conv = declare(
    "QLinearConv",
    inputs="x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    outputs="y",
    attrs=CONV_ATTRS,
    flags=replace(_PRODUCT, splittable=(0, 1)),
)
qlinear_conv.layout(feature_maps(0, needs=True, weights={3: Format.FRACTAL_Z}, groups="group"))
qlinear_conv.cost(_conv_cost(0, 3))
qlinear_conv.prepare(_prepare_filters(2, 3, 5, 8))


qlinear_conv.tile(tiles_cube.convolution_quantized)


@qlinear_conv.infer
def _(n: Infer) -> Result:
    for i in (0, 3):
        check_dtype(n, i, BYTES)
        check_dtype(n, i + 1, frozenset({DType.FLOAT32}))
        check_same_dtype(n, (i, i + 2))
    check_dtype(n, 7, BYTES)
    if n.has(8):
        check_dtype(n, 8, frozenset({DType.INT32}))
    return _conv_type(n, 0, 3, n.dtype(7))


@qlinear_conv.kernel
def _(
    call: Call, x: Array, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array, y_scale: Array,
    y_zero: Array, bias: Array | None = None,
) -> Array:  # fmt: skip
    sums, bound = _convolve(call, x, x_zero, w, w_zero, bias)
    by_channel = w_scale.reshape(-1, *(1,) * (x.ndim - 2)) if w_scale.size > 1 else w_scale.reshape(())
    factor = np.asarray(x_scale.reshape(()) * by_channel / y_scale.reshape(()))
    return requantized(call, sums, bound, factor, y_zero.reshape(()), y_zero.dtype)
