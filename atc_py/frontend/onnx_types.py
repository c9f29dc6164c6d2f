"""ONNX type messages as types of the IR.

tensor(float)[N, 3, -1]   declared as   (FLOAT32, ("N", 3, None))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx

from atc_py.errors import error
from atc_py.frontend.codes import NOT_ONNX
from atc_py.ir.dims import Dim, Size
from atc_py.ir.types import DType, Map, Optional, Sequence, Tensor, Type

ELEMENTS: dict[int, DType] = {
    1: DType.FLOAT32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16, 6: DType.INT32, 7: DType.INT64,
    8: DType.STRING, 9: DType.BOOL, 10: DType.FLOAT16, 11: DType.FLOAT64, 12: DType.UINT32, 13: DType.UINT64,
    14: DType.COMPLEX64, 15: DType.COMPLEX128, 16: DType.BFLOAT16, 17: DType.FLOAT8_E4M3FN, 18: DType.FLOAT8_E4M3FNUZ,
    19: DType.FLOAT8_E5M2, 20: DType.FLOAT8_E5M2FNUZ, 21: DType.UINT4, 22: DType.INT4, 23: DType.FLOAT4_E2M1,
    24: DType.FLOAT8_E8M0, 25: DType.UINT2, 26: DType.INT2, 27: DType.FLOAT6_E2M3, 28: DType.FLOAT6_E3M2,
}  # fmt: skip
"""TensorProto.DataType → DType."""
CODES: dict[DType, int] = {dtype: code for code, dtype in ELEMENTS.items()}
NAMES: dict[str, DType] = {
    "FLOAT": DType.FLOAT32, "UINT8": DType.UINT8, "INT8": DType.INT8, "UINT16": DType.UINT16, "INT16": DType.INT16,
    "INT32": DType.INT32, "INT64": DType.INT64, "STRING": DType.STRING, "BOOL": DType.BOOL, "FLOAT16": DType.FLOAT16,
    "DOUBLE": DType.FLOAT64, "UINT32": DType.UINT32, "UINT64": DType.UINT64, "COMPLEX64": DType.COMPLEX64,
    "COMPLEX128": DType.COMPLEX128,
}  # fmt: skip
"""Element types as the string attribute of Cast-1 spells them."""

Dims = tuple["int | str | None", ...]
ShapeOf = Callable[[Dims], "tuple[Size, ...] | None"]
_UNNAMED = frozenset({"", "?", "-1", "None"})


class UnusableType(ValueError):
    """A type that cannot be used; the text says why."""


def text(name: str | bytes) -> str:
    """A name of the file; protobuf hands out bytes where it is no UTF-8. Raises `AtcError` then."""
    if isinstance(name, bytes):
        raise error(NOT_ONNX, f"name {name!r}", "names must be UTF-8 text", "the file is damaged: get it again")
    return name


def texts(names: Iterable[str | bytes]) -> tuple[str, ...]:
    """Several names."""
    found = tuple(names)
    if bytes in map(type, found):
        return tuple(map(text, found))
    return found  # type: ignore[return-value]  # none is bytes


def element(code: int) -> DType:
    """The DType of a TensorProto.DataType; raises `UnusableType`."""
    found = ELEMENTS.get(code)
    if found is not None:
        return found
    names = {v: k for k, v in onnx.TensorProto.DataType.items()}
    raise UnusableType(f"element type {names.get(code, code)} is not supported" if code else "it has no element type")


def declared_dims(proto: onnx.TypeProto.Tensor) -> Dims | None:
    """The declared shape: sizes, names and None; None when not even the rank is declared.

    A size of 0 or less counts as unknown: exporters write it for dynamic axes.
    """
    if not proto.HasField("shape"):
        return None
    dims: list[int | str | None] = []
    for d in proto.shape.dim:
        if d.HasField("dim_value"):
            dims.append(d.dim_value if d.dim_value > 0 else None)
        else:
            name = text(d.dim_param).strip()
            dims.append(None if name in _UNNAMED else name)
    return tuple(dims)


def fixed_or_unknown(dims: Dims) -> tuple[Size, ...] | None:
    """The shape when all of it is fixed, else None: for elements of sequences, which may differ in shape."""
    sizes = [d for d in dims if type(d) is int]
    return tuple(sizes) if len(sizes) == len(dims) else None


def to_type(proto: onnx.TypeProto, shape_of: ShapeOf = fixed_or_unknown) -> Type:
    """The IR's type; `shape_of` makes a tensor's shape of what is declared. Raises `UnusableType`."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        dims = declared_dims(proto.tensor_type)
        return Tensor(element(proto.tensor_type.elem_type), None if dims is None else shape_of(dims))
    if kind == "sequence_type":
        return Sequence(to_type(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return Optional(to_type(proto.optional_type.elem_type))
    if kind == "map_type":
        return Map(element(proto.map_type.key_type), to_type(proto.map_type.value_type))
    raise UnusableType(f"a {kind.replace('_type', '')} is not supported" if kind else "it has no type")


def to_proto(type_: Type) -> onnx.TypeProto:
    """The type as onnx's function builders want it; symbolic dims by their text."""
    proto = onnx.TypeProto()
    if isinstance(type_, Tensor):
        proto.tensor_type.elem_type = CODES[type_.dtype]
        if type_.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for d in type_.shape:
                dim = proto.tensor_type.shape.dim.add()
                if isinstance(d, Dim):
                    dim.dim_param = str(d)
                else:
                    dim.dim_value = d
    elif isinstance(type_, Sequence):
        proto.sequence_type.elem_type.CopyFrom(to_proto(type_.element))
    elif isinstance(type_, Optional):
        proto.optional_type.elem_type.CopyFrom(to_proto(type_.element))
    else:
        proto.map_type.key_type = CODES[type_.key]
        proto.map_type.value_type.CopyFrom(to_proto(type_.value))
    return proto


@dataclass(frozen=True)
class Declared:
    """A tensor type as the model declares it for an inner value."""

    dtype: DType | None
    dims: Dims | None


def declared(proto: onnx.TypeProto) -> Declared | None:
    """What the model says about a tensor; None for other kinds of values."""
    if proto.WhichOneof("value") != "tensor_type":
        return None
    return Declared(ELEMENTS.get(proto.tensor_type.elem_type), declared_dims(proto.tensor_type))
