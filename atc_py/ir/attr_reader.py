"""Reading types, constants and attribute values; `attr_text` shows the forms.

    Reader('[1, 2.0, x"ff"]').whole(Reader.value)   →  (1, 2.0, b"\xff")

A `Reader` is a position in a text. Each production is one or two patterns matched at that position. Nothing
is evaluated, sizes and depths are limited, and a `Mistake` tells where the text went wrong.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np

from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat, packed_nbytes
from atc_py.ir.dims import Dim
from atc_py.ir.lexer import (
    BRACKET,
    CACHED,
    MAX_DEPTH,
    OPERATOR,
    STRING,
    Mistake,
    integer,
    named,
    size,
    sizes,
    unquote,
)
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type

MAX_RANK = 64

T = TypeVar("T")
Buffers = Seq[memoryview]

TENSOR = rf"[a-z][a-z0-9_]*{BRACKET}(?: [A-Z][A-Z0-9_]*)?(?: as [A-Z][A-Z0-9_]*)?"
_TENSOR = re.compile(TENSOR)
_TENSOR_PARTS = re.compile(rf"([a-z][a-z0-9_]*){BRACKET}(?: ([A-Z][A-Z0-9_]*))?(?: as ([A-Z][A-Z0-9_]*))?")
_CONTAINER = re.compile(r"(sequence|optional|map)<")
_ATTR = re.compile(rf"([A-Za-z_][A-Za-z0-9_.]*|{STRING}) ?= ?")
_INTS = re.compile(r"\[(-?[0-9]{1,19}(?:, ?-?[0-9]{1,19})*)\]")
_VALUE = re.compile(
    r"(-?[0-9]+)(?![0-9.eE])"
    r"|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    rf"|({STRING})(?!\()"
    r"|(\[)"
    r'|x"([0-9a-f]*)"'
    rf"|dim{BRACKET}"
    r"|nan\(0x([0-9a-f]{16})\)"
    r"|(-?[A-Za-z_][A-Za-z0-9_.]*)(?![A-Za-z0-9_.\-(\[<]|::)"
)
_CONST = re.compile(rf'blob (?:([0-9]+)|x"([0-9a-f]*)"|(\?))|(splat )|dims{BRACKET}|((?:{OPERATOR}|{STRING})\()')
_DTYPES = {d.value: d for d in DType}
_FORMATS = {f.value: f for f in Format}
_NUMBERS = {word: float(word) for word in ("inf", "-inf", "nan")}
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None} | _NUMBERS | _DTYPES | _FORMATS


class Reader:
    """A position in a text that moves forward as things are read. All its methods raise `Mistake`."""

    def __init__(self, text: str, blobs: Buffers = ()) -> None:
        self.text = text
        self.at = 0
        self.blobs = blobs
        self.depth = 0
        self.known: dict[tuple[int, DType, tuple[int, ...]], Blob] = {}

    def fail(self, cause: str, code: str = "EI101") -> NoReturn:
        """Say what is wrong at the current position."""
        raise Mistake(self.at, cause, code)

    def expected(self, what: str) -> NoReturn:
        """Say that something else was expected at the current position."""
        found = self.text[self.at : self.at + 20]
        self.fail(f"expected {what}, found {found!r}" if found else f"expected {what}, found the end")

    def take(self, word: str) -> bool:
        """Step over `word` if it comes next."""
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def need(self, word: str) -> None:
        """Step over `word`, which must come next."""
        if not self.take(word):
            self.expected(f"'{word}'")

    def whole(self, read: Callable[[Reader], T]) -> T:
        """What `read` makes of the text, all of which it must use."""
        result = read(self)
        if self.at != len(self.text):
            self.expected("the end")
        return result

    def deeper(self, step: int) -> None:
        """Count a level in (1) or out (-1)."""
        self.depth += step
        if self.depth > MAX_DEPTH:
            self.fail(f"values nest more than {MAX_DEPTH} deep", "EI102")

    def type(self) -> Type:
        """A type."""
        match = _CONTAINER.match(self.text, self.at)
        if match is None:
            return self.tensor()
        self.deeper(1)
        self.at = match.end()
        result: Type
        if match[1] == "map":
            end = self.text.find(", ", self.at)
            key = _DTYPES.get(self.text[self.at : end]) if end > 0 else None
            if key is None:
                self.expected("the dtype of the map's keys")
            self.at = end + 2
            result = Map(key, self.type())
        else:
            result = (Sequence if match[1] == "sequence" else Optional)(self.type())
        self.need(">")
        self.deeper(-1)
        return result

    def tensor(self) -> Tensor:
        """A tensor type."""
        match = _TENSOR.match(self.text, self.at)
        if match is None:
            self.expected("a type")
        result = tensor_of(match[0], self.at)
        self.at = match.end()
        return result

    def attrs(self) -> dict[str, Any]:
        """Attributes in braces."""
        self.need("{")
        result: dict[str, Any] = {}
        if self.take("}"):
            return result
        while True:
            match = _ATTR.match(self.text, self.at)
            if match is None:
                self.expected("an attribute's name and '='")
            name = named(match[1], self.at)
            if name in result:
                self.fail(f"attribute '{name}' comes twice")
            self.at = match.end()
            result[name] = self.value()
            if self.take("}"):
                return result
            self.comma("}")

    def comma(self, end: str) -> None:
        """A comma and the blank after it."""
        if not self.take(","):
            self.expected(f"',' or '{end}'")
        self.take(" ")

    def value(self) -> Any:
        """One attribute value."""
        match = _VALUE.match(self.text, self.at)
        kind = match.lastindex if match else None
        if match is None or (kind == 8 and match[8] not in _WORDS):
            return self._type_or_const()
        if kind == 4:
            return self._tuple()
        at, self.at = self.at, match.end()
        word = match[kind or 0]
        if kind == 1:
            return integer(word, at)
        if kind == 2:
            return float(word)
        if kind == 3:
            return unquote(word, at)
        if kind == 5:
            return _bytes(word, at)
        if kind == 6:
            return self._dim(word, at)
        if kind == 7:
            return _nan(word, at)
        return _WORDS[word]

    def _dim(self, text: str, at: int) -> Dim:
        found = size(text, at)
        if not isinstance(found, Dim):
            raise Mistake(at, f"dim[{text[:40]}] is the constant {found}")
        return found

    def _tuple(self) -> tuple[Any, ...]:
        match = _INTS.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return tuple(map(int, match[1].split(",")))
        self.deeper(1)
        self.at += 1
        items: list[Any] = []
        if not self.take("]"):
            items.append(self.value())
            while not self.take("]"):
                self.comma("]")
                items.append(self.value())
        self.deeper(-1)
        return tuple(items)

    def _type_or_const(self) -> Any:
        if _CONST.match(self.text, self.at) is not None:
            return self.const()
        if _TENSOR.match(self.text, self.at) is not None or _CONTAINER.match(self.text, self.at) is not None:
            return self.type()
        return self.expected("a value")

    def const(self, given: Tensor | None = None) -> Constant:
        """A constant; its type may be left out where `given` has it."""
        match = _CONST.match(self.text, self.at)
        if match is None:
            self.expected("a constant")
        at, self.at = self.at, match.end()
        if match[3]:
            raise Mistake(at, "the text was printed without a table of blobs")
        inputs: tuple[Constant, ...] = ()
        attrs: dict[str, Any] = {}
        value: Any = None
        if match[6]:
            inputs = self._const_inputs()
            if self.text.startswith(" {", self.at):
                self.at += 1
                self.deeper(1)
                attrs = self.attrs()
                self.deeper(-1)
        elif match[4]:
            value = self.value()
        type_ = self.tensor() if self.take(": ") else given
        if type_ is None or type_.shape is None:
            raise Mistake(at, "the type of the constant is missing")
        if match[4]:
            return Splat(type_.dtype, type_.shape, read_scalar(value, type_.dtype, at))
        shape = tuple(d for d in type_.shape if isinstance(d, int))
        if len(shape) != len(type_.shape):
            raise Mistake(at, "only splats may have a symbolic shape")
        if match[5] is not None:
            return DimVec(type_.dtype, shape, sizes(match[5], at))
        if match[6]:
            return Derived(type_.dtype, shape, named(match[6][:-1], at), inputs, attrs)
        if match[2] is not None:
            return _blob(memoryview(_bytes(match[2], at)), type_.dtype, shape, at)
        return self._blob(match[1], type_.dtype, shape, at)

    def _const_inputs(self) -> tuple[Constant, ...]:
        self.deeper(1)
        inputs: list[Constant] = []
        if not self.take(")"):
            inputs.append(self.const())
            while not self.take(")"):
                self.comma(")")
                inputs.append(self.const())
        self.deeper(-1)
        return tuple(inputs)

    def _blob(self, word: str, dtype: DType, shape: tuple[int, ...], at: int) -> Blob:
        number = integer(word, at)
        if number >= len(self.blobs):
            raise Mistake(at, f"blob {number} does not exist: there are {len(self.blobs)}")
        key = (number, dtype, shape)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = _blob(self.blobs[number], dtype, shape, at)
        return found


@lru_cache(1 << 13)
def _tensor_of(text: str) -> Tensor:
    match = _TENSOR_PARTS.fullmatch(text)
    assert match is not None
    dtype, shape, format_, storage = match.groups()
    if dtype not in _DTYPES:
        raise Mistake(0, f"'{dtype}' is no dtype")
    for word in (format_, storage):
        if word is not None and word not in _FORMATS:
            raise Mistake(0, f"'{word}' is no format")
    dims = None if shape == "?" else sizes(shape, len(dtype) + 1)
    if dims is not None and len(dims) > MAX_RANK:
        raise Mistake(0, f"a tensor of rank {len(dims)}; the limit is {MAX_RANK}", "EI102")
    if dims is not None and any(isinstance(d, int) and d < 0 for d in dims):
        raise Mistake(0, f"a size of {text[:80]} is negative")
    return Tensor(_DTYPES[dtype], dims, _FORMATS[format_ or "ND"], _FORMATS[storage] if storage else None)


def tensor_of(text: str, at: int) -> Tensor:
    """The tensor type of a text that matches `TENSOR`; equal texts give one object."""
    try:
        return _tensor_of(text) if len(text) <= CACHED else _tensor_of.__wrapped__(text)
    except Mistake as mistake:
        mistake.at += at
        raise


def _bytes(hexadecimal: str, at: int) -> bytes:
    if len(hexadecimal) % 2:
        raise Mistake(at, "an odd number of hexadecimal digits")
    return bytes.fromhex(hexadecimal)


def _nan(hexadecimal: str, at: int) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(hexadecimal))[0]
    if value == value:
        raise Mistake(at, f"0x{hexadecimal} is no NaN")
    return value


def _blob(data: memoryview, dtype: DType, shape: tuple[int, ...], at: int) -> Blob:
    needed = packed_nbytes(dtype, prod(shape))
    if dtype is not DType.STRING and data.nbytes != needed:
        raise Mistake(at, f"a blob of {data.nbytes} bytes, but {dtype.value}{list(shape)} takes {needed}")
    return Blob(dtype, shape, data)


def read_scalar(value: Any, dtype: DType, at: int) -> Any:
    """The numpy scalar (str for strings) that a splat's text denotes."""
    if dtype is DType.STRING:
        if type(value) is str:
            return value
    elif type(value) is bytes:
        if len(value) == dtype.itemsize:
            return np.frombuffer(value, dtype.numpy)[0]
    elif type(value) in ((bool,) if dtype is DType.BOOL else (int, float)):
        try:
            with np.errstate(all="ignore"):
                scalar = np.array(value, dtype.numpy)[()]
        except (OverflowError, ValueError, TypeError):
            scalar = None
        if scalar is not None and (dtype.is_float or scalar == value):
            return scalar
    raise Mistake(at, f"the splat's value is no {dtype.value}")
