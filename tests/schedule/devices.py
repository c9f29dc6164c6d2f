"""Several devices that run plans together: a collective ends when all devices have come to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from atc_py.plan.happens import predecessors
from atc_py.plan.types import Task


@dataclass
class Device:
    """One device: its tasks, which of them have run, and the collective in which it waits for the others (-1: none).

    Its links serve one collective at a time.
    """

    tasks: Sequence[Task]
    done: set[int] = field(default_factory=set)
    inside: int = -1

    def __post_init__(self) -> None:
        self.before = predecessors(self.tasks)

    def ready(self) -> list[int]:
        """The tasks that can begin: what streams and events put before them has run."""
        return [
            k
            for k, task in enumerate(self.tasks)
            if k not in self.done and k != self.inside and self.done.issuperset(self.before[k])
            if task.engine != "hccl" or self.inside < 0
        ]


def stuck(lists: Sequence[Sequence[Task]], seed: int) -> list[str]:
    """Run one list of tasks on each device, in a random interleaving; the names of the collectives in which they hang.

    Nothing hangs where the result is empty.
    """
    rng = random.Random(seed)
    devices = [Device(tasks) for tasks in lists]
    while True:
        choices = [(d, k) for d in devices for k in d.ready()]
        inside = [d.tasks[d.inside].name if d.inside >= 0 else "" for d in devices]
        if inside[0] and len(set(inside)) == 1:
            for d in devices:
                d.done.add(d.inside)
                d.inside = -1
        elif choices:
            device, k = rng.choice(choices)
            if device.tasks[k].engine == "hccl":
                device.inside = k
            else:
                device.done.add(k)
        else:
            return [] if all(len(d.done) == len(d.tasks) for d in devices) else inside
