"""Makes instances with a known plan: rectangles that fill time x memory without a gap, some taken out.

    guillotine   cut the rectangle in two across time or memory, again and again
    pinwheel     cut it into five, four around one in the middle, which no cut across separates

`python -m tests.memory.packings` writes the instances of tests/memory/data again.
"""

from __future__ import annotations

import random
from pathlib import Path

DATA = Path(__file__).parent / "data"
Buffer = tuple[int, int, int]

# Name, seed, capacity, time, buffers, share of pinwheels, share taken out.
INSTANCES = (
    ("guillotine40", 1, 512, 512, 40, 0.0, 0.0),
    ("guillotine200", 2, 1024, 2048, 200, 0.0, 0.0),
    ("pinwheel60", 3, 1024, 1024, 60, 0.7, 0.0),
    ("pinwheel150", 4, 2048, 2048, 150, 0.5, 0.0),
    ("holes120", 5, 1024, 1024, 150, 0.3, 0.2),
    ("holes250", 6, 4096, 4096, 330, 0.2, 0.25),
)


def packing(seed: int, capacity: int, time: int, count: int, pinwheels: float, out: float) -> list[Buffer]:
    """About `count` buffers that fill [0, time) x [0, capacity), less a share of `out` taken out, shuffled."""
    rng = random.Random(seed)
    pieces = [(0, time, 0, capacity)]
    while len(pieces) < count:
        pieces.sort(key=lambda p: (-(p[1] - p[0]) * (p[3] - p[2]), p))
        left, right, low, high = pieces.pop(rng.randrange(min(3, len(pieces))))
        if right - left > 4 and high - low > 4 and rng.random() < pinwheels:
            x, y = sorted(rng.sample(range(left + 1, right), 2)), sorted(rng.sample(range(low + 1, high), 2))
            pieces += [
                (left, x[1], low, y[0]), (x[1], right, low, y[1]), (x[0], right, y[1], high), (left, x[0], y[0], high),
                (x[0], x[1], y[0], y[1]),
            ]  # fmt: skip
        elif right - left > 1 and (rng.random() < 0.5 or high - low < 2):
            at = rng.randrange(left + 1, right)
            pieces += [(left, at, low, high), (at, right, low, high)]
        elif high - low > 1:
            at = rng.randrange(low + 1, high)
            pieces += [(left, right, low, at), (left, right, at, high)]
        else:
            pieces.append((left, right, low, high))
    rng.shuffle(pieces)
    return [(left, right, high - low) for left, right, low, high in pieces[int(out * len(pieces)) :]]


def write() -> None:
    """Write all instances; the number in a file's name is the capacity."""
    for name, seed, capacity, time, count, pinwheels, out in INSTANCES:
        lines = ["id,lower,upper,size"]
        found = packing(seed, capacity, time, count, pinwheels, out)
        lines += [f"{i},{lower},{upper},{size}" for i, (lower, upper, size) in enumerate(found)]
        (DATA / f"{name}.{capacity}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
