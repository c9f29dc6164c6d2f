"""Constants: what is stored comes back, digests tell contents apart, and nothing is copied without need."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atc_py.ir.constants import (
    Blob,
    Constant,
    Derived,
    DimVec,
    Splat,
    blob,
    blob_array,
    pack_bits,
    pack_strings,
    packed_nbytes,
    splat_array,
    unpack_bits,
    unpack_strings,
)
from atc_py.ir.dims import UnboundSymbol, symbol
from atc_py.ir.types import DType

FIXED = [d for d in DType if d is not DType.STRING]
PACKED = [d for d in FIXED if d.bits < 8]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def sample(dtype: DType, shape: tuple[int, ...], seed: int) -> Any:
    """Random elements: every bit pattern that the dtype has (for bool and packed types, every value)."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.bits < 8 and dtype.is_int:
        low = -(1 << dtype.bits - 1) if dtype.is_signed_int else 0
        return rng.integers(low, low + (1 << dtype.bits), shape).astype(dtype.numpy)
    raw = rng.integers(0, 1 << min(dtype.bits, 8), (*shape, dtype.itemsize), dtype=np.uint8)
    return np.ascontiguousarray(raw).view(dtype.numpy).reshape(shape)


def same_bits(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@given(st.sampled_from(FIXED), SHAPES, st.integers(0, 2**32))
def test_blobs_give_their_array_back(dtype: DType, shape: tuple[int, ...], seed: int) -> None:
    array = sample(dtype, shape, seed)
    made = blob(array)
    assert made.dtype is dtype and made.shape == shape
    assert made.nbytes == packed_nbytes(dtype, array.size)
    again = blob_array(made)
    assert same_bits(array, again) and not (again.size and again.flags.writeable)


@given(st.sampled_from([DType.FLOAT32, DType.INT4]), st.integers(0, 99))
def test_blobs_of_strided_arrays(dtype: DType, seed: int) -> None:
    array = sample(dtype, (5, 6), seed).T[::2]
    assert same_bits(blob_array(blob(array)), np.ascontiguousarray(array))


def test_contiguous_arrays_are_referenced() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = blob(array)
    array[0, 0] = 7
    assert blob_array(made)[0, 0] == 7
    assert np.shares_memory(blob_array(made), array)


@pytest.mark.parametrize("dtype", [DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.FLOAT4_E2M1])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 16])
def test_packing_is_onnx_packing(dtype: DType, count: int) -> None:
    name = "FLOAT4E2M1" if dtype is DType.FLOAT4_E2M1 else dtype.value.upper()
    array = sample(dtype, (count,), count)
    packed = onnx.numpy_helper.from_array(array).raw_data
    assert getattr(onnx.TensorProto, name) == onnx.numpy_helper.from_array(array).data_type
    assert pack_bits(array, dtype.bits) == packed and len(packed) == packed_nbytes(dtype, count)
    assert same_bits(unpack_bits(memoryview(packed), dtype, count), array)


@given(hnp.arrays(object, SHAPES, elements=st.text(max_size=5)))
def test_strings(array: Any) -> None:
    made = blob(array)
    assert made.dtype is DType.STRING
    assert blob_array(made).tolist() == array.tolist() and blob_array(made).shape == array.shape


def test_strings_from_bytes_and_numpy_strings() -> None:
    array = np.array(["é", "", "abc"])
    packed = pack_strings(array)
    assert packed == pack_strings(np.array([s.encode() for s in array], dtype=object))
    assert packed == b"\2\0\0\0\xc3\xa9\0\0\0\0\3\0\0\0abc"


@given(st.binary(max_size=24), st.integers(0, 4))
def test_damaged_strings_are_refused_or_read(data: bytes, count: int) -> None:
    try:
        out = unpack_strings(memoryview(data), (count,))
    except ValueError as problem:
        assert "shorter" in str(problem)
    else:
        assert out.shape == (count,) and sum(len(s.encode()) for s in out) >= 0


def test_a_splat_has_no_bytes() -> None:
    n = symbol("N")
    array = splat_array(Splat(DType.FLOAT32, (n, 10**6), 2.5), {"N": 1000})
    assert array.shape == (1000, 10**6) and array.strides == (0, 0) and array[3, 4] == np.float32(2.5)
    with pytest.raises(UnboundSymbol):
        splat_array(Splat(DType.FLOAT32, (n,), 0.0))
    text = splat_array(Splat(DType.STRING, (2,), "ab"))
    assert text.tolist() == ["ab", "ab"] and text.dtype == object


