"""Linear quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.

    quantize:    y = saturate(round(x / scale) + zero_point)      x = 3.3, scale 0.5, zero point 10 (uint8)  ->  17
    dequantize:  x = (y - zero_point) * scale                      17  ->  3.5

Scales are one for the tensor, one for each index of `axis`, or one for each block of `block_size` indices of `axis`:

    x: [4, 6], axis 1, block_size 2   scale: [4, 3]   each scale serves two neighbours of a row

Rounding is to the nearest, ties to even. NaN quantises to the smallest integer of the type, as x86's max does. The
division is done in the type of the scale, or in `precision`; float8 E8M0 and integer scales count as float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_rows
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Result, Shape, declare
from atc_py.ops.cast_convert import convert, is_integer
from atc_py.ops.elementwise_base import FLOAT8, HALVES, blockwise, check_dtype, check_same_dtype, vector_cost
from atc_py.ops.layouts import feature_maps
from atc_py.ops.shapes import axis as checked_axis
from atc_py.ops.shapes import show
from atc_py.ops.traits import Pattern

SMALL_FLOATS = frozenset({DType.FLOAT4_E2M1, DType.FLOAT6_E2M3, DType.FLOAT6_E3M2})
_SUB_BYTE = frozenset(d for d in DType if d.is_int and d.bits < 8)
QUANTIZED = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16}) | _SUB_BYTE | FLOAT8 | SMALL_FLOATS
_REAL = HALVES | {DType.FLOAT32}

_FLAGS = Flags(fusible=True, recomputable=True, fp16_safe=True)


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and largest value of an integer type, those below eight bits included."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    width = int(dtype.name[-1])
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if dtype.name.startswith("int") else (0, (1 << width) - 1)


def spread(p: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point in a shape that broadcasts to `shape`."""
    if p.size == 1 and not (block and p.ndim == len(shape)):
        return p.reshape(())
    axis %= len(shape)
    if not block:
        return p if p.ndim == len(shape) else p.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    repeated = np.repeat(p, block, axis)
    return repeated[tuple(slice(0, shape[axis]) if i == axis else slice(None) for i in range(len(shape)))]


