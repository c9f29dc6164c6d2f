"""Types: widths, storage shapes, and the agreement with numpy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.ir.dims import evaluate, symbol
from atc_py.ir.types import BLOCKED, DType, Format, Map, Optional, Sequence, Tensor, lanes, on_host, storage_shape

FIXED = [d for d in DType if d is not DType.STRING]
SIZES = st.integers(0, 70)


@pytest.mark.parametrize("dtype", FIXED)
def test_dtype_and_numpy_agree(dtype: DType) -> None:
    assert DType.of(dtype.numpy) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize == max(1, dtype.bits // 8)
    kinds = [dtype.is_float, dtype.is_int, dtype.is_complex, dtype is DType.BOOL]
    assert kinds.count(True) == 1 and (dtype.is_int or not dtype.is_signed_int)
    assert repr(dtype) == dtype.value


def test_widths() -> None:
    bits = {d.value: d.bits for d in DType}
    assert (bits["float32"], bits["bfloat16"], bits["float64"], bits["complex128"]) == (32, 16, 64, 128)
    assert (bits["float8_e4m3fn"], bits["float8_e8m0fnu"], bits["float4_e2m1fn"]) == (8, 8, 4)
    assert (bits["int4"], bits["uint2"], bits["bool"], bits["string"]) == (4, 2, 8, 0)


def test_strings_are_objects_for_numpy() -> None:
    assert DType.STRING.numpy == np.dtype(object)
    assert {DType.of(np.dtype(t)) for t in ("O", "U3", "U")} == {DType.STRING}
    with pytest.raises(ValueError, match="datetime"):
        DType.of(np.dtype("M8[s]"))


def nc1hwc0(x: np.ndarray, c0: int) -> np.ndarray:
    n, c, h, w = x.shape
    x = np.pad(x, ((0, 0), (0, -c % c0), (0, 0), (0, 0)))
    return x.reshape(n, -1, c0, h, w).transpose(0, 1, 3, 4, 2)


def fractal_z(x: np.ndarray, c0: int) -> np.ndarray:
    x = nc1hwc0(np.pad(x, ((0, -x.shape[0] % 16), (0, 0), (0, 0), (0, 0))), c0)
    n, c1, h, w, _ = x.shape
    return x.reshape(n // 16, 16, c1, h, w, c0).transpose(2, 3, 4, 0, 1, 5).reshape(c1 * h * w, n // 16, 16, c0)


def fractal_nz(x: np.ndarray, c0: int) -> np.ndarray:
    *batch, h, w = x.shape
    x = np.pad(x, [(0, 0)] * len(batch) + [(0, -h % 16), (0, -w % c0)])
    x = x.reshape(*batch, x.shape[-2] // 16, 16, x.shape[-1] // c0, c0)
    return np.moveaxis(x, -2, -4)


TRANSFORMS = {Format.NC1HWC0: nc1hwc0, Format.FRACTAL_Z: fractal_z, Format.FRACTAL_NZ: fractal_nz}


@given(st.sampled_from(sorted(BLOCKED, key=lambda f: f.value)), st.tuples(*[st.integers(1, 40)] * 4), st.booleans())
def test_storage_shapes_are_those_of_the_transformed_array(
    fmt: Format, shape: tuple[int, int, int, int], narrow: bool
) -> None:
    dtype = DType.INT8 if narrow else DType.FLOAT16
    array = np.broadcast_to(np.zeros((), dtype.numpy), shape)
    stored = TRANSFORMS[fmt](array, lanes(dtype))
    type_ = Tensor(dtype, shape, Format.NCHW, fmt)
    assert type_.storage_shape == stored.shape and type_.nbytes == stored.nbytes
    assert type_.elements == prod(shape) and type_.static


@given(st.sampled_from(sorted(BLOCKED, key=lambda f: f.value)), st.tuples(*[SIZES] * 4))
def test_symbolic_storage_shapes_evaluate_to_concrete_ones(fmt: Format, shape: tuple[int, int, int, int]) -> None:
    names = "NCHW"
    symbolic = Tensor(DType.FLOAT16, tuple(symbol(n) for n in names), Format.NCHW, fmt)
    env = dict(zip(names, shape))
    assert tuple(evaluate(d, env) for d in symbolic.storage_shape) == storage_shape(shape, DType.FLOAT16, fmt)
    assert evaluate(symbolic.nbytes, env) == symbolic.with_shape(shape).nbytes
    assert not symbolic.static


def test_worked_example() -> None:
    t = Tensor(DType.FLOAT16, (1, 20, 5, 5), Format.NCHW, Format.NC1HWC0)
    assert t.storage_shape == (1, 2, 5, 5, 16) and t.nbytes == 1 * 2 * 5 * 5 * 16 * 2
    assert t.storage_format is Format.NC1HWC0 and t.rank == 4


def test_unblocked_storage() -> None:
    t = Tensor(DType.INT4, (2, 3, 4, 5), Format.NCHW)
    assert t.storage_format is Format.NCHW and t.storage_shape == (2, 3, 4, 5) and t.nbytes == 120
    assert Tensor(DType.INT8, (2, 3, 4, 5), Format.NCHW, Format.NHWC).storage_shape == (2, 4, 5, 3)
    assert Tensor(DType.INT8, (2, 3), Format.ND, Format.NHWC).storage_shape == (2, 3)
    assert Tensor(DType.INT8, ()).storage_shape == () and Tensor(DType.INT8, ()).nbytes == 1


def test_unknown_rank() -> None:
    t = Tensor(DType.FLOAT32, None)
    assert t.rank is None and not t.static
    with pytest.raises(ValueError, match="rank is unknown"):
        _ = t.nbytes


def test_types_are_values() -> None:
    n = symbol("N")
    assert Tensor(DType.INT8, (n * 2,)) == Tensor(DType.INT8, (n + n,))
    assert (
        len({Sequence(Tensor(DType.INT8, ())), Sequence(Tensor(DType.INT8, ())), Optional(Tensor(DType.INT8, ()))}) == 2
    )


def test_what_lives_on_the_host() -> None:
    t = Tensor(DType.FLOAT32, (2,))
    assert not on_host(t)
    for type_ in (Tensor(DType.STRING, (2,)), Sequence(t), Optional(t), Map(DType.INT64, t)):
        assert on_host(type_)
