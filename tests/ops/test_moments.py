"""Moments in blocks: against float64, also where the mean is large, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Infer, InferError
from atc_py.ops.evaluate import run

GENERATED = settings(max_examples=60, deadline=None, derandomize=True)


def call(op: str, inputs: list[Any], outputs: int, **attrs: Any) -> list[Any]:
    found = get(op)
    assert found is not None
    return [np.asarray(y) for y in run(found, found.attributes(attrs), inputs, [None] * outputs)]


def moments(x: Any, block: tuple[int, int], groups: int = 0) -> list[Any]:
    at = {"block": block}
    return call("CombineMoments", call("BlockMoments", [x], 2, **at), 2, size=x.shape[2:], num_groups=groups, **at)


@GENERATED
@given(
    st.sampled_from([np.float16, np.float32]),
    st.tuples(st.integers(1, 2), st.sampled_from([2, 4, 6]), st.integers(1, 21), st.integers(1, 21)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([0.0, 1.0, -300.0, 1000.0]),
    st.sampled_from([0, 1, 2]),
    st.integers(0, 99),
)
def test_moments_are_those_of_float64(
    dtype: Any, shape: tuple[int, ...], block: tuple[int, int], mean: float, groups: int, seed: int
) -> None:
    x = (np.random.default_rng(seed).standard_normal(shape) * 3 + mean).astype(dtype)
    exact = x.astype(np.float64).reshape(shape[0], groups or shape[1], -1)
    found = moments(x, block, groups)
    for got, want in zip(found, (exact.mean(2), exact.var(2)), strict=True):
        assert got.dtype == np.float32 and got.shape == (*shape[:2], 1, 1)
        each = np.repeat(want, shape[1] // want.shape[1], axis=1)
        np.testing.assert_allclose(got.reshape(shape[:2]), each, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("places", [[(0, 0)], [(0, 0), (9, 3)], [(19, 20)], [(3, 3), (12, 12)]])
def test_a_mean_of_infinities_is_infinite(value: float, places: list[tuple[int, int]]) -> None:
    """As a plain mean is, in whichever block they are."""
    x = np.ones((2, 2, 20, 21), np.float32)
    for row, column in places:
        x[1, 0, row, column] = value
    for groups in (0, 1):
        found = moments(x, (8, 8), groups)[0].reshape(2, -1)
        want = x.reshape(2, groups or 2, -1).mean(2)
        np.testing.assert_array_equal(found, np.broadcast_to(want, (2, 2)))


@pytest.mark.parametrize("shape", [(0, 4, 9, 7), (2, 0, 9, 7), (0, 0, 9, 7)])
@pytest.mark.parametrize("groups", [0, 2])
def test_an_empty_batch_has_no_moments(shape: tuple[int, ...], groups: int) -> None:
    """A batch whose size is known at run time may be empty."""
    for got in moments(np.ones(shape, np.float32), (8, 8), groups):
        assert got.shape == (*shape[:2], 1, 1)


@pytest.mark.parametrize(("mean", "spread"), [(1e3, 1e-1), (1e4, 1.0), (-1e5, 30.0)])
def test_a_large_mean_costs_no_digits(mean: float, spread: float) -> None:
    """Sums of squares in float32 would leave nothing of these variances."""
    x = (np.random.default_rng(1).standard_normal((1, 3, 40, 50)) * spread + mean).astype(np.float32)
    exact = x.astype(np.float64)
    squares = np.square(x).mean((2, 3), dtype=np.float32) - np.square(x.mean((2, 3), dtype=np.float32))
    variance = exact.var((2, 3))
    assert np.abs(squares / variance - 1).max() > 0.01
    found = moments(x, (8, 8))
    np.testing.assert_allclose(found[1].reshape(1, 3), variance, rtol=1e-4)
    np.testing.assert_allclose(found[0].reshape(1, 3), exact.mean((2, 3)), rtol=1e-7)


@GENERATED
@given(
    st.sampled_from([np.float16, np.float32]),
    st.sampled_from([0.0, 5.0, 2000.0]),
    st.sampled_from([(1, 4, 17, 9), (2, 8, 8, 8), (1, 2, 1, 3)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_applied_they_are_the_norm(dtype: Any, mean: float, shape: tuple[int, ...], groups: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) + mean).astype(dtype)
    scale, bias = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    exact = x.astype(np.float64).reshape(shape[0], 2 if groups else shape[1], -1)
    exact = (exact - exact.mean(2, keepdims=True)) / np.sqrt(exact.var(2, keepdims=True) + 1e-3)
    want = exact.reshape(shape) * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)
    [got] = call("INInferV2", [x, scale, bias, *moments(x, (4, 8), 2 * groups)], 1, epsilon=1e-3)
    # The mean is a float32 number: what it is off, all results are, times scale / deviation.
    tolerance = float(1e-5 + 8 * np.finfo(np.float32).eps * mean) if dtype is np.float32 else 4e-3
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def test_the_mean_alone_has_the_dtype_that_is_asked_for() -> None:
    x = np.full((1, 2, 9, 9), 40_000, np.float16)  # a sum of two of them is no float16
    blocks = call("BlockMoments", [x], 1, block=(8, 8))
    assert blocks[0].dtype == np.float32 and blocks[0].shape == (1, 2, 2, 2)
    [mean] = call("CombineMoments", blocks, 1, block=(8, 8), size=(9, 9), dtype=DType.FLOAT16)
    assert mean.dtype == np.float16 and (mean == np.float16(40_000)).all()


def test_their_work_is_that_of_the_norm() -> None:
    x, vector, moment = (Tensor(DType.FLOAT16, s) for s in ((1, 32, 64, 64), (32,), (1, 32, 1, 1)))
    norm, blocks, apply = (get(n) for n in ("InstanceNormalization", "BlockMoments", "INInferV2"))
    assert norm is not None and blocks is not None and apply is not None
    whole = norm.work(Infer((x, vector, vector), norm.attributes({})), [x])
    taken = blocks.work(Infer((x,), blocks.attributes({"block": (8, 8)}), 2), [moment, moment])
    applied = apply.work(Infer((x, vector, vector, moment, moment), apply.attributes({})), [x])
    assert taken.wide + applied.wide == whole.wide and not taken.vector and not applied.vector


@pytest.mark.parametrize(
    ("op", "types", "attrs", "outputs", "why"),
    [
        ("BlockMoments", [(1, 2, 3)], {"block": (8, 8)}, 2, "rank 3"),
        ("BlockMoments", [(1, 2, 3, 3)], {"block": (8, 0)}, 2, "block"),
        ("CombineMoments", [(1, 2, 2, 2)], {"block": (8, 8), "size": (9, 9)}, 2, "no deviations"),
        ("CombineMoments", [(1, 2, 3, 2)], {"block": (8, 8), "size": (9, 9)}, 1, "3', '2'"),
        ("CombineMoments", [(1, 3, 2, 2)], {"block": (8, 8), "size": (9, 9), "num_groups": 2}, 1, "does not divide"),
        ("INInferV2", [(1, 2, 3, 3), (2,), (3,), (1, 2, 1, 1), (1, 2, 1, 1)], {}, 1, "input 2"),
        ("INInferV2", [(1, 2, 3, 3), (2,), (2,), (1, 2, 1, 1), (1, 2)], {}, 1, "input 4"),
    ],
)
def test_what_is_wrong_is_said(op: str, types: list[Any], attrs: dict[str, Any], outputs: int, why: str) -> None:
    found = get(op)
    assert found is not None and found.infer_fn is not None
    tensors = tuple(Tensor(DType.FLOAT32, t) for t in types)
    with pytest.raises(InferError, match=why):
        found.infer_fn(Infer(tensors, found.attributes(attrs), outputs))
