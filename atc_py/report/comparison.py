"""What `atc diff` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import table

MANY = 100
"""So many differences are shown; `--json` has them all."""
_SIGNS = {"only in a": "−", "only in b": "+", "changed": "~"}


def comparison(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts, in order."""
    if facts["same"]:
        yield Text("they are the same", style="green")
        return
    if facts["figures"]:
        rows = [[f["figure"], _number(f["a"]), _number(f["b"])] for f in facts["figures"]]
        yield table(["figure", ">a", ">b"], rows)
    if facts["operators"]:
        yield table(["operator", ">a", ">b"], [[o["operator"], o["a"], o["b"]] for o in facts["operators"]])
    found = facts["differences"]
    if found:
        rows = [[_SIGNS[d["kind"]], d["label"], d["operator"], _changes(d)] for d in found[:MANY]]
        yield table(
            ["", "node", "operator", "what differs"], rows, n.plural(len(found), "node differs", "nodes differ")
        )
    if len(found) > MANY:
        yield Text(f"{len(found) - MANY} more; --json has all of them")


def _number(value: object) -> str:
    return n.count(value) if isinstance(value, int) else "–" if value is None else str(value)


def _changes(difference: Mapping[str, Any]) -> str:
    if difference["kind"] != "changed":
        return str(difference["kind"])
    return "\n".join(f"{c['fact']}: {c['a'] or '–'} → {c['b'] or '–'}" for c in difference["changes"])
