"""`atc verify`: whether an OM file is whole, its plan proved, and what others read of it true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.usage import print_json
from atc_py.report.numbers import plural

if TYPE_CHECKING:
    from atc_py.emit.model_def import Drawing
    from atc_py.emit.task_info import TaskList
    from atc_py.errors import Problem
    from atc_py.plan.types import Region, Task
    from atc_py.runtime.loader import Loaded

EXAMPLES = """
atc verify model.om
atc verify model.om --json
"""

_AGAIN = "convert the model again"
GROWTHS: tuple[Callable[[int], int], ...] = (lambda v: 2 * v + 1, lambda v: 2 * v, lambda v: 3 * v, lambda v: v + 1)
"""How a size is made larger: an odd one first, then multiples, which models that halve and double take."""


@command(
    "verify", "Check the digests and weights of the OM file MODEL, prove its plan, and compare its parts.", EXAMPLES
)
@click.argument("model", type=click.Path())
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, model: str, json: bool, debug: bool) -> None:
    """Run the steps; each is reported, and the first problems of those that fail."""
    from atc_py.cli.failure import report
    from atc_py.cli.running import opened
    from atc_py.errors import AtcError

    loaded = opened(model)
    rows: list[dict[str, Any]] = [
        {"name": "container", "detail": "header, tables and digests of all partitions but the weights", "passed": True}
    ]
    problems: list[Problem] = []
    for name, step in STEPS.items():
        try:
            detail, passed = step(loaded), True
        except AtcError as e:
            detail, passed = plural(len(e.problems), "problem"), False
            problems += [p for p in e.problems if p not in problems]
        rows.append({"name": name, "detail": detail, "passed": passed})
    if json:
        facts = {"format_version": 1, "model": model, "passed": not problems, "checks": rows}
        print_json({**facts, "problems": [p.to_json() for p in problems]})
    else:
        from atc_py.report import results
        from atc_py.report.screen import console

        console().print(results.checks(rows))
        if problems:
            report(problems, False)
    if problems:
        ctx.exit(1)


def _weights(loaded: Loaded) -> str:
    loaded.check_weights()
    return "a CRC-32 of each MiB"


def _plan(loaded: Loaded) -> str:
    """Bind and prove each plan: a static one as it is, all gears, a template at its hint and at larger sizes."""
    from atc_py.memory import bind
    from atc_py.plan.gears import gear_values
    from atc_py.plan.verify import verify
    from atc_py.runtime.custom import require_custom

    proved = 0
    for plan in loaded.plans:
        require_custom(plan)
        hint = dict(plan.hint or {})
        for env in gear_values(plan) or [hint, *_other_sizes(plan, hint)]:
            binding = bind(plan, env)
            verify(plan, binding.offsets, binding.sizes, binding.env)
            proved += 1
    tasks = plural(sum(1 for plan in loaded.plans for _ in plan.tasks()), "task")
    sizes = "" if proved == len(loaded.plans) else f" at {proved} sets of sizes"
    return f"{tasks}{sizes}: every read sees its write, nothing live overlaps, no wait is in vain"


def _other_sizes(plan: Any, hint: dict[str, int]) -> list[dict[str, int]]:
    """Larger sizes than the hint that the model takes: of all symbols at once, else of one after the other."""
    from atc_py.plan.live import violated

    def larger(grow: Callable[[int], int], names: Iterable[str], env: dict[str, int]) -> dict[str, int]:
        """`env` with the named sizes grown as far as their ranges allow; as it is where the model does not take it."""
        grown = dict(env)
        for name in names:
            high = plan.symbols[name].hi
            grown[name] = grow(hint[name]) if high is None else min(grow(hint[name]), high)
        return env if any(r.branch < 0 for r in violated(plan.requirements, grown)) else grown

    for grow in GROWTHS:
        if (other := larger(grow, hint, hint)) != hint:
            return [other]
    other = hint
    for name in hint:
        grown = (larger(grow, [name], other) for grow in GROWTHS)
        other = next((env for env in grown if env != other), other)
    return [] if other == hint else [other]


def _listed(loaded: Loaded) -> TaskList:
    """The plan's TASK_INFO."""
    from atc_py.emit.task_info import task_list
    from atc_py.errors import error
    from atc_py.ir.dims import UnboundSymbol

    try:
        return task_list(loaded.plan)
    except (ValueError, UnboundSymbol) as e:
        raise error("E30027", "TASK_INFO", f"cannot be made of the plan: {e}", _AGAIN) from e


def _task_info(loaded: Loaded) -> str:
    from atc_py.errors import error
    from atc_py.runtime.loader import as_atc_error
    from om_format import OmError
    from om_format.proto.task_pb2 import ModelTaskDef

    try:
        stored = loaded.om.task_info()
    except OmError as e:
        raise as_atc_error(e) from e
    made = ModelTaskDef.FromString(_listed(loaded).content)
    if stored != made:
        place = next(
            (f"TASK_INFO task {i}" for i, (a, b) in enumerate(zip(stored.task, made.task)) if a != b), "TASK_INFO"
        )
        raise error("E30027", place, "differs from what the plan says", _AGAIN)
    return f"{plural(len(made.task), 'entry', 'entries')} as in the plan"


