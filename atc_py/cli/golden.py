"""`atc golden`: record results, and compare later ones with them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from atc_py.cli.base import (
    Command,
    check_options,
    command,
    common,
    custom_option,
    input_option,
    seed_option,
    shape_option,
)
from atc_py.cli.usage import Usage, print_json

RECORD = """
atc golden record model.om -o golden.npz
atc golden record model.om -o golden.npz --input x=image.npy
"""
VERIFY = """
atc golden verify model.om golden.npz
atc golden verify model.om golden.npz --rtol 1e-4 --junit report.xml
"""


class Golden(click.Group):
    """Two verbs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The inner verb; says which there are for an unknown one."""
        if args and args[0] not in self.commands:
            hint = "use 'record' or 'verify'"
            raise Usage("E10001", args[0], "there is no such command", hint, ctx=ctx, as_json="--json" in args)
        return super().resolve_command(ctx, args)


@click.group("golden", cls=Golden, epilog="'atc golden COMMAND --help' has examples.")
def verb() -> None:
    """Record results, and compare later ones with them."""


@command("record", "Run the OM file MODEL once, and keep its inputs and outputs.", RECORD)
@click.argument("model", type=click.Path())
@click.option("--output", "-o", required=True, type=click.Path(), help="The file to write; .npz is added if missing.")
@input_option
@shape_option
@seed_option
@custom_option
@common
def record(model: str, output: str, **given: Any) -> None:
    """Run and save."""
    from atc_py.cli.files import writable
    from atc_py.cli.running import make_feeds, open_checked, running_on
    from atc_py.report.conversion import file_line
    from atc_py.report.screen import console
    from atc_py.runtime import Session, golden

    target = Path(output if output.lower().endswith(".npz") else output + ".npz")
    writable(target)
    session = Session(open_checked(model))
    feeds = make_feeds(session, given["inputs"], given["input_shape"], given["seed"])
    with running_on(session, feeds, given["inputs"]):
        made = golden.record(model, session, feeds.arrays, None if given["inputs"] else given["seed"])
    made.save(target)
    size = target.stat().st_size
    if given["json"]:
        facts = {"format_version": 1, "model": model, "digest": made.digest, "seed": made.seed}
        facts |= {"inputs": list(made.inputs), "outputs": list(made.outputs)}
        print_json({**facts, "file": {"path": str(target), "bytes": size}})
    else:
        console().print(file_line(str(target), size))


@command(
    "verify", "Run the OM file MODEL on the inputs in GOLDEN, and compare its outputs with those in GOLDEN.", VERIFY
)
@click.argument("model", type=click.Path())
@click.argument("golden", type=click.Path())
@check_options
@click.option("--cosine", type=click.FloatRange(-1, 1), help="Ask for a least cosine similarity too.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write a JUnit report.")
@custom_option
@common
@click.pass_context
def verify(ctx: click.Context, /, model: str, golden: str, **given: Any) -> None:
    """Run and compare."""
    from atc_py.cli.files import writable
    from atc_py.cli.running import open_checked
    from atc_py.runtime import Session
    from atc_py.runtime import golden as files
    from atc_py.runtime.arrays import replacing

    if given["junit"]:
        writable(Path(given["junit"]))
    if not Path(golden).exists() and not golden.lower().endswith(".npz"):
        golden += ".npz"  # as 'record' adds it
    kept = files.read(golden)
    session = Session(open_checked(model))
    start = time.perf_counter()
    limits = {key: given[key] for key in ("rtol", "atol", "cosine")}
    differences = files.verify(session, kept, **limits)
    elapsed = time.perf_counter() - start
    if given["junit"]:
        with replacing(Path(given["junit"])) as sink:
            sink.write(files.junit(differences, f"atc golden {Path(model).name}", elapsed))
    same = files.file_digest(model) == kept.digest
    facts = {
        "format_version": 1,
        "model": model,
        "golden": golden,
        "passed": all(d.passed for d in differences),
        "same_model": same,
        "recorded_with": dict(kept.versions),
        "seed": kept.seed,
        "outputs": [d.to_json() for d in differences],
    }
    if given["json"]:
        print_json(facts)
    else:
        _show(facts)
    if not facts["passed"]:
        ctx.exit(1)


def _show(facts: dict[str, Any]) -> None:
    from rich.text import Text

    from atc_py.report import results
    from atc_py.report.screen import console

    screen = console()
    screen.print(results.comparison(facts["outputs"]))
    if not facts["same_model"]:
        screen.print(Text("note: the golden file was recorded with another OM", style="yellow"))
    passed = facts["passed"]
    screen.print(Text("as recorded" if passed else "not as recorded", style="bold green" if passed else "bold red"))


for _command in (record, verify):
    assert isinstance(_command, Command)
    verb.add_command(_command)
