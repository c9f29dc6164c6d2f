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
    from atc_py.cli.files import writable
    from atc_py.cli.running import make_feeds, open_checked, running_on, threads, write_outputs
    from atc_py.cli.usage import Usage
    from atc_py.runtime import Session

    if not given["recompile"] and (given["soc_version"] or given["precision_mode"]):
        option = "--soc-version" if given["soc_version"] else "--precision-mode"
        hint = "an OM is compiled for one target; add --recompile to compile it again"
        raise Usage("E10001", option, "needs --recompile", hint, ctx=ctx, as_json=given["json"])
    if given["profile"]:
        writable(Path(given["profile"]))
    loaded = open_checked(model)
    kernels = "tiles" if given["tiles"] else "fast"
    source = _recompiled(loaded, given) if given["recompile"] else loaded

    def made(source: Loaded | bytes) -> Session:
        return Session(source, kernels=kernels, debug_memory=given["debug_memory"], shuffle=given["shuffle"])

    session = made(source)
    feeds = make_feeds(session, given["inputs"], given["input_shape"], given["seed"])
    again = _for_other_sizes(session, feeds.arrays, given)
    session = session if again is None else made(again)
    with threads(given["threads"]), running_on(session, feeds, given["inputs"]):
        arena = session.bound(feeds.arrays).binding.arena
        outputs, times = _timed(session, feeds.arrays, given["loop"], given["warmup"])
    named = dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))
    facts: dict[str, Any] = {
        "format_version": 1,
        "model": model,
        "recompiled": given["recompile"] or again is not None,
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


def _for_other_sizes(session: Session, feeds: dict[str, Any], given: dict[str, Any]) -> bytes | None:
    """For inputs that fit no gear of an OM, the OM compiled again without gears; None where it is not needed.

    Raises `AtcError` E30009 where the OM holds no graph for that.
    """
    from dataclasses import replace

    from atc_py.errors import AtcError, Problem
    from atc_py.plan.gears import gears_of
    from atc_py.report.problems import warning_block
    from atc_py.report.screen import console
    from om_format import Partition

    if gears_of(session.plan) is None:
        return None
    try:
        session.bound(feeds)
    except AtcError as e:
        if e.code != "E30009":
            raise
        if Partition.CANONICAL_GRAPH not in session.loaded.om:
            hint = "the OM holds no graph that could be compiled for other sizes"
            raise AtcError(*(replace(p, hint=f"{p.hint}; {hint}") for p in e.problems)) from e
        problem = e.problems[0]
        cause = f"{problem.cause} ({problem.hint}); the graph in the OM was compiled again for any size"
        block = warning_block([Problem("W30009", problem.place, cause, problem.hint)])
        if block is not None:
            console(stderr=True).print(block)
        return _recompiled(session.loaded, given, _sizes_of(session, feeds))
    return None


def _sizes_of(session: Session, feeds: dict[str, Any]) -> dict[str, int]:
    """The symbols' values for the inputs."""
    import numpy as np

    from atc_py.plan.ports import solve

    plan = session.plan
    shapes = [f.shape if isinstance(f := feeds[p.name], np.ndarray) else None for p in plan.inputs]
    return solve(plan.inputs, shapes, plan.symbols)


def _recompiled(loaded: Loaded, given: dict[str, Any], sizes: dict[str, int] | None = None) -> bytes:
    """The OM compiled again, for another target or precision where one is given, figures at `sizes`, or at its hint."""
    from atc_py import compiler
    from atc_py.cli.atc_options import PRECISION_MODES
    from atc_py.cli.om_facts import recorded, recorded_lists
    from atc_py.emit import om_bytes
    from atc_py.passes.mixlist import NO_LISTS
    from atc_py.plan.gears import choosing

    figures = recorded(loaded)
    mode = PRECISION_MODES.get(given["precision_mode"], given["precision_mode"])
    hint = dict(figures["hint"] or {})
    if names := choosing(loaded.plan):  # the others are sizes of outputs, which the graph says
        hint = {name: hint[name] for name in names}
    options = compiler.Options(
        soc_version=given["soc_version"] or figures["soc_version"],
        precision_mode=mode or figures["precision_mode"],
        precision_lists=recorded_lists(figures) if mode in (None, figures["precision_mode"]) else NO_LISTS,
        opt_level=int(figures["opt_level"][1]),
        input_hint=hint if sizes is None else sizes,
    )
    return om_bytes(compiler.recompile(loaded.canonical(), options, recorded=figures))


def _profiled(session: Session, feeds: dict[str, Any], model: str, path: str) -> list[str]:
    """Write the trace of the plan at the shapes that ran."""
    from dataclasses import replace

    from atc_py.cli.profile import write_files
    from atc_py.schedule.profile import profile
    from atc_py.target import load as load_target

    bound = session.bound(feeds)
    plan = replace(bound.plan, hint=dict(bound.binding.env))
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
