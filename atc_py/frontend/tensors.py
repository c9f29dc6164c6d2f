"""Tensor messages as constants.

dims [2, 2], INT4, int32_data [0x21, 0x43]   →   Blob(int4, (2, 2), bytes 21 43)     elements 1, 2, 3, 4
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from atc_py.errors import AtcError, error
from atc_py.frontend import codes
from atc_py.frontend.external import ExternalFiles
from atc_py.frontend.onnx_types import UnusableType, element
from atc_py.ir.constants import Array, Blob, Constant, Splat, blob, blob_array, pack_bits, pack_strings, packed_nbytes
from atc_py.ir.types import DType

_EXTERNAL = onnx.TensorProto.EXTERNAL
DENSE_LIMIT = 1 << 30
"""Bytes up to which a sparse constant is made dense."""

_FIELDS: dict[DType, tuple[str, type]] = {
    DType.FLOAT32: ("float_data", np.float32),
    DType.COMPLEX64: ("float_data", np.float32),
    DType.FLOAT64: ("double_data", np.float64),
    DType.COMPLEX128: ("double_data", np.float64),
    DType.INT64: ("int64_data", np.int64),
    DType.UINT32: ("uint64_data", np.uint32),
    DType.UINT64: ("uint64_data", np.uint64),
    DType.INT32: ("int32_data", np.int32),
    **dict.fromkeys((DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.UINT16), ("int32_data", np.uint16)),
}
"""The field that holds a dtype's elements and the type of one entry; all other dtypes: bytes in int32_data."""


def constant(tensor: onnx.TensorProto, files: ExternalFiles) -> Blob:
    """The tensor's value; its bytes are referenced where they lie. Raises `AtcError` when they do not fit."""
    dtype, shape = _header(tensor)
    if dtype is DType.STRING:
        return _strings(tensor, shape, _place(tensor))
    nbytes = packed_nbytes(dtype, prod(shape))
    if tensor.data_location == _EXTERNAL:
        return Blob(dtype, shape, files.view(tensor, nbytes) if nbytes else memoryview(b""))
    data = memoryview(tensor.raw_data) if tensor.HasField("raw_data") else _typed(tensor, dtype)
    if data.nbytes != nbytes:
        raise error(
            codes.TENSOR_DATA,
            _place(tensor),
            f"{dtype!r}{list(shape)} needs {nbytes} bytes of data, but the model has {data.nbytes}",
            "the file is damaged or was written wrongly: export it again",
        )
    return Blob(dtype, shape, data)


def _place(tensor: onnx.TensorProto) -> str:
    """The tensor as messages write it."""
    return f"tensor '{tensor.name}'"


def _header(tensor: onnx.TensorProto) -> tuple[DType, tuple[int, ...]]:
    try:
        dtype = element(tensor.data_type)
    except UnusableType as problem:
        raise error(codes.TENSOR_DATA, _place(tensor), str(problem)) from None
    shape = tuple(tensor.dims)
    if shape and min(shape) < 0:
        raise error(codes.TENSOR_DATA, _place(tensor), f"its dims {list(shape)} hold a negative size")
    if tensor.HasField("segment"):
        raise error(codes.TENSOR_DATA, _place(tensor), "it is stored in segments, which ONNX never defined")
    return dtype, shape


def _strings(tensor: onnx.TensorProto, shape: tuple[int, ...], place: str) -> Blob:
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.HasField("raw_data"):
        raise error(codes.TENSOR_DATA, place, "strings must be stored in string_data")
    if len(tensor.string_data) != prod(shape):
        raise error(
            codes.TENSOR_DATA, place, f"dims {list(shape)} need {prod(shape)} strings, not {len(tensor.string_data)}"
        )
    items = np.empty(len(tensor.string_data), object)
    items[:] = list(tensor.string_data)
    return Blob(DType.STRING, shape, memoryview(pack_strings(items)))


def _typed(tensor: onnx.TensorProto, dtype: DType) -> memoryview:
    field, entry = _FIELDS.get(dtype, ("int32_data", np.uint8))
    values = getattr(tensor, field)
    array: Array = np.array(values, np.int32 if field == "int32_data" else entry).astype(entry, copy=False)
    if dtype.bits == 6:  # one element an entry, where 4 and 2 bits are packed as in raw_data
        return memoryview(pack_bits(array, 6))
    return array.view(np.uint8).data if array.size else memoryview(b"")


def dense(sparse: onnx.SparseTensorProto, files: ExternalFiles) -> Constant:
    """A sparse constant made dense: a Splat of zero when it holds no element. Raises `AtcError`."""
    place = f"sparse tensor '{sparse.values.name}'"
    values = constant(sparse.values, files)
    shape = tuple(sparse.dims)
    if any(d < 0 for d in shape) or values.dtype is DType.STRING:
        raise error(codes.TENSOR_DATA, place, f"dims {list(shape)} of {values.dtype!r} cannot be made dense")
    if prod(values.shape) == 0:
        return Splat(values.dtype, shape, values.dtype.numpy.type(0))
    if prod(shape) * values.dtype.itemsize > DENSE_LIMIT:
        raise error(codes.TENSOR_DATA, place, f"made dense it would have more than {DENSE_LIMIT} bytes")
    where = _linear(blob_array(constant(sparse.indices, files)), shape, prod(values.shape), place)
    out = np.zeros(prod(shape), values.dtype.numpy)
    out[where] = blob_array(values).reshape(-1)
    return blob(out.reshape(shape))


def _linear(indices: Array, shape: tuple[int, ...], count: int, place: str) -> Array:
    """Flat positions of the elements; indices come flat ([NNZ]) or as coordinates ([NNZ, rank])."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise error(codes.TENSOR_DATA, place, f"indices of shape {list(indices.shape)} do not fit {count} values")
    limits = np.array([prod(shape)] if indices.ndim == 1 else shape, np.int64)
    if ((indices.reshape(count, -1) < 0) | (indices.reshape(count, -1) >= limits)).any():
        raise error(codes.TENSOR_DATA, place, f"an index lies outside the dims {list(shape)}")
    if indices.ndim == 1:
        return indices
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape))


def any_constant(proto: onnx.TensorProto | onnx.SparseTensorProto, files: ExternalFiles) -> Constant:
    """The value of a dense or sparse initializer."""
    try:
        return dense(proto, files) if isinstance(proto, onnx.SparseTensorProto) else constant(proto, files)
    except AtcError:
        raise
    except (ValueError, OverflowError, TypeError, MemoryError) as problem:
        name = proto.values.name if isinstance(proto, onnx.SparseTensorProto) else proto.name
        raise error(codes.TENSOR_DATA, f"tensor '{name}'", f"its data cannot be read: {problem}") from None
