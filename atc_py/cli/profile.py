"""`atc profile`: how long a model is predicted to take on the device, task by task, without running it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.compiling import compile_options
from atc_py.cli.usage import Usage, print_json

if TYPE_CHECKING:
    from atc_py.plan.types import Plan
    from atc_py.schedule.profile import Profile
    from atc_py.target import Target

PLANS = ("toolkit", "own")
EXAMPLES = """
atc profile model.om
atc profile model.om --trace trace.json --csv op_summary.csv
atc profile resnet50.onnx --soc-version Ascend310P3 --precision-mode fp16 --input-shape "x:8,3,224,224" --json
"""


@command(
    "profile",
    "Predict how long MODEL, an OM or an ONNX model, takes on the device, and what its tasks are bound by. "
    "The external data of an ONNX model is not read and need not be there. An OM is compiled already: of the options "
    "of compiling it takes --input-shape and --input-hint-shape, the sizes that it is profiled at.",
    EXAMPLES,
)
@click.argument("model", type=click.Path())
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a Chrome trace, which Perfetto opens.")
@click.option("--csv", type=click.Path(dir_okay=False), help="Write a table of the tasks, as msprof's op_summary.csv.")
@click.option("--top", type=click.IntRange(0), default=15, show_default=True, help="So many tasks are shown.")
@click.option(
    "--plan",
    type=click.Choice(PLANS),
    default=PLANS[0],
    show_default=True,
    help="Of an ONNX model: the plan that the chip's own toolkit makes, without what that lacks by the target's file, "
    "or ours with everything on. An OM has its own plan.",
)
@compile_options
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, model: str, **given: Any) -> None:
    """Get a plan, run the clock, report."""
    from atc_py.cli.files import writable
    from atc_py.cli.inspect import is_onnx
    from atc_py.schedule.profile import profile

    for path in (given["trace"], given["csv"]):
        if path:
            writable(Path(path))
    whose = "own"
    if is_onnx(model):
        whose = _whose(ctx, given)
        name, plan, target = _compiled(model, given, whose)
    else:
        _refuse_compiling(ctx, given["json"])
        name, plan, target = _of_om(model, given)
    found = profile(plan, target)
    written = write_files(found, model, given["trace"], given["csv"], name)
    facts = profile_facts(found, model, plan, whose) | {"files": written}
    if given["json"]:
        print_json(facts)
        return
    from atc_py.report import profiling
    from atc_py.report.screen import console

    screen = console()
    for number, part in enumerate(profiling.profile(facts, given["top"])):
        if number:
            screen.print()
        screen.print(part)


def _refuse_compiling(ctx: click.Context, as_json: bool) -> None:
    """Raise `Usage` E10001 for options that an OM, which has been compiled, cannot follow."""
    from atc_py.cli.compiling import compile_only

    given = compile_only(ctx, ("input_shape", "input_hint_shape"))
    if ctx.get_parameter_source("plan") is not click.core.ParameterSource.DEFAULT:
        given.append("--plan")
    if given:
        hint = "an OM is compiled already; give the ONNX model, or convert it again"
        raise Usage("E10001", ", ".join(given), "needs an ONNX model", hint, ctx=ctx, as_json=as_json)


def _whose(ctx: click.Context, given: dict[str, Any]) -> str:
    """Whose plan an ONNX model gets: ours too where nothing is known of the chip's toolkit.

    Raises `Usage` E10001 where more streams are asked for than that toolkit's plans have, and `AtcError` E20010.
    """
    from atc_py.target import load as load_target

    target = load_target(given["soc_version"])
    if given["plan"] == "own" or target.toolkit is None:
        return "own"
    most, asked = target.toolkit.streams, given["stream_num"]
    if asked > most and ctx.get_parameter_source("stream_num") is not click.core.ParameterSource.DEFAULT:
        cause = f"{asked} streams: the plan of {target.name}'s own toolkit has {most}"
        hint = "--plan own predicts ours, with as many streams as --stream-num allows"
        raise Usage("E10001", "--stream-num", cause, hint, ctx=ctx, as_json=given["json"])
    return "toolkit"


def _of_om(path: str, given: dict[str, Any]) -> tuple[str, Plan, Target]:
    """The model's name and the plan of an OM, at the sizes of --input-shape or --input-hint-shape, else at its hint.

    Of gears it is the one of these sizes.
    """
    from dataclasses import replace

    from atc_py.cli.running import opened
    from atc_py.memory import bind
    from atc_py.plan.gears import in_gear
    from atc_py.runtime.feeds import parse_shapes, symbol_values
    from atc_py.target import load as load_target

    loaded = opened(path)
    plan = loaded.plan
    shapes = parse_shapes(given["input_shape"]) | parse_shapes(given["input_hint_shape"])
    if shapes:
        env = symbol_values(plan, shapes)
        env = dict(bind(plan, env).env)  # refuses sizes for which the model has no meaning
        plan = replace(plan, hint=env)
    return loaded.om.header.name, in_gear(plan, plan.hint), load_target(plan.target)


def _compiled(path: str, given: dict[str, Any], whose: str) -> tuple[str, Plan, Target]:
    """The name and the plan of an ONNX model compiled without its weights."""
    from atc_py import compiler
    from atc_py.cli.compiling import options_of
    from atc_py.frontend import model_file
    from atc_py.target import load as load_target

    options = options_of(path, given)
    if whose == "toolkit":
        options = compiler.as_toolkit(options)
    om = compiler.compile_structure(model_file.load(path).proto, options)
    return om.name, om.plan, load_target(options.soc_version)


def write_files(found: Profile, title: str, trace: str | None, csv: str | None, name: str = "") -> list[str]:
    """Write the files that were asked for; returns their paths. Raises `AtcError` E13001.

    `title` is the file of the model, `name` the model's name.
    """
    from atc_py.cli.files import writable, writing
    from atc_py.schedule.op_summary import op_summary
    from atc_py.schedule.trace import chrome_trace

    written = []
    for path in (trace, csv):
        if path:
            writable(Path(path))
    if trace:
        with writing(Path(trace)):
            Path(trace).write_text(json_module.dumps(chrome_trace(found, Path(title).name), indent=1), encoding="utf-8")
        written.append(trace)
    if csv:
        with writing(Path(csv)):
            Path(csv).write_text(op_summary(found, name or Path(title).stem), encoding="utf-8")
        written.append(csv)
    return written


def profile_facts(found: Profile, model: str, plan: Plan, whose: str) -> dict[str, Any]:
    """The profile as `docs/schema/profile.schema.json` has it; `whose` plan it is: see `--plan`."""
    from atc_py.schedule.advice import advice

    return {
        "format_version": 1,
        "model": model,
        "soc_version": found.target.name,
        "precision_mode": plan.options.get("precision_mode", "origin"),
        "plan": whose,
        "hint": dict(plan.hint or {}),
        "predicted_latency_us": round(found.latency, 2),
        "streams": plan.streams,
        "launches": found.handing.launches,
        "synchronisations": found.handing.synchronisations,
        "utilisation": {unit: round(share, 4) for unit, share in found.busy().items()},
        "tasks": [
            {
                "task": r.task, "name": r.name, "kernel": r.kernel, "engine": r.engine, "stream": r.stream,
                "start_us": round(r.start, 3), "duration_us": round(r.duration, 3), "wait_us": round(r.wait, 3),
                "cube_us": round(r.cube, 3), "vector_us": round(r.vector, 3), "memory_us": round(r.memory, 3),
                "bound_by": r.bound_by, "read_bytes": r.read, "written_bytes": r.written, "times": r.times,
                "origin": list(r.origin),
            }
            for r in found.rows
        ],
        "advice": [
            {"title": i.title, "tasks": list(i.tasks), "us": round(i.microseconds, 1), "share": round(i.share, 4),
             "why": i.why, "what": i.what}
            for i in advice(found)
        ],
    }  # fmt: skip
