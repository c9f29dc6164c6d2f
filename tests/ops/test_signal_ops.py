"""Signal and random operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import random_ops, signal_ops  # noqa: F401 - registers the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from tests.ops import node_models
from tests.ops.test_shape_ops import run

N = symbol("N")
OPS = ("STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
DFT = [t for t in node_models.node_tests("DFT") if t.model.opset_import[0].version >= 20]


@pytest.mark.parametrize("test", DFT + node_models.node_tests(*OPS), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node_models.check(test)


def shape_of(op: str, types: list[Any], values: tuple[Any, ...] = (), **attrs: Any) -> Any:
    fn = REGISTRY[op].infer_fn
    assert fn is not None
    got: Any = fn(Infer(tuple(types), REGISTRY[op].attributes(attrs), 1, values, symbol))
    return got.shape


def test_transform_shapes() -> None:
    signal, one = Tensor(DType.FLOAT32, (2, N, 1)), Tensor(DType.INT64, ())
    assert shape_of("DFT", [signal], onesided=1) == (2, N // 2 + 1, 2)
    assert shape_of("DFT", [signal, one], (None, np.array(16))) == (2, 16, 2)
    half = Tensor(DType.FLOAT32, (2, N + 1, 2))
    assert shape_of("DFT", [half], onesided=1, inverse=1) == (2, 2 * N, 1)
    window = Tensor(DType.FLOAT32, (400,))
    got = shape_of("STFT", [signal, one, window], (None, np.array(160), None))
    assert got == (2, (N - 400) // 160 + 1, 201, 2)
    with pytest.raises(InferError):
        shape_of("DFT", [signal, None, one], (None, None, np.array(-1)))
    assert shape_of("HannWindow", [one], (np.array(7),)) == (7,)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("length", [8, 9])
def test_there_and_back(dtype: Any, length: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, length, 1)).astype(dtype)
    spectrum = run("DFT", {"onesided": 1}, x)
    back = run("DFT", {"onesided": 1, "inverse": 1}, spectrum, np.array(length))
    assert back.dtype == dtype
    np.testing.assert_allclose(
        back.astype(np.float64), x.astype(np.float64), atol=0.01 if dtype is np.float16 else 1e-12
    )


def test_stft_of_frames_that_do_not_fit() -> None:
    with pytest.raises(InferError):
        run("STFT", {}, np.zeros((1, 5, 1)), np.array(2), None, np.array(8))


def test_windows_of_few_samples() -> None:
    assert run("HannWindow", {}, np.array(0)).shape == (0,)
    assert np.isfinite(run("HammingWindow", {"periodic": 0}, np.array(1))).all()


def draw(op: str, attrs: dict[str, Any], *inputs: Any, key: tuple[int, int, int] = (1, 2, 3)) -> Any:
    kernel = REGISTRY[op].kernel_fn
    assert kernel is not None
    return kernel(Call(REGISTRY[op].attributes(attrs), (None,), [None], key=key), *inputs)


RANDOM: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("RandomNormal", {"shape": (200, 50), "mean": 3.0, "scale": 2.0}, ()),
    ("RandomUniform", {"shape": (200, 50), "low": -1.0, "high": 3.0, "dtype": DType.FLOAT16}, ()),
    ("RandomNormalLike", {}, (np.zeros((200, 50), np.float64),)),
    ("RandomUniformLike", {"dtype": DType.BFLOAT16}, (np.zeros((200, 50), np.int32),)),
    ("Bernoulli", {"dtype": DType.BOOL}, (np.full((200, 50), 0.3),)),
    ("Multinomial", {"sample_size": 5000}, (np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0 + 1e-30]])),)),
]


@pytest.mark.parametrize(("op", "attrs", "inputs"), RANDOM)
def test_random_is_keyed(op: str, attrs: dict[str, Any], inputs: tuple[Any, ...]) -> None:
    assert REGISTRY[op].flags.random
    first = draw(op, attrs, *inputs)
    np.testing.assert_array_equal(first, draw(op, attrs, *inputs))
    for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3)):
        assert (first != draw(op, attrs, *inputs, key=key)).any()
    types = [Tensor(DType.of(x.dtype), x.shape) for x in inputs]
    assert shape_of(op, types, **attrs) == first.shape


def test_random_distributions() -> None:
    normal, uniform, _, _, coins, classes = (draw(op, attrs, *inputs) for op, attrs, inputs in RANDOM)
    assert abs(normal.mean() - 3) < 0.1 and abs(normal.std() - 2) < 0.1 and normal.dtype == np.float32
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(float(uniform.astype(float).mean()) - 1) < 0.1
    assert coins.dtype == np.bool_ and abs(coins.mean() - 0.3) < 0.03
    assert classes.dtype == np.int32 and classes.shape == (2, 5000) and not (classes[1] == 2).any()
    np.testing.assert_allclose(np.bincount(classes[0]) / 5000, [0.1, 0.2, 0.7], atol=0.03)
