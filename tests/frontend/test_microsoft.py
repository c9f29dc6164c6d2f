"""onnxruntime's own operators, translated into canonical ones, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from atc_py import Options, compile_model
from atc_py.errors import AtcError
from atc_py.frontend.extensions import EXTENSIONS
from atc_py.ops import get
from tests.ops.one_node import agree, expected, feeds, model, ours, same

RNG = np.random.default_rng(11)
MS = "com.microsoft::"


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def test_no_operator_is_both_translated_and_declared() -> None:
    both = [name for name in EXTENSIONS if "::" in name and get(name) is not None]
    assert not both


# -- products ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swap_a", [0, 1])
@pytest.mark.parametrize("swap_b", [0, 1])
@pytest.mark.parametrize("batch", [0, 1])
def test_fused_matmul(swap_a: int, swap_b: int, batch: int) -> None:
    a, b = real(*((2, 5, 4) if swap_a else (2, 4, 5))), real(*((2, 3, 5) if swap_b else (2, 5, 3)))
    if batch:
        a, b = np.ascontiguousarray(np.swapaxes(a, 0, 1)), np.ascontiguousarray(np.swapaxes(b, 0, 1))
    attrs: dict[str, Any] = {
        "transA": swap_a,
        "transB": swap_b,
        "transBatchA": batch,
        "transBatchB": batch,
        "alpha": 0.5,
    }
    agree(f"{MS}FusedMatMul", [a, b], symbolic=True, **attrs)
    if not batch:
        agree(f"{MS}TransposeMatMul", [a, b], transA=swap_a, transB=swap_b, alpha=2.0)


@pytest.mark.parametrize("name", ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid"])
def test_fused_gemm(name: str) -> None:
    attrs: dict[str, Any] = {"activation": name}
    attrs |= {"activation_alpha": 0.3} if name == "LeakyRelu" else {}
    attrs |= {"activation_alpha": 0.3, "activation_beta": 0.6} if name == "HardSigmoid" else {}
    agree(f"{MS}FusedGemm", [real(4, 3), real(5, 3), real(5)], transB=1, alpha=0.7, beta=0.2, **attrs)


@pytest.mark.parametrize(
    ("name", "params"),
    [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", [])],
)
@pytest.mark.parametrize("summed", [False, True])
def test_fused_conv(name: str, params: list[float], summed: bool) -> None:
    given = [real(1, 2, 6, 6), real(3, 2, 3, 3), real(3), real(1, 3, 6, 6) if summed else None]
    attrs: dict[str, Any] = {"activation": name, "pads": [1, 1, 1, 1]}
    attrs |= {"activation_params": params} if params else {}
    agree(f"{MS}FusedConv", given, **attrs)


@pytest.mark.parametrize("summed", [False, True])
def test_channels_last_convolutions(summed: bool) -> None:
    """onnxruntime runs these on other processors only; with the channels second they are its FusedConv and Conv."""
    x, w, bias, z = real(2, 4, 6, 5), real(6, 2, 3, 3), real(6), real(2, 6, 6, 5)
    attrs = {"pads": [1, 1, 1, 1], "group": 2, "kernel_shape": [3, 3]}
    given = [x, w, bias, z if summed else None]
    fused = {**attrs, "activation": "LeakyRelu", "activation_params": [0.2]}
    [want] = expected(model(f"{MS}FusedConv", given, fused), feeds(given))
    last = [np.ascontiguousarray(v.transpose(0, 2, 3, 1)) for v in (x, w, z)]
    given = [last[0], w, bias, last[2] if summed else None]
    same(ours(model(f"{MS}NhwcFusedConv", given, fused), feeds(given)), [want.transpose(0, 2, 3, 1)], 1e-4, 1e-5)
    [want] = expected(model("Conv", [x, w, bias], attrs), feeds([x, w, bias]))
    given = [last[0], last[1], bias]
    same(ours(model(f"{MS}NhwcConv", given, attrs), feeds(given)), [want.transpose(0, 2, 3, 1)], 1e-4, 1e-5)


# -- activations -------------------------------------------------------------------------------------------


def test_gelus() -> None:
    x, bias = real(2, 3, 8), real(8)
    agree(f"{MS}Gelu", [x], symbolic=True)
    agree(f"{MS}BiasGelu", [x, bias])
    # onnxruntime's tanh and exp are approximations
    agree(f"{MS}FastGelu", [x, bias], rtol=1e-4, atol=1e-5)
    agree(f"{MS}FastGelu", [x], rtol=1e-4, atol=1e-5)
    several: list[dict[str, Any]] = [{}, {"alpha": 1.0}]
    for attrs in several:
        agree(f"{MS}QuickGelu", [x], rtol=1e-4, **attrs)


def test_bias_split_gelu_by_its_definition() -> None:
    from math import erf

    x, bias = real(1, 3, 8), real(8)
    left, right = np.split((x + bias).astype(np.float64), 2, axis=-1)
    want = left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
    given = [x, bias]
    same(ours(model(f"{MS}BiasSplitGelu", given, {}), feeds(given)), [want.astype(np.float32)])


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_bias_softmax(axis: int) -> None:
    given = [real(2, 3, 4), real(2, 3, 4)]
    proto = model(f"{MS}BiasSoftmax", given, {"axis": axis, "is_inner_broadcast": 1})
    sums = np.add(*given).reshape((2, -1) if axis == 1 else (6, -1))
    e = np.exp(sums - sums.max(-1, keepdims=True))
    same(ours(proto, feeds(given)), [(e / e.sum(-1, keepdims=True)).reshape(2, 3, 4)])


# -- normalisation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [(2, 3, 8), (3, 8), (1, 3, 8)])
@pytest.mark.parametrize("extras", [False, True])
def test_skip_layer_normalization(skip: tuple[int, ...], extras: bool) -> None:
    given = [real(2, 3, 8), real(*skip), real(8), real(8) if extras else None, real(8) if extras else None]
    agree(f"{MS}SkipLayerNormalization", given, ["y", "", "", "sum"], rtol=1e-4, atol=1e-5, symbolic=True)
    agree(f"{MS}SkipLayerNormalization", given, 1, rtol=1e-4, atol=1e-5, epsilon=0.1)
    given[3:] = given[4:]
    agree(f"{MS}SkipSimplifiedLayerNormalization", given, ["y", "", "", "sum"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization_of_onnxruntime_in_ai_onnx(axis: int) -> None:
    given = [real(2, 3, 8), real(8) if axis == -1 else real(3, 8)]
    agree("SimplifiedLayerNormalization", given, 1, axis=axis, epsilon=0.01, symbolic=True)
    agree("SimplifiedLayerNormalization", given, 2, axis=axis)


def test_layer_normalization_before_opset_17() -> None:
    given = [real(2, 3, 8), real(8), real(8)]
    proto = model("LayerNormalization", given, {"epsilon": 0.01}, version=11)
    same(ours(proto, feeds(given)), expected(proto, feeds(given)))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm_by_its_definition(last: int, activation: int) -> None:
    x, gamma, beta = real(2, 6, 3, 4), real(6), real(6)
    grouped = x.reshape(2, 3, -1).astype(np.float64)
    y = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    y = y.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
    y = y / (1 + np.exp(-y)) if activation else y
    x, y = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) if last else v for v in (x, y))
    attrs = {"groups": 3, "activation": activation, "channels_last": last}
    given = [x, gamma, beta]
    same(ours(model(f"{MS}GroupNorm", given, attrs), feeds(given)), [y.astype(np.float32)], 1e-4, 1e-5)
    given = [x * 0.5, gamma, beta, x * 0.5 - 1, np.ones(6, np.float32)]
    made = ours(model(f"{MS}SkipGroupNorm", given, attrs, 2), feeds(given))
    same(made, [y.astype(np.float32), x], 1e-4, 1e-5)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embed_layer_normalization(segments: bool, mask: bool, positions: bool) -> None:
    ids = RNG.integers(0, 9, (2, 5)).astype(np.int32)
    given = [
        ids, RNG.integers(0, 2, (2, 5)).astype(np.int32) if segments else None, real(9, 8), real(7, 8),
        real(2, 8) if segments else None, real(8), real(8),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None,
        RNG.integers(0, 7, (2, 5)).astype(np.int32) if positions else None,
    ]  # fmt: skip
    agree(f"{MS}EmbedLayerNormalization", given, 3, rtol=1e-4, atol=1e-5, symbolic=True)


# -- renamed -----------------------------------------------------------------------------------------------


def test_renamed() -> None:
    x = real(2, 3, 4)
    agree(f"{MS}Trilu", [x, np.array(1)], upper=0)
    agree(f"{MS}ExpandDims", [x, np.array(1, np.int32)], consts=(1,))
    agree(f"{MS}ExpandDims", [x, np.array(-1, np.int32)], consts=(1,))
    agree(f"{MS}Pad", [x, np.array([0, 1, 0, 0, 0, 2]), np.array([3.0], np.float32)], consts=(1,))
    agree(f"{MS}Pad", [x, np.array([[0, 1, 0, 0, 0, 2]])], mode="reflect", consts=(1,))
    agree(f"{MS}GatherND", [x, np.array([[0, 1], [1, 2]], np.int32)])
    agree(f"{MS}Range", [np.array(2.0, np.float32), np.array(9.0, np.float32)])
    agree(f"{MS}Range", [np.array([1]), np.array([9]), np.array([3])])
    agree(f"{MS}Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], 3)
    agree(f"{MS}CDist", [real(4, 3), real(5, 3)], rtol=1e-4, metric="sqeuclidean")
    agree(f"{MS}CDist", [real(4, 3), real(5, 3)], rtol=1e-4, metric="euclidean")
    for mode in ("bilinear", "nearest", "bicubic"):
        grid = RNG.uniform(-1.2, 1.2, (2, 3, 3, 2)).astype(np.float32)
        agree(f"{MS}GridSample", [real(2, 1, 4, 4), grid], mode=mode, align_corners=1, rtol=1e-4, atol=1e-5)


def test_integers() -> None:
    a, b = (RNG.integers(0, 256, (3, 4)).astype(np.uint8) for _ in range(2))
    zero = np.array(7, np.uint8)
    given = [a, zero, b, None]
    want = (a.astype(np.int32) - 7) * b
    same(ours(model(f"{MS}MulInteger", given, {}), feeds(given)), [want])
    made = ours(model(f"{MS}ReduceSumInteger", [a], {"axes": [1], "keepdims": 1}), {"x0": a})
    same(made, [a.sum(1, keepdims=True).astype(np.uint32)])


def test_nhwc_max_pool() -> None:
    x = RNG.integers(-128, 128, (1, 6, 7, 3)).astype(np.int8)
    agree(f"{MS}NhwcMaxPool", [x], kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1])


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_causal_convolution(activation: str, past: bool, dilation: int) -> None:
    given = [real(2, 3, 5), real(3, 1, 4), real(3), real(2, 3, 3 * dilation) if past else None]
    attrs: dict[str, Any] = {"activation": activation, "dilation": dilation}
    agree(f"{MS}CausalConvWithState", given, 2, consts=(1, 2), rtol=1e-4, symbolic=True, **attrs)


def bucket(distance: int, buckets: int, longest: int, both: bool) -> int:
    """T5's bucket of a key `distance` behind the query."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(np.log(distance / exact) / np.log(longest / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("both", [0, 1])
