"""A plan's subgraphs: tasks of one engine that run without waiting for another engine.

    Conv, Relu (aicore) ─ copy ─ NonZero (aicpu) ─ copy ─ Cast, Exp (aicore)

    phase 0   aicore   2 tasks                 4,096 bytes go out
    phase 1   aicpu    1 task     4,096 come in, 512 go out
    phase 2   aicore   2 tasks      512 come in

A task's phase is the most borders that lie on any way from the inputs to it; a border is a copy between engines. All
tasks of one engine and one phase are a subgraph: nothing between two of them needs another engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atc_py.plan.types import Operand, Plan, Task


@dataclass
class Subgraph:
    """Tasks of one engine between borders, with the bytes that copies bring and take."""

    phase: int
    engine: str
    tasks: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


def is_border(task: Task) -> bool:
    """Whether the task copies a value from one engine to another."""
    return task.kernel == "TensorMove" and bool(task.attrs.get("to"))


def subgraphs(plan: Plan, nbytes: Callable[[Operand], int]) -> list[Subgraph]:
    """The subgraphs in order of phase; `nbytes` measures an operand."""
    root = _roots(plan)
    phase: dict[int, int] = {}
    made_by: dict[int, Subgraph] = {}
    found: dict[tuple[int, str], Subgraph] = {}
    waiting: dict[int, int] = {}
    for task in plan.tasks():
        inputs = [root.get(o.value, o.value) for o in task.inputs if o is not None]
        reached = max((phase.get(v, 0) for v in inputs), default=0)
        outputs = [root.get(o.value, o.value) for o in task.outputs]
        if is_border(task):
            moved = nbytes(task.outputs[0])
            if inputs[0] in made_by:
                made_by[inputs[0]].bytes_out += moved
            waiting[outputs[0]] = moved
            phase[outputs[0]] = reached + 1
            continue
        mine = found.setdefault((reached, task.engine), Subgraph(reached, task.engine))
        mine.tasks += 1
        mine.bytes_in += sum(waiting.pop(v, 0) for v in inputs)
        for value in outputs:
            phase[value] = max(reached, phase.get(value, 0))
            made_by[value] = mine
    return [found[key] for key in sorted(found)]


def _roots(plan: Plan) -> dict[int, int]:
    """For each value that has no bytes of its own the value whose bytes they are."""
    source = {alias.value: alias.source for alias in plan.aliases}
    root: dict[int, int] = {}
    for value in source:
        at = value
        while at in source:
            at = source[at]
        root[value] = at
    return root
