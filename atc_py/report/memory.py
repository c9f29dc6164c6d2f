"""The memory map: which bytes of the arena are in use at which task.

0x200 │··BBBB
0x000 │AAAA··        a row is a stretch of addresses, a column a stretch of tasks: A lives at tasks 0 and 1,
      └──────        B at 1 and 2
       task 0 … 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import indented, pairs, table, titled

ROWS, COLUMNS = 24, 72
_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def chart(buffers: Sequence[Mapping[str, Any]], arena: int, positions: int, most: int = COLUMNS) -> Text:
    """The arena's buffers as letters over time (columns) and addresses (rows, the lowest at the bottom).

    A cell shows the buffer that covers its middle; `·` is free. There are at `most` so many columns.
    """
    step = 512 * max(1, -(-arena // (512 * ROWS)))
    rows = max(1, -(-arena // step))
    columns = positions * max(1, min(8, most // positions)) if positions <= most else most
    grid = [["·"] * columns for _ in range(rows)]
    for number, b in enumerate(buffers):
        mark = _MARKS[number % len(_MARKS)]
        left, right = _span(b["first"], b["last"] + 1, positions, columns)
        low, high = _span(b["offset"], b["offset"] + b["bytes"], step * rows, rows)
        for row in range(low, high):
            grid[row][left:right] = [mark] * (right - left)
    text = Text()
    digits = len(f"{step * (rows - 1):x}")
    for row in reversed(range(rows)):
        text.append(f"0x{step * row:0{digits}x} │", style="dim")
        text.append("".join(grid[row]) + "\n")
    text.append(" " * (digits + 3) + "└" + "─" * columns + f"\n{'':{digits + 4}}task 0 … {positions - 1}", style="dim")
    return text


class _Chart:
    """The chart, as wide as the console lets it be."""

    def __init__(self, buffers: Sequence[Mapping[str, Any]], arena: int, positions: int) -> None:
        self._what = buffers, arena, positions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The chart beside its addresses."""
        addresses = len(f"0x{self._what[1]:x} │")
        yield chart(*self._what, most=max(1, min(COLUMNS, options.max_width - addresses)))


def _span(start: int, end: int, whole: int, cells: int) -> tuple[int, int]:
    """The cells whose middle lies in [start, end), at least one."""
    first = min((2 * start * cells + whole) // (2 * whole), cells - 1)
    last = (2 * end * cells + whole) // (2 * whole)
    return first, max(first + 1, min(last, cells))


def memory_map(facts: Mapping[str, Any]) -> RenderableType:
    """The spaces, the arena's chart, and every buffer with its offset and lifetime."""
    spaces = pairs([(name, n.nbytes(size)) for name, size in facts["spaces"].items()], "spaces")
    buffers: Sequence[Mapping[str, Any]] = facts["buffers"]
    arena = [b for b in buffers if b["space"] == "arena"]
    drawn = [b for b in arena if b["bytes"] > 0 and b["offset"] is not None]
    parts: list[RenderableType] = [spaces, Text()]
    if drawn:
        drawn_chart = _Chart(drawn, facts["spaces"]["arena"], facts["positions"])
        parts += [titled(f"arena {n.nbytes(facts['spaces']['arena'])}", indented(drawn_chart)), Text()]
    marks = {b["id"]: _MARKS[i % len(_MARKS)] for i, b in enumerate(drawn)}
    rows = [
        [
            marks.get(b["id"], ""),
            b["id"],
            b["space"],
            n.hexadecimal(b["offset"]),
            n.nbytes(b["bytes"]),
            f"{b['first']}–{b['last']}" if b["first"] >= 0 else "",
            ", ".join(b["values"]),
        ]
        for b in buffers
    ]
    parts.append(table(["", ">buffer", "space", ">offset", ">size", ">tasks", "holds"], rows, "buffers"))
    return Group(*parts)
