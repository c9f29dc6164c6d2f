"""Value propagation through arithmetic: chains of operators on symbolic sizes, checked by evaluating both sides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import Dim, ceildiv, dmax, dmin, evaluate, symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import activations, binary, cast, elementwise, reduce  # noqa: F401 - declare the operators
from atc_py.ops.base import REGISTRY, Call, Infer
from atc_py.ops.elementwise_values import Ratio, symbolic
from atc_py.ops.shapes import as_objects

H, W = symbol("H"), symbol("W")
I64, F32, B = DType.INT64, DType.FLOAT32, DType.BOOL


def value(name: str, *inputs: Any, dtypes: Any = I64, **attrs: Any) -> Any:
    """The propagated value; plain lists become arrays."""
    arrays = [v if isinstance(v, np.ndarray) or v is None else array(v) for v in inputs]
    kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(arrays)
    types = tuple(None if v is None else Tensor(d, v.shape) for v, d in zip(arrays, kinds, strict=True))
    op = REGISTRY[name]
    assert op.value_fn is not None
    result = op.value_fn(Infer(types, op.attributes(attrs), 1, tuple(arrays)))
    assert result is None or isinstance(result, np.ndarray)
    return result


def array(v: Any) -> Any:
    items = v if isinstance(v, list) else [v]
    shape = (len(items),) if isinstance(v, list) else ()
    if any(isinstance(i, (Dim, Ratio)) for i in items):
        return as_objects(items, shape)
    return np.array(v)


def test_integer_arithmetic() -> None:
    assert value("Add", [H, 2], 1).tolist() == [H + 1, 3]
    assert value("Sub", [H, W], [H, 1]).tolist() == [0, W - 1]
    assert value("Mul", H, [2, W]).tolist() == [2 * H, H * W]
    assert value("Div", [H, 7, -7], 2).tolist() == [H // 2, 3, -3]
    assert value("Mod", [H, 7], 4).tolist() == [H % 4, 3]
    assert value("Neg", [H]).tolist() == [-1 * H]
    assert value("Abs", [H]).tolist() == [H]
    assert value("Max", [H, 3], [W, 5]).tolist() == [dmax(H, W), 5]
    assert value("Min", [H], [4]).tolist() == [dmin(H, 4)]
    assert value("Sum", [H], [1], [W]).tolist() == [H + W + 1]
    assert value("Relu", [H]).tolist() == [H]
    assert value("Pow", [H], [2]).tolist() == [H * H]
    assert value("Clip", [H], array(1), array(64)).tolist() == [dmin(dmax(H, 1), 64)]
    assert value("Identity", [H]).tolist() == [H]


def test_a_difference_of_unknown_sign_is_not_divided() -> None:
    assert value("Div", [H - W], 2) is None
    assert value("Div", [2 * H - 2 * W], 2).tolist() == [H - W]
    assert value("Div", [H], 0) is None


def test_plain_values_stay_plain_and_keep_their_type() -> None:
    got = value("Add", np.array([1, 2], np.int32), np.array([3, 4], np.int32), dtypes=DType.INT32)
    assert got.dtype == np.int32 and got.tolist() == [4, 6]
    got = value("Sub", [H], [H])
    assert got.dtype == np.int64 and got.tolist() == [0]
    assert value("Sqrt", np.array([16.0], np.float32), dtypes=F32).tolist() == [4.0]


def test_unknown_and_large_inputs_give_nothing() -> None:
    op = REGISTRY["Add"]
    assert op.value_fn is not None
    t = Tensor(I64, (1,))
    assert op.value_fn(Infer((t, t), {}, 1, (array([H]), None))) is None
    big = np.zeros(2000, np.int64)
    assert value("Add", big, big) is None


def test_comparisons_are_decided_by_bounds_only() -> None:
    assert value("Equal", [H, H + 1, 3], [H, H, 3]).tolist() == [True, False, True]
    assert value("Equal", [H], [5]) is None
    assert value("Equal", [H], [-1]).tolist() == [False]  # the usual test for a wildcard size
    assert value("Less", [H], [H + 1]).tolist() == [True]
    assert value("Greater", [H + 1], [0]).tolist() == [True]
    assert value("GreaterOrEqual", [H], [0]).tolist() == [True]
    assert value("LessOrEqual", [H], [W]) is None
    assert value("Not", np.array([True]), dtypes=B).tolist() == [False]
    assert value("And", np.array([True]), np.array([False]), dtypes=B).tolist() == [False]


def test_where_chooses_sizes() -> None:
    got = value("Where", np.array([True, False, True]), [H, 1, 2], [W, W, W], dtypes=(B, I64, I64))
    assert got.tolist() == [H, W, 2]
    assert value("Where", np.array([False]), [H], [7], dtypes=(B, I64, I64)).dtype == np.int64


def test_reductions() -> None:
    assert value("ReduceProd", [H, 3, W], None, keepdims=0).tolist() == 3 * H * W
    assert value("ReduceSum", [H, 3], np.array([0]), keepdims=1).tolist() == [H + 3]
    assert value("ReduceMax", [H, 3], None, keepdims=0).tolist() == dmax(H, 3)
    assert value("ReduceMin", [H, 3], None, keepdims=0).tolist() == dmin(H, 3)
    table = as_objects([H, 2, 3, W], (2, 2))
    assert value("ReduceProd", table, np.array([0]), keepdims=0).tolist() == [3 * H, 2 * W]
    assert value("ReduceProd", table, np.array([-1]), keepdims=0).tolist() == [2 * H, 3 * W]
    assert value("ReduceProd", [H, 3], np.array([], np.int64), noop_with_empty_axes=1).tolist() == [H, 3]
    assert value("ReduceMean", [H, 3], None) is None
    assert value("ReduceSum", np.array([1, 2]), None, keepdims=0).tolist() == 3


def test_casts() -> None:
    assert value("Cast", [H], to=DType.INT32).tolist() == [H]
    assert value("Cast", [H], to=F32).tolist() == [H]
    assert value("Cast", [H], to=DType.INT8) is None
    assert value("Cast", [H], to=DType.FLOAT16) is None
    assert value("Cast", [H + 1, 0], to=B).tolist() == [True, False]
    assert value("Cast", [H], to=B) is None
    assert value("Cast", np.array([2.7, -2.7]), dtypes=DType.FLOAT64, to=I64).tolist() == [2, -2]


def test_a_detour_through_floats_comes_back() -> None:
    as_float = value("Cast", [H, 10], to=F32)
    half = value("Mul", as_float, np.array([0.5], np.float32), dtypes=F32)
    assert str(half[0]) == "(H)/2" and half[1] == 5
    assert value("Cast", value("Floor", half, dtypes=F32), dtypes=F32, to=I64).tolist() == [H // 2, 5]
    assert value("Cast", half, dtypes=F32, to=I64).tolist() == [H // 2, 5]
    assert value("Ceil", half, dtypes=F32).tolist() == [ceildiv(H, 2), 5]
    third = value("Div", as_float, np.array([3], np.float32), dtypes=F32)
    assert value("Floor", third, dtypes=F32).tolist() == [H // 3, 3]
    back = value("Mul", half, np.array([2.0], np.float32), dtypes=F32)
    assert value("Cast", back, dtypes=F32, to=I64).tolist() == [H, 10]
    up = value("Mul", as_float, np.array([1.25], np.float32), dtypes=F32)
    assert value("Floor", up, dtypes=F32).tolist() == [(H * 5) // 4, 12]
    rounded = value("Floor", value("Add", half, np.array([0.5], np.float32), dtypes=F32), dtypes=F32)
    assert rounded.tolist() == [(H + 1) // 2, 5]


def test_floats_that_are_not_exact_give_nothing() -> None:
    as_float = value("Cast", [H], to=F32)
    for factor in (0.1, 1 / 3, 1e-9, math.inf, math.nan):
        assert value("Mul", as_float, np.array([factor], np.float32), dtypes=F32) is None
    assert value("Sqrt", as_float, dtypes=F32) is None
    assert value("Round", as_float, dtypes=F32) is None


def test_a_ratio_of_sizes_divides_only_where_it_is_whole() -> None:
    x = value("Cast", [4 * H, H], to=F32)
    got = value("Div", x, value("Cast", [H, W], to=F32), dtypes=F32)
    assert got is None
    assert value("Div", x[:1], value("Cast", [H], to=F32), dtypes=F32).tolist() == [4]


steps = st.tuples(
    st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"]),
    st.one_of(st.integers(1, 9), st.sampled_from([H, W, H + 3])),
)
fractions = st.tuples(st.sampled_from(["Add", "Mul", "Div"]), st.sampled_from([0.5, 0.25, 2.0, 3.0, 1.5]))


def kernel(name: str, *inputs: Any, **attrs: Any) -> Any:
    op = REGISTRY[name]
    assert op.kernel_fn is not None
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        return op.kernel_fn(Call(op.attributes(attrs), (), (None,)), *inputs)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=5), st.integers(0, 300), st.integers(1, 300))
def test_integer_chains_agree_with_the_kernels(chain: list[Any], h: int, w: int) -> None:
    env = {"H": h, "W": w}
    known, actual = array([H]), np.array([h])
    for name, operand in chain:
        concrete = evaluate(operand, env)
        if concrete == 0 and name in ("Div", "Mod"):
            return
        known = value(name, known, [operand])
        actual = kernel(name, actual, np.array([concrete]))
        if known is None:
            return
        assert evaluate(known[0] if symbolic(known) else int(known[0]), env) == actual[0]


@settings(max_examples=150, deadline=None)
@given(st.lists(fractions, min_size=1, max_size=3), st.sampled_from(["Floor", "Ceil", "Cast"]), st.integers(0, 4000))
def test_float_chains_agree_with_float32(chain: list[Any], last: str, h: int) -> None:
    known: Any = value("Cast", [H], to=F32)
    actual = np.array([h], np.float32)
    for name, operand in chain:
        other = np.array([operand], np.float32)
        known = value(name, known, other, dtypes=F32)
        actual = kernel(name, actual, other)
        if known is None:
            return
    if last != "Cast":
        known, actual = value(last, known, dtypes=F32), kernel(last, actual)
    known = value("Cast", known, dtypes=F32, to=I64)
    actual = kernel("Cast", actual, to=I64)
    if known is not None:
        assert evaluate(known[0] if symbolic(known) else int(known[0]), {"H": h}) == actual[0]


@pytest.mark.parametrize("name", ["Add", "Mul"])
def test_results_too_large_for_a_dim_are_unknown(name: str) -> None:
    big = array([symbol(f"s{i}") for i in range(8)])
    for _ in range(12):
        big = value("Mul", big, big[::-1])
        if big is None:
            return
        big = value(name, big, array([symbol(f"t{i}") for i in range(8)]))
        if big is None:
            return
    raise AssertionError("the limit was not met")
