"""Numbers as people read them.

nbytes(1536) == "1.50 KiB"      seconds(0.01234) == "12.3 ms"      count(12345) == "12,345"
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def nbytes(n: int | None) -> str:
    """Bytes in the largest binary unit that keeps the number at least 1; `–` for None."""
    if n is None:
        return "–"
    value, unit = float(n), 0
    while abs(value) >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{n} B" if unit == 0 else f"{_three(value)} {_SIZES[unit]}"


def seconds(t: float) -> str:
    """A duration in s, ms or µs with three digits."""
    if t >= 1:
        return f"{_three(t)} s"
    return f"{_three(t * 1e3)} ms" if t >= 1e-3 else f"{_three(t * 1e6)} µs"


def _three(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def count(n: int | None) -> str:
    """An integer with separators; `–` for None."""
    return "–" if n is None else f"{n:,}"


def plural(n: int, one: str, many: str = "") -> str:
    """`1 task`, `2 tasks`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def percent(part: float, whole: float) -> str:
    """`part` of `whole` in per cent; `–` when the whole is nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "–"


def real(x: float | str | None) -> str:
    """A real number in five significant digits; `–` for None, and text ("inf", "nan") as it is."""
    if x is None or isinstance(x, str):
        return x or "–"
    return f"{x:.5g}" if math.isfinite(x) else str(x)


def shape(dims: Sequence[int | str] | None) -> str:
    """A shape as `[1, 3, H]`; `[?]` when even the rank is unknown."""
    return "[?]" if dims is None else "[" + ", ".join(str(d) for d in dims) + "]"


def hexadecimal(n: int | None) -> str:
    """An address as `0x1f00`; `–` for None."""
    return "–" if n is None else f"0x{n:x}"
