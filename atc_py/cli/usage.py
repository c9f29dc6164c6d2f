"""Wrong command lines, as errors with a code. Imports click only."""

from __future__ import annotations

import json
import re
from typing import IO, Any

import click


class Usage(click.UsageError):
    """A command line that cannot be understood: exit code 2, and the block (or JSON) of any other error."""

    def __init__(
        self, code: str, place: str, cause: str, hint: str = "", *, ctx: click.Context | None, as_json: bool = False
    ) -> None:
        super().__init__(cause, ctx)
        self.code, self.place, self.cause, self.hint, self.as_json = code, place, cause, hint, as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        from atc_py.cli.failure import report
        from atc_py.errors import Problem

        hint = self.hint
        if not hint and self.ctx is not None:
            hint = f"'{self.ctx.command_path} --help' shows how it is called"
        report([Problem(self.code, self.place, self.cause, hint)], self.as_json)


def as_usage(problem: click.UsageError, as_json: bool) -> Usage:
    """click's error as ours."""
    if isinstance(problem, Usage):
        return problem
    code = "E10054" if isinstance(problem, click.MissingParameter) else "E10001"
    text = problem.format_message()
    near = re.search(r"\s*(\(?[Dd]id you mean [^)]*\)?|\(Possible options: [^)]*\))\s*$", text)
    hint = near.group(1).strip("()") if near else ""
    cause = text[: near.start()] if near else text
    return Usage(code, "command line", cause.rstrip("."), hint, ctx=problem.ctx, as_json=as_json)


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
