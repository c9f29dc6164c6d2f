"""Protobuf's wire format, for messages of which a model has thousands.

    text(1, "conv")      0a 04 63 6f 6e 76      tag (number × 8 + kind), length, bytes
    number(21, 7)        a8 01 07               tag, the number seven bits at a time, lowest first
    number(21, 0)                               nothing: a field that has its default is left out
    packed(28, [4, 5])   e2 01 02 04 05         numbers of a repeated field

Setting the fields of a message object takes microseconds each; bytes that are put one after the other, in the order of
the fields' numbers, are what the object would have become. The encoding is protobuf's documented one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from math import copysign, inf

_SMALL = [bytes((value,)) for value in range(128)]
_WORD = 1 << 64
_VARINT, _BYTES, _FOUR = 0, 2, 5


@lru_cache(maxsize=1 << 14)
def varint(value: int) -> bytes:
    """An integer of 64 bits, a negative one as its two's complement; `ValueError` beyond."""
    if not -_WORD // 2 <= value < _WORD // 2:
        raise ValueError(f"{value} has more than 64 bits")
    value %= _WORD
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


@lru_cache(maxsize=256)
def tag(field: int, kind: int) -> bytes:
    """What stands before a field's content."""
    return varint(field * 8 + kind)


def number(field: int, value: int, always: bool = False) -> bytes:
    """An integer or truth value; 0 is left out unless `always` (one of several alternatives)."""
    return tag(field, _VARINT) + varint(value) if value or always else b""


def real(field: int, value: float) -> bytes:
    """A float32, always."""
    return tag(field, _FOUR) + float32(value)


def float32(value: float) -> bytes:
    """The nearest float32's bytes; infinity beyond its range."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", copysign(inf, value))


def nested(field: int, content: bytes) -> bytes:
    """Bytes or a message, always; so are the entries of a repeated field."""
    size = len(content)
    return tag(field, _BYTES) + (_SMALL[size] if size < 128 else varint(size)) + content


def text(field: int, value: str) -> bytes:
    """A string; the empty one is left out."""
    return nested(field, value.encode()) if value else b""


def texts(field: int, values: Iterable[str]) -> bytes:
    """A repeated string."""
    return b"".join([nested(field, value.encode()) for value in values])


def packed(field: int, values: Iterable[int]) -> bytes:
    """Repeated integers or truth values."""
    content = b"".join(map(varint, values))
    return nested(field, content) if content else b""