def test_relative_position_bias_by_its_definition(both: int) -> None:
    given = [real(16, 3), np.array([50]), np.array([50])]
    proto = model(f"{MS}RelativePositionBias", given, {"is_bidirectional": both, "max_distance": 40}, consts=(1, 2))
    places = [[bucket(q - k, 16, 40, bool(both)) for k in range(50)] for q in range(50)]
    same(ours(proto, feeds(given, (1, 2))), [given[0][np.array(places)].transpose(2, 0, 1)[None]])


def test_first_operators() -> None:
    x = real(1, 3, 6, 7)
    agree("Affine", [x], version=7, alpha=0.5, beta=2.0)
    agree("ScaledTanh", [x], version=7, alpha=0.5, beta=2.0)
    agree("ParametricSoftplus", [x], version=7, alpha=0.5, beta=2.0)
    agree("ImageScaler", [x], version=7, bias=[1.0, 2.0, 3.0], scale=0.5)
    agree("Crop", [x], version=7, border=[1, 2, 3, 1])
    agree("Crop", [x], version=7, border=[1, 2, 3, 1], scale=[2, 3])
    same(ours(model("Scale", [x], {"scale": 0.25}), {"x0": x}), [x * np.float32(0.25)])


# -- what is wrong is said ---------------------------------------------------------------------------------


def test_attributes_are_checked() -> None:
    x = real(2, 3)
    with pytest.raises(AtcError, match=r"'alpah' is none .*\s+did the exporter mean 'alpha'"):
        compile_model(model(f"{MS}QuickGelu", [x], {"alpah": 1.0}), Options())
    with pytest.raises(AtcError, match="must be a float"):
        compile_model(model(f"{MS}QuickGelu", [x], {"alpha": "much"}), Options())
    with pytest.raises(AtcError, match="takes 2 inputs, but has 1"):
        compile_model(model(f"{MS}BiasGelu", [x], {}), Options())
    with pytest.raises(AtcError, match=r"nearest supported: .*QuickGelu"):
        compile_model(model(f"{MS}QuikGelu", [x], {}), Options())


def test_output_names_stay() -> None:
    given = [real(2, 3, 8), real(2, 3, 8), real(8)]
    proto = model(f"{MS}SkipLayerNormalization", given, {}, ["normal", "", "", "sum"])
    graph = proto.graph
    graph.node.append(helper.make_node("Relu", ["sum"], ["z"]))
    graph.output[1].name = "z"
    same(ours(proto, feeds(given)), expected(proto, feeds(given)), 1e-4, 1e-5)
