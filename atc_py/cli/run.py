"""`atc run`: an OM on the simulated NPU. Imports neither onnx nor the compiler, unless it recompiles."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import AnyCase, command, common, custom_option, input_option, seed_option, shape_option
from atc_py.cli.usage import print_json

if TYPE_CHECKING:
    from atc_py.runtime import Session
    from atc_py.runtime.loader import Loaded

EXAMPLES = """
atc run model.om
atc run model.om --input x=image.npy --output results
atc run model.om --input inputs.npz --loop 20 --warmup 3
atc run model.om --input-shape "x:4,3,224,224"
atc run model.om --recompile --soc-version Ascend910B1
atc run model.om --debug-memory --shuffle 7 --loop 20
"""


@command("run", "Run MODEL, an OM, and show its outputs' statistics.", EXAMPLES)
@click.argument("model", type=click.Path())
@input_option
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Write the outputs into this folder.")
@click.option(
    "--outfmt",
    type=AnyCase(["npy", "bin", "txt", "npz"]),
    default="npy",
    show_default=True,
    help="The form of written outputs.",
)
@shape_option
@seed_option
@click.option("--loop", type=click.IntRange(1), default=1, show_default=True, help="Timed runs.")
@click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="Runs before the timed ones.")
@click.option("--threads", type=click.IntRange(1), help="Threads of the simulation.")
@click.option("--tiles", is_flag=True, help="Run fused tasks tile by tile, in buffers of the planned sizes.")
@click.option("--profile", type=click.Path(dir_okay=False), help="Write the predicted timeline as a Chrome trace.")
@click.option("--debug-memory", is_flag=True, help="Check each access to the arena; freed memory is poisoned.")
@click.option("--shuffle", type=click.IntRange(0), metavar="SEED", help="Run tasks in a drawn order that events allow.")
@click.option("--recompile", is_flag=True, help="Compile the graph in the OM again, in memory, and run that.")
@click.option("--soc-version", help="With --recompile: another target.")
@click.option("--precision-mode", help="With --recompile: another precision mode.")
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, model: str, **given: Any) -> None:
    """Load, feed, run, report."""
    from atc_py.cli.running import make_feeds, open_checked, running_on, threads, write_outputs
    from atc_py.cli.usage import Usage
    from atc_py.runtime import Session

    if not given["recompile"] and (given["soc_version"] or given["precision_mode"]):
        option = "--soc-version" if given["soc_version"] else "--precision-mode"
        hint = "an OM is compiled for one target; add --recompile to compile it again"
        raise Usage("E10001", option, "needs --recompile", hint, ctx=ctx, as_json=given["json"])
    loaded = open_checked(model)
    kernels = "tiles" if given["tiles"] else "fast"
    source = _recompiled(loaded, given) if given["recompile"] else loaded
    session = Session(source, kernels=kernels, debug_memory=given["debug_memory"], shuffle=given["shuffle"])
    feeds = make_feeds(session, given["inputs"], given["input_shape"], given["seed"])
    with threads(given["threads"]), running_on(session, feeds, given["inputs"]):
        arena = session.bound(feeds.arrays).binding.arena
        outputs, times = _timed(session, feeds.arrays, given["loop"], given["warmup"])
    named = dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))
    facts = {
        "format_version": 1,
        "model": model,
        "recompiled": given["recompile"],
        "seed": None if given["inputs"] else given["seed"],
        "inputs": [_described(name, value) | {"source": feeds.sources[name]} for name, value in feeds.arrays.items()],
        "outputs": _results(named),
        "simulation_time_s": _summary(times),
        "arena": arena,
        "simulator_scratch": session.simulator_scratch(),
        "files": [],
    }
    if given["profile"]:
        facts["files"] = _profiled(session, feeds.arrays, model, given["profile"])
    if given["output"]:
        written = write_outputs(Path(given["output"]), given["outfmt"].upper(), named)
        facts["files"] += list(dict.fromkeys(str(w.path) for w in written))
    if given["json"]:
        print_json(facts)
    else:
        _show(facts)


def _recompiled(loaded: Loaded, given: dict[str, Any]) -> bytes:
    """The OM compiled again, for another target or precision where one is given."""
    from atc_py import compiler
    from atc_py.cli.atc_options import PRECISION_MODES
    from atc_py.cli.om_facts import recorded, recorded_lists
    from atc_py.emit import om_bytes
    from atc_py.passes.mixlist import NO_LISTS

    figures = recorded(loaded)
    mode = PRECISION_MODES.get(given["precision_mode"], given["precision_mode"])
    options = compiler.Options(
        soc_version=given["soc_version"] or figures["soc_version"],
        precision_mode=mode or figures["precision_mode"],
        precision_lists=recorded_lists(figures) if mode in (None, figures["precision_mode"]) else NO_LISTS,
        opt_level=int(figures["opt_level"][1]),
        input_hint=figures["hint"] or {},
    )
    return om_bytes(compiler.recompile(loaded.canonical(), options, recorded=figures))


def _profiled(session: Session, feeds: dict[str, Any], model: str, path: str) -> list[str]:
    """Write the trace of the plan at the shapes that ran."""
    from dataclasses import replace

    from atc_py.cli.profile import write_files
    from atc_py.schedule.profile import profile
    from atc_py.target import load as load_target

    plan = replace(session.plan, hint=dict(session.bound(feeds).binding.env))
    return write_files(profile(plan, load_target(plan.target)), model, path, None)


def _timed(session: Session, feeds: dict[str, Any], loop: int, warmup: int) -> tuple[list[Any], list[float]]:
    """The outputs, and the seconds of each timed run."""
    times: list[float] = []
    outputs: list[Any] = []
    for number in range(warmup + loop):
        start = time.perf_counter()
        outputs = session.run(None, feeds)
        if number >= warmup:
            times.append(time.perf_counter() - start)
    return outputs, times


def _summary(times: list[float]) -> dict[str, Any]:
    """Wall-clock seconds of the simulation; p90 is the time that nine runs in ten do not exceed."""
    order = sorted(times)
    middle = len(order) // 2
    median = order[middle] if len(order) % 2 else (order[middle - 1] + order[middle]) / 2
    return {"runs": len(order), "median": median, "min": order[0], "p90": order[-(-9 * len(order) // 10) - 1]}


def _described(name: str, value: Any) -> dict[str, Any]:
    import numpy as np

    from atc_py.ir.types import DType

    if not isinstance(value, np.ndarray):
        return {"name": name, "dtype": type(value).__name__, "shape": None}
    return {"name": name, "dtype": DType.of(value.dtype).value, "shape": list(value.shape)}


def _results(named: dict[str, Any]) -> list[dict[str, Any]]:
    """Each output's dtype, shape and statistics; sequences and maps by their elements."""
    from atc_py.runtime.arrays import leaves
    from atc_py.runtime.compare import statistics

    found = []
    for name, value in named.items():
        for label, array in leaves(name, value):
            nothing = {"min": None, "max": None, "mean": None, "std": None, "nan": 0}
            found.append(_described(label, array) | (nothing if array is None else statistics(array)))
    return found


def _show(facts: dict[str, Any]) -> None:
    from atc_py.report import results
    from atc_py.report.screen import console, printable

    screen = console()
    screen.print(results.run(facts))
    for path in facts["files"]:
        screen.print(f"wrote {printable(path)}")
