from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.types import DType
from atc_py.runtime.compare import EXACT, TOLERANCES, compare, compare_values, spread, statistics, tolerance

F = np.float32


def test_the_worked_example() -> None:
    d = compare("y", np.array([1, 2.001, 4.1], F), np.array([1, 2, 4], F))
    assert (d.mismatches, d.worst and d.worst.index, d.passed) == (1, (2,), False)
    assert d.max_abs == pytest.approx(0.1, rel=1e-4) and d.max_rel == pytest.approx(0.025, rel=1e-4)


@pytest.mark.parametrize(
    ("got", "want", "passed"),
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.nan, 1], [1, 1], False),
        ([1, 1], [np.nan, 1], False),
        ([np.inf], [np.inf], True),
        ([np.inf], [-np.inf], False),
        ([np.inf], [1], False),
        ([0.0], [-0.0], True),
        ([], [], True),
        ([1e-5], [0], True),
        ([1e-3], [0], False),
    ],
)
def test_special_numbers(got: list[float], want: list[float], passed: bool) -> None:
    assert compare("y", np.array(got, F), np.array(want, F)).passed is passed


def test_a_tolerance_is_of_the_outputs_scale() -> None:
    want = np.array([1e6, 0.0], F)
    assert compare("y", np.array([1e6, 50], F), want).passed
    assert not compare("y", np.array([1e6, 500], F), want).passed


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64, np.bool_, ml_dtypes.int4])
def test_integers_and_bools_are_exact_whatever_is_asked(dtype: Any) -> None:
    want = np.array([1, 0, 1]).astype(dtype)
    assert compare("y", want.copy(), want, rtol=1, atol=1).passed
    assert compare("y", np.array([1, 1, 1]).astype(dtype), want, rtol=1, atol=1).mismatches == 1


def test_the_relative_error_leaves_out_what_should_be_zero() -> None:
    found = compare("y", np.array([1e-6, 1.1], F), np.array([0, 1], F))
    assert found.max_rel == pytest.approx(0.1, rel=1e-4) and found.mismatches == 1


def test_large_integers_are_not_compared_as_floats() -> None:
    assert compare("y", np.array([2**60 + 1]), np.array([2**60])).mismatches == 1


def test_dtypes_and_shapes_must_be_equal() -> None:
    assert "dtype" in compare("y", np.zeros(2), np.zeros(2, F)).reason
    assert "shape" in compare("y", np.zeros((2, 1), F), np.zeros(2, F)).reason


def test_every_real_float_has_a_tolerance_and_the_wider_the_type_the_smaller() -> None:
    order = [DType.FLOAT8_E5M2, DType.FLOAT8_E4M3FN, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64]
    for wide, narrow in zip(order[1:], order, strict=False):
        assert TOLERANCES[wide].rtol < TOLERANCES[narrow].rtol and TOLERANCES[wide].atol < TOLERANCES[narrow].atol
    assert tolerance(DType.INT32, 1.0) is EXACT and tolerance(DType.FLOAT32, 0.5).rtol == 0.5


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, np.complex64])
def test_other_types(dtype: Any) -> None:
    want = np.array([1, 2, 3]).astype(dtype)
    d = compare("y", want.copy(), want)
    assert d.passed and d.cosine == pytest.approx(1)
    assert not compare("y", np.array([2, 4, 6]).astype(dtype), want).passed


def test_strings_sequences_maps_and_absent_values() -> None:
    text = np.array(["a", "b"], object)
    assert compare_values(["y"], [text], [np.array(["a", "b"])])[0].passed
    assert compare_values(["y"], [text], [np.array(["a", "c"], object)])[0].worst.want == "c"  # type: ignore[union-attr]
    assert [d.name for d in compare_values(["s"], [[text, text]], [[text, text]])] == ["s[0]", "s[1]"]
    assert "parts" in compare_values(["s"], [[text]], [[text, text]])[0].reason
    assert compare_values(["m"], [{"cat": F(1)}], [{"cat": F(1)}])[0].name == "m['cat']"
    assert compare_values(["o"], [None], [None])[0].passed
    assert not compare_values(["o"], [None], [text])[0].passed


def test_a_difference_is_json() -> None:
    found = compare("y", np.array([np.inf], F), np.array([1], F)).to_json()
    assert found["max_abs"] == "inf" and found["worst"] == {"index": [0], "got": "inf", "want": 1.0}


def test_statistics() -> None:
    found = statistics(np.array([1, np.nan, 3], F))
    assert found == {"min": 1.0, "max": 3.0, "mean": 2.0, "std": 1.0, "nan": 1}
    assert statistics(np.array([-np.inf, 1], F))["min"] == "-inf"
    assert statistics(np.array([], F))["min"] is None and statistics(np.array(["a"], object))["max"] is None


def test_spread_is_a_part_of_the_scale() -> None:
    assert spread(np.array([2, 4], F), np.array([2, 5], F)) == 0.25
    assert spread(np.array([1]), np.array([2])) == 0.0
    assert spread(np.array(["a"], object), np.array(["b"], object)) == 0.0
