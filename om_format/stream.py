"""Content that is written in pieces, so that gigabytes of weights are never in memory twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .errors import invalid

BytesLike: TypeAlias = "bytes | bytearray | memoryview"


@dataclass(frozen=True)
class Stream:
    """Chunks whose sizes add up to `size` bytes; consumed once.

    `at` is the file offset that the chunks were laid out for, None when any will do.
    """

    size: int
    chunks: Iterable[BytesLike]
    at: int | None = None


Payload: TypeAlias = "BytesLike | Stream"


def as_bytes_view(data: BytesLike) -> memoryview:
    """A flat view of unsigned bytes of anything with the buffer protocol. INVALID when it is not
    contiguous.
    """
    if type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.c_contiguous:
        return data
    try:
        view = memoryview(data)
    except (TypeError, ValueError) as error:
        raise invalid(f"{type(data).__name__} has no readable buffer ({error})") from None
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise invalid("the bytes of a chunk are not contiguous", hint="copy it into C order first")
    try:
        return view.cast("B")
    except TypeError:
        raise invalid(f"elements of format {view.format!r} cannot be seen as bytes", "view it as uint8") from None


def as_stream(payload: Payload) -> Stream:
    """A payload as a stream."""
    if isinstance(payload, Stream):
        return payload
    view = as_bytes_view(payload)
    return Stream(len(view), (view,))
