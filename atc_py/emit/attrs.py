"""IR attributes, types and dims as messages of ge.proto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from atc_py.ir.dims import Dim, Size
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type, on_host
from om_format import dtypes
from om_format.proto.ge_ir_pb2 import AttrDef, DataType, TensorDescriptor

UNKNOWN_DIM = -1


def dim(size: Size) -> int:
    """A dim as GE writes it: -1 when it is symbolic."""
    return UNKNOWN_DIM if isinstance(size, Dim) else size


def attr(value: Any) -> AttrDef | None:
    """An attribute's message; None for what GE's messages have no form for."""
    message = AttrDef()
    if isinstance(value, bool):
        message.b = value
    elif isinstance(value, int):
        message.i = value
    elif isinstance(value, float):
        message.f = value
    elif isinstance(value, str):
        message.s = value.encode()
    elif isinstance(value, bytes):
        message.bt = value
    elif isinstance(value, (DType, Format, Dim)):
        message.s = (str(value) if isinstance(value, Dim) else value.value).encode()
    elif isinstance(value, (tuple, list)):
        return _list(value)
    elif isinstance(value, (Tensor, Sequence, Optional, Map)):
        message.s = type_text(value).encode()
    else:
        return None
    return message


def _list(values: tuple[Any, ...] | list[Any]) -> AttrDef:
    message = AttrDef()
    target = message.list
    if values and all(isinstance(v, int) for v in values):
        target.i.extend(int(v) for v in values)
        target.val_type = AttrDef.ListValue.VT_LIST_INT
    elif values and all(isinstance(v, (int, float)) for v in values):
        target.f.extend(float(v) for v in values)
        target.val_type = AttrDef.ListValue.VT_LIST_FLOAT
    else:
        target.s.extend(str(getattr(v, "value", v)).encode() for v in values)
        target.val_type = AttrDef.ListValue.VT_LIST_STRING
    return message


def type_text(type_: Type) -> str:
    """A type for people: `sequence(float32[N, 3])`."""
    if isinstance(type_, Tensor):
        shape = "?" if type_.shape is None else ", ".join(str(d) for d in type_.shape)
        return f"{type_.dtype.value}[{shape}]"
    if isinstance(type_, Sequence):
        return f"sequence({type_text(type_.element)})"
    if isinstance(type_, Optional):
        return f"optional({type_text(type_.element)})"
    return f"map({type_.key.value}, {type_text(type_.value)})"


def set_attrs(target: Any, attrs: Mapping[str, Any]) -> None:
    """Put attributes into a message's attr map, in the order of their names."""
    for name in sorted(attrs):
        message = attr(attrs[name])
        if message is not None:
            target[name].CopyFrom(message)


def descriptor(name: str, type_: Type, nbytes: int = 0) -> TensorDescriptor:
    """A value's TensorDescriptor, in its meant shape; storage format and shape are attributes."""
    desc = TensorDescriptor(name=name, size=nbytes)
    if not isinstance(type_, Tensor):
        desc.dtype, desc.layout = DataType.DT_UNDEFINED, "ND"
        set_attrs(desc.attr, {"_atc_type": type_text(type_)})
        return desc
    wire = dtypes.wire_dtype(type_.dtype.value)
    desc.dtype, desc.layout = cast(DataType, wire.proto), type_.format.value
    shape = (UNKNOWN_DIM,) if type_.shape is None else type_.shape
    desc.shape.dim.extend(dim(d) for d in shape)
    notes: dict[str, Any] = {}
    if wire.atc_dtype is not None:
        notes[dtypes.ATC_DTYPE_ATTR] = wire.atc_dtype
    if type_.shape is not None:
        if not type_.static:
            notes["_atc_dims"] = [str(d) for d in type_.shape]
        if not on_host(type_) and type_.storage_format is not type_.format:
            notes["_atc_storage_format"] = type_.storage_format.value
            notes["_atc_storage_shape"] = [str(d) for d in type_.storage_shape]
    notes["origin_format"] = type_.format.value
    set_attrs(desc.attr, notes)
    return desc
