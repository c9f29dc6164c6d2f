"""The text form of types, constants and attributes, printed and parsed.

    Tensor(FLOAT16, (N, 20, 5, 5), NCHW, NC1HWC0)   float16[N, 20, 5, 5] NCHW as NC1HWC0
    Tensor(FLOAT32, None), Sequence of it           float32[?], sequence<float32[?]>
    Optional, Map                                   optional<int64[]>, map<int64, float32[]>
    Blob of more than 32 bytes, and a small one     blob 3: float32[64, 3, 7, 7], blob x"0000803f": float32[1]
    Splat, DimVec                                   splat 0.5: float32[N, 8], dims[N, H//2]: int64[2]
    Derived                                         Cast(blob 3: float32[64]) {to = float16}: float16[64]
    attributes             {axis = -1, eps = 1e-05, pads = [1, 1], mode = "linear", k = none, to = float16}

`blob K` is entry K of a table of byte ranges: a `BlobTable` when printing, a sequence of buffers when
parsing. What is parsed is what was printed, Python types included: int or float, bool, str, bytes
(`x"00ff"`), None, tuple, DType, Format, types, Dims (`dim[N//2]`), constants. Attributes are immutable, so
a list comes back as a tuple, and a numpy scalar as a Python one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from atc_py.ir.attr_reader import Buffers, Reader, read_scalar
from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat
from atc_py.ir.dims import Dim, Size
from atc_py.ir.lexer import (
    CACHED,
    MAX_DEPTH,
    Mistake,
    name_text,
    operator_text,
    quote,
    sizes_text,
    unprintable,
)
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type

__all__ = [
    "BlobTable",
    "parse_attrs",
    "parse_const",
    "parse_type",
    "print_attrs",
    "print_const",
    "print_type",
]

INLINE = 32
"""Blobs of at most this many bytes are written into the text."""
MAX_RECIPE = 4096
"""Constants in one recipe."""

T = TypeVar("T")


class BlobTable:
    """The blobs that a text refers to by number, in order of first use.

    Equal contents (dtype, shape and bytes) have one number.
    """

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self._numbers: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.blobs)

    @property
    def views(self) -> list[memoryview]:
        """The bytes, in order: what `parse_graph` and its kin take."""
        return [blob.data for blob in self.blobs]

    def index(self, blob: Blob) -> int:
        """The blob's number; a new content is added."""
        number = self._numbers.setdefault(blob.key, len(self.blobs))
        if number == len(self.blobs):
            self.blobs.append(blob)
        return number

    def word(self, blob: Blob) -> str:
        """How a text names the blob."""
        return str(self.index(blob))


@lru_cache(1 << 14)
def print_type(type_: Type) -> str:
    """The text of a type."""
    if isinstance(type_, Tensor):
        shape = "?" if type_.shape is None else sizes_text(type_.shape)
        text = f"{type_.dtype.value}[{shape}]"
        if type_.format is not Format.ND:
            text += f" {type_.format.value}"
        return text if type_.storage is None else f"{text} as {type_.storage.value}"
    if isinstance(type_, Map):
        return f"map<{type_.key.value}, {print_type(type_.value)}>"
    if isinstance(type_, (Sequence, Optional)):
        return f"{type(type_).__name__.lower()}<{print_type(type_.element)}>"
    raise unprintable("a type", f"{type_!r} is no type")


def print_const(constant: Constant, blobs: BlobTable | None = None) -> str:
    """The text of a constant with its type.

    Without a table, a blob of more than 32 bytes is written as `blob ?`, which cannot be parsed.
    """
    return const_text(constant, blobs, None)


