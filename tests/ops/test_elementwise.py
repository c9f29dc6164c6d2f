"""Unary operators and activations: onnx's node tests, accuracy against the C library, extremes, costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import activations, elementwise, softmax  # noqa: F401 - declare the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from tests.ops.elementwise_cases import cases
from tests.ops.harness import Case, check

_LIST = """
    Abs Neg Sign Ceil Floor Round Sqrt Reciprocal Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
    Tanh BitwiseNot Not Erf IsNaN IsInf Identity Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu HardSigmoid
    HardSwish Sigmoid Softplus Softsign Gelu Mish Swish Shrink Clip Softmax LogSoftmax Hardmax Dropout
"""
NAMES = tuple(_LIST.split())


def _trains(case: Case) -> bool:
    """Whether a Dropout draws: its expected result is that of another generator."""
    return case.op == "Dropout" and len(case.inputs) > 2 and bool(case.inputs[2]) and case.inputs[1] != 0


def _tensors(case: Case) -> bool:
    return all(v is None or v.dtype != object for v in case.inputs)


CASES = [c for c in cases(*NAMES) if not _trains(c) and _tensors(c)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert {c.op for c in CASES} == set(NAMES)


def run(name: str, *inputs: Any, **attrs: Any) -> Any:
    op = REGISTRY[name]
    assert op.kernel_fn is not None
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        result = op.kernel_fn(Call(op.attributes(attrs), (), (None,)), *inputs)
    return result[0] if isinstance(result, tuple) else result


GRID = np.concatenate([np.linspace(-12, 12, 40_001), np.logspace(-30, 3, 2000), -np.logspace(-30, 3, 2000)])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


EXACT: dict[str, Callable[[float], float]] = {
    "Erf": math.erf,
    "Gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "Sigmoid": sigmoid,
    "Tanh": math.tanh,
    "Softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Mish": lambda x: x * math.tanh(max(x, 0) + math.log1p(math.exp(-abs(x)))),
    "Swish": lambda x: x * sigmoid(x),
    "Elu": lambda x: max(x, 0) + math.expm1(min(x, 0)),
    "HardSwish": lambda x: x * min(max(x / 6 + 0.5, 0), 1),
    "HardSigmoid": lambda x: min(max(0.2 * x + 0.5, 0), 1),
}


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_accuracy(name: str, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        x = GRID.astype(dtype)
    x = x[np.abs(x) < 1e4]
    want = np.array([EXACT[name](float(v)) for v in x])
    got = run(name, x).astype(np.float64)
    eps = float(np.finfo(dtype).eps)
    # A few roundings of a result of this size, and of the type's smallest step near zero.
    np.testing.assert_allclose(
        got, want, rtol=0, atol=max(4 * eps * 12, 0) if name in ("Gelu", "Mish", "Swish") else 4 * eps
    )
    big = np.abs(want) > 1
    np.testing.assert_allclose(got[big], want[big], rtol=4 * eps)


def test_erf_and_gelu_in_float32_are_good_to_the_last_digits() -> None:
    x = np.linspace(-6, 6, 200_001).astype(np.float32)
    want = np.array([math.erf(float(v)) for v in x])
    assert np.max(np.abs(run("Erf", x) - want)) < 1.5e-7
    tiny = np.logspace(-35, -1, 1000).astype(np.float32)
    assert np.max(np.abs(run("Erf", tiny) / np.array([math.erf(float(v)) for v in tiny]) - 1)) < 4e-7
    tail = np.linspace(-4, -1, 1000).astype(np.float32)
    want = np.array([EXACT["Gelu"](float(v)) for v in tail])
    assert np.max(np.abs(run("Gelu", tail) / want - 1)) < 1e-4  # the plain formula has lost half its digits here


EXTREMES = {
    "Sigmoid": [0, 1, math.nan, 0.5],
    "Tanh": [-1, 1, math.nan, 0],
    "Erf": [-1, 1, math.nan, 0],
    "Relu": [0, math.inf, math.nan, 0],
    "LeakyRelu": [-math.inf, math.inf, math.nan, 0],
    "Elu": [-1, math.inf, math.nan, 0],
    "Celu": [-1, math.inf, math.nan, 0],
    "Softplus": [0, math.inf, math.nan, math.log(2)],
    "HardSigmoid": [0, 1, math.nan, 0.5],
    "ThresholdedRelu": [0, math.inf, 0, 0],
    "Shrink": [-math.inf, math.inf, 0, 0],
    "Sign": [-1, 1, math.nan, 0],
    "Abs": [math.inf, math.inf, math.nan, 0],
    "Clip": [float(np.finfo(np.float32).min), float(np.finfo(np.float32).max), math.nan, 0],
}


@pytest.mark.parametrize("name", sorted(EXTREMES))
def test_extremes(name: str) -> None:
    x = np.array([-np.inf, np.inf, np.nan, 0], np.float32)
    np.testing.assert_allclose(run(name, x), np.array(EXTREMES[name], np.float32), rtol=1e-6)
    large = np.array([-1e30, 1e30], np.float32)
    assert not np.isnan(run(name, large)).any()


@pytest.mark.parametrize("name", ["Gelu", "Swish", "HardSwish", "Mish"])
def test_gates_vanish_far_left_and_pass_far_right(name: str) -> None:
    for x in (np.array([-1e30, 1e30], np.float32), np.array([-300, 300], np.float64), np.array([-60, 60], np.float16)):
        np.testing.assert_allclose(run(name, x).astype(np.float64), [0, x[1]], atol=1e-12)


def test_integers_wrap() -> None:
    x = np.array([-128, 127, 5], np.int8)
    assert run("Abs", x).tolist() == [-128, 127, 5]
    assert run("Neg", x).tolist() == [-128, -127, -5]
    assert run("Shrink", x, lambd=10.0, bias=3.0).tolist() == [-125, 124, 0]


def test_blocks_of_all_lengths_agree() -> None:
    for size in (1, 32767, 32768, 32769, 80_000):
        x = np.random.default_rng(size).normal(size=size).astype(np.float32)
        whole = run("Gelu", x)
        np.testing.assert_array_equal(whole[-7:], run("Gelu", x[-7:].copy())[-7:])


HALF_NAMES = [
    n for n in NAMES if n not in ("PRelu", "Softmax", "LogSoftmax", "Hardmax", "Dropout", "Not", "BitwiseNot")
]


@pytest.mark.parametrize("name", HALF_NAMES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_looked_up_as_they_are_computed(name: str, dtype: Any) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    results = [run(name, x), np.concatenate([run(name, p) for p in np.split(x, 8)]), run(name, x.reshape(256, 256).T)]
    with np.errstate(invalid="ignore"):
        whole, parts, turned = (r.astype(np.float64) for r in results)
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(turned, whole.reshape(256, 256).T)


def test_lookup_tells_attributes_and_bounds_apart() -> None:
    x = np.linspace(-4, 4, 40_000).astype(np.float16)
    for alpha in (0.5, 0.25):
        assert run("LeakyRelu", x, alpha=alpha)[0] == -4 * alpha
    for high in (1, 2):
        assert run("Clip", x, np.array(-1, np.float16), np.array(high, np.float16)).max() == high


def test_clip_with_bounds_that_cross_gives_the_upper_one() -> None:
    x = np.array([-5, 0, 5], np.float32)
    assert run("Clip", x, np.float32(3), np.float32(-1)).tolist() == [-1, -1, -1]
    assert run("Clip", x.astype(np.int16), None, np.array(2, np.int16)).tolist() == [-5, 0, 2]


@pytest.mark.parametrize(
    "shape,axis", [((5, 7), -1), ((5, 7), 0), ((3, 40_000), 1), ((2, 50, 33), 1), ((9, 40), 1), ((2, 3, 1), 2)]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softmax_family(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = (np.random.default_rng(0).normal(size=shape) * 5).astype(dtype)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    want = e / e.sum(axis, keepdims=True)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(
        run("Softmax", x, axis=axis), want, rtol=40 * eps, atol=1e-7 if dtype == np.float16 else 0
    )
    np.testing.assert_allclose(run("LogSoftmax", x, axis=axis), np.log(want), rtol=8 * eps, atol=8 * eps)
    hard = run("Hardmax", x, axis=axis)
    np.testing.assert_array_equal(np.argmax(hard, axis), np.argmax(x, axis))
    assert (hard.sum(axis) == 1).all()


def test_softmax_of_huge_scores_and_masks() -> None:
    x = np.array([[3e38, 3e38, -3e38], [-np.inf, 0, -np.inf], [-np.inf] * 3], np.float32)
    got = run("Softmax", x)
    np.testing.assert_array_equal(got[:2], np.array([[0.5, 0.5, 0], [0, 1, 0]], np.float32))
    assert np.isnan(got[2]).all()


def test_dropout_draws_by_its_key_and_keeps_the_mean() -> None:
    op = REGISTRY["Dropout"]
    assert op.kernel_fn is not None and op.flags.random
    x = np.ones(20_000, np.float32)
    ratio, train = np.array(0.25, np.float32), np.array(True)

    def draw(run_number: int) -> Any:
        call = Call({"seed": None}, (), (None, None), key=(1, 2, run_number))
        assert op.kernel_fn is not None
        return op.kernel_fn(call, x, ratio, train)

    (a, mask), (b, _), (c, _) = draw(0), draw(0), draw(1)
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    np.testing.assert_array_equal(a != 0, mask)
    assert set(np.unique(a).tolist()) == {0.0, float(np.float32(4 / 3))}
    assert abs(a.mean() - 1) < 0.02


def test_dropout_with_a_seed_draws_the_mask_of_onnx_s_tests() -> None:
    op = REGISTRY["Dropout"]
    assert op.kernel_fn is not None
    x = np.ones((3, 4, 5), np.float32)
    wanted = np.random.RandomState(0).uniform(0, 1, x.shape) >= 0.75
    for run_number in (0, 1):
        call = Call({"seed": 0}, (), (None, None), key=(1, 2, run_number))
        _, mask = op.kernel_fn(call, x, np.array(0.75, np.float32), np.array(True))
        np.testing.assert_array_equal(mask, wanted)


def test_random_operators_with_a_seed_differ_by_run_and_by_seed() -> None:
    draws = [
        Call({"seed": seed}, key=(0, 2, execution)).random().random(64)
        for seed, execution in ((1.5, 0), (1.5, 1), (2.5, 0), (1.5, 1 << 64), (None, 0))
    ]
    assert len({d.tobytes() for d in draws}) == len(draws)
    # The streams of two executions do not overlap: no number of one is in the other.
    assert not set(draws[0].tolist()) & set(draws[1].tolist())


def test_types() -> None:
    n_dim = symbol("N")
    t = Tensor(DType.FLOAT32, (n_dim, 4))
    op = REGISTRY["Gelu"]
    assert op.infer_fn is not None
    n = Infer((t,), op.attributes({}))
    assert op.infer_fn(n) == t
    assert op.work(n, (t,)).vector == (n_dim * 4) * (op.work(Infer((Tensor(DType.FLOAT32, (1,)),), {}), ()).vector)
    with pytest.raises(InferError, match=r"input 0 must be one of float32, .* but is int32"):
        op.infer_fn(Infer((Tensor(DType.INT32, (2,)),), {}))
    assert op.infer_fn(Infer((Tensor(DType.FLOAT32, None),), {})) == Tensor(DType.FLOAT32, None)
    prelu = REGISTRY["PRelu"].infer_fn
    assert prelu is not None
    with pytest.raises(InferError, match="does not broadcast"):
        prelu(Infer((Tensor(DType.FLOAT32, (2, 3)), Tensor(DType.FLOAT32, (2,))), {}))
    clip = REGISTRY["Clip"].infer_fn
    assert clip is not None
    with pytest.raises(InferError, match="must be a scalar"):
        clip(Infer((t, Tensor(DType.FLOAT32, (2,)), None), {}))


@pytest.mark.parametrize("repeats", [1, 2000])
@pytest.mark.parametrize("name,attrs", [("Elu", {"alpha": 1.5}), ("Elu", {"alpha": -1.0}), ("Celu", {"alpha": 2.0}),
                                        ("LeakyRelu", {"alpha": 0.1}), ("LeakyRelu", {"alpha": -3.0})])  # fmt: skip
def test_what_is_not_below_zero_is_its_own_result(name: str, attrs: dict[str, float], repeats: int) -> None:
    """f(x) = x for x >= 0, and -0 >= 0; with few elements and with many, which are computed in different ways."""
    x = np.tile(np.array([-0.0, 0.0, 3.5, np.inf, -2.0], np.float32), repeats)
    got = run(name, x, **attrs)
    kept = x >= 0
    np.testing.assert_array_equal(got[kept].view(np.uint32), x[kept].view(np.uint32))
    below = attrs["alpha"] * {"LeakyRelu": -2.0, "Celu": np.expm1(-2 / attrs["alpha"]), "Elu": np.expm1(-2)}[name]
    np.testing.assert_allclose(got[~kept], below, 1e-6)


@pytest.mark.parametrize("slope", [0.25, -0.25, 0.0, -0.0, np.inf, np.nan])
@pytest.mark.parametrize("repeats", [1, 2000])
def test_prelu_multiplies_only_below_zero(slope: float, repeats: int) -> None:
    x = np.tile(np.array([-0.0, 0.0, 3.5, -2.0], np.float32), repeats)
    with np.errstate(invalid="ignore"):
        want = np.where(x < 0, x * np.float32(slope), x)
    np.testing.assert_array_equal(run("PRelu", x, np.array([slope], np.float32)).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("lambd,bias", [(0.5, 0.25), (-1.0, 0.25), (0.0, np.inf)])
@pytest.mark.parametrize("repeats", [1, 2000])
def test_shrink_few_and_many(lambd: float, bias: float, repeats: int) -> None:
    x = np.tile(np.array([-np.inf, -2, -0.5, -0.0, 0, 0.5, 2, np.inf, np.nan], np.float32), repeats)
    shift = np.float32(bias)
    with np.errstate(all="ignore"):
        want = np.where(x < -lambd, x + shift, np.where(x > lambd, x - shift, np.float32(0)))
    np.testing.assert_array_equal(run("Shrink", x, lambd=lambd, bias=bias), want)
