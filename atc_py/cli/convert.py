"""`atc convert`: an ONNX model into an OM file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.atc_options import INSTEAD
from atc_py.cli.base import command, common, custom_option
from atc_py.cli.compiling import compile_options, dumper_of, options_of
from atc_py.cli.usage import Usage, print_json

if TYPE_CHECKING:
    from atc_py.emit import Om
    from atc_py.emit.stages import Operators
    from atc_py.ir.graph import Graph
    from atc_py.plan.types import Plan

EXAMPLES = """
atc convert resnet50.onnx -o resnet50.om
atc convert det.onnx -o det.om --input-shape "x:1,3,640,640"
atc convert bert.onnx -o bert.om --input-hint-shape "input_ids:1,128"
atc convert net.onnx -o net.om --input-shape "x:-1,3,224,224" --dynamic-batch-size "1,2,4"
atc convert net.onnx -o head.om --out-nodes "Conv_12:0;logits" --opt-level O1
atc --model=net.onnx --framework=5 --output=net --soc_version=Ascend310P3
"""


@command("convert", "Compile the ONNX file MODEL into an OM file.", EXAMPLES)
@click.argument("model", required=False, type=click.Path())
@click.option("--model", "model_option", type=click.Path(), help="The model, as ATC takes it.")
@click.option("--framework", type=int, help="ATC's number of the source framework: 5, ONNX.")
@click.option("--output", "-o", required=True, type=click.Path(), help="The file to write; .om is added if missing.")
@compile_options
@click.option("--dynamic-batch-size", metavar="TEXT", help='Compile for each of some batch sizes, "1,2,4".')
@click.option("--dynamic-image-size", metavar="TEXT", help='Compile for each of some sizes "h,w;h,w" of images.')
@click.option(
    "--dynamic-dims",
    metavar="TEXT",
    help='Compile for each of some values of all dims that are -1, in the order of --input-shape: "1,128;4,256".',
)
@click.option(
    "--canonical",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Keep the graph in the OM, so that it can be compiled again for another target.",
)
@click.option(
    "--log",
    type=click.Choice(["debug", "info", "warning", "error", "null"]),
    default="null",
    show_default=True,
    help="With info: what each pass did, on standard error; with debug: what it left alone, and why.",
)
@click.option("--verbose", is_flag=True, help="Also show which operators compute in which dtype.")
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, model: str | None, model_option: str | None, output: str, **given: Any) -> None:
    """Check the command line, compile, write, report."""
    source = _source(ctx, model, model_option, given)
    target = _target(output)
    om, stages, counted = _compile(source, given)
    om.embed_canonical = om.embed_canonical and given["canonical"] == "on"
    size = _write(om, target)
    _log(om, counted, given["log"])
    figures = {
        **om.summary,
        "file": {"path": str(target), "bytes": size},
        "stages": [{"name": name, "seconds": round(elapsed, 6)} for name, elapsed in stages],
        "warnings": [w.to_json() for w in om.warnings],
    }
    if given["json"]:
        print_json(figures)
        return
    _show(om, figures, target, size, given["verbose"])


verb.instead = INSTEAD


def _source(ctx: click.Context, model: str | None, model_option: str | None, given: dict[str, Any]) -> str:
    """The model's path; ATC's options checked."""

    def wrong(code: str, place: str, cause: str, hint: str) -> Usage:
        return Usage(code, place, cause, hint, ctx=ctx, as_json=given["json"])

    if model and model_option:
        raise wrong("E10001", "--model", "the model is given twice", f"leave out '{model}' or '{model_option}'")
    if given["framework"] not in (None, 5):
        cause = f"framework {given['framework']} is not supported, only 5 (ONNX) is"
        raise wrong("E10001", "--framework", cause, "export the model to ONNX first")
    found = model or model_option
    if not found:
        raise wrong("E10054", "MODEL", "no model is given", "atc convert model.onnx -o model.om")
    return found


def _target(output: str) -> Path:
    """The file to write, `.om` added; raises `AtcError` E13001 before any work is done when it cannot be put there."""
    from atc_py.cli.files import writable

    if os.path.basename(output) in ("", ".", ".."):  # a folder; `net` means net.om, also beside a folder of that name
        writable(Path(output))
    target = Path(output if output.lower().endswith(".om") else output + ".om")
    writable(target)
    return target


def _log(om: Om, counted: Operators | None, level: str) -> None:
    """What each stage and pass did, on standard error; ATC's other levels have nothing to say here."""
    if counted is None:
        return
    from atc_py.report.conversion import passes, stages
    from atc_py.report.screen import console

    screen = console(stderr=True)
    screen.print()
    screen.print(stages(counted.rows, om.summary))
    screen.print()
    screen.print(passes(om.report.to_json(), declined=level == "debug"))


def _compile(source: str, given: dict[str, Any]) -> tuple[Om, list[tuple[str, float]], Operators | None]:
    """Compile, showing each stage when it is done."""
    from dataclasses import replace

    from atc_py import compiler
    from atc_py.emit.stages import Operators
    from atc_py.report.conversion import stage_line
    from atc_py.report.screen import console

    options = replace(options_of(source, given), **_gears(given))
    counted = Operators() if given["log"] in ("debug", "info") else None
    watchers = [w for w in (dumper_of(given), counted) if w is not None]
    stages: list[tuple[str, float]] = []
    screen = console(stderr=given["json"])

    def progress(name: str, elapsed: float) -> None:
        stages.append((name, elapsed))
        screen.print(stage_line(name, elapsed))

    def watch(stage: str, graph: Graph, plan: Plan | None) -> None:
        for watcher in watchers:
            watcher(stage, graph, plan)

    return compiler.compile_model(source, options, progress, watch if watchers else None), stages, counted


def _gears(given: dict[str, Any]) -> dict[str, Any]:
    """The lists of sizes to compile for, as `compiler.Options` has them. Raises `AtcError` E10001."""
    from atc_py.frontend.gears import BATCH, parse_gears

    found = parse_gears(given)
    return {name: [v[0] for v in values] if name == BATCH else values for name, values in found.items()}


def _write(om: Om, target: Path) -> int:
    """Write the file, which appears whole or not at all; returns its size in bytes."""
    from atc_py.cli.files import writing
    from atc_py.emit import write_file

    with writing(target):
        return write_file(om, target)


def _show(om: Om, figures: dict[str, Any], target: Path, size: int, verbose: bool) -> None:
    from atc_py.cli.om_facts import needs_onnx
    from atc_py.report.conversion import conversion, file_line
    from atc_py.report.problems import warning_block
    from atc_py.report.screen import console

    screen = console()
    screen.print()
    names = [origin for task in needs_onnx(om.plan) for origin in (task["origin"] or [task["name"]])]
    screen.print(conversion(figures, list(dict.fromkeys(names)), verbose))
    block = warning_block(om.warnings)
    if block is not None:
        screen.print()
        screen.print(block)
    screen.print()
    screen.print(file_line(str(target), size))
