"""onnxruntime's quantised operators, translated into canonical ones, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.frontend import read
from atc_py.ir.types import DType
from tests.ops.one_node import agree, feeds, model, ours, same

RNG = np.random.default_rng(7)
MS = "com.microsoft::"


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def data(dtype: Any, *shape: int) -> Any:
    low = np.iinfo(dtype).min
    return RNG.integers(low, low + 256, shape).astype(dtype)


def scale(value: float) -> Any:
    return np.array(value, np.float32)


def zero(dtype: Any, value: int) -> Any:
    return np.array(value, dtype)


def test_quantize_and_dequantize() -> None:
    agree(f"{MS}DequantizeLinear", [data(np.uint8, 3, 4), real(4), data(np.uint8, 4)], axis=1)
    agree(f"{MS}DequantizeLinear", [data(np.int8, 3, 4), scale(0.1), zero(np.int8, 5)])
    agree(f"{MS}QuantizeLinear", [real(3, 4), scale(0.03), zero(np.uint8, 100)], steps=1)
    agree(f"{MS}QuantizeLinear", [real(3, 4), np.abs(real(3)) + 0.01, data(np.int8, 3)], axis=0, steps=1)


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_softmax(opset: int, dtype: Any) -> None:
    given = [data(dtype, 2, 3, 5), scale(0.03), zero(dtype, 3), scale(0.005), zero(dtype, 2)]
    agree(f"{MS}QLinearSoftmax", given, axis=1 if opset < 13 else -1, opset=opset, steps=1, consts=(1, 2, 3, 4))


def test_where_and_mean() -> None:
    x, y = data(np.uint8, 3, 4), data(np.uint8, 1, 4)
    z = [zero(np.uint8, v) for v in (3, 9, 20)]
    given = [RNG.random((3, 1)) < 0.5, x, scale(0.02), z[0], y, scale(0.03), z[1], scale(0.025), z[2]]
    agree(f"{MS}QLinearWhere", given, steps=1, consts=(2, 3, 5, 6, 7, 8))
    given = [x, scale(0.02), z[0], scale(0.01), z[1]]
    want = np.clip(np.rint((x.astype(np.float32) - 3).mean(1, keepdims=True) * 2) + 9, 0, 255).astype(np.uint8)
    same(ours(model(f"{MS}QLinearReduceMean", given, {"axes": [1], "keepdims": 1}), feeds(given)), [want], steps=1)


@pytest.mark.parametrize("last", [0, 1])
def test_convolution(last: int) -> None:
    x, w = data(np.uint8, 1, 6, 5, 3) if last else data(np.uint8, 1, 3, 6, 5), data(np.int8, 4, 3, 3, 3)
    given = [x, scale(0.02), zero(np.uint8, 100), w, scale(0.01), zero(np.int8, 0), scale(0.3), zero(np.uint8, 120)]
    agree(f"{MS}QLinearConv", given, channels_last=last, pads=[1, 1, 1, 1], steps=1, consts=(1, 2, 3, 4, 5, 6, 7))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_products(columns: bool, extras: bool) -> None:
    a, b = real(2, 3, 8), data(np.int8, 8, 5)
    b_scale = np.abs(real(5)) * 0.01 + 0.001 if columns else scale(0.01)
    b_zero, bias = (data(np.int8, 5) if columns else zero(np.int8, 3), real(5)) if extras else (None, None)
    agree(f"{MS}DynamicQuantizeMatMul", [a, b, b_scale, b_zero, bias], rtol=1e-4, atol=1e-5, symbolic=True)
    q = data(np.uint8, 2, 3, 8)
    given = [q, b, scale(0.02), b_scale, zero(np.uint8, 100) if extras else None, b_zero, bias]
    agree(f"{MS}MatMulIntegerToFloat", given, rtol=1e-4, atol=1e-5)


# -- weights of a few bits ---------------------------------------------------------------------------------


def packed(fields: Any, bits: int) -> Any:
    """Fields along the last axis, the first in the lowest bits of its byte; rows are padded to bytes."""
    each = 8 // bits
    short = -fields.shape[-1] % each
    wide = np.concatenate([fields, np.zeros((*fields.shape[:-1], short), np.uint8)], -1)
    wide = wide.reshape(*fields.shape[:-1], -1, each)
    return np.bitwise_or.reduce(wide << (np.arange(each, dtype=np.uint8) * bits), axis=-1).astype(np.uint8)


def n_bits(k: int, n: int, bits: int, block: int, zeros: str) -> tuple[list[Any], dict[str, Any]]:
    blocks = -(-k // block)
    fields = RNG.integers(0, 1 << bits, (n, blocks, block)).astype(np.uint8)
    scales = (np.abs(real(n, blocks)) * 0.1).astype(np.float32)
    zero_points: Any = None
    if zeros == "packed":
        zero_points = packed(RNG.integers(0, 1 << bits, (n, blocks)).astype(np.uint8), bits)
    elif zeros == "real":
        zero_points = RNG.uniform(0, 1 << bits, (n, blocks)).astype(np.float32)
    return [packed(fields, bits), scales, zero_points], {"K": k, "N": n, "bits": bits, "block_size": block}


@pytest.mark.parametrize(
    ("bits", "zeros"), [(2, ""), (4, ""), (8, ""), (2, "packed"), (4, "packed"), (8, "packed"), (4, "real")]
)
@pytest.mark.parametrize("k", [64, 96, 70])
@pytest.mark.parametrize("constant", [True, False])
def test_matmul_n_bits(bits: int, k: int, zeros: str, constant: bool) -> None:
    weights, attrs = n_bits(k, 5, bits, 32, zeros)
    given = [real(2, 3, k), *weights, None, real(5) if constant else None]
    fixed = (1, 2, *((3,) if zeros else ())) if constant else ()
    agree(f"{MS}MatMulNBits", given, rtol=1e-4, atol=1e-4, consts=fixed, **attrs)


def test_matmul_n_bits_keeps_its_weights_packed() -> None:
    weights, attrs = n_bits(256, 64, 4, 32, "")
    graph = read(model(f"{MS}MatMulNBits", [real(1, 256), *weights], attrs, consts=(1, 2)))
    kept = [n.const for n in graph.nodes.values() if n.const is not None and n.const.dtype is DType.UINT4]
    assert 256 * 64 // 2 in [c.nbytes for c in kept]


def test_matmul_n_bits_with_groups() -> None:
    weights, attrs = n_bits(64, 5, 4, 16, "")
    groups = RNG.integers(0, 4, 64).astype(np.int32)
    agree(f"{MS}MatMulNBits", [real(3, 64), *weights, groups], rtol=1e-4, atol=1e-4, consts=(1, 2, 4), **attrs)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(64, 12, 16), (64, 3, 64), (33, 5, 16), (7, 3, 16)])
def test_matmul_bnb4(kind: int, k: int, n: int, block: int) -> None:
    codes = RNG.integers(0, 256, -(-n * k // 2)).astype(np.uint8)
    largest = np.abs(real(-(-n * k // block)))
    attrs: dict[str, Any] = {"K": k, "N": n, "block_size": block, "quant_type": kind}
    agree(f"{MS}MatMulBnb4", [real(2, 3, k), codes, largest], rtol=1e-4, atol=1e-4, consts=(1, 2), **attrs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("constant", [True, False])
def test_gather_block_quantized(bits: int, zeros: bool, constant: bool) -> None:
    fields = RNG.integers(0, 1 << bits, (9, 64)).astype(np.uint8)
    scales = np.abs(real(9, 4))
    points = packed(RNG.integers(0, 1 << bits, (9, 4)).astype(np.uint8), bits) if zeros else None
    given = [packed(fields, bits), np.array([[3, 8], [0, -1]]), scales, points]
    fixed = (0, 2, *((3,) if zeros else ())) if constant else ()
    agree(f"{MS}GatherBlockQuantized", given, consts=fixed, bits=bits, block_size=16, gather_axis=0, quantize_axis=1)


def test_quantised_embedding() -> None:
    ids = RNG.integers(0, 9, (2, 5)).astype(np.int32)
    tables = [data(np.uint8, *s) for s in ((9, 8), (7, 8), (2, 8), (8,), (8,))]
    scales = [scale(v) for v in (0.01, 0.02, 0.03, 0.01, 0.02)]
    zeros = [zero(np.uint8, v) for v in (100, 120, 128, 30, 128)]
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    given = [ids, RNG.integers(0, 2, (2, 5)).astype(np.int32), *tables, mask, *scales, *zeros]
    agree(f"{MS}QEmbedLayerNormalization", given, 2, rtol=1e-4, atol=1e-5)