def const_text(
    constant: Constant,
    blobs: BlobTable | None,
    given: Tensor | None,
    depth: int = 0,
    count: list[int] | None = None,
) -> str:
    """The text of a constant; the type is left out where it is that of `given`."""
    if isinstance(constant, Blob):
        text = _blob_text(constant, blobs)
    elif isinstance(constant, Splat):
        text = f"splat {_splat_text(constant)}"
    elif isinstance(constant, DimVec):
        text = f"dims[{sizes_text(constant.elements)}]"
    else:
        text = _recipe_text(constant, blobs, depth, [1] if count is None else count)
    if given is not None and given.dtype is constant.dtype and given.shape == constant.shape:
        return text
    return f"{text}: {_plain_type(constant.dtype, tuple(constant.shape))}"


def _recipe_text(recipe: Derived, blobs: BlobTable | None, depth: int, count: list[int]) -> str:
    count[0] += len(recipe.inputs)
    if depth > MAX_DEPTH - bool(recipe.inputs) or count[0] > MAX_RECIPE:
        limits = f"{MAX_DEPTH} levels or {MAX_RECIPE} constants"
        raise unprintable("a constant", f"a recipe has more than {limits}")
    inputs = ", ".join([const_text(c, blobs, None, depth + 1, count) for c in recipe.inputs])
    text = f"{operator_text(recipe.op)}({inputs})"
    return f"{text} {attrs_text(recipe.attrs, blobs, depth + 1)}" if recipe.attrs else text


@lru_cache(1 << 12)
def _plain_type(dtype: DType, shape: tuple[Size, ...]) -> str:
    """The text of a tensor's type, most constants being of a few."""
    return print_type(Tensor(dtype, shape))


def _blob_text(blob: Blob, blobs: BlobTable | None) -> str:
    if blob.data.nbytes <= INLINE:
        return f'blob x"{blob.data.tobytes().hex()}"'
    return f"blob {blobs.word(blob)}" if blobs is not None else "blob ?"


def _splat_text(splat: Splat) -> str:
    """The shortest text that gives the same bits; the bits themselves where none does."""
    if splat.dtype is DType.STRING:
        return quote(str(splat.value))
    scalar = np.asarray(splat.value, splat.dtype.numpy)[()]
    if splat.dtype is DType.BOOL:
        return "true" if scalar else "false"
    if splat.dtype.is_complex:
        return f'x"{scalar.tobytes().hex()}"'
    for text in (str(scalar), repr(float(scalar))):
        try:
            if read_scalar(Reader(text).whole(Reader.value), splat.dtype, 0).tobytes() == scalar.tobytes():
                return text
        except Mistake:
            continue
    return f'x"{scalar.tobytes().hex()}"'


