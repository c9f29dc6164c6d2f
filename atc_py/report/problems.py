"""Errors and warnings as blocks of text.

error: 2 problems

1. E16002 node 'conv_7'
   cause  operator 'ai.onnx::Foo' is not supported
   hint   …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atc_py.errors import Problem
from atc_py.report.screen import printable


def grouped(problems: Iterable[Problem]) -> list[tuple[Problem, list[str]]]:
    """Problems of one code, cause and hint once, with all their places, in the order of their first appearance."""
    groups: dict[tuple[str, str, str], tuple[Problem, list[str]]] = {}
    for p in problems:
        groups.setdefault((p.code, p.cause, p.hint), (p, []))[1].append(p.place)
    return list(groups.values())


def error_block(problems: Sequence[Problem]) -> RenderableType:
    """The block that a failed command ends with."""
    groups = grouped(problems)
    head = "error" if len(problems) == 1 else f"error: {len(problems)} problems"
    codes = list(dict.fromkeys(p.code for p in problems))
    parts: list[RenderableType] = [Text(head, style="bold red")]
    for number, (problem, places) in enumerate(groups, 1):
        parts.append(_problem(problem, places, "" if len(groups) == 1 else f"{number}. "))
    parts.append(Text(f"'atc explain {codes[0]}' says more about a code.", style="dim"))
    return Group(*parts)


def _problem(problem: Problem, places: Sequence[str], number: str) -> RenderableType:
    title = Text(number)
    title.append(problem.code, style="bold")
    title.append("".join(f" {printable(p)}" for p in places[:1] if p))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    if len(places) > 1:
        grid.add_row("also", Text(printable(", ".join(places[1:]))))
    grid.add_row("cause", Text(printable(problem.cause)))
    if problem.hint:
        grid.add_row("hint", Text(printable(problem.hint)))
    indented = Padding(grid, (0, 0, 0, 2 + len(number)), expand=False)
    return Group(Padding(title, (0, 0, 0, 2), expand=False), indented)


def warning_block(warnings: Sequence[Problem], title: str = "warnings") -> RenderableType | None:
    """Warnings, one a line; None when there are none."""
    if not warnings:
        return None
    parts: list[RenderableType] = [Text(title, style="bold yellow")]
    for problem, places in grouped(warnings):
        where = ", ".join(p for p in places if p)
        text = f"{problem.code} {where}: {problem.cause}" if where else f"{problem.code}: {problem.cause}"
        parts.append(Padding(Text(printable(text)), (0, 0, 0, 2), expand=False))
    return Group(*parts)
