"""Constants: every element type in every field that ONNX allows, sparse tensors, wrong sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from atc_py.errors import AtcError
from atc_py.frontend.external import ExternalFiles
from atc_py.frontend.onnx_types import CODES, ELEMENTS
from atc_py.frontend.tensors import any_constant, dense
from atc_py.ir.constants import Splat
from atc_py.ir.types import DType
from atc_py.ops.evaluate import evaluate

FILES = ExternalFiles(None)


def value(proto: Any) -> np.ndarray[Any, Any]:
    return evaluate(any_constant(proto, FILES))


def sample(dtype: DType) -> np.ndarray[Any, Any]:
    if dtype is DType.BOOL:
        return np.array([[True, False, True], [False, False, True]])
    if dtype is DType.STRING:
        return np.array([["a", "", "ü"], ["long text", "x", "y"]], object)
    if dtype in (DType.UINT2, DType.INT2, DType.UINT4, DType.INT4, DType.FLOAT4_E2M1):
        return np.array([[0, 1, 1], [1, 0, 1]], np.float32).astype(dtype.numpy)
    return np.array([[0.5, 1, 2], [4, 2, 1]], np.float32).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", list(CODES), ids=str)
@pytest.mark.parametrize("raw", [True, False])
def test_every_type_in_every_field(dtype: DType, raw: bool) -> None:
    array = sample(dtype)
    if raw:
        proto = numpy_helper.from_array(array, "t")
    else:
        proto = helper.make_tensor("t", CODES[dtype], array.shape, array.reshape(-1).tolist())
        assert dtype in (DType.STRING,) or not proto.HasField("raw_data")
    got = value(proto)
    assert got.dtype == dtype.numpy and got.shape == (2, 3)
    assert [str(x) for x in got.reshape(-1)] == [str(x) for x in array.reshape(-1)]


def test_types_agree_with_onnx() -> None:
    for code, dtype in ELEMENTS.items():
        if dtype is not DType.STRING:
            assert helper.tensor_dtype_to_np_dtype(code) == dtype.numpy
    unknown = {v for k, v in TensorProto.DataType.items() if k != "UNDEFINED"}
    assert unknown == ELEMENTS.keys()


def test_negative_bytes_and_scalars() -> None:
    proto = TensorProto(name="t", data_type=TensorProto.INT8, dims=[2], int32_data=[-1, 127])
    assert value(proto).tolist() == [-1, 127]
    assert value(TensorProto(name="t", data_type=1, float_data=[3.5])).shape == ()
    assert value(TensorProto(name="t", data_type=7, dims=[0, 4])).shape == (0, 4)


@pytest.mark.parametrize(
    "proto",
    [
        TensorProto(name="t", data_type=1, dims=[2], raw_data=bytes(7)),
        TensorProto(name="t", data_type=1, dims=[3], float_data=[1, 2]),
        TensorProto(name="t", data_type=1, dims=[1 << 40, 1 << 40]),
        TensorProto(name="t", data_type=1, dims=[-1], float_data=[1]),
        TensorProto(name="t", data_type=8, dims=[2], string_data=[b"a"]),
        TensorProto(name="t", data_type=8, dims=[1], raw_data=b"a"),
        TensorProto(name="t", data_type=0, dims=[1], raw_data=b"a"),
        TensorProto(name="t", data_type=TensorProto.FLOAT6E2M3, dims=[4], raw_data=bytes(4)),
        TensorProto(name="t", data_type=77, dims=[1], raw_data=b"a"),
    ],
)
def test_wrong_data(proto: TensorProto) -> None:
    with pytest.raises(AtcError) as caught:
        value(proto)
    assert caught.value.code == "E16105" and "'t'" in str(caught.value)


def sparse(indices: Any, values: Any, dims: list[int]) -> SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32), "t"),
        numpy_helper.from_array(np.array(indices, np.int64)),
        dims,
    )


def test_sparse() -> None:
    want = [[0, 5, 0], [0, 0, 7]]
    assert value(sparse([1, 5], [5, 7], [2, 3])).tolist() == want
    assert value(sparse([[0, 1], [1, 2]], [5, 7], [2, 3])).tolist() == want
    empty = dense(sparse([], [], [1000, 1000]), FILES)
    assert isinstance(empty, Splat) and empty.shape == (1000, 1000)


@pytest.mark.parametrize(
    "proto",
    [
        sparse([6], [1], [2, 3]),
        sparse([-1], [1], [2, 3]),
        sparse([[0, 3]], [1], [2, 3]),
        sparse([[0, 1, 1]], [1], [2, 3]),
        sparse([0, 1], [1], [2, 3]),
        sparse([0], [1], [1 << 30, 1 << 30]),
        sparse([0], [1], [-2, 3]),
    ],
)
def test_wrong_sparse(proto: SparseTensorProto) -> None:
    with pytest.raises(AtcError) as caught:
        value(proto)
    assert caught.value.code == "E16105"


def test_raw_data_is_not_copied_again() -> None:
    """The Blob refers to the bytes object that protobuf gave out."""
    proto = onnx.numpy_helper.from_array(np.arange(1024, dtype=np.float32), "t")
    found = any_constant(proto, FILES)
    assert isinstance(found.data.obj, bytes) and found.nbytes == 4096  # type: ignore[union-attr]
