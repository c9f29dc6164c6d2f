"""`atc explain`: what an error code means."""

from __future__ import annotations

from difflib import get_close_matches

import click

from atc_py.cli.base import command, common
from atc_py.cli.usage import print_json

EXAMPLES = """
atc explain E16002
atc explain
"""


@command("explain", "Say what the error or warning CODE means; without one, list them all.", EXAMPLES)
@click.argument("code", required=False)
@common
def verb(code: str | None, json: bool, debug: bool) -> None:
    """Look the code up."""
    from rich.text import Text

    from atc_py.error_catalogue import catalogue
    from atc_py.errors import error
    from atc_py.report.screen import console, pairs, table

    entries = catalogue()
    screen = console()
    if code is None:
        if json:
            print_json({"codes": [e.to_json() for e in entries.values()]})
        else:
            screen.print(table(["code", "meaning"], [[e.code, e.meaning] for e in entries.values()]))
        return
    found = entries.get(code.upper())
    if found is None:
        near = get_close_matches(code.upper(), entries, 3)
        hint = f"near: {', '.join(near)}" if near else "'atc explain' lists all codes"
        raise error("E10001", code, "there is no such code", hint)
    if json:
        print_json(found.to_json())
        return
    screen.print(Text(f"{found.code}  {found.meaning}", style="bold"))
    screen.print(pairs([("what it is", found.explanation), ("what to do", found.next_step)]))
