"""Reductions, ArgMax and ArgMin, cumulative operators: onnx's node tests, every set of axes, precision, emptiness."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import reduce  # noqa: F401 - declares the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from tests.ops.elementwise_cases import cases
from tests.ops.harness import Case, check

REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ["Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]
)
NAMES = (*REDUCTIONS, "ArgMax", "ArgMin", "CumSum", "CumProd")
CASES = [c for c in cases(*NAMES) if not any(a.name == "axes" for a in c.node.attribute)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert {c.op for c in CASES} == set(NAMES)


def run(name: str, *inputs: Any, out: Any = None, **attrs: Any) -> Any:
    op = REGISTRY[name]
    assert op.kernel_fn is not None
    return op.kernel_fn(Call(op.attributes(attrs), (), (out,)), *inputs)


EXACT: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32])
def test_all_sets_of_axes(name: str, dtype: Any) -> None:
    if dtype is np.int32 and "Log" in name:
        return
    x = np.asarray(np.random.default_rng(0).integers(1, 5, (2, 3, 2, 2))).astype(dtype)
    eps = {2: 1e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    for count in range(1, 5):
        for axes in itertools.combinations(range(4), count):
            for keepdims in (0, 1):
                want = EXACT[name](x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
                if np.max(want) > np.finfo(np.float16).max:
                    continue
                for layout in (x, np.asfortranarray(x)):
                    got = run(name, layout, np.array(axes) - 4 * (count % 2), keepdims=keepdims)
                    assert got.shape == want.shape and got.dtype == np.dtype(dtype)
                    want = np.trunc(want) if dtype is np.int32 else want
                    np.testing.assert_allclose(got.astype(np.float64), want, rtol=eps)
                view = np.empty(want.shape, dtype)
                plain = run(name, x, np.array(axes), keepdims=keepdims)
                np.testing.assert_array_equal(run(name, x, np.array(axes), keepdims=keepdims, out=view), plain)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_absent_axes_mean_all_or_none(name: str) -> None:
    x = np.array([[1, 2], [3, 5]], np.float32)
    whole = run(name, x, None, keepdims=0)
    assert whole.shape == ()
    np.testing.assert_allclose(run(name, x, np.array([], np.int64), keepdims=1), np.full((1, 1), whole))
    each = run(name, x, None, noop_with_empty_axes=1)
    np.testing.assert_allclose(each, EXACT[name](x[..., None], axis=-1), rtol=1e-6)


NEUTRAL = {
    "ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceL1": 0, "ReduceL2": 0,
    "ReduceSumSquare": 0, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf, "ReduceMean": np.nan,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_reduces_to_the_neutral_element(name: str) -> None:
    got = run(name, np.empty((2, 0, 3), np.float32), np.array([1]), keepdims=0)
    np.testing.assert_array_equal(got, np.full((2, 3), NEUTRAL[name], np.float32))


def test_extremes_of_nothing_in_integers_and_bools() -> None:
    axes = np.array([0])
    assert run("ReduceMax", np.empty(0, np.int8), axes).tolist() == [-128]
    assert run("ReduceMin", np.empty(0, np.uint8), axes).tolist() == [255]
    assert run("ReduceMax", np.empty(0, np.bool_), axes).tolist() == [False]
    assert run("ReduceMin", np.array([True, False]), axes).tolist() == [False]
    assert np.isnan(run("ReduceMax", np.array([1, np.nan, 2], np.float32), axes)).all()


def test_halves_accumulate_in_float32() -> None:
    x = np.full((1, 4096), 1.5, np.float16)
    assert run("ReduceSum", x, np.array([1]))[0, 0] == np.float16(6144)
    assert run("ReduceMean", np.full(70_000, 60_000, np.float16), None, keepdims=0) == np.float16(60_000)
    assert run("CumSum", np.full(4096, 1.5, np.float16), np.array(0))[-1] == np.float16(6144)
    b = np.full(1000, 1.0, ml_dtypes.bfloat16)
    assert float(run("ReduceSum", b, None, keepdims=0)) == 1000


def test_log_sum_exp_of_large_and_infinite_scores() -> None:
    x = np.array([[1e4, 1e4], [-np.inf, -np.inf], [np.inf, 0], [-1e4, -1e4]], np.float32)
    got = run("ReduceLogSumExp", x, np.array([1]), keepdims=0)
    np.testing.assert_allclose(got, [1e4 + np.log(2), -np.inf, np.inf, -1e4 + np.log(2)], rtol=1e-6)


def test_integer_sums_wrap_and_means_do_not() -> None:
    x = np.array([2**31 - 1, 2**31 - 1], np.int32)
    assert run("ReduceSum", x, None, keepdims=0) == -2
    assert run("ReduceMean", x, None, keepdims=0) == 2**31 - 1
    assert run("ReduceMean", np.array([-7, 0], np.int32), None, keepdims=0) == -3
    assert run("ReduceL2", np.array([3, 3], np.int64), None, keepdims=0) == 4


@pytest.mark.parametrize("name,pick", [("ArgMax", max), ("ArgMin", min)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.float64])
def test_arg_extremes_first_and_last(name: str, pick: Any, dtype: Any) -> None:
    x = np.array([[1, 3, 3, 1], [2, 0, 0, 2]]).astype(dtype)
    rows = [[float(v) for v in r] for r in x]
    first = [r.index(pick(r)) for r in rows]
    last = [3 - r[::-1].index(pick(r)) for r in rows]
    assert run(name, x, axis=-1, keepdims=0).tolist() == first
    assert run(name, x, axis=1, keepdims=1, select_last_index=1).tolist() == [[i] for i in last]


@pytest.mark.parametrize("name,ufunc,neutral", [("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)])
def test_cumulative_in_every_direction(name: str, ufunc: Any, neutral: int) -> None:
    x = np.random.default_rng(0).integers(1, 4, (3, 4, 2))
    for axis in (-1, 0, 1):
        want = ufunc(x, axis=axis)
        np.testing.assert_array_equal(run(name, x, np.array([axis])), want)
        back = np.flip(ufunc(np.flip(x, axis), axis=axis), axis)
        np.testing.assert_array_equal(run(name, x, np.array(axis), reverse=1), back)
        shifted = np.insert(np.delete(want, -1, axis), 0, neutral, axis)
        np.testing.assert_array_equal(run(name, x, np.array(axis), exclusive=1), shifted)
        shifted = np.insert(np.delete(back, 0, axis), back.shape[axis] - 1, neutral, axis)
        np.testing.assert_array_equal(run(name, x, np.array(axis), exclusive=1, reverse=1), shifted)


def infer(name: str, types: tuple[Tensor | None, ...], values: tuple[Any, ...] = (), **attrs: Any) -> Any:
    count = itertools.count()
    op = REGISTRY[name]
    assert op.infer_fn is not None
    return op.infer_fn(Infer(types, op.attributes(attrs), 1, values, lambda why: symbol(f"u{next(count)}")))


def test_types() -> None:
    n = symbol("N")
    x, axes = Tensor(DType.FLOAT32, (n, 3, 5)), Tensor(DType.INT64, (1,))
    assert infer("ReduceSum", (x, axes), (None, np.array([-1]))).shape == (n, 3, 1)
    assert infer("ReduceSum", (x, axes), (None, np.array([1])), keepdims=0).shape == (n, 5)
    assert infer("ReduceSum", (x, None)).shape == (1, 1, 1)
    assert infer("ReduceSum", (x, None), noop_with_empty_axes=1) == x
    assert len(infer("ReduceSum", (x, axes), keepdims=0).shape) == 2  # axes unknown: fresh sizes
    assert infer("ReduceSum", (x, Tensor(DType.INT64, (n,))), keepdims=0).shape is None
    assert infer("ReduceSum", (Tensor(DType.FLOAT32, None), None), keepdims=0).shape == ()
    assert infer("ArgMax", (x,), axis=1, keepdims=0) == Tensor(DType.INT64, (n, 5))
    with pytest.raises(InferError, match="outside"):
        infer("ReduceSum", (x, axes), (None, np.array([3])))
    with pytest.raises(InferError, match="must be one of"):
        infer("ReduceLogSumExp", (Tensor(DType.INT32, (2,)), None))
