"""QuantMatmul and LookupTable against integer arithmetic, and products cut where float32 would not be exact."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from atc_py.ir.types import DType
from atc_py.ops.base import Infer, InferError
from atc_py.ops.build import lookup
from atc_py.ops.evaluate import run as evaluated
from atc_py.ops.evaluate import tensor_type
from atc_py.ops.quant_compute import cuts_of, right_factor

RNG = np.random.default_rng(0)
F = np.float32


def run(name: str, *inputs: Any, **attrs: Any) -> np.ndarray:
    """One call, with the inferred type checked against what the kernel gives."""
    op = lookup(name, {})
    filled = op.attributes(attrs)
    given_types = tuple(None if a is None else tensor_type(a) for a in inputs)
    assert op.infer_fn is not None
    inferred: Any = op.infer_fn(Infer(given_types, filled))
    result: np.ndarray = evaluated(op, filled, inputs, [None])[0]
    assert inferred.dims == result.shape and inferred.dtype.numpy == result.dtype
    return result


@seed(6)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([1, 7, 300, 2000]), st.integers(1, 6), st.booleans(), st.booleans(),
    st.sampled_from([np.int8, np.uint8]), st.sampled_from([None, np.int32, np.float32]),
)  # fmt: skip
def test_against_integers(m: int, k: int, n: int, turned: bool, real: bool, dtype: Any, bias_dtype: Any) -> None:
    info = np.iinfo(dtype)
    a = RNG.integers(info.min, info.max + 1, (2, m, k)).astype(dtype)
    b = RNG.integers(-128, 128, (k, n)).astype(np.int8)
    a_zero, b_zero = RNG.integers(info.min, info.max + 1, ()).astype(dtype), RNG.integers(-9, 9, n).astype(np.int8)
    a_scale, b_scale = np.asarray(F(0.02)), RNG.uniform(0.001, 0.01, n).astype(F)
    if bias_dtype is np.float32 and not real:
        bias_dtype = np.int32
    bias = None if bias_dtype is None else RNG.integers(-999, 999, n).astype(bias_dtype)
    sums = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - b_zero)
    steps = (a_scale * b_scale).astype(F)
    right = np.ascontiguousarray(b.T) if turned else b
    operands = (a, a_scale, a_zero, right, b_scale, b_zero, bias)
    if real:
        whole = sums + (bias.astype(np.int64) if bias is not None and bias_dtype is np.int32 else 0)
        want = whole.astype(F) * steps
        if bias is not None and bias_dtype is np.float32:
            want = want + bias
        np.testing.assert_array_equal(run("QuantMatmul", *operands, transB=int(turned)), want)
        return
    y_scale, y_zero = np.asarray(F(0.7)), np.asarray(np.uint8(100))
    whole = sums + (0 if bias is None else bias.astype(np.int64))
    want = np.clip(np.rint(whole.astype(F) * (steps / y_scale).astype(F)) + 100, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(run("QuantMatmul", *operands, y_scale, y_zero, transB=int(turned)), want)


def test_the_inner_axis_is_cut_only_where_it_must_be() -> None:
    assert right_factor(np.full((500, 3), 127, np.int8), None).cuts == ()
    weights = right_factor(np.full((2000, 3), 127, np.int8), None)
    assert len(weights.cuts) == 3 and all(c % 64 == 0 for c in weights.cuts)
    ends = (0, *weights.cuts, 2000)
    assert all((b - a) * 127 * 255 < 1 << 24 for a, b in pairwise(ends))
    assert cuts_of(np.full((4, 2), 1e6), 64) == ()  # one step alone is too much: nothing is gained


def test_convolutions_are_exact_beyond_float32() -> None:
    x = np.full((1, 700, 5, 5), 255, np.uint8)
    x[0, :, 2, 2] = RNG.integers(0, 256, 700)
    w = np.full((2, 700, 3, 3), 127, np.int8)
    w[1] = RNG.integers(-128, 128, (700, 3, 3))
    got = run("ConvInteger", x, w)
    want = sum(
        np.einsum("bchw,oc->bohw", x[:, :, i : i + 3, j : j + 3].astype(np.int64), w[:, :, i, j].astype(np.int64))
        for i in range(3)
        for j in range(3)
    )
    assert np.abs(want).max() > 1 << 24
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_tables_are_read_by_bit_pattern(dtype: Any) -> None:
    table = RNG.integers(-128, 128, 256).astype(np.int8)
    x = np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)
    attrs = {"table": tuple(table.tolist()), "to": DType.INT8}
    np.testing.assert_array_equal(run("LookupTable", x, **attrs), table.reshape(16, 16))
    np.testing.assert_array_equal(run("LookupTable", x.T, **attrs), table.reshape(16, 16).T)


def test_what_they_refuse() -> None:
    byte, scale = np.zeros((2, 2), np.int8), np.asarray(F(1))
    with pytest.raises(InferError, match="given together"):
        run("QuantMatmul", byte, scale, None, byte, scale, None, None, scale)
    for table in (tuple(range(255)), (*range(255), 256)):
        with pytest.raises(InferError, match="expected 256 of uint8"):
            run("LookupTable", byte, table=table, to=DType.UINT8)