def test_dims_are_bound() -> None:
    n = symbol("N")
    vec = DimVec(DType.INT32, (2, 2), (n, 3, n // 2, n * n))
    bound = vec.bind({"N": 9})
    assert bound.tolist() == [[9, 3], [4, 81]] and bound.dtype == np.int32


def distinct() -> list[Constant]:
    n = symbol("N")
    base = blob(np.arange(4, dtype=np.float32))
    return [
        base,
        blob(np.arange(4, dtype=np.float32).reshape(2, 2)),
        blob(np.arange(4, dtype=np.float32).view(np.int32)),
        blob(np.arange(1, 5, dtype=np.float32)),
        Splat(DType.FLOAT32, (4,), np.float32(0)),
        Splat(DType.FLOAT32, (4,), np.float32(-0.0)),
        Splat(DType.FLOAT32, (2, 2), np.float32(0)),
        Splat(DType.FLOAT16, (4,), np.float16(0)),
        Splat(DType.FLOAT32, (n,), np.float32(0)),
        Splat(DType.STRING, (4,), "0"),
        DimVec(DType.INT64, (2,), (n, 1)),
        DimVec(DType.INT32, (2,), (n, 1)),
        DimVec(DType.INT64, (2,), (1, n)),
        DimVec(DType.INT64, (2, 1), (n, 1)),
        Derived(DType.FLOAT32, (4,), "Neg", (base,)),
        Derived(DType.FLOAT32, (4,), "Abs", (base,)),
        Derived(DType.FLOAT32, (4,), "Neg", (base,), {"k": 1}),
        Derived(DType.FLOAT32, (4,), "Neg", (base,), {"k": 1.0}),
        Derived(DType.FLOAT32, (4,), "Add", (base, base)),
        Derived(DType.FLOAT32, (4,), "Concat", (base,), {"k": blob(np.arange(2))}),
        Derived(DType.FLOAT32, (4,), "Concat", (base,), {"k": blob(np.arange(1, 3))}),
    ]


def test_digests_tell_contents_apart_and_nothing_else() -> None:
    first, second = distinct(), distinct()
    assert [c.digest for c in first] == [c.digest for c in second]
    assert len({c.digest for c in first}) == len(first)


def test_only_blobs_have_bytes() -> None:
    assert [c.nbytes for c in distinct() if not isinstance(c, Blob)] == [0] * 17


def test_keys_are_equal_for_equal_contents_only_and_hash_nothing_large_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    large = rng.standard_normal((64, 64)).astype(np.float32)
    other = large.copy()
    other[32, 5] += 1  # between the samples
    a, b, c = blob(large), blob(large.copy()), blob(other)
    assert a.key == b.key and hash(a.key) == hash(b.key) and a.key != c.key
    assert a.key != blob(large.reshape(32, 128)).key and a.key != blob(large.view(np.int32)).key
    recipe = Derived(DType.FLOAT32, (64, 64), "Transpose", (a,), {"perm": (1, 0)})
    same = Derived(DType.FLOAT32, (64, 64), "Transpose", (b,), {"perm": (1, 0)})
    assert recipe.key == same.key != Derived(DType.FLOAT32, (64, 64), "Transpose", (c,), {"perm": (1, 0)}).key
    alone, table = blob(rng.standard_normal(4096).astype(np.float32)), {a.key: 0}
    monkeypatch.delattr("hashlib.sha256")
    assert alone.key not in table and table.setdefault(alone.key, 1) == 1
    with pytest.raises(AttributeError, match="sha256"):
        _ = alone.digest
    monkeypatch.undo()
    assert alone.digest == blob(blob_array(alone).copy()).digest != a.digest


@pytest.mark.parametrize("count", [3, 4096])
def test_nothing_that_a_blob_remembers_keeps_it_alive(count: int) -> None:
    found = blob(np.arange(count, dtype=np.float32))
    assert found.key is found.key and found.number is None and found.digest
    assert not any(held is found for held in gc.get_referents(found.key, *gc.get_referents(found.key)))
