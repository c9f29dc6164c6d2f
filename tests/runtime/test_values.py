"""What a caller gives for an input, and what is handed back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atc_py.errors import Problems
from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Map, Optional, Sequence, Tensor, Type
from atc_py.runtime.values import handed_back, taken, told

F32 = Tensor(DType.FLOAT32, (symbol("N"), 2))
STRINGS = Tensor(DType.STRING, (2,))


def take(type_: Type, value: Any) -> tuple[Any, list[str]]:
    problems = Problems()
    result = taken(type_, value, "input 'x'", problems)
    return result, [f"{p.code} {p.place}: {p.cause}" for p in problems]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (F32, "float32[N, 2]"),
        (Tensor(DType.INT4, None), "int4"),
        (Sequence(STRINGS), "a sequence of string[2]"),
        (Optional(Sequence(F32)), "a sequence of float32[N, 2] or None"),
        (Map(DType.STRING, F32), "a map from string to float32[N, 2]"),
    ],
)
def test_types_for_people(type_: Type, text: str) -> None:
    assert told(type_) == text


@given(
    array=hnp.arrays(
        st.sampled_from([">f4", "<f4", "=f4"]).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)
    ),
    steps=st.sampled_from([1, 2, -1]),
)
def test_any_layout_comes_out_native_and_contiguous(array: Any, steps: int) -> None:
    view = array[::steps] if array.ndim else array
    got, problems = take(Tensor(DType.FLOAT32, None), view)
    assert not problems
    assert got.dtype == np.float32 and got.dtype.isnative and got.flags.c_contiguous and got.flags.aligned
    assert got.shape == view.shape and not got.flags.writeable
    np.testing.assert_array_equal(got, view)


def test_an_array_that_fits_is_not_copied() -> None:
    x = np.ones((3, 2), np.float32)
    got, _ = take(F32, x)
    assert np.shares_memory(got, x) and x.flags.writeable


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones((1, 2)), ["float64", "float32"]),
        (np.ones((1, 2), np.int32), ["int32", "float32"]),
        (np.ones((1, 2), ml_dtypes.bfloat16), ["bfloat16", "float32"]),
        (np.array([b"a"]), ["float32"]),
        (None, ["NoneType", "float32[N, 2]"]),
        ({}, ["dict", "float32[N, 2]"]),
        ([[1.0], [1.0, 2.0]], ["float32[N, 2]"]),
        ("text", ["float32"]),
    ],
)
def test_wrong_arrays_say_what_came_and_what_was_expected(value: Any, words: list[str]) -> None:
    _, [problem] = take(F32, value)
    assert problem.startswith("E30008 input 'x'")
    assert all(w in problem for w in words), problem


def test_objects_whose_conversion_fails() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no")

    for type_ in (F32, STRINGS):
        _, [problem] = take(type_, Broken())
        assert "E30008" in problem


def test_strings() -> None:
    value: Any
    for value in (np.array(["ä", "b"]), np.array(["ä", "b"], object), ["ä", "b"], np.array(["ä".encode(), b"b"])):
        got, problems = take(STRINGS, value)
        assert not problems and got.tolist() == ["ä", "b"] and got.dtype == object
    for value in (np.ones(2), [1, "a"], [None, "a"], np.array([b"\xff", b"a"], object)):
        _, [problem] = take(STRINGS, value)
        assert "element 0" in problem


def test_sequences_name_the_element_that_is_wrong() -> None:
    type_ = Sequence(F32)
    good = [np.ones((1, 2), np.float32), np.ones((4, 2), np.float32)]
    got, problems = take(type_, tuple(good))
    assert not problems and len(got) == 2
    _, found = take(type_, [good[0], np.ones((1, 2)), np.ones((1, 3), np.float32), np.float32(1)])
    assert [f.partition(":")[0] for f in found] == [
        "E30008 input 'x'[1]",
        "E30001 input 'x'[2]",
        "E30001 input 'x'[3]",
    ]
    for value in (good[0], None, 3, {"a": good[0]}):
        _, [problem] = take(type_, value)
        assert "expected a sequence of float32[N, 2]" in problem


def test_optionals_and_maps() -> None:
    assert take(Optional(F32), None) == (None, [])
    assert take(Optional(Sequence(F32)), [])[0] == []
    numbers = Map(DType.INT64, Tensor(DType.FLOAT32, ()))
    got, problems = take(numbers, {1: np.float32(2), np.int64(3): np.float32(4)})
    assert not problems and [float(v) for v in got.values()] == [2, 4]
    value: Any
    for value in ([], {"a": np.float32(1)}, {True: np.float32(1)}, {1: np.float64(1)}):
        assert take(numbers, value)[1]
    assert not take(Map(DType.STRING, Tensor(DType.INT64, ())), {"a": np.int64(1)})[1]


def test_what_is_handed_back_is_the_caller_s_own() -> None:
    array = np.array(["a"], object)
    value = [array, {"k": np.ones(2)}, None, 3]
    got = handed_back(value)
    got[0][0] = "b"
    got[1]["k"][:] = 0
    assert array[0] == "a" and value[1]["k"].all() and got[2:] == [None, 3]  # type: ignore[index]
