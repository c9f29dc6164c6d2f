"""Quantised operators: onnx's node tests, and exactness of the floating-point sums against int64 arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import quant, quant_compute  # noqa: F401 - declare the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from atc_py.ops.quant_compute import reach, working_type
from tests.ops.elementwise_cases import cases
from tests.ops.harness import Case, check

_LIST = """
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearMatMul QLinearConv
"""
NAMES = tuple(_LIST.split())
CASES = cases(*NAMES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert {c.op for c in CASES} == set(NAMES)


def run(name: str, *inputs: Any, const: tuple[int, ...] = (), **attrs: Any) -> Any:
    """The kernel; the inputs numbered in `const` are known at bind."""
    op = REGISTRY[name]
    assert op.kernel_fn is not None
    types = tuple(None if v is None else Tensor(DType.of(v.dtype), v.shape) for v in inputs)
    call = Call(op.attributes(attrs), (), (None,), {i: inputs[i] for i in const}, types)
    if op.prepare_fn is not None:
        call.state = op.prepare_fn(call)
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        return op.kernel_fn(call, *inputs)


def bytes_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def wrapped(x: Any) -> Any:
    return np.asarray(x, np.int64).astype(np.int32)


@pytest.mark.parametrize("inner", [1, 7, 300, 5000])
@pytest.mark.parametrize("a_type,b_type", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
def test_matmul_integer_is_exact(inner: int, a_type: Any, b_type: Any) -> None:
    rng = np.random.default_rng(inner)
    a, b = bytes_of(rng, (3, inner), a_type), bytes_of(rng, (inner, 4), b_type)
    za, zb = bytes_of(rng, (3,), a_type), bytes_of(rng, (4,), b_type)
    want = (a.astype(np.int64) - za[:, None].astype(np.int64)) @ (b.astype(np.int64) - zb.astype(np.int64))
    for const in ((), (1, 3), (1,)):
        np.testing.assert_array_equal(run("MatMulInteger", a, b, za, zb, const=const), wrapped(want))
    np.testing.assert_array_equal(
        run("MatMulInteger", a, b, za[0].reshape(()), None),
        wrapped((a.astype(np.int64) - int(za[0])) @ b.astype(np.int64)),
    )


def test_worst_sums_are_exact_and_wrap() -> None:
    inner = 40_000
    a, b = np.full((1, inner), 255, np.uint8), np.full((inner, 2), 255, np.uint8)
    b[0, 1] = 254
    want = a.astype(np.int64) @ b.astype(np.int64)
    assert want.max() > 2**31
    np.testing.assert_array_equal(run("MatMulInteger", a, b, None, None, const=(1,)), wrapped(want))


def test_the_type_of_the_sums_follows_from_the_bound() -> None:
    assert working_type(2**24 - 1) == np.float32 and working_type(2**24) == np.float64
    assert reach(np.dtype(np.uint8), None) == 255 and reach(np.dtype(np.int8), None) == 128
    assert reach(np.dtype(np.uint8), np.array(128, np.uint8)) == 128


def test_batches_and_vectors() -> None:
    rng = np.random.default_rng(0)
    a, b = bytes_of(rng, (2, 1, 3, 8), np.uint8), bytes_of(rng, (5, 8, 4), np.int8)
    za, zb = bytes_of(rng, (2, 1, 3, 1), np.uint8), bytes_of(rng, (5, 1, 4), np.int8)
    want = (a.astype(np.int64) - za) @ (b.astype(np.int64) - zb)
    np.testing.assert_array_equal(run("MatMulInteger", a, b, za, zb), want)
    v = bytes_of(rng, (8,), np.uint8)
    np.testing.assert_array_equal(run("MatMulInteger", v, b[0], None, None), v.astype(int) @ b[0].astype(int))


def reference_conv(x: Any, w: Any, stride: int, pad: int, group: int) -> Any:
    """A direct convolution over int64, 2-D."""
    n, _, height, width = x.shape
    m, cg, kh, kw = w.shape
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    oh, ow = (height + 2 * pad - kh) // stride + 1, (width + 2 * pad - kw) // stride + 1
    y = np.zeros((n, m, oh, ow), np.int64)
    for o in range(m):
        g = o // (m // group)
        for i in range(oh):
            for j in range(ow):
                patch = x[:, g * cg : (g + 1) * cg, i * stride : i * stride + kh, j * stride : j * stride + kw]
                y[:, o, i, j] = (patch * w[o]).sum(axis=(1, 2, 3))
    return y


@pytest.mark.parametrize("channels,outs,group,kernel", [(3, 4, 1, 3), (4, 4, 4, 3), (8, 6, 2, 1), (64, 4, 1, 3)])
@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
def test_convolutions_are_exact(channels: int, outs: int, group: int, kernel: int, x_type: Any) -> None:
    rng = np.random.default_rng(channels)
    x, w = bytes_of(rng, (2, channels, 6, 7), x_type), bytes_of(rng, (outs, channels // group, kernel, kernel), np.int8)
    zx, zw = bytes_of(rng, (), x_type), bytes_of(rng, (outs,), np.int8)
    attrs: dict[str, Any] = {"group": group, "pads": (1, 1, 1, 1), "strides": (2, 2)}
    sums = reference_conv(
        x.astype(np.int64) - int(zx), w.astype(np.int64) - zw.astype(np.int64)[:, None, None, None], 2, 1, group
    )
    const: tuple[int, ...]
    for const in ((), (1, 2, 3), (1, 3)):
        np.testing.assert_array_equal(run("ConvInteger", x, w, zx, zw, const=const, **attrs), sums)

    bias = rng.integers(-50_000, 50_000, outs).astype(np.int32)
    xs, ys = np.float32(0.02), np.float32(0.9)
    ws = rng.uniform(0.001, 0.02, outs).astype(np.float32)
    zy = np.array(7, np.uint8)
    factor = (xs * ws / ys)[:, None, None]
    total = sums + bias[:, None, None]
    want = np.clip(np.rint(total.astype(np.float32) * factor) + 7, 0, 255).astype(np.uint8)
    for const in ((), (1, 2, 3, 4, 5, 6, 7, 8), (3, 5)):
        inputs = (x, np.array(xs), zx, w, ws, zw, np.array(ys), zy, bias)
        np.testing.assert_array_equal(run("QLinearConv", *inputs, const=const, **attrs), want)


def test_qlinear_matmul_by_row_and_column() -> None:
    rng = np.random.default_rng(3)
    a, b = bytes_of(rng, (3, 16), np.uint8), bytes_of(rng, (16, 4), np.uint8)
    sa, sb, sy = (rng.uniform(0.01, 0.05, n).astype(np.float32) for n in (3, 4, 1))
    za, zb, zy = bytes_of(rng, (3,), np.uint8), bytes_of(rng, (4,), np.uint8), np.array([3], np.uint8)
    sums = (a.astype(np.int64) - za[:, None].astype(np.int64)) @ (b.astype(np.int64) - zb.astype(np.int64))
    want = np.clip(np.rint(sums.astype(np.float32) * (sa[:, None] * sb / sy)) + 3, 0, 255)
    np.testing.assert_array_equal(run("QLinearMatMul", a, sa, za, b, sb, zb, sy, zy), want.astype(np.uint8))


QUANTISED = [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]


@pytest.mark.parametrize("dtype", QUANTISED, ids=lambda d: np.dtype(d).name)
def test_quantize_rounds_to_even_and_saturates(dtype: Any) -> None:
    low, high = quant.limits(np.dtype(dtype))
    x = np.array([0.5, 1.5, -0.5, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    got = run("QuantizeLinear", x, np.float32(1).reshape(()), np.zeros((), dtype)).astype(int)
    want = [np.clip(v, low, high) for v in (0, 2, 0)] + [high, low, high, low, low]
    assert got.tolist() == want
    per_axis = run("QuantizeLinear", np.stack([x, x]), np.ones(2, np.float32), np.zeros(2, dtype), axis=0)
    assert per_axis.astype(int).tolist() == [want, want]


@pytest.mark.parametrize("dtype", QUANTISED, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("layout", ["tensor", "axis", "block"])
def test_dequantize_undoes_quantize(dtype: Any, layout: str) -> None:
    low, high = quant.limits(np.dtype(dtype))
    rng = np.random.default_rng(0)
    q = rng.integers(low, high + 1, (3, 6, 5)).astype(dtype)
    shape = {"tensor": (), "axis": (6,), "block": (3, 2, 5)}[layout]
    scale = np.asarray(rng.uniform(0.1, 2, shape)).astype(np.float32)
    zero = np.asarray(rng.integers(low, high + 1, shape)).astype(dtype)
    attrs: dict[str, Any] = {"axis": 1, "block_size": 4 if layout == "block" else 0}
    x = run("DequantizeLinear", q, scale, zero, **attrs)
    assert x.dtype == np.float32
    back = run("QuantizeLinear", x, scale, zero, **attrs)
    assert back.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(back.astype(int), q.astype(int))
    half = run("DequantizeLinear", q, scale, zero, output_dtype=DType.FLOAT16, **attrs)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float16))


def test_int32_dequantises_with_one_rounding() -> None:
    x = np.array([2**30 + 1, -(2**31)], np.int32)
    got = run("DequantizeLinear", x, np.array(1.0, np.float32), np.array(2**30, np.int32))
    np.testing.assert_array_equal(got, np.array([1, -(2**31) - 2**30], np.float32))


def test_the_division_has_the_precision_of_the_scale_or_of_the_attribute() -> None:
    x, scale = np.array([1000.5], np.float16), np.array(3, np.float16)
    narrow = run("QuantizeLinear", x, scale, np.array(0, np.int16))
    wide = run("QuantizeLinear", x, scale, np.array(0, np.int16), precision=DType.FLOAT32)
    assert narrow.tolist() == [int(np.rint(np.float16(1000.5) / np.float16(3)))]
    assert wide.tolist() == [int(np.rint(np.float32(np.float16(1000.5)) / 3))]


def test_dynamic_quantisation_covers_zero() -> None:
    for x in ([1.0, 2.0, 3.0], [-1.0, -2.0], [0.0, 0.0], []):
        y, scale, zero = run("DynamicQuantizeLinear", np.array(x, np.float32))
        assert y.dtype == np.uint8 and scale.dtype == np.float32 and zero.shape == ()
        np.testing.assert_allclose(
            (y.astype(np.float32) - float(zero)) * scale, np.array(x, np.float32), atol=float(scale)
        )


def test_types() -> None:
    n = symbol("N")

    def infer(name: str, *types: Tensor | None, **attrs: Any) -> Any:
        fn = REGISTRY[name].infer_fn
        assert fn is not None
        return fn(Infer(types, REGISTRY[name].attributes(attrs)))

    f, u8, scale = Tensor(DType.FLOAT32, (n, 6)), Tensor(DType.UINT8, (n, 6)), Tensor(DType.FLOAT32, ())
    assert infer("QuantizeLinear", f, scale) == u8
    assert infer("QuantizeLinear", f, scale, output_dtype=DType.INT4).dtype is DType.INT4
    assert infer("DequantizeLinear", u8, scale) == f
    with pytest.raises(InferError, match="does not fit axis 1"):
        infer("QuantizeLinear", f, Tensor(DType.FLOAT32, (5,)))
    with pytest.raises(InferError, match="need a scale of shape"):
        infer("QuantizeLinear", f, Tensor(DType.FLOAT32, (n, 6)), block_size=2)
    with pytest.raises(InferError, match="zero point has shape"):
        infer("DequantizeLinear", u8, Tensor(DType.FLOAT32, (6,)), Tensor(DType.UINT8, (5,)))
    w = Tensor(DType.INT8, (6, 4))
    assert infer("MatMulInteger", u8, w) == Tensor(DType.INT32, (n, 4))
    with pytest.raises(InferError, match="inner sizes"):
        infer("MatMulInteger", u8, Tensor(DType.INT8, (5, 4)))
    image, filters = Tensor(DType.UINT8, (n, 3, 8, 8)), Tensor(DType.INT8, (5, 3, 3, 3))
    assert infer("ConvInteger", image, filters) == Tensor(DType.INT32, (n, 5, 6, 6))
    op = REGISTRY["ConvInteger"]
    assert op.work(Infer((image, filters), op.attributes({})), ()).macs == n * 5 * 36 * 27


@pytest.mark.parametrize("code", [onnx.TensorProto.FLOAT6E2M3, onnx.TensorProto.FLOAT6E3M2])
def test_float6_as_the_reference_has_it(code: int) -> None:
    from onnx.reference import ReferenceEvaluator

    from atc_py import backend

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=code),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
        helper.make_node("Cast", ["x"], ["c"], to=code),
    ]
    x = np.concatenate([np.linspace(-40, 40, 331), [0.0, -0.0, np.inf]]).astype(np.float32)
    infos = [helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("s", 1, [])]
    outs = [helper.make_tensor_value_info(n, t, x.shape) for n, t in (("q", code), ("y", 1), ("c", code))]
    opsets = [helper.make_opsetid("", 28)]
    made = helper.make_model(helper.make_graph(nodes, "g", infos, outs), opset_imports=opsets, ir_version=14)
    feeds = {"x": x, "s": np.array(1.5, np.float32)}
    wanted = ReferenceEvaluator(made).run(None, feeds)
    for got, want in zip(backend.prepare(made).run(list(feeds.values())), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
