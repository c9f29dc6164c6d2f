"""The table of verbs. Help is shown from it alone: no verb is imported before it is called.

A command line without a verb that begins with an option is ATC's own form and means `convert`:

    atc --model=m.onnx --framework=5 --output=m --soc_version=Ascend310P3
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from atc_py import __version__
from atc_py.cli.usage import Usage

VERBS: Mapping[str, tuple[str, str]] = {
    "convert": ("atc_py.cli.convert", "Compile an ONNX model into an OM file."),
    "inspect": ("atc_py.cli.inspect", "Show what is in an OM or ONNX file."),
    "run": ("atc_py.cli.run", "Run an OM on the simulated NPU."),
    "profile": ("atc_py.cli.profile", "Predict the time on the device, task by task."),
    "check": ("atc_py.cli.check", "Compare an OM's results with onnxruntime's on the same inputs."),
    "verify": ("atc_py.cli.verify", "Prove that an OM file is whole and its plan right."),
    "golden": ("atc_py.cli.golden", "Record results, and compare later ones with them."),
    "diff": ("atc_py.cli.diff", "Compare two OMs, or two dumps of a graph."),
    "plan-memory": ("atc_py.cli.plan_memory", "Place buffers with lifetimes in one memory."),
    "explain": ("atc_py.cli.explain", "Say what a code means, or why a model is compiled as it is."),
}
"""Verb → its module, whose `verb` is the click command, and one line of help."""

_OWN = ("--help", "-h", "--version")


class App(click.Group):
    """The group of verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb."""
        if cmd_name not in VERBS:
            return None
        command = import_module(VERBS[cmd_name][0]).verb
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb's command; names near verbs for an unknown one."""
        if args and args[0] not in VERBS:
            near = get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(VERBS)}"
            raise Usage("E10001", args[0], "there is no such command", hint, ctx=ctx, as_json="--json" in args)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """ATC's form has no verb."""
        if args and args[0].startswith("--") and args[0] not in _OWN:
            args = ["convert", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of verbs, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _settings() -> dict[str, Any]:
    return {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(
    cls=App,
    context_settings=_settings(),
    epilog="'atc COMMAND --help' has examples. Options may be spelled with underscores, as ATC spells them.",
)
@click.version_option(__version__, prog_name="atc")
def app() -> None:
    """Compile ONNX models into OM files, look into them, and run them on a simulated NPU."""
