"""What `atc explain model.onnx` shows: passes, near misses, and the way of one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import pairs, table

MANY = 40
"""So many near misses are shown; `--json` has them all."""

STAGES = (
    "import to lower: each node a task by itself, one after the other (import: what convert calls before); "
    "schedule: the plan on its streams, as the host hands it over (what convert calls after)"
)


def model(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts, in order."""
    if "node" in facts:
        yield from _node(facts["node"])
        return
    yield table(
        ["after", ">nodes", ">tensors", ">bytes moved", ">predicted"],
        [
            [
                r["stage"],
                n.count(r["nodes"]),
                n.count(r["tensors"]),
                n.nbytes(r["bytes_moved"]),
                _time(r["predicted_us"]),
            ]
            for r in facts["stages"]
        ],
        f"{facts['soc_version']}, {facts['opt_level']}, precision {facts['precision_mode']}: each pass that changed it",
    )
    yield Text(STAGES)
    missed = facts["left_alone"]
    if not missed:
        yield Text("nothing was left alone for a reason")
        return
    rows = [[m["node"], m["rule"], m["reason"]] for m in missed[:MANY]]
    yield table(["node", "rule", "left alone because"], rows, f"{n.plural(len(missed), 'near miss', 'near misses')}")
    if len(missed) > MANY:
        counts = Counter(m["rule"] for m in missed)
        told = ", ".join(f"{rule} {count}" for rule, count in counts.most_common())
        yield Text(f"{len(missed) - MANY} more; --rule NAME shows those of one rule ({told}), --json all of them")


def _time(microseconds: float) -> str:
    return n.seconds(microseconds / 1e6)


def _node(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    steps = [[s["stage"], ", ".join(s["as"]) or "nothing: computed, merged or removed"] for s in facts["steps"]]
    yield table(["after", "what stands for it"], steps, facts["name"])
    for task in facts["tasks"]:
        stands = task["stands_for"]
        yield pairs(
            [
                ("task", "none: it moves no bytes" if task["task"] is None else f"{task['task']}, {task['operators']}"),
                ("engine", f"{task['engine']}, {task['precision']}"),
                ("results", ", ".join(f"{r['type']} as {r['format']}" for r in task["results"])),
                ("predicted", None if task["predicted_us"] is None else _time(task["predicted_us"])),
                ("stands for", ", ".join(stands) if len(stands) > 1 else None),
                ("left alone", "\n".join(task["left_alone"])),
            ]
        )
