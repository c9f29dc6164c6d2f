"""onnxruntime's quantised operators that equal canonical ones.

    MatMulNBits(a, b: uint8 [N, blocks, bytes])   →   MatMul(a, Transpose(DequantizeLinear(b: uint4 [N, K])))
    DynamicQuantizeMatMul(a, b)                   →   MatMulInteger(DynamicQuantizeLinear(a), b) · scales
    QLinearSoftmax(x)                             →   QuantizeLinear(Softmax(DequantizeLinear(x)))

A packed constant of N bits has the bytes of a tensor of that type, so it is reinterpreted and nothing is copied.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from atc_py.frontend.adapters_microsoft import (
    MS,
    asked,
    flat_softmax,
    given,
    mask_index,
    one,
    outputs,
    permuted,
    positions,
    tensor,
    to_channels_first,
    to_channels_last,
    total,
)
from atc_py.frontend.draft import Draft
from atc_py.frontend.extensions import extension
from atc_py.ir.constants import Blob, Splat
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType
from atc_py.ops.base import Attr
from atc_py.ops.conv import ATTRS as CONV_ATTRS
from atc_py.ops.shapes import show

_NARROW = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}


# -- quantise and dequantise -------------------------------------------------------------------------------


@extension(f"{MS}DequantizeLinear", inputs="x x_scale x_zero_point?", outputs="y", attrs={"axis": Attr("int", 1)})
def _dequantize(d: Draft) -> list[int]:
    return d.finish("DequantizeLinear", d.inputs, d.attrs)


@extension(f"{MS}QuantizeLinear", inputs="x y_scale y_zero_point?", outputs="y", attrs={"axis": Attr("int", 1)})
def _quantize(d: Draft) -> list[int]:
    return d.finish("QuantizeLinear", d.inputs, d.attrs)


def _real(d: Draft, x: int, scale: int, zero: int = ABSENT) -> int:
    """The numbers that quantised ones stand for."""
    return one(d, "DequantizeLinear", [x, scale, zero])


def _bytes(d: Draft, x: int, scale: int, zero: int, like: int) -> list[int]:
    """Requantise; without a zero point the type is that of `like`."""
    attrs = {} if zero != ABSENT else {"output_dtype": tensor(d, like).dtype}
    return d.finish("QuantizeLinear", [x, scale, zero], attrs)


@extension(
    f"{MS}QLinearSoftmax",
    inputs="X X_scale x_zero_point? y_scale y_zero_point",
    outputs="Y",
    attrs={"axis": Attr("int", -1), "opset": Attr("int")},
)
def _qlinear_softmax(d: Draft) -> list[int]:
    x, axis = _real(d, *d.inputs[:3]), d.attrs["axis"]
    y = flat_softmax(d, x, axis) if d.attrs["opset"] < 13 else one(d, "Softmax", [x], {"axis": axis})
    return _bytes(d, y, d.inputs[3], d.inputs[4], d.inputs[0])


@extension(
    f"{MS}QLinearReduceMean",
    inputs="data data_scale data_zero_point? reduced_scale reduced_zero_point?",
    outputs="reduced",
    attrs={"axes": Attr("ints"), "keepdims": Attr("int")},
)
def _qlinear_reduce_mean(d: Draft) -> list[int]:
    x = _real(d, *d.inputs[:3])
    y = one(d, "ReduceMean", [x, d.ints(d.attrs["axes"])], {"keepdims": d.attrs["keepdims"]})
    return _bytes(d, y, d.inputs[3], given(d, 4), d.inputs[0])


@extension(
    f"{MS}QLinearWhere",
    inputs="condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point",
    outputs="Z",
)
def _qlinear_where(d: Draft) -> list[int]:
    left, right = _real(d, *d.inputs[1:4]), _real(d, *d.inputs[4:7])
    return _bytes(d, one(d, "Where", [d.inputs[0], left, right]), d.inputs[7], d.inputs[8], d.inputs[1])


@extension(
    f"{MS}QLinearConv",
    inputs="x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    outputs="y",
    attrs={**CONV_ATTRS, "channels_last": Attr("int", 0)},
)
def _qlinear_conv(d: Draft) -> list[int]:
    attrs = {n: d.attrs[n] for n in CONV_ATTRS}
    if not d.attrs["channels_last"]:
        return d.finish("QLinearConv", d.inputs, attrs)
    x = to_channels_first(d, d.inputs[0])
    return [to_channels_last(d, one(d, "QLinearConv", [x, *d.inputs[1:]], attrs))]


# -- products ----------------------------------------------------------------------------------------------


def scaled_product(d: Draft, a: int, b: int, zeros: tuple[int, int], scales: tuple[int, int], bias: int) -> int:
    """(a - a_zero) @ (b - b_zero) · (a_scale · b_scale) + bias, the product in int32."""
    sums = one(d, "MatMulInteger", [a, b, *zeros])
    scale = one(d, "Mul", list(scales))
    return total(d, one(d, "Mul", [one(d, "Cast", [sums], {"to": tensor(d, scale).dtype}), scale]), bias)


@extension(f"{MS}DynamicQuantizeMatMul", inputs="A B b_scale b_zero_point? bias?", outputs="Y")
def _dynamic_matmul(d: Draft) -> list[int]:
    a, scale, zero = d.emit("DynamicQuantizeLinear", d.inputs[:1], outputs=3)
    return [scaled_product(d, a, d.inputs[1], (zero, given(d, 3)), (scale, d.inputs[2]), given(d, 4))]


@extension(f"{MS}MatMulIntegerToFloat", inputs="A B a_scale b_scale a_zero_point? b_zero_point? bias?", outputs="Y")
def _integer_to_float(d: Draft) -> list[int]:
    a, b, *scales = d.inputs[:4]
    return [scaled_product(d, a, b, (given(d, 4), given(d, 5)), (scales[0], scales[1]), given(d, 6))]


# -- weights of a few bits ---------------------------------------------------------------------------------


def _composed(d: Draft, packed: int, bits: int, shape: tuple[Any, ...]) -> int:
    """A packed tensor that is computed: every field of every byte as uint8, in the tensor's shape."""
    if bits < 8:
        fields = []
        for at in range(0, 8, bits):
            moved = packed if not at else one(d, "BitShift", [packed, d.const(np.uint8(at))], {"direction": "RIGHT"})
            field = one(d, "BitwiseAnd", [moved, d.const(np.uint8((1 << bits) - 1))])
            fields.append(one(d, "Unsqueeze", [field, d.ints([-1])]))
        packed = one(d, "Concat", fields, {"axis": -1})
    return one(d, "Reshape", [packed, d.ints(shape)])


