"""The law of collectives: in a list of tasks, each comes after the one before it for certain; in a body there is none.

    stream 1   AllReduce 3 ─ AllReduce 5                     fine: all devices come to 3 first
    stream 1   AllReduce 3       stream 2   AllReduce 5      one device may come to 3 first and another one to 5
    If { AllReduce 3 } { Neg 4 }                             one device may come to 3, and another one not

A collective ends when all devices of its group have come to it. All run this plan: what it orders, they come to in that
order; where it orders nothing, two of them may each wait in the collective to which the other has not come. Devices may
take different branches of an If, and leave a loop at different times, so there they may not come to one at all.

A collective is what its operator is declared to be, or what the plan runs on the engine of collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from atc_py.ir.graph import STRUCTURAL
from atc_py.ops.base import Engine
from atc_py.plan.happens import clocks
from atc_py.plan.operations import declared
from atc_py.plan.show import show, show_task
from atc_py.plan.types import Host, If, Loop, Region, Scan, Static, Task, children, walk

ENGINE = Engine.HCCL.value
"""The engine of collectives."""


class Collectives:
    """Which tasks of a plan are collectives; operators are looked up once."""

    def __init__(self) -> None:
        self._kinds: dict[str, bool] = {}

    def __contains__(self, task: Task) -> bool:
        if task.engine == ENGINE:
            return True
        nodes = () if task.body is None else task.body.nodes.values()
        return self._is(task.kernel, task.attrs) or any(self._is(n.op, n.attrs) for n in nodes)

    def _is(self, kernel: str, attrs: Mapping[str, Any]) -> bool:
        found = self._kinds.get(kernel)
        if found is None:
            op = None if kernel in STRUCTURAL else declared(kernel, attrs)
            found = self._kinds[kernel] = op is not None and op.engine is Engine.HCCL
        return found


def in_bodies(regions: Iterable[Region], collectives: Collectives) -> Iterator[tuple[str, str]]:
    """The collectives in branches and loops, of regions as `walk` gives them: (task, cause)."""
    told: set[int] = set()  # a body's own bodies are looked at with it
    for region in regions:
        if not isinstance(region, (If, Loop, Scan)):
            continue
        inside = [r for body in children(region) for r in walk(body)]
        for task in [t for r in inside for t in _tasks(r) if id(t) not in told and t in collectives]:
            told.add(id(task))
            cause = f"is a collective in {show(region)}: devices that part there wait for each other for ever"
            yield show_task(task), cause


def _tasks(region: Region) -> tuple[Task, ...]:
    return region.tasks if isinstance(region, Static) else (region.task,) if isinstance(region, Host) else ()


def unordered(region: Static, collectives: Collectives) -> Iterator[tuple[str, str]]:
    """The collectives of a list that may come before the one that stands before them: (task, cause)."""
    tasks = region.tasks
    found = [k for k, task in enumerate(tasks) if task in collectives]
    if len(found) < 2:
        return
    known, streams = clocks(tasks), {s: k for k, s in enumerate(dict.fromkeys([t.stream for t in tasks]))}
    for before, k in pairwise(found):
        if known[k][streams[tasks[before].stream]] < before:
            cause = f"is a collective that does not come after {show_task(tasks[before])} for certain"
            yield show_task(tasks[k]), f"{cause}: devices that come to them in different orders wait for ever"
