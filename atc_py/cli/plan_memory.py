"""`atc plan-memory`: places for buffers with lifetimes, on MiniMalloc's CSV form."""

from __future__ import annotations

from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import command, common
from atc_py.cli.usage import print_json

if TYPE_CHECKING:
    from atc_py.memory import Assignment
    from atc_py.memory.table import Table

EXAMPLES = """
atc plan-memory buffers.csv
atc plan-memory buffers.csv --capacity 1048576 -o placed.csv
atc plan-memory buffers.csv --capacity 1048576 --effort max --json
"""


@command(
    "plan-memory",
    "Give each buffer of BUFFERS, a CSV file with the columns id, lower, upper and size, an offset such that no two "
    "share bytes while both live. A buffer lives from lower on and no longer at upper. A column alignment "
    "says of what each offset is a multiple.",
    EXAMPLES,
)
@click.argument("buffers", type=click.Path())
@click.option("--capacity", type=click.IntRange(0), metavar="N", help="The bytes there are; fewer are not sought.")
@click.option("--output", "-o", type=click.Path(), help="The CSV file to write: BUFFERS with a column offset.")
@click.option(
    "--effort",
    type=click.Choice(["fast", "default", "max"]),
    default="default",
    show_default=True,
    help="How long to search: not at all, about 2 s, or about a minute.",
)
@click.option("--alignment", type=click.IntRange(1), default=1, show_default=True, help="Offsets are multiples of it.")
@common
def verb(buffers: str, capacity: int | None, output: str | None, **given: Any) -> None:
    """Read, plan, write, report."""
    from atc_py.cli.files import writable, writing
    from atc_py.memory.aligned import plan_aligned
    from atc_py.memory.table import read_table, with_offsets

    if output is not None:
        writable(Path(output))
    table = read_table(Path(buffers))
    alignments = [lcm(given["alignment"], own) for own in table.alignments]
    found = plan_aligned(table.blocks, alignments, capacity=capacity, effort=given["effort"])
    _check_capacity(buffers, found, capacity, given["effort"], min(alignments, default=1))
    if output is not None:
        with writing(Path(output)):
            Path(output).write_text(with_offsets(table, found.offsets), encoding="utf-8", newline="")
    facts = _facts(buffers, table, found, capacity, output, given)
    if given["json"]:
        print_json(facts)
        return
    _show(facts)


def _check_capacity(buffers: str, found: Assignment, capacity: int | None, effort: str, alignment: int) -> None:
    """Raise `AtcError` E20061 when the plan does not fit."""
    from atc_py.errors import error

    if capacity is None or found.peak <= capacity:
        return
    if found.lower_bound > capacity:
        least = f"{found.lower_bound:,} bytes are live at once"
        if alignment > 1:  # then of all offsets
            least = f"no plan with offsets at multiples of {alignment:,} takes less than {found.lower_bound:,} bytes"
        cause = f"{least}, the capacity is {capacity:,}"
        raise error("E20061", buffers, cause, "no plan can fit: give more capacity or fewer buffers")
    cause = f"the best plan found takes {found.peak:,} bytes, the capacity is {capacity:,}"
    if found.optimal:
        raise error("E20061", buffers, cause, "no plan takes less: give more capacity or fewer buffers")
    more = "" if effort == "max" else "--effort max searches longer; or "
    raise error("E20061", buffers, cause, f"{more}give more capacity")


def _facts(
    buffers: str, table: Table, found: Assignment, capacity: int | None, output: str | None, given: dict[str, Any]
) -> dict[str, Any]:
    from atc_py.memory.table import facts

    return {
        "format_version": 1,
        "buffers_file": buffers,
        **facts(table),
        "capacity": capacity,
        "effort": given["effort"],
        "alignment": given["alignment"],
        "peak": found.peak,
        "lower_bound": found.lower_bound,
        "optimal": found.optimal,
        "steps": found.steps,
        "file": output,
    }


def _show(facts: dict[str, Any]) -> None:
    from atc_py.report.numbers import plural
    from atc_py.report.screen import console, pairs

    bound = f"no plan takes less than {facts['lower_bound']:,}"
    state = "no plan takes less" if facts["optimal"] else bound
    rows = [
        ("buffers", f"{plural(facts['buffers'], 'buffer')}, {facts['bytes']:,} bytes in all"),
        ("peak", f"{facts['peak']:,} bytes ({state})"),
    ]
    if facts["capacity"] is not None:
        rows.append(("capacity", f"{facts['capacity']:,} bytes"))
    if facts["file"]:
        rows.append(("written", facts["file"]))
    console().print(pairs(rows))
