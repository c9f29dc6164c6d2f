"""What `atc profile` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import pairs, table

NAMED = 3
"""So many tasks are named in a piece of advice."""
_PLANS = {"toolkit": "as the chip's own toolkit makes it; --plan own predicts ours", "own": "ours"}
"""Whose plan the prediction is of."""


def profile(facts: Mapping[str, Any], top: int) -> Iterator[RenderableType]:
    """The parts, in order."""
    used = ", ".join(f"{unit} {n.percent(share, 1)}" for unit, share in facts["utilisation"].items() if share)
    tasks = facts["tasks"]
    hint = ", ".join(f"{k} = {v}" for k, v in facts["hint"].items())
    yield pairs(
        [
            ("predicted", f"{_us(facts['predicted_latency_us'])} on {facts['soc_version']}, {facts['precision_mode']}"),
            ("plan", _PLANS[facts["plan"]]),
            ("at", hint),
            ("tasks", f"{n.count(len(tasks))} on {n.plural(facts['streams'], 'stream')}"),
            ("host", f"{n.plural(facts['launches'], 'launch', 'launches')}, "
                     f"{n.plural(facts['synchronisations'], 'synchronisation')}"),
            ("busy", used),
        ]
    )  # fmt: skip
    longest = sorted(tasks, key=lambda t: (-t["duration_us"] * t["times"], t["task"]))[:top]
    if longest:
        yield table(
            ["task", "name", "kernel", "?engine", ">time", ">share", "?>cube", "?>vector", "?>memory", "bound by"],
            [_row(t, facts["predicted_latency_us"]) for t in longest],
            f"the {len(longest)} longest tasks",
        )
    if facts["advice"]:
        yield table(
            [">share", ">time", "what", "why", "what to do"],
            [[n.percent(a["share"], 1), _us(a["us"]), _what(a), a["why"], a["what"]] for a in facts["advice"]],
            "what to look at (shares may overlap)",
        )
    for path in facts["files"]:
        yield Text(f"wrote {path}")


def _us(microseconds: float) -> str:
    return n.seconds(microseconds / 1e6)


def _row(task: Mapping[str, Any], latency: float) -> list[object]:
    total = task["duration_us"] * task["times"]
    name = task["name"] if task["times"] == 1 else f"{task['name']} × {task['times']}"
    units = [_us(task[f"{unit}_us"]) if task[f"{unit}_us"] else None for unit in ("cube", "vector", "memory")]
    number = task["task"] if task["task"] >= 0 else None
    return [
        number,
        name,
        task["kernel"],
        task["engine"],
        _us(total),
        n.percent(total, latency),
        *units,
        task["bound_by"],
    ]


def _what(item: Mapping[str, Any]) -> str:
    named = item["tasks"][:NAMED]
    more = len(item["tasks"]) - len(named)
    told = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    return f"{item['title']}: {told}" if told else item["title"]
