"""`atc diff`: two OMs, or two dumps of a graph, compared node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from atc_py.cli.base import command, common, custom_option
from atc_py.cli.usage import print_json

EXAMPLES = """
atc diff o0.om o2.om
atc diff dump/ge_readable_00000003_graph_1_optimize_attention.txt dump/ge_readable_00000004_graph_1_optimize_heads.txt
atc diff old.om new.om --graph
"""
FIGURES = ("soc_version", "opt_level", "precision_mode", "nodes", "tensors", "tasks", "streams", "events", "engines",
           "memory", "predicted_latency_us")  # fmt: skip


@command("diff", "Compare A and B: two OMs, or two graphs in the text form. Exits with 1 when they differ.", EXAMPLES)
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--graph", is_flag=True, help="Of OMs: compare the canonical graphs, not the tasks.")
@click.option("--memory", is_flag=True, help="Of OMs: compare addresses too.")
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, a: str, b: str, **given: Any) -> None:
    """Read both, compare, report."""
    from atc_py.emit.differences import differences, operators

    left, right = _read(a, given), _read(b, given)
    counts = operators(left[1], right[1])
    found = differences(left[1], right[1])
    figures = _figures(left[0], right[0])
    same = not (found or counts or figures)
    facts = {
        "format_version": 1,
        "a": a,
        "b": b,
        "same": same,
        "figures": figures,
        "operators": [{"operator": op, "a": one, "b": other} for op, one, other in counts],
        "differences": [d.to_json() for d in found],
    }
    if given["json"]:
        print_json(facts)
    else:
        _show(facts)
    if not same:
        ctx.exit(1)


def _read(path: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """(figures, items) of a file."""
    from atc_py.emit.differences import items_of_plan, items_of_text
    from atc_py.errors import error

    try:
        with open(path, "rb") as stream:
            is_om = stream.read(4) == b"IMOD"
        text = "" if is_om else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        cause = "is neither an OM nor text" if isinstance(e, UnicodeDecodeError) else e.strerror or str(e)
        raise error("E13000", path, cause, "give two OM files, or two ge_readable_*.txt dumps") from e
    if not is_om:
        return {}, items_of_text(text, path)
    from atc_py.cli.om_facts import recorded
    from atc_py.cli.running import opened

    loaded = opened(path)
    if given["graph"]:
        from atc_py.emit.dump import readable

        return recorded(loaded), items_of_text(readable(loaded.canonical(), weights=True), path)
    return recorded(loaded), items_of_plan(loaded.plan, given["memory"])


def _figures(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures that differ; those with parts, part by part."""
    found = []
    for name in FIGURES:
        one, other = a.get(name), b.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            parts = [(f"{name} {k}", one.get(k), other.get(k)) for k in dict.fromkeys((*one, *other))]
        else:
            parts = [(name, one, other)]
        found += [{"figure": n, "a": x, "b": y} for n, x, y in parts if x != y]
    return found


def _show(facts: dict[str, Any]) -> None:
    from atc_py.report.comparison import comparison
    from atc_py.report.screen import console

    screen = console()
    for number, part in enumerate(comparison(facts)):
        if number:
            screen.print()
        screen.print(part)
