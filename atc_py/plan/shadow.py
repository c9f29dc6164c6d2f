"""Shadow memory: for each byte of an area the value that it holds, who wrote it, and who has read it since.

    write [0, 512) as %3 by step 7, then [256, 768) as %5 by step 8:
        [0, 256) %3 by 7    [256, 768) %5 by 8          a read of [0, 512) as %3 now finds 256 foreign bytes

An area is a sorted list of disjoint spans, found by bisection. A span says also where byte 0 of its value lies
(`base`), so that a value read at a shifted address is noticed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

MIXED = -3
"""The root of bytes whose content depends on the way that was taken through branches or iterations."""
SCRATCH = -4
"""The root of bytes that served as a task's workspace."""


class Span:
    """Bytes [start, end) that hold value `root`, whose byte 0 lies at `base`, written at step `writer`.

    `readers` has the last step of each stream that has read the bytes since. Spans are shared by copies of a shadow;
    what is noted here by way of one of them is an earlier step for the others, which asks for no order.
    """

    __slots__ = ("base", "end", "readers", "root", "start", "writer")

    def __init__(self, start: int, end: int, root: int, base: int, writer: int) -> None:
        self.start, self.end, self.root, self.base, self.writer = start, end, root, base, writer
        self.readers: dict[int, int] = {}

    def part(self, start: int, end: int) -> Span:
        """What is said of these bytes of it."""
        found = Span(start, end, self.root, self.base, self.writer)
        found.readers = self.readers.copy()
        return found

    def read(self, stream: int, step: int) -> None:
        """Note that `stream` has read all of the bytes at `step`."""
        self.readers.pop(stream, None)  # the latest one comes last
        self.readers[stream] = step


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

    def holding(self, start: int, end: int, root: int, base: int) -> Span | None:
        """The one span that covers the bytes with this content (the common case, fast)."""
        i = bisect_right(self.starts, start) - 1
        if i < 0:
            return None
        span = self.spans[i]
        return span if end <= span.end and span.root == root and span.base == base else None

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

    def write(self, new: Span) -> Sequence[Span]:
        """Let `new` take the place of what is in its bytes; returns the spans that had bytes there."""
        starts, spans, start, end = self.starts, self.spans, new.start, new.end
        i = bisect_right(starts, start)
        if i and spans[i - 1].end > start:
            i -= 1
            if starts[i] == start and spans[i].end == end:  # all of one span, the common case
                gone = (spans[i],)
                spans[i] = new
                return gone
        j = bisect_left(starts, end, i)
        over = spans[i:j]
        found = [new]
        if over and over[0].start < start:
            found.insert(0, over[0].part(over[0].start, start))
        if over and over[-1].end > end:
            found.append(over[-1].part(end, over[-1].end))
        starts[i:j], spans[i:j] = [s.start for s in found], found
        return over

    def read(self, start: int, end: int, stream: int, step: int) -> None:
        """Note that `stream` has read the bytes at `step`."""
        for s, e, span in list(self.pieces(start, end)):
            if span is not None:
                if (s, e) != (span.start, span.end):
                    span = span.part(s, e)
                    self.write(span)
                span.read(stream, step)


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
            content = (MIXED, 0, (b or span).writer)
        else:
            content = (span.root, span.base, span.writer)
        last = result.spans[-1] if result.spans else None
        if last is not None and (last.end, last.root, last.base, last.writer) == (start, *content):
            last.end = end
        else:
            result.starts.append(start)
            result.spans.append(Span(start, end, *content))
    return result, changed


def _at(shadow: Shadow, address: int) -> Span | None:
    i = bisect_right(shadow.starts, address) - 1
    return shadow.spans[i] if i >= 0 and address < shadow.spans[i].end else None
