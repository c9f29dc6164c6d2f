"""Shadow memory against one note a byte."""

from __future__ import annotations

import random

from atc_py.plan.shadow import MIXED, Shadow, Span, merge

SIZE = 24
Byte = tuple[int, int, int, dict[int, int]]
"""Root, base, writer, the last step of each stream that has read it since."""


def noted(shadow: Shadow) -> list[Byte | None]:
    """What a shadow says of each byte."""
    found: list[Byte | None] = [None] * SIZE
    for start, span in zip(shadow.starts, shadow.spans, strict=True):
        assert start == span.start < span.end
        for at in range(start, span.end):
            assert found[at] is None, "spans are disjoint"
            found[at] = (span.root, span.base, span.writer, span.readers)
    assert shadow.starts == sorted(shadow.starts)
    return found


def drawn(rng: random.Random, steps: int) -> tuple[Shadow, list[Byte | None]]:
    """A shadow after some writes and reads, and what should be noted of each byte."""
    shadow = Shadow()
    meant: list[Byte | None] = [None] * SIZE
    for step in range(steps):
        start = rng.randrange(SIZE - 1)
        end = rng.randint(start + 1, SIZE)
        old = [b for b in meant[start:end] if b is not None]
        if rng.random() < 0.5:
            root, base = rng.randrange(3), rng.choice([0, 4])
            gone = shadow.write(Span(start, end, root, base, step))
            assert {s.writer for s in gone} == {b[2] for b in old}
            meant[start:end] = [(root, base, step, {})] * (end - start)
        else:
            stream = rng.randrange(3)
            shadow.read(start, end, stream, step)
            for at, b in enumerate(meant[start:end], start):
                meant[at] = b and (*b[:3], {**b[3], stream: step})
    return shadow, meant


def test_writes_and_reads() -> None:
    rng = random.Random(1)
    for _ in range(300):
        shadow, meant = drawn(rng, rng.randint(1, 12))
        assert noted(shadow) == meant


def test_a_span_holds_bytes_only_with_their_content() -> None:
    rng = random.Random(2)
    seen = {True: 0, False: 0}
    for _ in range(300):
        shadow, _ = drawn(rng, rng.randint(1, 6))
        start = rng.randrange(SIZE - 1)
        end, root, base = rng.randint(start + 1, min(start + 4, SIZE)), rng.randrange(3), rng.choice([0, 4])
        good: list[Span | None] = [
            s for s in shadow.spans if s.start <= start and end <= s.end and (s.root, s.base) == (root, base)
        ]
        assert [shadow.holding(start, end, root, base)] == (good or [None])
        seen[bool(good)] += 1
    assert min(seen.values()) > 10


def test_what_is_read_last_comes_last() -> None:
    shadow = Shadow()
    shadow.write(Span(0, 8, 1, 0, 0))
    for step, stream in enumerate([0, 1, 0], 1):
        shadow.read(0, 8, stream, step)
    assert list(shadow.spans[0].readers.items()) == [(1, 2), (0, 3)]


def test_a_copy_changes_on_its_own() -> None:
    rng = random.Random(3)
    for _ in range(100):
        shadow, meant = drawn(rng, 6)
        copy = shadow.copy()
        copy.write(Span(0, SIZE, 7, 0, 99))
        assert noted(shadow) == meant


def test_after_two_ways_only_what_both_say_is_known() -> None:
    rng = random.Random(4)
    shrunk = 0
    for _ in range(200):
        (one, left), (other, right) = drawn(rng, 4), drawn(rng, 4)
        merged, less = merge(one, other)
        found = noted(merged)
        for a, b, c in zip(left, right, found, strict=True):
            if a is None and b is None:
                assert c is None
            elif a is not None and b is not None and a[:2] == b[:2]:
                assert c == (*a[:3], {})
            else:
                last = b or a
                assert last is not None and c == (MIXED, 0, last[2], {})
        changed = [(a, b) for a, b in zip(left, right, strict=True) if (a and a[:2]) != (b and b[:2])]
        assert less == bool(changed)
        shrunk += less
        assert not merge(merged, merged)[1]
    assert shrunk
