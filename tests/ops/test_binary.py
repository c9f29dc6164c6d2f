"""Binary and variadic operators: onnx's node tests, integer rules of C, broadcasting, Where's selection by bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import binary  # noqa: F401 - declares the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from tests.ops.elementwise_cases import cases
from tests.ops.harness import Case, check

_LIST = """
    Add Sub Mul Div Mod Pow BitShift BitwiseAnd BitwiseOr BitwiseXor And Or Xor Equal Less LessOrEqual Greater
    GreaterOrEqual Min Max Sum Mean Where
"""
NAMES = tuple(_LIST.split())
CASES = cases(*NAMES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert {c.op for c in CASES} == set(NAMES)


def run(name: str, *inputs: Any, out: Any = None, **attrs: Any) -> Any:
    op = REGISTRY[name]
    assert op.kernel_fn is not None
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        return op.kernel_fn(Call(op.attributes(attrs), (), (out,)), *inputs)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_integer_arithmetic_is_that_of_c(dtype: Any) -> None:
    info = np.iinfo(dtype)
    bits = info.bits
    values = [int(info.min), int(info.max), 0, 1, 2, 3, 7, 100] + ([-1, -2, -3, -7] if info.min < 0 else [])
    pairs = list(itertools.product(values, values))
    a, b = (np.array(side, dtype) for side in zip(*pairs))

    def wrapped(x: int) -> int:
        low = x & ((1 << bits) - 1)
        return low - (1 << bits) if info.min < 0 and low >= 1 << (bits - 1) else low

    rules: dict[str, Callable[[int, int], int]] = {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "Div": lambda x, y: (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1) if y else 0,
        "Mod": lambda x, y: x % y if y else 0,
        "Max": max,
        "Min": min,
    }
    for name, rule in rules.items():
        assert run(name, a, b).tolist() == [wrapped(rule(x, y)) for x, y in pairs], name
    fmod = [wrapped((abs(x) % abs(y)) * (-1 if x < 0 else 1)) if y else 0 for x, y in pairs]
    assert run("Mod", a, b, fmod=1).tolist() == fmod


def test_shifts_beyond_the_width_leave_the_sign() -> None:
    x = np.array([-5, 5, -5, 5, 1], np.int8)
    by = np.array([8, 8, -1, 100, 7], np.int8)
    assert run("BitShift", x, by, direction="RIGHT").tolist() == [-1, 0, -1, 0, 0]
    assert run("BitShift", x, by, direction="LEFT").tolist() == [0, 0, 0, 0, -128]


def test_float_modulo_follows_the_sign_of_the_divisor_or_the_dividend() -> None:
    a, b = np.array([5.5, -5.5, 5.5, -5.5, 1.0], np.float32), np.array([2, 2, -2, -2, np.inf], np.float32)
    assert run("Mod", a, b).tolist() == [1.5, 0.5, -0.5, -1.5, 1.0]
    assert run("Mod", a, b, fmod=1).tolist() == [1.5, -1.5, 1.5, -1.5, 1.0]
    assert np.isnan(run("Mod", np.array([np.inf, 1], np.float32), np.array([2, 0], np.float32))).all()


def test_pow_of_every_kind() -> None:
    assert run("Pow", np.array([3, -2, 2], np.int32), np.array([4, 3, -1], np.int64)).tolist() == [81, -8, 0]
    assert run("Pow", np.array([3, 10], np.int32), np.array([40, 1], np.uint64)).tolist() == [
        (3**40 & (2**32 - 1)) - (2**32 if 3**40 & 2**31 else 0), 10,
    ]  # fmt: skip
    assert run("Pow", np.array([9, 2], np.int64), np.array([0.5, 3], np.float32)).tolist() == [3, 8]
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        x = np.array([-3, 0.5, 2], dtype)
        for e in (2, 3, np.float32(2)):
            got = run("Pow", x, np.array(e))
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_allclose(got.astype(np.float64), x.astype(np.float64) ** float(e), rtol=1e-3)
    assert run("Pow", np.ones((1, 2), np.float32), np.full((3, 1), 2.0, np.float32)).shape == (3, 2)


def test_max_and_min_propagate_nan() -> None:
    a = np.array([np.nan, 1, 2], np.float32)
    b = np.array([0, np.nan, 1], np.float32)
    for name, last in (("Max", 2), ("Min", 1)):
        got = run(name, a, b)
        assert np.isnan(got[:2]).all() and got[2] == last


def test_halves_are_summed_in_float32() -> None:
    parts = [np.array([2048], np.float16)] + [np.array([0.75], np.float16)] * 4
    assert run("Sum", *parts)[0] == np.float16(2051)  # one by one in float16: 2048 + 0.75 stays 2048
    assert run("Mean", *parts)[0] == np.float16(2051 / 5)
    assert run("Sum", *[p.astype(ml_dtypes.bfloat16) for p in parts]).dtype == np.dtype(ml_dtypes.bfloat16)


def test_variadic_output_may_lie_on_any_input() -> None:
    rng = np.random.default_rng(0)
    for name in ("Sum", "Max", "Mean"):
        arrays = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(4)]
        want = run(name, *arrays)
        for i in range(4):
            copies = [a.copy() for a in arrays]
            np.testing.assert_array_equal(run(name, *copies, out=copies[i]), want)


WHERE_KINDS = [
    np.bool_,
    np.int8,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.int64,
    np.complex64,
    np.complex128,
    object,
]


@pytest.mark.parametrize("dtype", WHERE_KINDS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 5), (4, 5), (4, 5)),
        ((1, 5), (4, 1), ()),
        ((), (4, 5), (5,)),
        ((4, 5), (), ()),
        ((1, 4, 1), (1, 1, 4, 5), (5,)),
    ],
)
def test_where(dtype: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(1)
    c = np.asarray(rng.random(shapes[0]) > 0.5)
    x, y = (
        np.asarray(rng.integers(0, 100, s)).astype(np.str_ if dtype is object else dtype).astype(dtype)
        for s in shapes[1:]
    )
    want = np.where(c, x, y)
    got = run("Where", c, x, y)
    assert got.dtype == want.dtype
    assert got.tolist() == want.tolist()
    for i, v in enumerate((x, y)):
        if v.shape == want.shape:
            inputs = [c, x.copy(), y.copy()]
            assert run("Where", *inputs, out=inputs[1 + i]).tolist() == want.tolist()


def test_where_does_not_mix_nan_or_infinity() -> None:
    c = np.array([True, False])
    got = run("Where", c, np.array([1, np.nan], np.float32), np.array([np.inf, 2], np.float32))
    assert got.tolist() == [1, 2]
    same = np.array([1, 2], np.float32)
    assert run("Where", c, same, same, out=same).tolist() == [1, 2]


def test_strings_are_equal_by_content() -> None:
    a, b = np.array(["a", "b"], object), np.array(["a", "c"], object)
    got = run("Equal", a, b)
    assert got.dtype == np.bool_ and got.tolist() == [True, False]


def test_types() -> None:
    n, m = symbol("N"), symbol("M")

    def infer(name: str, *types: Tensor) -> Any:
        fn = REGISTRY[name].infer_fn
        assert fn is not None
        return fn(Infer(types, REGISTRY[name].attributes({"direction": "LEFT"} if name == "BitShift" else {})))

    a = Tensor(DType.FLOAT32, (n, 1, 5))
    assert infer("Add", a, Tensor(DType.FLOAT32, (4, 1))) == Tensor(DType.FLOAT32, (n, 4, 5))
    assert infer("Less", a, Tensor(DType.FLOAT32, ())).dtype is DType.BOOL
    assert infer("Where", Tensor(DType.BOOL, (m, 1)), Tensor(DType.INT8, ()), Tensor(DType.INT8, (3,))).shape == (m, 3)
    assert infer("Max", a, Tensor(DType.FLOAT32, None)) == Tensor(DType.FLOAT32, None)
    with pytest.raises(InferError, match="one element type"):
        infer("Mul", a, Tensor(DType.FLOAT16, (5,)))
    with pytest.raises(InferError, match="do not broadcast"):
        infer("Sum", Tensor(DType.FLOAT32, (2,)), Tensor(DType.FLOAT32, (3,)))
    with pytest.raises(InferError, match="must be one of bool"):
        infer("And", a, a)
