"""QuantMatmul: a matrix product of bytes with bias, whose result is requantised or float32.

    a: uint8 [M, K], scale 0.02, zero point 128     sums = (a - 128) · b + bias            exact, int32
    b: int8 [K, N], one scale a column              y = saturate(round(sums · s) + zero)   s = a_scale·b_scale/y_scale
                                                    y = sums · a_scale·b_scale + bias      float32, without y_scale

`bias` is int32 (whole steps of a_scale·b_scale, added to the sums) or, for float32 results, float32. With `transB` b is
[N, K]. Scales that are computed are as good as constant ones: dynamic quantisation ends here too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_cube
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Result, Shape, declare
from atc_py.ops.elementwise_base import check_dtype, check_same_dtype, fitting
from atc_py.ops.layouts import right_operand
from atc_py.ops.linear import matmul_product, matmul_result
from atc_py.ops.quant_compute import BYTES, Weights, multiply, requantized, right_factor
from atc_py.ops.shapes import show
from atc_py.ops.tiles import Need, Wanted, broadcast_region

_FLOAT = frozenset({DType.FLOAT32})

quant_matmul = declare(
    "QuantMatmul",
    inputs="a a_scale a_zero_point? b b_scale b_zero_point? bias? y_scale? y_zero_point?",
    outputs="y",
    attrs={"transB": Attr("int", 0)},
    flags=Flags(fusible=True, fp16_safe=True, splittable=(-2, -1)),
)


def _right_shape(n: Infer) -> Shape | None:
    b = n.shape(3)
    return (*b[:-2], b[-1], b[-2]) if b is not None and n.attrs["transB"] else b


@quant_matmul.infer
def _(n: Infer) -> Result:
    for i in (0, 3):
        check_dtype(n, i, BYTES)
        check_dtype(n, i + 1, _FLOAT)
        if n.has(i + 2):
            check_same_dtype(n, (i, i + 2))
    if n.attrs["transB"] and len(n.shape(3) or (0, 0)) < 2:
        n.fail(f"b has shape {show(n.shape(3))}; expected a matrix to transpose")
    if n.has(7) != n.has(8):
        n.fail("y_scale and y_zero_point must be given together")
    dtype = DType.FLOAT32
    if n.has(8):
        check_dtype(n, 7, _FLOAT)
        check_dtype(n, 8, BYTES)
        dtype = n.dtype(8)
    if n.has(6):
        check_dtype(n, 6, frozenset({DType.INT32}) if n.has(8) else frozenset({DType.INT32, DType.FLOAT32}))
    return Tensor(dtype, matmul_result(n.shape(0), _right_shape(n)))


@quant_matmul.cost
def _(n: Infer) -> Cost:
    right = _right_shape(n)
    shape, product = matmul_result(n.shape(0), right), matmul_product(n.shape(0), right)
    return Cost() if shape is None or product is None else Cost(products=(product,), vector=prod(shape))


@quant_matmul.tile
def _(w: Wanted) -> Need:
    """Rows and columns as wanted, all of k; of b's scales and of the bias what belongs to the columns."""
    turned = w.attrs["transB"]
    right = w.shapes[3]
    assert right is not None
    shape = (*right[:-2], right[-1], right[-2]) if turned else right
    need = tiles_cube.product(replace(w, shapes=(*w.shapes[:3], shape, *w.shapes[4:])), 0, 3)
    inputs = list(need.inputs)
    found = inputs[3]
    assert found is not None
    inputs[3] = (*found[:-2], found[-1], found[-2]) if turned else found
    for i in (4, 5, 6):
        vector = w.shapes[i] if i < len(w.shapes) else None
        if vector is not None and vector not in ((), (1,)):
            inputs[i] = broadcast_region(w.out, vector, w.out_shapes[0])
    return replace(need, inputs=tuple(inputs))


quant_matmul.layout(right_operand(3))


def _turned(b: Array, attrs: object) -> Array:
    return np.swapaxes(b, -1, -2) if attrs else b


@quant_matmul.prepare
def _(call: Call) -> Weights | None:
    given = len(call.in_types) > 5 and call.in_types[5] is not None
    if 3 not in call.consts or (given and 5 not in call.consts):
        return None
    return right_factor(_turned(call.consts[3], call.attrs["transB"]), call.consts.get(5))


@quant_matmul.kernel
def _(
    call: Call, a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None = None,
    bias: Array | None = None, y_scale: Array | None = None, y_zero: Array | None = None,
) -> Array:  # fmt: skip
    sums, bound = multiply(call, a, a_zero, _turned(b, call.attrs["transB"]), b_zero)
    if bias is not None and bias.dtype == np.int32:
        bound += float(np.max(np.abs(bias.astype(np.int64)), initial=0))
        sums = sums + bias.astype(np.float64 if bound >= 1 << 24 else sums.dtype)
    factor = np.asarray(a_scale.reshape(()) * (b_scale.reshape(()) if b_scale.size == 1 else b_scale), np.float32)
    if y_scale is not None and y_zero is not None:
        steps = np.asarray(factor / y_scale.reshape(()), np.float32)
        return requantized(call, np.asarray(sums), bound, steps, y_zero.reshape(()), y_zero.dtype)
    y = fitting(call, 0, sums.shape, np.dtype(np.float32))
    with np.errstate(all="ignore"):
        np.multiply(sums.astype(np.float32, copy=False), factor, out=y)
        if bias is not None and bias.dtype == np.float32:
            np.add(y, bias, out=y)
    return y