def attrs_key(attrs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for attributes that are equal in names, values, types and order; None for what has no such key.

    Layers repeat: what is made of attributes is made once for each key. Python takes 1, 1.0 and True for equal, and 0.0
    and -0.0, so the types belong to a key, and a zero has none.
    """
    if not attrs:
        return ()
    values = tuple(attrs.values())
    kinds = tuple(map(type, values))
    doubtful = _doubtful(kinds)
    if doubtful is None:
        return None
    for i in doubtful:
        value = values[i]
        if not value or (kinds[i] is tuple and {*map(type, value)} != _INTS):
            return None
    return (*attrs, *values, *kinds)


@lru_cache(1 << 10)
def _doubtful(kinds: tuple[type, ...]) -> tuple[int, ...] | None:
    """The places of the values, of types `kinds`, that are a key only sometimes; None where one never is."""
    if any(kind not in _KEYS and kind is not tuple and kind is not float for kind in kinds):
        return None
    return tuple([i for i, kind in enumerate(kinds) if kind not in _KEYS])


def keyed_attrs(key: tuple[Any, ...]) -> dict[str, Any]:
    """The attributes that have a key."""
    count = len(key) // 3
    return dict(zip(key[:count], key[count : 2 * count], strict=True))


def print_attrs(attrs: Mapping[str, Any], blobs: BlobTable | None = None) -> str:
    """The text of attributes, in their order: `{axis = 1, keepdims = true}`."""
    return attrs_text(attrs, blobs, 0)


def attrs_text(attrs: Mapping[str, Any], blobs: BlobTable | None, depth: int) -> str:
    """The text of attributes that stand `depth` levels inside of others."""
    key = attrs_key(attrs)
    return _attrs_text(attrs, blobs, depth) if key is None else _text_of_key(key)


@lru_cache(1 << 12)
def _text_of_key(key: tuple[Any, ...]) -> str:
    return _attrs_text(keyed_attrs(key), None, 0)


def _attrs_text(attrs: Mapping[str, Any], blobs: BlobTable | None, depth: int) -> str:
    items = [f"{_attribute(name)} = {value_text(value, blobs, depth, name)}" for name, value in attrs.items()]
    return "{" + ", ".join(items) + "}"


_attribute = lru_cache(1 << 10)(name_text)


def value_text(value: Any, blobs: BlobTable | None, depth: int, place: str) -> str:
    """The text of one attribute value; `place` is the attribute's name for the error."""
    kind = type(value)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple(value)
    if depth >= MAX_DEPTH:
        raise unprintable(f"attribute '{place}'", f"values nest more than {MAX_DEPTH} deep")
    if kind is tuple and {*map(type, value)} == _INTS:
        return str(list(value))
    if kind is tuple or kind is list:
        return "[" + ", ".join([value_text(v, blobs, depth + 1, place) for v in value]) + "]"
    if kind in _CONSTANTS:
        return const_text(value, blobs, None, depth + 1)
    if isinstance(value, np.generic):
        return value_text(value.item(), blobs, depth + 1, place)
    cause = f"a value of type {kind.__name__} cannot be written"
    raise unprintable(f"attribute '{place}'", cause, "use plain Python values")


def _float_text(value: float) -> str:
    if value == value:
        return repr(value)
    bits = struct.pack(">d", value).hex()
    return "nan" if bits == _NAN else f"nan(0x{bits})"


_NAN = struct.pack(">d", float("nan")).hex()
_SIMPLE: dict[type, Callable[[Any], str]] = {
    int: str,
    float: _float_text,
    bool: lambda v: "true" if v else "false",
    str: quote,
    bytes: lambda v: f'x"{v.hex()}"',
    type(None): lambda v: "none",
    DType: lambda v: str(v.value),
    Format: lambda v: str(v.value),
    Dim: lambda v: f"dim[{v}]",
    Tensor: print_type,
    Sequence: print_type,
    Optional: print_type,
    Map: print_type,
}
_KEYS = frozenset({int, bool, str, bytes, type(None), DType, Format})
_INTS = {int}
_CONSTANTS = frozenset({Blob, Splat, DimVec, Derived})


def parse_type(text: str) -> Type:
    """The type that `text` denotes; raises `AtcError` (EI101)."""
    return _parsed("type", text, (), Reader.type)


def parse_const(text: str, blobs: Buffers = ()) -> Constant:
    """The constant that `text` denotes; raises `AtcError` (EI101, EI102)."""
    return _parsed("constant", text, blobs, Reader.const)


def parse_attrs(text: str, blobs: Buffers = ()) -> dict[str, Any]:
    """The attributes that `text` denotes; raises `AtcError` (EI101, EI102)."""
    try:
        return attrs_of(text, blobs)
    except Mistake as mistake:
        mistake.raise_error("attributes")


def attrs_of(text: str, blobs: Buffers = ()) -> dict[str, Any]:
    """As `parse_attrs`, but raises `Mistake`. Equal texts without blobs are parsed once."""
    if len(text) <= CACHED and "blob " not in text:
        return dict(_attrs_without_blobs(text))
    return Reader(text, blobs).whole(Reader.attrs)


@lru_cache(1 << 13)
def _attrs_without_blobs(text: str) -> dict[str, Any]:
    return Reader(text).whole(Reader.attrs)


def _parsed(place: str, text: str, blobs: Buffers, read: Callable[[Reader], T]) -> T:
    try:
        return Reader(text, blobs).whole(read)
    except Mistake as mistake:
        mistake.raise_error(place)
