"""Consoles and the house style of tables.

Colours appear on a terminal only, and never under NO_COLOR. Nothing is cut off: the width is the terminal's, in a pipe
or a file COLUMNS or 120, and long cells continue on the next line, long names at a joint (`Conv+` `Relu`) where there
is one. Columns that a table can do without (their names start with `?`) are left out where it is too wide, the last
ones first. A table that would still need columns of a few letters is wider than the console.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, TextIO, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
NARROW = (20, 14, 8)
"""The least widths of columns of text (or what they hold): the first with which a table fits, else the middle one."""
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


class _Jointed(Text):
    """A text whose words, where they are longer than a line, are broken at the joints in them, else anywhere."""

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """The lines."""
        found = Lines()
        for line in self.split("\n", allow_blank=True):
            for part in line.divide(_breaks(line.plain, width)):
                part.rstrip()
                found.extend(Text.wrap(part, console, width, **options))
        return found


def _breaks(line: str, width: int) -> list[int]:
    """Where lines of at most `width` cells end: between words, and in longer ones before / or behind + , _ × ·."""
    cuts: list[int] = []
    start = at = 0
    for word in re.findall(r"\S+\s*|\s+", line):
        long = cell_len(word.rstrip()) > width
        for part in re.findall(r"/?[^/+,_×·]*[+,_×·]?", word) if long else [word]:
            if at > start and cell_len(line[start : at + len(part)].rstrip()) > width:
                cuts.append(at)
                start = at
            at += len(part)
    return cuts


class _Grid:
    """An indented table, with columns of text as wide as `NARROW` has it."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        self._columns, self._rows = [name.lstrip("?") for name in columns], rows
        self._spare = [k for k, name in enumerate(columns) if name.startswith("?")]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, in the console's width where that is enough."""
        if self._spare and self._room(options) < sum(self._least(NARROW[-2])):
            yield from console.render(self._without(self._spare[-1]), options)
            return
        room = self._room(options)
        tried = [self._least(narrow) for narrow in NARROW]
        widths = self._widened(next((t for t in tried if sum(t) <= room), tried[1]), room)
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="bold", show_edge=False)
        for name, width in zip(self._columns, widths, strict=True):
            right, label = name.startswith(">"), name.lstrip(">")
            grid.add_column(label, justify="right" if right else "left", overflow="fold", no_wrap=right, width=width)
        for row in self._rows:
            grid.add_row(*row)
        least = sum(widths) + 3 * (len(widths) - 1) + INDENT
        yield from console.render(indented(grid), options.update(width=max(options.max_width, least)))

    def _room(self, options: ConsoleOptions) -> int:
        """The cells that are left for what stands in the columns."""
        return options.max_width - INDENT - 3 * (len(self._columns) - 1)

    def _without(self, spare: int) -> _Grid:
        """The table without one of its columns."""
        names = [f"?{name}" if k in self._spare else name for k, name in enumerate(self._columns)]
        rows = [[c for k, c in enumerate(row) if k != spare] for row in self._rows]
        return _Grid([name for k, name in enumerate(names) if k != spare], rows)

    def _longest(self, k: int) -> int:
        """The cells that column `k` takes where nothing is folded."""
        label = self._columns[k].lstrip(">")
        return max([cell_len(label), *(cell_len(line) for row in self._rows for line in row[k].plain.split("\n"))])

    def _least(self, narrow: int) -> list[int]:
        """The least width of each column; numbers are never folded."""
        found = []
        for k, name in enumerate(self._columns):
            longest = self._longest(k)
            found.append(longest if name.startswith(">") else max(cell_len(name), min(longest, narrow)))
        return found

    def _widened(self, widths: list[int], room: int) -> list[int]:
        """The widths with what is left of `room` shared among columns that would fold, evenly as far as they need."""
        left, found = room - sum(widths), list(widths)
        need = sorted((self._longest(k) - width, k) for k, width in enumerate(widths))
        for number, (missing, k) in enumerate(need):
            more = max(min(missing, left // (len(need) - number)), 0)
            found[k] += more
            left -= more
        return found


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
    """A table. None as a cell is shown as `–`.

    A column name that starts with `>` is right-aligned; with `?` before that, the column may be left out.
    """
    body = _Grid(columns, [[cell(c) for c in row] for row in rows])
    return titled(title, body) if title else body


def cell(value: object) -> Text:
    """A cell's text; styles are kept when it is a `Text` already. Control characters are shown escaped."""
    if isinstance(value, Text):
        return value
    return _Jointed("–" if value is None else printable(str(value)))


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
