"""The law of collectives: in a list of tasks, each comes after the one before it for certain.

    stream 1   AllReduce 3 ─ AllReduce 5                     fine: all devices come to 3 first
    stream 1   AllReduce 3       stream 2   AllReduce 5      one device may come to 3 first and another one to 5

A collective ends when all devices of its group have come to it. All run this plan: what it orders, they come to in that
order; where it orders nothing, two of them may each wait in the collective to which the other has not come.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from atc_py.plan.happens import clocks
from atc_py.plan.show import show_task
from atc_py.plan.types import Static

ENGINE = "hccl"
"""The engine of collectives."""


def unordered(region: Static) -> Iterator[tuple[str, str]]:
    """The collectives of a list that may come before the one that stands before them: (task, cause)."""
    tasks = region.tasks
    found = [k for k, task in enumerate(tasks) if task.engine == ENGINE]
    if len(found) < 2:
        return
    known, streams = clocks(tasks), {s: k for k, s in enumerate(dict.fromkeys([t.stream for t in tasks]))}
    for before, k in pairwise(found):
        if known[k][streams[tasks[before].stream]] < before:
            cause = f"is a collective that does not come after {show_task(tasks[before])} for certain"
            yield show_task(tasks[k]), f"{cause}: devices that come to them in different orders wait for ever"
