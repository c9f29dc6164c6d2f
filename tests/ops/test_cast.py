"""Conversions: onnx's node tests, the rules for what is out of range, against onnxruntime where it defines them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.errors import AtcError
from atc_py.ir.types import DType, Tensor
from atc_py.ops import cast  # noqa: F401 - declares the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from atc_py.ops.cast_convert import convert
from tests.ops.elementwise_cases import cases
from tests.ops.harness import Case, check

CASES = cases("Cast", "CastLike", "BitCast")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert {c.op for c in CASES} == {"Cast", "CastLike", "BitCast"}


WILD = [math.nan, math.inf, -math.inf, 1e10, -1e10, 3e9, -3e9, 300.7, -300.7, 70000.5, -1.5, 1e20, 0.0, -0.9]
LOW32, LOW64 = -(2**31), -(2**63)


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_floats_to_integers_as_c_on_x86(source: Any) -> None:
    x = np.array(WILD, source)
    exact = [None if not math.isfinite(v) else math.trunc(float(v)) for v in x]
    as32 = [LOW32 if v is None or not LOW32 <= v < 2**31 else v for v in exact]
    as64 = [LOW64 if v is None or not LOW64 <= v < 2**63 else v for v in exact]
    assert convert(x, DType.INT32).tolist() == as32
    assert convert(x, DType.INT64).tolist() == as64
    for dtype, bits in ((DType.UINT8, 8), (DType.UINT16, 16)):
        assert convert(x, dtype).tolist() == [v & (2**bits - 1) for v in as32]
    for dtype, bits in ((DType.INT8, 8), (DType.INT16, 16)):
        assert convert(x, dtype).astype(int).tolist() == np.array(as32).astype(f"i{bits // 8}").tolist()
    assert convert(x, DType.UINT32).tolist() == [v & (2**32 - 1) for v in as64]
    assert convert(np.array([1.8e19, -1, 5], source), DType.UINT64).tolist() == [int(source(1.8e19)), 2**64 - 1, 5]
    assert convert(x, DType.BOOL).tolist() == [v != 0 for v in x.tolist()]


def test_float_to_integer_agrees_with_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    for dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.INT64):
        to = getattr(TensorProto, dtype.name)
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=to)], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
            [helper.make_tensor_value_info("y", to, [None])],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        x = np.array([v for v in WILD if abs(v) < 2**31 and not math.isnan(v)], np.float32)
        assert convert(x, dtype).tolist() == session.run(None, {"x": x})[0].tolist()


@pytest.mark.parametrize("target", ["int4", "uint4", "int2", "uint2", "int8", "uint16", "int32"])
def test_integers_keep_their_low_bits(target: str) -> None:
    dtype = DType(target)
    x = np.array([-300, -9, -8, -1, 0, 1, 7, 8, 15, 16, 255, 256, 70000])
    half, full = 1 << (dtype.bits - 1), 1 << dtype.bits
    want = [(v % full) - (full if dtype.is_signed_int and v % full >= half else 0) for v in x.tolist()]
    for source in (np.int64, np.int32, np.float32):
        assert convert(x.astype(source), dtype).astype(int).tolist() == want


def test_float8_saturates_or_overflows() -> None:
    x = np.array([464, 465, -1e9, np.inf, -np.inf, np.nan, -0.0, 0.07], np.float32)
    kept = convert(x, DType.FLOAT8_E4M3FN).astype(np.float32)
    np.testing.assert_array_equal(kept[:5], [448, 448, -448, 448, -448])
    assert np.isnan(kept[5]) and np.signbit(kept[6])
    free = convert(x, DType.FLOAT8_E4M3FN, saturate=False).astype(np.float32)
    assert free[0] == 448 and np.isnan(free[1:6]).all()
    wide = convert(x * 1e6, DType.FLOAT8_E5M2, saturate=False).astype(np.float32)
    assert wide[0] == np.inf and wide[2] == -np.inf
    assert convert(x, DType.FLOAT8_E4M3FNUZ).astype(np.float32)[0] == 240
    for source in (np.float16, np.float64, ml_dtypes.bfloat16, np.int32, np.bool_):
        assert convert(np.array([1], source), DType.FLOAT8_E5M2).astype(np.float32).tolist() == [1]


def test_e8m0_rounds_the_exponent() -> None:
    x = np.array([1, 1.5, 1.4, 2, 3, 0.75], np.float32)
    assert convert(x, DType.FLOAT8_E8M0, round_mode="up").astype(np.float32).tolist() == [1, 2, 2, 2, 4, 1]
    assert convert(x, DType.FLOAT8_E8M0, round_mode="down").astype(np.float32).tolist() == [1, 1, 1, 2, 2, 0.5]
    assert convert(x, DType.FLOAT8_E8M0, round_mode="nearest").astype(np.float32).tolist() == [1, 2, 1, 2, 4, 1]
    top = np.array([3e38, np.inf, np.nan], np.float32)
    kept = convert(top, DType.FLOAT8_E8M0).astype(np.float64)
    assert kept[:2].tolist() == [2.0**127, 2.0**127] and np.isnan(kept[2])
    assert np.isnan(convert(top, DType.FLOAT8_E8M0, saturate=False).astype(np.float32)).all()


def test_float4_saturates_and_rounds_to_even() -> None:
    x = np.array([-9.6, 5, 2.5, 3.5, 0.25, np.inf], np.float32)
    assert convert(x, DType.FLOAT4_E2M1).astype(np.float32).tolist() == [-6, 4, 2, 4, 0, 6]


def test_float6_saturates_and_rounds_to_even() -> None:
    x = np.array([-9.6, 3.625, 3.875, 0.0625, np.inf, np.nan], np.float32)
    assert convert(x, DType.FLOAT6_E2M3).astype(np.float32).tolist() == [-7.5, 3.5, 4, 0, 7.5, 0]
    x = np.array([-30, 4.5, 5.5, 0.03125, -np.inf], np.float32)
    assert convert(x, DType.FLOAT6_E3M2).astype(np.float32).tolist() == [-28, 4, 6, 0, -28]


def test_strings_and_numbers() -> None:
    x = np.array([1, 1.5, 1e20, np.nan, np.inf, -np.inf, 0.1], np.float32)
    assert convert(x, DType.STRING).tolist() == ["1", "1.5", "1e+20", "NaN", "INF", "-INF", "0.1"]
    assert convert(np.array([True, False]), DType.STRING).tolist() == ["1", "0"]
    assert convert(np.array([-5, 2**62]), DType.STRING).tolist() == ["-5", str(2**62)]
    assert convert(np.array([1.5], ml_dtypes.bfloat16), DType.STRING).tolist() == ["1.5"]
    words = np.array(["3.14", "1e-5", "+INF", "inf", "-INF", "NaN", "-7"], object)
    got = convert(words, DType.FLOAT32)
    np.testing.assert_array_equal(got, np.array([3.14, 1e-5, np.inf, np.inf, -np.inf, np.nan, -7], np.float32))
    assert convert(np.array(["9223372036854775807", "-1", "1e3"], object), DType.INT64).tolist() == [
        2**63 - 1,
        -1,
        1000,
    ]
    assert convert(np.array(["18446744073709551615"], object), DType.UINT64).tolist() == [2**64 - 1]
    assert convert(np.array(["3", "-8"], object), DType.INT4).astype(int).tolist() == [3, -8]
    with pytest.raises(AtcError, match="a string is no number"):
        convert(np.array(["hello"], object), DType.INT32)


@pytest.mark.parametrize("source", [d for d in DType if d is not DType.STRING and not d.is_complex])
def test_every_pair_of_types_keeps_small_numbers(source: DType) -> None:
    for target in DType:
        if target.is_complex or target is DType.STRING:
            continue
        for shape in ((), (2,), (0,)):
            x = np.ones(shape, np.float32).astype(source.numpy)
            got = convert(x, target)
            assert isinstance(got, np.ndarray) and got.dtype == target.numpy and got.shape == shape
            assert (got.astype(np.float32) == 1).all()


def test_bit_cast_keeps_the_pattern() -> None:
    op = REGISTRY["BitCast"]
    assert op.kernel_fn is not None and op.infer_fn is not None
    x = np.array([1.0, -2.5], np.float32)
    bits = op.kernel_fn(Call({"to": DType.INT32}), x)
    np.testing.assert_array_equal(op.kernel_fn(Call({"to": DType.FLOAT32}), bits), x)
    small = np.array([-8, 7, -1]).astype(ml_dtypes.int4)
    unsigned = op.kernel_fn(Call({"to": DType.UINT4}), small)
    assert unsigned.astype(int).tolist() == [8, 7, 15]
    assert op.kernel_fn(Call({"to": DType.INT4}), unsigned).astype(int).tolist() == [-8, 7, -1]
    with pytest.raises(InferError, match="widths must be equal"):
        op.infer_fn(Infer((Tensor(DType.FLOAT32, (2,)),), {"to": DType.INT16}))


def test_types() -> None:
    infer = REGISTRY["CastLike"].infer_fn
    assert infer is not None
    attrs = REGISTRY["CastLike"].attributes({})
    t = Tensor(DType.FLOAT32, (2, 3))
    assert infer(Infer((t, Tensor(DType.INT8, ())), attrs)) == Tensor(DType.INT8, (2, 3))
    with pytest.raises(InferError, match="round_mode"):
        infer(Infer((t, t), {**attrs, "round_mode": "sideways"}))
