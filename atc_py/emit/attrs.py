"""IR attributes, types and dims as messages of ge.proto, in their bytes (`emit.wire`).

float32 [N, 3]      dtype DT_FLOAT, shape [-1, 3], layout "ND", attr {_atc_dims: ["N", "3"], origin_format: "ND"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any

from atc_py.emit.wire import BYTES, VARINT, VARINTS, float32, nested, number, packed, real, sized, tag, text, within
from atc_py.ir.dims import Dim, Size
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type, on_host
from om_format import dtypes
from om_format.proto.ge_ir_pb2 import AttrDef, DataType, NamedAttrs, TensorDescriptor


def fields(message: Any) -> dict[str, int]:
    """The numbers of a message's fields by name."""
    return {f.name: f.number for f in message.DESCRIPTOR.fields}


_ATTR, _LIST, _DESC, _ENTRY = map(fields, (AttrDef, AttrDef.ListValue, TensorDescriptor, NamedAttrs.AttrEntry))
_INT, _PLAIN = {int}, frozenset({str, int, bool, NoneType})
UNKNOWN_DIM = -1


def dim(size: Size) -> int:
    """A dim as GE writes it: -1 when it is symbolic."""
    return UNKNOWN_DIM if isinstance(size, Dim) else size


def attr_bytes(value: Any) -> bytes | None:
    """An attribute's value as an AttrDef; None for what GE's messages have no form for."""
    if isinstance(value, (tuple, list)):
        return _LISTED + sized(_list_bytes(value))
    if isinstance(value, bool):
        return number(_ATTR["b"], value, always=True)
    if isinstance(value, int):
        return _COUNTED + VARINTS[int(value)]
    if isinstance(value, float):
        return real(_ATTR["f"], value)
    if isinstance(value, bytes):
        return nested(_ATTR["bt"], value)
    if isinstance(value, (DType, Format)):
        value = value.value
    elif isinstance(value, (Tensor, Sequence, Optional, Map)):
        value = type_text(value)
    elif not isinstance(value, (str, Dim)):
        return None
    return nested(_ATTR["s"], str(value).encode())


def _list_bytes(values: tuple[Any, ...] | list[Any]) -> bytes:
    kinds = {*map(type, values)}
    if kinds and all(issubclass(kind, int) for kind in kinds):
        return packed(_LIST["i"], values) + _list_of("VT_LIST_INT")
    if kinds and all(issubclass(kind, (int, float)) for kind in kinds):
        return nested(_LIST["f"], b"".join(map(float32, values))) + _list_of("VT_LIST_FLOAT")
    return _text_list([str(getattr(v, "value", v)) for v in values])


def _text_list(values: Iterable[str]) -> bytes:
    raws = [v.encode() for v in values]
    return b"".join([_LISTED_TEXT + VARINTS[len(raw)] + raw for raw in raws]) + _TEXTS


def _list_of(kind: str) -> bytes:
    return number(_LIST["val_type"], AttrDef.ListValue.ListValueType.Value(kind))


_COUNTED = tag(_ATTR["i"], VARINT)
_LISTED, _LISTED_TEXT, _TEXTS = tag(_ATTR["list"], BYTES), tag(_LIST["s"], BYTES), _list_of("VT_LIST_STRING")


def attrs_bytes(field: int, attrs: Mapping[str, Any]) -> bytes:
    """A map of attributes, in the order of their names."""
    return b"".join([attr_entry(field, name, attrs[name]) for name in sorted(attrs)])


def attr_entry(field: int, name: str, value: Any) -> bytes:
    """One attribute of a map; nothing for a value that has no form."""
    kind = type(value)
    if kind in _PLAIN or (kind is float and value) or (kind is tuple and set(map(type, value)) == _INT):
        return _told(field, name, value)
    return _entry(field, name, value)


