"""`atc inspect`: what is in an OM or ONNX file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.usage import Usage, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

EXAMPLES = """
atc inspect model.om
atc inspect model.om --memory --tasks
atc inspect model.om --graph > model.txt
atc inspect model.onnx
"""


@command("inspect", "Show what is in FILE, an OM or an ONNX model.", EXAMPLES)
@click.argument("file", type=click.Path())
@click.option("--graph", is_flag=True, help="The canonical graph's text.")
@click.option("--memory", is_flag=True, help="The memory map: a chart of the arena, and every buffer.")
@click.option("--tasks", is_flag=True, help="The tasks with engines, streams, addresses and ONNX nodes.")
@click.option("--weights", is_flag=True, help="The constants and where they lie.")
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, file: str, **given: Any) -> None:
    """Tell an OM by its first bytes."""
    if is_onnx(file):
        for option in ("memory", "tasks", "weights"):
            if given[option]:
                hint = f"convert '{file}', and inspect the OM"
                cause = "an ONNX model has no plan: it is made by the conversion"
                raise Usage("E10001", f"--{option}", cause, hint, ctx=ctx, as_json=given["json"])
        _inspect_onnx(file, given)
    else:
        _inspect_om(file, given)


def is_onnx(path: str) -> bool:
    """Whether a file is an ONNX model rather than an OM: by the magic, else by the suffix, be it there or not."""
    with suppress(OSError), open(path, "rb") as stream:
        if stream.read(4) == b"IMOD":
            return False
    return Path(path).suffix.lower() != ".om"


def _print(parts: list[RenderableType]) -> None:
    from atc_py.report.screen import console

    screen = console()
    for number, part in enumerate(parts):
        if number:
            screen.print()
        screen.print(part)


def _inspect_om(path: str, given: dict[str, Any]) -> None:
    from atc_py.cli import om_facts
    from atc_py.errors import error
    from atc_py.report import inspection, memory
    from atc_py.runtime.loader import load, open_om

    om = open_om(path)
    if not om.is_atc:
        facts = om_facts.foreign(om)
        asked = next((o for o in ("graph", "memory", "tasks", "weights") if given[o]), None)
        if asked is not None:
            cause = f"--{asked}: another compiler's OM has no plan or graph of atc-py"
            raise error("E30025", path, cause, f"leave out --{asked}")
        if given["json"]:
            print_json(facts)
        else:
            _print([inspection.foreign(facts)])
        return
    loaded = load(path)
    facts = om_facts.overview(loaded)
    plan = om_facts.PlanFacts(loaded)
    facts["subgraphs"] = plan.subgraphs()
    parts: list[RenderableType] = []
    if given["memory"]:
        facts["memory_map"] = plan.memory()
        parts.append(memory.memory_map(facts["memory_map"]))
    if given["tasks"]:
        facts["task_list"] = plan.tasks()
        parts.append(inspection.task_table(facts["task_list"]))
    if given["weights"]:
        facts["constants"] = plan.weights()
        parts.append(inspection.weight_table(facts["constants"]))
    if given["graph"]:
        facts["graph"] = _graph_text(path, loaded)
    if given["json"]:
        print_json(facts)
        return
    if parts or not given["graph"]:
        _print(parts or [inspection.overview(facts)])
    if given["graph"]:
        click.echo(facts["graph"], nl=False)


def _graph_text(path: str, loaded: Any) -> str:
    from atc_py.errors import error
    from atc_py.ir.stored import unpack_graph_text
    from om_format import Partition

    part = loaded.om.get(Partition.CANONICAL_GRAPH)
    if part is None:
        raise error("E30012", path, "holds no canonical graph", "convert the ONNX model without --canonical=off")
    return unpack_graph_text(part.data)


def _inspect_onnx(path: str, given: dict[str, Any]) -> None:
    from atc_py.cli import onnx_facts
    from atc_py.errors import AtcError, Problem
    from atc_py.ir.text import print_graph
    from atc_py.report import inspection
    from atc_py.report.problems import warning_block

    facts, graph = onnx_facts.overview(path)
    if given["graph"]:
        if graph is None:
            raise AtcError(*(Problem(**p) for p in facts["problems"]))
        facts["graph"] = print_graph(graph)
    if given["json"]:
        print_json(facts)
        return
    if given["graph"]:
        click.echo(facts["graph"], nl=False)
        return
    wrong = warning_block([Problem(**p) for p in facts["problems"]], "why it cannot be converted")
    noticed = warning_block([Problem(**p) for p in facts["warnings"]])
    _print([inspection.onnx_overview(facts), *(block for block in (wrong, noticed) if block is not None)])
