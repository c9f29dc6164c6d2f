"""Consoles and the house style of tables.

Colours appear on a terminal only, and never under NO_COLOR. Nothing is cut off: the width is the terminal's, in a pipe
or a file COLUMNS or 120, and long cells continue on the next line. A table that would need columns of a few letters is
wider than that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, TextIO, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
NARROW = 20
"""Columns of text are not made narrower than this (or than what they hold)."""
INDENT = 2


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


class _Whole(Console):
    """A console that cuts no line off."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; what is wider than the console stays whole."""
        super().print(*objects, **{"crop": False, **options})


class _Roomy:
    """An indented body that is never laid out narrower than `least`."""

    def __init__(self, body: RenderableType, least: int) -> None:
        self._body = Padding(body, (0, 0, 0, INDENT), expand=False)
        self._least = least + INDENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The body, in the console's width where that is enough."""
        yield from console.render(self._body, options.update(width=max(options.max_width, self._least)))


def console(stderr: bool = False) -> Console:
    """A console on standard output, or standard error, as they are now."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return _Whole(file=stream, highlight=False, markup=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    width = max(40, int(columns)) if columns.isdecimal() and columns.isascii() else PIPE_WIDTH
    return _Whole(
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
    cells = [[cell(c) for c in row] for row in rows]
    least = 3 * (len(columns) - 1)
    for k, name in enumerate(columns):
        right, label = name.startswith(">"), name.lstrip(">")
        longest = max((cell_len(line) for row in cells for line in row[k].plain.split("\n")), default=0)
        width = max(longest, cell_len(label)) if right else max(cell_len(label), min(longest, NARROW))
        grid.add_column(label, justify="right" if right else "left", overflow="fold", no_wrap=right, min_width=width)
        least += width
    for row in cells:
        grid.add_row(*row)
    body = _Roomy(grid, least)
    return titled(title, body) if title else body


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
    body = indented(grid)
    return titled(title, body) if title else body


def indented(body: RenderableType) -> RenderableType:
    """A body under what comes before it; the lines on which it continues are indented too."""
    return Padding(body, (0, 0, 0, INDENT), expand=False)


def titled(title: str, body: RenderableType) -> RenderableType:
    """A body under its title."""
    return Group(Text(title, style="bold cyan"), body)


def printable(text: str) -> str:
    """The text with control characters escaped, so that a model's names cannot steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
