"""Consoles and the house style of tables.

Colours appear on a terminal only, and never under NO_COLOR. Into a pipe or a file nothing is cut off: the width is
COLUMNS, or 120, and long cells continue on the next line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TextIO, cast

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120


class _Trimmed:
    """A stream that drops the spaces with which tables fill their lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", "utf-8")

    def write(self, text: str) -> int:
        """Write whole lines trimmed."""
        *lines, rest = text.split("\n")
        return self._stream.write("".join(line.rstrip(" ") + "\n" for line in lines) + rest)

    def flush(self) -> None:
        """Pass on."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Only used for pipes and files."""
        return False


def console(stderr: bool = False) -> Console:
    """A console on standard output, or standard error, as they are now."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    width = max(40, int(columns)) if columns.isdecimal() and columns.isascii() else PIPE_WIDTH
    return Console(
        file=cast(IO[str], _Trimmed(stream)),
        width=width,
        color_system=None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> RenderableType:
    """A table. A column name that starts with `>` is right-aligned; None as a cell is shown as `–`."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="bold", show_edge=False)
    for name in columns:
        right = name.startswith(">")
        grid.add_column(name.lstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        grid.add_row(*[cell(c) for c in row])
    return titled(title, grid) if title else Padding(grid, (0, 0, 0, 2), expand=False)


def cell(value: object) -> Text:
    """A cell's text; styles are kept when it is a `Text` already. Control characters are shown escaped."""
    if isinstance(value, Text):
        return value
    return Text("–" if value is None else printable(str(value)))


def pairs(rows: Iterable[tuple[str, object]], title: str = "") -> RenderableType:
    """Names and values, aligned; pairs whose value is "" or None are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            grid.add_row(Text(name), cell(value))
    return titled(title, grid) if title else Padding(grid, (0, 0, 0, 2), expand=False)


def titled(title: str, body: RenderableType) -> RenderableType:
    """A body under its title."""
    outer = Table.grid()
    outer.add_row(Text(title, style="bold cyan"))
    outer.add_row(Padding(body, (0, 0, 0, 2), expand=False))
    return outer


def printable(text: str) -> str:
    """The text with control characters escaped, so that a model's names cannot steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
