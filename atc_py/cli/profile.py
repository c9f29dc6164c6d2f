"""`atc profile`: how long a model is predicted to take on the device, task by task, without running it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.compiling import compile_options
from atc_py.cli.usage import print_json

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
    "The external data of an ONNX model is not read and need not be there.",
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
def verb(model: str, **given: Any) -> None:
    """Get a plan, run the clock, report."""
    from atc_py.cli.inspect import is_onnx
    from atc_py.schedule.profile import profile

    plan, target = _plan(model, given)
    found = profile(plan, target)
    whose = given["plan"] if is_onnx(model) else "own"
    written = write_files(found, model, given["trace"], given["csv"])
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


def _plan(path: str, given: dict[str, Any]) -> tuple[Plan, Target]:
    """The plan of an OM, or that of an ONNX model compiled without its weights."""
    from atc_py.cli.inspect import is_onnx
    from atc_py.target import load as load_target

    if not is_onnx(path):
        from atc_py.cli.running import opened

        plan = opened(path).plan
        return plan, load_target(plan.target)
    from atc_py import compiler
    from atc_py.cli.compiling import options_of
    from atc_py.frontend import model_file

    options = options_of(path, given)
    if given["plan"] == "toolkit":
        options = compiler.as_toolkit(options)
    om = compiler.compile_structure(model_file.load(path).proto, options)
    return om.plan, load_target(options.soc_version)


def write_files(found: Profile, title: str, trace: str | None, csv: str | None) -> list[str]:
    """Write the files that were asked for; returns their paths. Raises `AtcError` E13001."""
    from atc_py.cli.files import writing
    from atc_py.schedule.op_summary import op_summary
    from atc_py.schedule.trace import chrome_trace

    written = []
    if trace:
        with writing(Path(trace)):
            Path(trace).write_text(json_module.dumps(chrome_trace(found, Path(title).name), indent=1), encoding="utf-8")
        written.append(trace)
    if csv:
        with writing(Path(csv)):
            Path(csv).write_text(op_summary(found), encoding="utf-8")
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
