"""Normalizations: node tests, a float64 definition over shapes and dtypes, views, statistics, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import check, infer, onnxruntime_run, run

RNG = np.random.default_rng(5)
OPS = (
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization",
    "LRN", "MeanVarianceNormalization", "LpNormalization",
)  # fmt: skip


@pytest.mark.parametrize("test", node_models.node_tests(*OPS), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


def standard(x: Any, axes: tuple[int, ...], epsilon: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def channels(v: Any) -> Any:
    return v[:, None, None]


def definition(op: str, x: Any, s: Any, b: Any) -> Any:
    """The operators on [2, 6, 5, 4] in float64."""
    if op == "InstanceNormalization":
        return standard(x, (2, 3)) * channels(s) + channels(b)
    if op == "GroupNormalization":
        return standard(x.reshape(2, 3, -1), (2,)).reshape(x.shape) * channels(s) + channels(b)
    if op == "LayerNormalization":
        return standard(x, (1, 2, 3)) * channels(s) + channels(b)
    if op == "RMSNormalization":
        return x / np.sqrt((x * x).mean((1, 2, 3), keepdims=True) + 1e-5) * channels(s)
    if op == "MeanVarianceNormalization":
        return standard(x, (0, 2, 3), 0)
    if op == "LpNormalization":
        return x / np.sqrt((x * x).sum(1, keepdims=True))
    padded = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return x / (1 + 1e-4 / 3 * sum(padded[:, i : i + 6] for i in range(3))) ** 0.75


ATTRS: dict[str, dict[str, Any]] = {
    "GroupNormalization": {"num_groups": 3}, "LayerNormalization": {"axis": 1}, "RMSNormalization": {"axis": -3},
    "LpNormalization": {"axis": 1}, "LRN": {"size": 3},
}  # fmt: skip


@pytest.mark.parametrize("op", OPS[1:])
@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 1e-5), (np.float16, 2**-9), (ml_dtypes.bfloat16, 2**-6),
                                             (np.float64, 1e-7)])  # fmt: skip
def test_definition(op: str, dtype: Any, unit: float) -> None:
    """Views in and out, statistics in float32 or wider: close to the float64 definition in every dtype."""
    x = (RNG.standard_normal((2, 5, 4, 6)) * 4 + 3).astype(dtype).transpose(0, 3, 1, 2)
    s, b = RNG.standard_normal(6).astype(dtype), RNG.standard_normal(6).astype(dtype)
    attrs, inputs = ATTRS.get(op, {}), [x, s, b]
    if op in ("LayerNormalization", "RMSNormalization"):
        inputs = [x, s.reshape(6, 1, 1), b.reshape(6, 1, 1)][: 3 if op[0] == "L" else 2]
    inputs = inputs[:1] if op in ("MeanVarianceNormalization", "LpNormalization", "LRN") else inputs
    want = definition(op, *(v.astype(np.float64) for v in (x, s, b)))
    outer = np.empty((2, 8, 5, 4), dtype)
    for outs in (None, [outer[:, 1:7]]):
        got = run(op, attrs, inputs, outs=outs)[0]
        assert got.dtype == dtype and (outs is None or got is outs[0])
        np.testing.assert_allclose(got.astype(np.float64), want, unit, unit)
    assert run(op, attrs, [inputs[0][:0], *inputs[1:]])[0].shape == (0, 6, 5, 4)
    n = symbol("N")
    assert infer(op, attrs, [(n, 6, 5, 4), *(v.shape for v in inputs[1:])])[0] == (n, 6, 5, 4)


def test_squares_of_half_do_not_overflow() -> None:
    x = np.full((1, 4, 2, 2), 1000, np.float16)
    assert run("LpNormalization", {"axis": 1}, [x])[0].max() == 0.5
    assert run("LRN", {"size": 3}, [x])[0].min() > 0
    np.testing.assert_allclose(run("RMSNormalization", {}, [x, np.ones(2, np.float16)])[0], 1, 1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("consts", [(), (1, 2, 3, 4)])
def test_batch_norm(dtype: Any, consts: tuple[int, ...]) -> None:
    x = RNG.standard_normal((2, 3, 5, 4)).astype(dtype)
    s, b, m = (RNG.standard_normal(3).astype(np.float32) for _ in range(3))
    v = RNG.random(3).astype(np.float32) + 0.1
    want = (x - channels(m)) / np.sqrt(channels(v) + 1e-3) * channels(s) + channels(b)
    got = run("BatchNormalization", {"epsilon": 1e-3}, [x, s, b, m, v], consts=consts)[0]
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, 3e-3, 3e-3)
    flat = x[:, :, 0, 0]
    assert run("BatchNormalization", {"epsilon": 1e-3}, [flat, s, b, m, v])[0].shape == (2, 3)


def test_layer_norm_statistics() -> None:
    x = RNG.standard_normal((2, 3, 8)).astype(np.float16)
    w = np.ones(8, np.float16)
    y, mean, inverse = run("LayerNormalization", {}, [x, w], 3)
    assert mean.dtype == inverse.dtype == np.float32 and mean.shape == inverse.shape == (2, 3, 1)
    np.testing.assert_allclose((x - mean) * inverse, y, 2e-3, 2e-3)
    s = symbol("S")
    shapes = infer("LayerNormalization", {"axis": -2}, [(2, s, 8), (8,)], outputs=3)
    assert shapes == ((2, s, 8), (2, 1, 1), (2, 1, 1))
    wanted = onnxruntime_run("LayerNormalization", {}, [x.astype(np.float32), w.astype(np.float32)], 3, 17)
    assert wanted is not None
    for got, want in zip(run("LayerNormalization", {}, [x.astype(np.float32), w.astype(np.float32)], 3), wanted):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_zero_norm() -> None:
    got = run("LpNormalization", {"p": 1}, [np.array([[0, 0], [1, -3]], np.float32)])[0]
    assert got.tolist() == [[0, 0], [0.25, -0.75]]


def test_errors() -> None:
    with pytest.raises(InferError, match="one entry a channel"):
        infer("InstanceNormalization", {}, [(1, 4, 8), (3,), (4,)])
    with pytest.raises(InferError, match="num_groups"):
        infer("GroupNormalization", {"num_groups": 3}, [(1, 4, 8), (4,), (4,)])
    with pytest.raises(InferError, match="axis"):
        infer("LayerNormalization", {"axis": 3}, [(1, 4, 8), (8,)])
    with pytest.raises(InferError, match="training_mode"):
        infer("BatchNormalization", {}, [(1, 4, 8), (4,), (4,), (4,), (4,)], outputs=3)
    assert infer("LRN", {"size": 3}, [...]) == (None,)