def _unpacked(d: Draft, packed: int, bits: int, rows: tuple[int, ...], columns: int) -> int:
    """A uint8 tensor whose rows hold fields of `bits` bits, as a tensor [*rows, columns] of that many bits.

    Rows are padded to whole bytes. Constants become the narrow type, others uint8.
    """
    width = -(-columns * bits // 8) * 8 // bits
    constant = d.scope.graph.const(packed)
    if isinstance(constant, Blob) and constant.dtype is DType.UINT8:
        if len(constant.data) * 8 // bits != prod(rows) * width:
            d.fail(f"a packed tensor has shape {show(constant.shape)}, which is not {width} x {bits} bits a row")
        if width == columns:
            return d.scope.graph.add_const(Blob(_NARROW[bits], (*rows, columns), constant.data))
        every = np.frombuffer(constant.data, np.uint8)
        fields = np.stack([(every >> at) & ((1 << bits) - 1) for at in range(0, 8, bits)], axis=-1)
        return d.const(fields.reshape(*rows, width)[..., :columns].astype(_NARROW[bits].numpy))
    whole = _composed(d, packed, bits, (*rows, width))
    if width == columns:
        return whole
    return one(d, "Slice", [whole, d.ints([0]), d.ints([columns]), d.ints([-1])])


def _like(d: Draft, value: int, other: int) -> int:
    """`value` in the type of `other`."""
    dtype = tensor(d, other).dtype
    return value if tensor(d, value).dtype is dtype else one(d, "Cast", [value], {"to": dtype})


def _grouped(d: Draft, weights: int, scales: int, zeros: int, columns: int, groups: int) -> int:
    """(weights - zeros) · scales where each column names its group, or where zero points are real numbers."""
    n, blocks = tensor(d, scales).dims
    wide = _like(d, weights, scales)
    if groups != ABSENT:
        scales, zeros = (one(d, "Gather", [v, groups], {"axis": 1}) for v in (scales, _like(d, zeros, scales)))
    else:
        wide = one(d, "Reshape", [wide, d.ints([n, blocks, -1])])
        scales, zeros = (one(d, "Unsqueeze", [v, d.ints([2])]) for v in (scales, _like(d, zeros, scales)))
    product = one(d, "Mul", [one(d, "Sub", [wide, zeros]), scales])
    return one(d, "Reshape", [product, d.ints([n, columns])])


@extension(
    f"{MS}MatMulNBits",
    inputs="A B scales zero_points? g_idx? bias?",
    outputs="Y",
    attrs={
        "K": Attr("int"),
        "N": Attr("int"),
        "accuracy_level": Attr("int", 0),
        "bits": Attr("int", 4),
        "block_size": Attr("int"),
        "weight_prepacked": Attr("int", 0),
    },
)
def _matmul_n_bits(d: Draft) -> list[int]:
    a = d.attrs
    k, n, bits, block = a["K"], a["N"], a["bits"], a["block_size"]
    if bits not in _NARROW or block < 1 or a["weight_prepacked"]:
        d.fail(f"bits = {bits}, block_size = {block}, weight_prepacked = {a['weight_prepacked']} is not supported")
    blocks = -(-k // block)
    weights = _unpacked(d, d.inputs[1], bits, (n,), blocks * block)
    scales = one(d, "Reshape", [d.inputs[2], d.ints([n, blocks])])
    narrow = tensor(d, weights).dtype
    zeros = given(d, 3)
    if zeros == ABSENT:
        zeros = d.scope.graph.add_const(Splat(narrow, (n, blocks), narrow.numpy.type(1 << (bits - 1))))
    elif tensor(d, zeros).dtype is DType.UINT8:
        zeros = _like(d, _unpacked(d, zeros, bits, (n,), blocks), weights)
    else:
        zeros = one(d, "Reshape", [zeros, d.ints([n, blocks])])
    groups = given(d, 4)
    if groups != ABSENT or tensor(d, zeros).dtype.is_float:
        if groups != ABSENT and tensor(d, groups).shape == (k,) and blocks * block != k:
            weights = one(d, "Slice", [weights, d.ints([0]), d.ints([k]), d.ints([1])])
        real = _grouped(d, weights, scales, zeros, -1, groups)
    else:
        real = one(d, "DequantizeLinear", [weights, scales, zeros], {"axis": 1, "block_size": block})
    if tensor(d, real).dims[1] != k:
        real = one(d, "Slice", [real, d.ints([0]), d.ints([k]), d.ints([1])])
    return [total(d, one(d, "MatMul", [d.inputs[0], permuted(d, real, (1, 0))]), given(d, 5))]


_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
"""Quantiles of a normal distribution: Dettmers et al., "QLoRA" (2023), appendix E."""
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
"""Magnitudes of the 4-bit floats of bitsandbytes; the highest bit of a code is the sign."""


@extension(
    f"{MS}MatMulBnb4",
    inputs="A B absmax",
    outputs="Y",
    attrs={
        "K": Attr("int"),
        "N": Attr("int"),
        "block_size": Attr("int"),
        "quant_type": Attr("int"),
        "training_mode": Attr("int", 0),
        "transB": Attr("int", 1),
    },
)
def _matmul_bnb4(d: Draft) -> list[int]:
    """B is [N, K], flat, 4 bits each, the first in a byte's high half; `absmax` is each block's largest number."""
    a = d.attrs
    k, n, block = a["K"], a["N"], a["block_size"]
    packed = d.scope.graph.const(d.inputs[1])
    if not isinstance(packed, Blob) or packed.dtype is not DType.UINT8 or packed.nbytes != -(-n * k // 2):
        d.fail(f"B must be a constant of {-(-n * k // 2)} bytes")
    if a["quant_type"] not in (0, 1) or block < 1 or not a["transB"]:
        d.fail(f"quant_type = {a['quant_type']}, block_size = {block}, transB = {a['transB']} is not supported")
    assert isinstance(packed, Blob)
    halves = np.frombuffer(packed.data, np.uint8)
    swapped = (halves >> 4) | (halves << 4)
    count = 2 * len(halves)
    bytes_ = d.scope.graph.add_const(Blob(DType.UINT4, (count,), memoryview(swapped.tobytes())))
    dtype = tensor(d, d.inputs[2]).dtype
    table = np.array(_NF4 if a["quant_type"] else [*_FP4, *(-v for v in _FP4)], np.float32).astype(dtype.numpy)
    values = one(d, "Gather", [d.const(table), one(d, "Cast", [bytes_], {"to": DType.INT32})], {"axis": 0})
    blocks = -(-n * k // block)
    values = one(d, "Pad", [values, d.ints([0, blocks * block - count])])
    values = one(d, "Reshape", [values, d.ints([blocks, block])])
    scaled = one(d, "Mul", [values, one(d, "Reshape", [d.inputs[2], d.ints([blocks, 1])])])
    flat = one(d, "Reshape", [scaled, d.ints([-1])])
    if blocks * block != n * k:
        flat = one(d, "Slice", [flat, d.ints([0]), d.ints([n * k])])
    weights = one(d, "Reshape", [flat, d.ints([n, k])])
    return [one(d, "MatMul", [d.inputs[0], permuted(d, _like(d, weights, d.inputs[0]), (1, 0))])]


@extension(
    f"{MS}GatherBlockQuantized",
    inputs="data indices scales zero_points?",
    outputs="output",
    attrs={
        "bits": Attr("int", 4),
        "block_size": Attr("int", 128),
        "gather_axis": Attr("int", 0),
        "quantize_axis": Attr("int", 1),
    },
)
def _gather_block_quantized(d: Draft) -> list[int]:
    """Rows are gathered as they are and dequantised then, where the gathered axis is not the one of the blocks."""
    data, indices, scales = d.inputs[:3]
    a, bits, zeros = d.attrs, d.attrs["bits"], given(d, 3)
    shapes = [tensor(d, v).shape for v in (data, scales)]
    n = tensor(d, indices).rank
    if shapes[0] is None or shapes[1] is None or n is None:
        d.fail("the shapes of data and scales and the rank of the indices must be known")
    gather, blocks = (axis % len(shapes[0]) for axis in (a["gather_axis"], a["quantize_axis"]))
    if tensor(d, data).dtype is DType.UINT8:
        if bits not in _NARROW:
            d.fail(f"bits = {bits} is not supported", "2, 4 and 8 are")
        data = _unpacked(d, data, bits, shapes[0][:-1], shapes[0][-1] * 8 // bits)  # type: ignore[arg-type]
        if zeros == ABSENT:
            narrow = tensor(d, data).dtype
            zeros = d.scope.graph.add_const(Splat(narrow, shapes[1], narrow.numpy.type(1 << (bits - 1))))
        else:
            zeros = _like(d, _unpacked(d, zeros, bits, shapes[1][:-1], shapes[1][-1]), data)  # type: ignore[arg-type]
    parts = [data, scales, zeros]
    if gather == blocks:
        real = one(d, "DequantizeLinear", parts, {"axis": blocks, "block_size": a["block_size"]})
        return [one(d, "Gather", [real, indices], {"axis": gather})]
    parts = [v if v == ABSENT else one(d, "Gather", [v, indices], {"axis": gather}) for v in parts]
    at = blocks + n - 1 if blocks > gather else blocks
    return [one(d, "DequantizeLinear", parts, {"axis": at, "block_size": a["block_size"]})]


# -- embeddings --------------------------------------------------------------------------------------------


@extension(
    f"{MS}QEmbedLayerNormalization",
    inputs="input_ids segment_ids? word_embedding_quant position_embedding_quant segment_embedding? gamma_quant "
    "beta_quant mask? word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale beta_scale "
    "word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point? gamma_zero_point "
    "beta_zero_point",
    outputs="layernorm_out mask_index_out?",
    attrs={"epsilon": Attr("float", 1e-12)},
)
def _quantised_embed(d: Draft) -> list[int]:
    ids, segments = d.inputs[:2]
    tables, scales, zeros = d.inputs[2:7], d.inputs[8:13], d.inputs[13:18]
    rows = (ids, positions(d, ids), segments)
    parts = [
        _real(d, one(d, "Gather", [tables[i], at]), scales[i], zeros[i]) for i, at in enumerate(rows) if at != ABSENT
    ]
    gamma, beta = (_real(d, tables[i], scales[i], zeros[i]) for i in (3, 4))
    y = one(d, "LayerNormalization", [total(d, *parts), gamma, beta], {"axis": -1, "epsilon": d.attrs["epsilon"]})
    return outputs(d, y, mask_index(d, ids) if asked(d, 1) else ABSENT)
