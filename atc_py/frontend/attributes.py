"""Attribute messages as the values that a declaration asks for: ints, strings, tuples, dtypes, constants, types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

import onnx
import onnx.defs
from onnx import AttributeProto

from atc_py.frontend.asked import hint as schedule_hint
from atc_py.frontend.external import ExternalFiles
from atc_py.frontend.onnx_types import UnusableType, element, to_type
from atc_py.frontend.tensors import any_constant
from atc_py.frontend.topology import Named
from atc_py.ir.constants import Blob, Derived, DimVec, Splat
from atc_py.ir.types import DType, Map, Optional, Sequence, Tensor
from atc_py.ops.base import Attr, InferError, Op

Attributes = Mapping[str, AttributeProto]

_FIELDS = (
    ("f", AttributeProto.FLOAT), ("i", AttributeProto.INT), ("s", AttributeProto.STRING), ("t", AttributeProto.TENSOR),
    ("g", AttributeProto.GRAPH), ("tp", AttributeProto.TYPE_PROTO), ("sparse_tensor", AttributeProto.SPARSE_TENSOR),
)  # fmt: skip
_LISTS = (
    ("floats", AttributeProto.FLOATS), ("ints", AttributeProto.INTS), ("strings", AttributeProto.STRINGS),
    ("tensors", AttributeProto.TENSORS), ("graphs", AttributeProto.GRAPHS),
)  # fmt: skip


def _kind(a: AttributeProto) -> int:
    """The type of an attribute without one, as files of old exporters have them: that of the field that is set."""
    return next(
        (kind for name, kind in _FIELDS if a.HasField(name)),
        next((k for name, k in _LISTS if len(getattr(a, name))), 0),
    )


def decode(a: AttributeProto, files: ExternalFiles) -> Any:
    """The attribute's value. Strings are decoded so that every byte string comes back by encoding it again."""
    kind = a.type or _kind(a)
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(a)
    if kind == AttributeProto.TENSOR:
        return any_constant(a.t, files)
    if kind == AttributeProto.SPARSE_TENSOR:
        return any_constant(a.sparse_tensor, files)
    if kind == AttributeProto.TYPE_PROTO:
        try:
            return to_type(a.tp)
        except UnusableType as problem:
            raise InferError(f"attribute '{a.name}': {problem}") from None
    if kind == 0:
        return ()
    raise InferError(
        f"attribute '{a.name}' has a type that no operator takes ({AttributeProto.AttributeType.Name(kind)})"
    )


_PLAIN: dict[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.STRING: lambda a: a.s.decode("utf-8", "surrogateescape"),
    AttributeProto.STRINGS: lambda a: tuple(s.decode("utf-8", "surrogateescape") for s in a.strings),
}
"""How values of plain types are read."""


def resolve(given: Iterable[Named], env: Attributes | None) -> dict[str, AttributeProto]:
    """Attributes by name; inside a function, references are replaced by the call's attributes or left out."""
    found: dict[str, AttributeProto] = {}
    for name, refers_to, a in given:
        if name in found:
            raise InferError(f"attribute '{name}' is given twice")
        if not refers_to:
            found[name] = a
        elif env is None:
            raise InferError(f"attribute '{name}' refers to '{refers_to}' outside of a function")
        elif refers_to in env:
            copy = AttributeProto()
            copy.CopyFrom(env[refers_to])
            copy.name = name
            found[name] = copy
    return found


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float, int), "str": (str,), "bytes": (str,), "dtype": (int, DType),
    "tensor": (Blob, Splat, DimVec, Derived), "type": (Tensor, Sequence, Optional, Map),
}  # fmt: skip
_ITEMS: dict[str, tuple[type, ...]] = {"ints": (int,), "floats": (float, int), "strs": (str,), "dims": (int,)}
_WORDS = {"str": "a string", "int": "an int", "float": "a float", "dtype": "an element type", "bytes": "a string",
          "tensor": "a tensor", "type": "a type"}  # fmt: skip


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def convert(name: str, attr: Attr, value: Any) -> Any:
    """The value as the declaration wants it; raises `InferError` when it is of another kind."""
    kind = attr.kind
    if kind in _ITEMS:
        if not isinstance(value, tuple) or not all(isinstance(v, _ITEMS[kind]) for v in value):
            raise InferError(f"attribute '{name}' must be a list of {kind.rstrip('s')}s, but is {_shown(value)}")
        return tuple(float(v) for v in value) if kind == "floats" else value
    fits: bool = isinstance(value, _KINDS[kind])
    if not fits:
        raise InferError(f"attribute '{name}' must be {_WORDS[kind]}, but is {_shown(value)}")
    if kind == "float":
        return float(value)
    if kind == "bytes":
        return value.encode("utf-8", "surrogateescape")
    if kind == "dtype" and not isinstance(value, DType):
        if value == 0 and attr.default is None:
            return None
        try:
            return element(value)
        except UnusableType as problem:
            raise InferError(f"attribute '{name}': {problem}") from None
    if kind == "str" and not value.isprintable() and any(0xDC80 <= ord(c) <= 0xDCFF for c in value):
        raise InferError(f"attribute '{name}' is no UTF-8 text")
    return value


def coerce(op: Op, attrs: Mapping[str, Any], schema: onnx.defs.OpSchema | None) -> dict[str, Any]:
    """All attributes as `op` declares them. One that the operator does not have is an error, never ignored."""
    found: dict[str, Any] = {}
    for name, value in attrs.items():
        declared = op.attrs.get(name)
        if declared is not None:
            found[name] = convert(name, declared, value)
            continue
        if schema is not None and name in schema.attributes:
            default = schema.attributes[name].default_value
            if default.type and decode(default, ExternalFiles(None)) == value:
                continue
            raise InferError(f"attribute '{name}' = {_shown(value)} is not supported")
        near = get_close_matches(name, list(op.attrs), 1)
        raise InferError(
            f"attribute '{name}' is none that {op.name} has",
            schedule_hint(name) or (f"did the exporter mean '{near[0]}'?" if near else "remove it"),
        )
    return found


@cache
def old_defaults(domain: str, op: str, version: int) -> tuple[tuple[str, Any], ...]:
    """Defaults of the operator's schema of this version that differ from those of the newest version."""
    old, new = onnx.defs.get_schema(op, version, domain), onnx.defs.get_schema(op, domain)
    if old.since_version == new.since_version:
        return ()
    files, changed = ExternalFiles(None), []
    for name, attribute in old.attributes.items():
        if not attribute.default_value.type:
            continue
        value = decode(attribute.default_value, files)
        newest = new.attributes.get(name)
        if newest is None or not newest.default_value.type or decode(newest.default_value, files) != value:
            changed.append((name, value))
    return tuple(changed)
