"""The command line: `atc VERB …`, one module a verb, imported when the verb is asked for."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the `atc` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows "?" for it; the command does not fail over it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    from atc_py.cli.app import app

    app(prog_name="atc")
