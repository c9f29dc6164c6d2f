"""Shadow memory: for each byte of an area the value that it holds, who wrote it, and who has read it since.

    write [0, 512) as %3 by step 7, then [256, 768) as %5 by step 8:
        [0, 256) %3 by 7    [256, 768) %5 by 8          a read of [0, 512) as %3 now finds 256 foreign bytes

An area is a sorted list of disjoint spans, found by bisection. A span says also where byte 0 of its value lies
(`base`), so that a value read at a shifted address is noticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

MIXED = -3
"""The root of bytes whose content depends on the way that was taken through branches or iterations."""
SCRATCH = -4
"""The root of bytes that served as a task's workspace."""


class Span(NamedTuple):
    """Bytes up to `end` that hold value `root`, whose byte 0 lies at `base`, written at step `writer`.

    `readers` are (stream, step) pairs: the last step of each stream that has read the bytes since.
    """

    end: int
    root: int
    base: int
    writer: int
    readers: tuple[tuple[int, int], ...] = ()


Piece = tuple[int, int, "Span | None"]
"""A start, an end, and the span that covers it (None: never written)."""


class Shadow:
    """The spans of one area; `starts` is sorted, `spans` runs beside it."""

    __slots__ = ("spans", "starts")

    def __init__(self, starts: list[int] | None = None, spans: list[Span] | None = None) -> None:
        self.starts: list[int] = [] if starts is None else starts
        self.spans: list[Span] = [] if spans is None else spans

    def copy(self) -> Shadow:
        """A copy that changes on its own."""
        return Shadow(self.starts[:], self.spans[:])

    def holds(self, start: int, end: int, root: int, base: int) -> bool:
        """Whether one span covers the bytes with this content (the common case, fast)."""
        i = bisect_right(self.starts, start) - 1
        if i < 0:
            return False
        span = self.spans[i]
        return end <= span.end and span.root == root and span.base == base

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The bytes [start, end) cut where their spans differ; gaps included."""
        i = max(bisect_right(self.starts, start) - 1, 0)
        at = start
        while at < end and i < len(self.starts):
            s, span = self.starts[i], self.spans[i]
            if s >= end:
                break
            if span.end > at:
                if s > at:
                    yield at, s, None
                    at = s
                yield at, min(end, span.end), span
                at = span.end
            i += 1
        if at < end:
            yield at, end, None

    def write(self, start: int, end: int, span: Span) -> None:
        """Let `span` take the place of what is in [start, end); `span.end` must be `end`."""
        starts, spans = self.starts, self.spans
        i = bisect_right(starts, start)
        if i and spans[i - 1].end > start:
            i -= 1
        j = i
        new_starts, new_spans = [start], [span]
        while j < len(starts) and starts[j] < end:
            s, old = starts[j], spans[j]
            if s < start:
                new_starts.insert(0, s)
                new_spans.insert(0, old._replace(end=start))
            if old.end > end:
                new_starts.append(end)
                new_spans.append(old)
            j += 1
        starts[i:j], spans[i:j] = new_starts, new_spans

    def read(self, start: int, end: int, stream: int, step: int) -> None:
        """Note that `stream` has read the bytes at `step`."""
        for s, e, span in list(self.pieces(start, end)):
            if span is not None:
                readers = (*(r for r in span.readers if r[0] != stream), (stream, step))
                self.write(s, e, span._replace(end=e, readers=readers))


def merge(one: Shadow, other: Shadow) -> tuple[Shadow, bool]:
    """What is known after either of two ways, and whether this is less than what `one` alone says."""
    result = Shadow()
    changed = False
    ends = [span.end for shadow in (one, other) for span in shadow.spans]
    cuts = sorted({*one.starts, *other.starts, *ends})
    for start, end in pairwise(cuts):
        a, b = _at(one, start), _at(other, start)
        span = a or b
        if span is None:
            continue
        if a is None or b is None or (a.root, a.base) != (b.root, b.base):
            changed |= a is None or a.root != MIXED
            span = Span(end, MIXED, 0, (b or span).writer)
        if result.spans and result.spans[-1][:4] == (start, *span[1:4]):
            result.spans[-1] = result.spans[-1]._replace(end=end)
        else:
            result.starts.append(start)
            result.spans.append(span._replace(end=end, readers=()))
    return result, changed


def _at(shadow: Shadow, address: int) -> Span | None:
    i = bisect_right(shadow.starts, address) - 1
    return shadow.spans[i] if i >= 0 and address < shadow.spans[i].end else None
