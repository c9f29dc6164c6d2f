"""Protobuf's wire format, for messages of which a model has thousands.

    text(1, "conv")      0a 04 63 6f 6e 76      tag (number × 8 + kind), length, bytes
    number(21, 7)        a8 01 07               tag, the number seven bits at a time, lowest first
    number(21, 0)                               nothing: a field that has its default is left out
    packed(28, [4, 5])   e2 01 02 04 05         numbers of a repeated field

Setting the fields of a message object takes microseconds each; bytes that are put one after the other, in the order of
the fields' numbers, are what the object would have become. The encoding is protobuf's documented one. Where a field is
written thousands of times its `tag` is looked up once, and `sized` follows it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from math import copysign, inf

_WORD = 1 << 64
_KEPT = 1 << 14
VARINT, BYTES, FOUR = 0, 2, 5
"""Kinds of fields: a number, what has a length, four bytes."""


def _varint(value: int) -> bytes:
    if 0 <= value < 1 << 28:  # ids and most offsets
        if value < 1 << 7:
            return bytes((value,))
        if value < 1 << 14:
            return bytes((value & 127 | 128, value >> 7))
        if value < 1 << 21:
            return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21))
    if not -_WORD // 2 <= value < _WORD // 2:
        raise ValueError(f"{value} has more than 64 bits")
    value %= _WORD
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


class _Varints(dict[int, bytes]):
    """Integers of 64 bits, negative ones as their two's complement; `ValueError` beyond. Small ones are kept."""

    def __missing__(self, value: int) -> bytes:
        made = _varint(value)
        if 0 <= value < _KEPT:
            self[value] = made
        return made


VARINTS = _Varints()
"""Each integer as it is written: `VARINTS[len(content)]` stands before `content`."""
varint = VARINTS.__getitem__


@lru_cache(maxsize=256)
def tag(field: int, kind: int) -> bytes:
    """What stands before a field's content."""
    return varint(field * 8 + kind)


def number(field: int, value: int, always: bool = False) -> bytes:
    """An integer or truth value; 0 is left out unless `always` (one of several alternatives)."""
    return tag(field, VARINT) + VARINTS[value] if value or always else b""


def real(field: int, value: float) -> bytes:
    """A float32, always."""
    return tag(field, FOUR) + float32(value)


def float32(value: float) -> bytes:
    """The nearest float32's bytes; infinity beyond its range."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", copysign(inf, value))


def sized(content: bytes) -> bytes:
    """What follows the tag of bytes or of a message: its length and itself."""
    return VARINTS[len(content)] + content


def nested(field: int, content: bytes) -> bytes:
    """Bytes or a message, always; so are the entries of a repeated field."""
    return tag(field, BYTES) + sized(content)


def within(content: bytes, *tags: bytes) -> bytes:
    """A message inside of messages that have nothing after it; `tags`, the innermost first, may have fields before."""
    for before in tags:
        content = before + VARINTS[len(content)] + content
    return content


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