def _model_def(loaded: Loaded) -> str:
    """The figures, and each node that is a task, of all graphs; switches by what TASK_INFO numbers them."""
    from atc_py.cli.om_facts import model_def
    from atc_py.emit.bundle import counted
    from atc_py.emit.model_def import Drawing
    from atc_py.emit.regions import Control, control_attrs, differing
    from atc_py.emit.task_info import control_regions
    from atc_py.errors import Problems
    from atc_py.plan.show import show

    plan, listed, model = loaded.plan, _listed(loaded), model_def(loaded.om)
    drawing, regions = Drawing(lambda blob: None, plan), control_regions(plan)
    tasks = {t.id: t for t in plan.tasks()}
    problems, seen, missing = Problems(), 0, set(regions)
    for name, count in counted(plan, listed).items():
        stored = model.attr[name].i if name in model.attr else None
        if stored != count:
            problems.add("E30027", f"MODEL_DEF {name}", f"{stored} where TASK_INFO has {count}", _AGAIN)
    for op in (op for graph in model.graph for op in graph.op):
        place = f"MODEL_DEF op '{op.name}'"
        if "_task_id" not in op.attr:
            said = control_attrs(Control(op.id, regions[op.id], {}), plan, listed.switches) if op.id in regions else {}
            missing.discard(op.id)
            for what in differing(op, said):
                problems.add("E30027", place, f"'{what}' is another one than the plan and TASK_INFO have", _AGAIN)
            for what in _ends(op, regions[op.id], drawing) if op.id in regions else ():
                problems.add("E30027", place, f"{what} are others than the plan has", _AGAIN)
            continue
        seen += 1
        task = tasks.get(op.attr["_task_id"].i)
        if task is None:
            problems.add("E30027", place, f"names task {op.attr['_task_id'].i}, which the plan does not have")
            continue
        for what, stored, said in _facts(op, task, drawing):
            if stored != said:
                problems.add("E30027", place, f"{what}: {stored} where the plan has {said}", _AGAIN)
    for number in sorted(missing):
        problems.add("E30027", "MODEL_DEF", f"has no node of {show(regions[number])}", _AGAIN)
    problems.raise_any()
    return f"offsets and streams of {plural(seen, 'node')} as in the plan, figures as in TASK_INFO"


def _ends(op: Any, region: Region, drawing: Drawing) -> Iterator[str]:
    """Which offsets of a control node are not its region's own."""
    from atc_py.emit.regions import read_first
    from atc_py.plan.types import If, Loop, Scan, own_operands

    own = own_operands(region)  # gears have none: their bodies have all
    outputs = region.outputs if isinstance(region, (If, Loop, Scan)) else [None] * len(op.output_i)
    wanted, made = ([drawing.offset(o) for o in operands] for operands in (read_first(region), outputs))
    places = {-1, *(drawing.offset(o) for o in own)}  # what a body captures may be an end of the region too
    read = list(op.input_i)
    if read[: len(wanted)] != wanted or not places.issuperset(read):
        yield "input offsets"
    if list(op.output_i) != made:
        yield "output offsets"


def _facts(op: Any, task: Task, drawing: Drawing) -> tuple[tuple[str, Any, Any], ...]:
    """(what, as MODEL_DEF's op says it, as the plan does)."""
    workspace = [] if task.workspace is None else [drawing.offset(task.workspace)]
    # Captured values of a control node follow the inputs that its task has.
    wanted = [drawing.offset(o) for o in task.inputs]
    return (
        ("id", op.id, task.id),
        ("stream", op.stream_id, task.stream),
        ("input offsets", list(op.input_i), wanted + [-1] * (len(op.input_i) - len(wanted))),
        ("output offsets", list(op.output_i), [drawing.offset(o) for o in task.outputs]),
        ("workspace", list(op.workspace), workspace),
    )


def _info(loaded: Loaded) -> str:
    from atc_py.cli.om_facts import recorded
    from atc_py.emit.summary import task_counts
    from atc_py.errors import Problems

    figures, problems = recorded(loaded), Problems()
    counts = task_counts(_listed(loaded))
    for name, count in counts.items():
        if figures[name] != count:
            problems.add("E30027", f"INFO {name}", f"{figures[name]} where TASK_INFO has {count}", _AGAIN)
    problems.raise_any()
    return ", ".join(plural(count, name.removesuffix("s")) for name, count in counts.items()) + ", as in TASK_INFO"


def _ports(loaded: Loaded) -> str:
    from atc_py.emit.bundle import inout
    from atc_py.errors import error
    from atc_py.plan.gears import GEAR_LISTS, gear_list, list_text
    from atc_py.runtime.loader import as_atc_error
    from om_format import OmError, Partition, parse_inout

    try:
        part = loaded.om[Partition.MODEL_INOUT_INFO]
        stored = parse_inout(part.data, part.offset)
    except OmError as e:
        raise as_atc_error(e) from e
    made = inout(loaded.plan)
    if stored != made:
        raise error("E30027", "MODEL_INOUT_INFO", "differs from what the plan says", _AGAIN)
    listed = gear_list(loaded.plan)
    said = {name: text for name, text in loaded.plan.options.items() if name in GEAR_LISTS}
    if said != ({} if listed is None else {listed[0]: list_text(*listed)}):
        raise error("E30027", "plan table", "its options list other gears than it has", _AGAIN)
    return f"{plural(len(made.inputs), 'input')} and {plural(len(made.outputs), 'output')} as in the plan"


def _canonical(loaded: Loaded) -> str:
    from om_format import Partition

    if Partition.CANONICAL_GRAPH not in loaded.om:
        return "the file was written without it"
    graph = loaded.canonical()
    return f"{plural(len(graph.nodes), 'node')}, parsed"


STEPS: dict[str, Callable[[Loaded], str]] = {
    "weights": _weights,
    "plan": _plan,
    "TASK_INFO": _task_info,
    "MODEL_DEF": _model_def,
    "INFO": _info,
    "ports": _ports,
    "canonical graph": _canonical,
}
"""The steps in order: each returns what it compared, or raises `AtcError`."""