def _check_parameters(n: Infer) -> None:
    """The scale's shape must suit x, the axis and the block size; the zero point's must be the scale's."""
    x, scale, block = n.shape(0), n.shape(1), n.attrs["block_size"]
    if n.has(2):
        zero = n.shape(2)
        if zero is not None and scale is not None and _differ(zero, scale) and not (_one(zero) and _one(scale)):
            n.fail(f"the zero point has shape {show(zero)}, the scale {show(scale)}: they must be equal")
    if block < 0:
        n.fail(f"block_size must not be negative, but is {block}")
    if x is None or scale is None or (not block and _one(scale)):
        return
    axis = checked_axis(n.attrs["axis"], len(x)) if x else 0
    if not block:
        if len(scale) != 1 or (type(scale[0]) is int and type(x[axis]) is int and scale[0] != x[axis]):
            n.fail(f"the scale of shape {show(scale)} does not fit axis {axis} of shape {show(x)}",
                   "give one scale, one for each index of the axis, or a block_size")  # fmt: skip
        return
    want = tuple(-(-d // block) if i == axis else d for i, d in enumerate(x))
    if len(scale) != len(x) or _differ(want, scale):
        n.fail(f"blocks of {block} along axis {axis} of shape {show(x)} need a scale of shape {show(want)}, "
               f"but it has {show(scale)}")  # fmt: skip


def _one(shape: Shape) -> bool:
    return shape in ((), (1,))


def _differ(a: Shape, b: Shape) -> bool:
    return len(a) != len(b) or any(type(p) is int and type(q) is int and p != q for p, q in zip(a, b))


quantize = declare(
    "QuantizeLinear",
    inputs="x y_scale y_zero_point?",
    outputs="y",
    attrs={
        "axis": Attr("int", 1),
        "block_size": Attr("int", 0),
        "output_dtype": Attr("dtype", None),
        "precision": Attr("dtype", None),
        "saturate": Attr("int", 1),
    },
    flags=replace(
        _FLAGS, wide_inputs=(0, 1), pattern=Pattern.QUANTIZATION
    ),  # a rounding before the rounding moves values to another step
)
quantize.layout(feature_maps(0))
quantize.cost(lambda n: vector_cost(5)(Infer(n.types[:1], n.attrs)))


quantize.tile(tiles_rows.quantization)


@quantize.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, _REAL | {DType.INT32})
    check_dtype(n, 1, _REAL | {DType.INT32, DType.FLOAT8_E8M0})
    given = n.attrs["output_dtype"]
    dtype = n.dtype(2) if n.has(2) else given or DType.UINT8
    if given is not None and given is not dtype:
        n.fail(f"output_dtype is {given.value}, but the zero point is {dtype.value}")
    if dtype not in QUANTIZED:
        n.fail(f"{dtype.value} is no quantised type")
    _check_parameters(n)
    t = n.tensor(0)
    return Tensor(dtype, t.shape, t.format, t.storage)


def _division_type(scale: Array, precision: DType | None) -> np.dtype[Any]:
    if precision is not None:
        return precision.numpy
    narrow = scale.dtype == np.float16 or scale.dtype.name == "bfloat16"
    return scale.dtype if narrow else np.dtype(np.float32)


def to_integers(t: Array, zero: Any, low: int, high: int) -> None:
    """t = saturate(round(t) + zero) in place; NaN becomes `low`."""
    np.rint(t, out=t)
    np.add(t, zero, out=t)
    np.clip(t, low, high, out=t)
    if np.isnan(np.add.reduce(t, axis=None)):
        np.fmax(t, low, out=t)


@quantize.kernel
def _(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    a = call.attrs
    dtype = zero.dtype if zero is not None else (a["output_dtype"] or DType.UINT8).numpy
    work = _division_type(scale, a["precision"])
    divisor = spread(scale.astype(work), x.shape, a["axis"], a["block_size"])
    if is_integer(dtype):
        low, high = limits(dtype)
        # Zero points are exact in float32, 16-bit ones included.
        shift = np.zeros((), np.float32) if zero is None else spread(
            zero.astype(np.float32), x.shape, a["axis"], a["block_size"])  # fmt: skip
        if work == np.float32 and divisor.ndim == 0 and shift.ndim == 0:

            def body(s: Array, y: Array, t: Sequence[Array], _: Mapping[str, Any]) -> None:
                np.divide(s, divisor, out=t[0])
                to_integers(t[0], shift, low, high)
                np.copyto(y, t[0], casting="unsafe")

            return blockwise(call, body, x, 1, dtype, np.float32)
        with np.errstate(all="ignore"):
            t = np.asarray(np.divide(x.astype(work, copy=False), divisor)).astype(np.float32)
            to_integers(t, shift, low, high)
            return t.astype(dtype)
    with np.errstate(all="ignore"):
        t = np.asarray(np.divide(x.astype(work, copy=False), divisor)).astype(np.float32)
        if zero is not None:
            t += spread(zero.astype(np.float32), x.shape, a["axis"], a["block_size"])
    return convert(t, DType.of(dtype), bool(a["saturate"]))


dequantize = declare(
    "DequantizeLinear",
    inputs="x x_scale x_zero_point?",
    outputs="y",
    attrs={"axis": Attr("int", 1), "block_size": Attr("int", 0), "output_dtype": Attr("dtype", None)},
    flags=replace(_FLAGS, pattern=Pattern.QUANTIZATION),
)
dequantize.layout(feature_maps(0))
dequantize.cost(lambda n: vector_cost(3)(Infer(n.types[:1], n.attrs)))


dequantize.tile(tiles_rows.quantization)


@dequantize.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, QUANTIZED | {DType.INT32})
    check_dtype(n, 1, _REAL | {DType.FLOAT8_E8M0})
    if n.has(2):
        check_same_dtype(n, (0, 2))
    dtype = n.attrs["output_dtype"] or n.dtype(1)
    if dtype not in _REAL:
        n.fail(f"the output must be float32, float16 or bfloat16, but is {dtype.value}", "set output_dtype")
    _check_parameters(n)
    t = n.tensor(0)
    return Tensor(dtype, t.shape, t.format, t.storage)


@dequantize.kernel
def _(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    a = call.attrs
    dtype = a["output_dtype"].numpy if a["output_dtype"] else scale.dtype
    factor = spread(scale.astype(np.float32), x.shape, a["axis"], a["block_size"])
    if zero is not None and x.dtype == np.int32 and zero.any():
        # The difference of two int32 needs more bits than float32 has: take it first, round once.
        x = x.astype(np.int64) - spread(zero.astype(np.int64), x.shape, a["axis"], a["block_size"])
        zero = None
    shift = None if zero is None else spread(zero.astype(np.float32), x.shape, a["axis"], a["block_size"])
    if factor.ndim == 0 and (shift is None or shift.ndim == 0):

        def body(s: Array, y: Array, t: Sequence[Array], _: Mapping[str, Any]) -> None:
            if shift is not None:
                np.subtract(s, shift, out=y)
                s = y
            np.multiply(s, factor, out=y)

        return blockwise(call, body, x, 0, dtype, np.float32)
    with np.errstate(all="ignore"):
        y = x.astype(np.float32)
        if shift is not None:
            y -= shift
        y *= factor
        return y.astype(dtype, copy=False)


dynamic = declare("DynamicQuantizeLinear", inputs="x", outputs="y y_scale y_zero_point", flags=Flags(recomputable=True))
dynamic.cost(vector_cost(7))


@dynamic.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, frozenset({DType.FLOAT32}))
    t = n.tensor(0)
    return (
        Tensor(DType.UINT8, t.shape, t.format, t.storage),
        Tensor(DType.FLOAT32, ()),
        Tensor(DType.UINT8, ()),
    )


@dynamic.kernel
def _(call: Call, x: Array) -> tuple[Array, Array, Array]:
    # The range always contains 0, so that zero is exact (padding, ReLU).
    high = np.float32(np.max(x, initial=np.float32(0)))
    low = np.float32(np.min(x, initial=np.float32(0)))
    with np.errstate(all="ignore"):
        scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1 / 255)
        zero = np.float32(np.rint(min(max(-low / scale, np.float32(0)), np.float32(255))))

    def body(s: Array, y: Array, t: Sequence[Array], _: Mapping[str, Any]) -> None:
        np.divide(s, scale, out=t[0])
        to_integers(t[0], zero, 0, 255)
        np.copyto(y, t[0], casting="unsafe")

    y = blockwise(call, body, x, 1, np.uint8, np.float32)
    return y, np.array(scale, np.float32), np.array(zero, np.uint8)