@lru_cache(maxsize=1 << 12, typed=True)
def _told(field: int, name: str, value: str | float | tuple[int, ...] | None) -> bytes:
    """An attribute that many nodes have alike, such as their engine or their padding."""
    return _entry(field, name, value)


def _entry(field: int, name: str, value: Any) -> bytes:
    content = attr_bytes(value)
    return b"" if content is None else _before_value(field, name, len(content)) + content


def texts_entry(field: int, name: str, values: Iterable[str]) -> bytes:
    """One attribute of a map whose value is a list of strings."""
    listed = _text_list(values)
    content = _LISTED + VARINTS[len(listed)] + listed
    return _before_value(field, name, len(content)) + content


def number_entry(field: int, name: str, value: int) -> bytes:
    """One attribute of a map whose value is an integer."""
    content = _COUNTED + VARINTS[value]
    return _before_value(field, name, len(content)) + content


@lru_cache(maxsize=1 << 12)
def _before_value(field: int, name: str, size: int) -> bytes:
    """An entry of a map up to its value of `size` bytes."""
    key = nested(_ENTRY["key"], name.encode())
    return within(bytes(size), key + tag(_ENTRY["value"], BYTES), tag(field, BYTES))[:-size]


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


def nbytes_of(type_: Type) -> int:
    """A value's bytes where they are known, else 0."""
    if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
        return 0
    size = type_.nbytes
    return 0 if isinstance(size, Dim) else size


def descriptor(type_: Type, name: str = "") -> bytes:
    """The TensorDescriptor of a value under a name."""
    return text(_DESC["name"], name) + unnamed(type_)


@lru_cache(maxsize=1 << 12)
def in_file(type_: Type, nbytes: int) -> bytes:
    """The TensorDescriptor of a constant of so many bytes, between its name and its offset in the file."""
    return _kind(type_) + number(_DESC["size"], nbytes) + number(_DESC["weight_size"], nbytes)


@lru_cache(maxsize=1 << 14)
def described(field: int, type_: Type) -> bytes:
    """A field that is the TensorDescriptor of a value without a name."""
    return nested(field, unnamed(type_))


@lru_cache(maxsize=1 << 14)
def unnamed(type_: Type) -> bytes:
    """The TensorDescriptor of a value but for its name, which would come first."""
    return _kind(type_) + number(_DESC["size"], nbytes_of(type_))


@lru_cache(maxsize=1 << 14)
def _kind(type_: Type) -> bytes:
    """Format and shape of the stored array; what it means is `origin_*`, as GE has it. Many values have few types."""
    if not isinstance(type_, Tensor):
        notes: dict[str, Any] = {"_atc_type": type_text(type_)}
        head = number(_DESC["dtype"], DataType.DT_UNDEFINED) + text(_DESC["layout"], "ND")
        return head + attrs_bytes(_DESC["attr"], notes)
    wire = dtypes.wire_dtype(type_.dtype.value)
    stored = type_.shape is not None and not on_host(type_) and type_.storage_format is not type_.format
    shape = (UNKNOWN_DIM,) if type_.shape is None else type_.storage_shape if stored else type_.shape
    notes = {"origin_format": type_.format.value}
    if wire.atc_dtype is not None:
        notes[dtypes.ATC_DTYPE_ATTR] = wire.atc_dtype
    if type_.shape is not None:
        if not type_.static:
            notes["_atc_dims"] = [str(d) for d in type_.shape]
        if stored:
            notes["origin_shape"] = [d if type(d) is int else UNKNOWN_DIM for d in type_.shape]
            if not type_.static:
                notes["_atc_storage_shape"] = [str(d) for d in type_.storage_shape]
    parts = (
        number(_DESC["dtype"], wire.proto),
        nested(_DESC["shape"], packed(1, map(dim, shape))),
        text(_DESC["layout"], (type_.storage_format if stored else type_.format).value),
        attrs_bytes(_DESC["attr"], notes),
    )
    return b"".join(parts)
