"""`atc explain`: what an error code means, or why a model is compiled as it is."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.compiling import compile_options
from atc_py.cli.usage import Usage, print_json

EXAMPLES = """
atc explain E16002
atc explain
atc explain resnet50.onnx
atc explain bert.onnx --node /encoder/layer.0/attention/MatMul --input-hint-shape "input_ids:1,128"
"""
_CODE = re.compile(r"[EWew][A-Za-z]?\d+")


@command(
    "explain",
    "Say what an error or warning code means (without one: all of them), or, for an ONNX model, what each pass did, "
    "and what was left alone and why.",
    EXAMPLES,
)
@click.argument("what", required=False, metavar="[CODE|MODEL]")
@click.option("--node", metavar="NAME", help="Of a model: what became of one ONNX node.")
@click.option("--rule", metavar="NAME", help="Of a model: only what this pass or rule left alone.")
@compile_options
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, what: str | None, **given: Any) -> None:
    """Tell a code by its form."""
    if what is not None and not _CODE.fullmatch(what) and (Path(what).exists() or what.lower().endswith(".onnx")):
        _model(what, given)
        return
    if given["node"] or given["rule"]:
        option = "--node" if given["node"] else "--rule"
        cause = "speaks of a model, and none is given"
        raise Usage(
            "E10001", option, cause, "atc explain model.onnx " + option + " NAME", ctx=ctx, as_json=given["json"]
        )
    _code(what, given["json"])


def _code(code: str | None, as_json: bool) -> None:
    """Look the code up."""
    from rich.text import Text

    from atc_py.error_catalogue import catalogue
    from atc_py.errors import error
    from atc_py.report.screen import console, pairs, table

    entries = catalogue()
    screen = console()
    if code is None:
        if as_json:
            print_json({"codes": [e.to_json() for e in entries.values()]})
        else:
            screen.print(table(["code", "meaning"], [[e.code, e.meaning] for e in entries.values()]))
        return
    found = entries.get(code.upper())
    if found is None:
        near = get_close_matches(code.upper(), entries, 3)
        hint = f"near: {', '.join(near)}" if near else "'atc explain' lists all codes"
        raise error("E10001", code, "there is no such code", hint)
    if as_json:
        print_json(found.to_json())
        return
    screen.print(Text(f"{found.code}  {found.meaning}", style="bold"))
    screen.print(pairs([("what it is", found.explanation), ("what to do", found.next_step)]))


def _model(source: str, given: dict[str, Any]) -> None:
    """Compile the model while watching, and show what was seen."""
    from atc_py.cli import near_misses
    from atc_py.report import explanation
    from atc_py.report.screen import console

    facts = near_misses.explained(source, given)
    if given["json"]:
        print_json(facts)
        return
    screen = console()
    for number, part in enumerate(explanation.model(facts)):
        if number:
            screen.print()
        screen.print(part)
