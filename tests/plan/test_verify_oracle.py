"""The verifier against a second opinion: random good plans, then the same with one thing changed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from atc_py.errors import AtcError
from atc_py.ir.types import DType, Tensor
from atc_py.memory import bind
from atc_py.plan.text import print_plan
from atc_py.plan.types import Plan, Task
from atc_py.plan.verify import verify
from tests.plan.oracle import Rejected, judge
from tests.plan.small_plans import good_plan, with_tasks


def tasks_of(plan: Plan) -> list[Task]:
    return list(plan.tasks())


def with_buffer(plan: Plan, number: int, **changes: Any) -> Plan:
    pieces = list(plan.buffers)
    pieces[number] = replace(pieces[number], **changes)
    return replace(plan, buffers=tuple(pieces))


def changed_operand(rng: random.Random, plan: Plan, **changes: Any) -> Plan:
    """Change one operand of one task."""
    tasks = tasks_of(plan)
    k = rng.randrange(len(tasks))
    t = tasks[k]
    if rng.random() < 0.5:
        i = rng.randrange(len(t.inputs))
        o = t.inputs[i]
        assert o is not None
        t = replace(t, inputs=(*t.inputs[:i], replace(o, **changes), *t.inputs[i + 1 :]))
    else:
        t = replace(t, outputs=(replace(t.outputs[0], **changes),))
    return with_tasks(plan, [*tasks[:k], t, *tasks[k + 1 :]])


def mutate(rng: random.Random, plan: Plan) -> tuple[str, Plan]:
    """Change one thing of a plan."""
    tasks = tasks_of(plan)
    k, j = rng.randrange(len(tasks)), rng.randrange(len(tasks))
    kind = rng.choice(
        [
            "offset",
            "size",
            "swap",
            "value",
            "buffer",
            "delta",
            "waits",
            "shape",
            "drop",
            "stream",
            "strides",
            "port",
            "kernel",
        ]
    )
    if kind == "offset":
        return kind, with_buffer(plan, rng.randrange(len(plan.buffers)), offset=512 * rng.randrange(4))
    if kind == "size":
        return kind, with_buffer(plan, rng.randrange(len(plan.buffers)), nbytes=4 * rng.randint(1, 12))
    if kind == "value":
        return kind, changed_operand(rng, plan, value=rng.choice([*range(len(tasks) + 2), 100, 101, 102]))
    if kind == "buffer":
        return kind, changed_operand(rng, plan, buffer=rng.randrange(len(plan.buffers)))
    if kind == "delta":
        return kind, changed_operand(rng, plan, delta=rng.choice([1, 4, 8, 16]))
    if kind == "shape":
        return kind, changed_operand(rng, plan, type=Tensor(DType.FLOAT32, (rng.randint(1, 3), rng.randint(1, 4))))
    if kind == "strides":
        return kind, changed_operand(rng, plan, strides=(rng.choice([4, 8, 16, -8]), rng.choice([4, 0, 8])))
    if kind == "port":
        port = replace(plan.outputs[0], value=rng.randrange(len(tasks) + 2))
        return kind, replace(plan, outputs=(port,))
    if kind == "swap":
        tasks[k], tasks[j] = replace(tasks[j], id=tasks[k].id), replace(tasks[k], id=tasks[j].id)
    elif kind == "waits":
        tasks[k] = replace(tasks[k], waits=tasks[k].waits[1:])
    elif kind == "stream":
        tasks[k] = replace(tasks[k], stream=rng.randrange(plan.streams))
    elif kind == "kernel":
        tasks[k] = replace(tasks[k], kernel="Concat")
    else:
        del tasks[k]
    return kind, with_tasks(plan, tasks)


def verdicts(plan: Plan) -> tuple[str, str]:
    """What the verifier and the oracle find wrong ('' for nothing)."""
    binding = bind(plan)
    try:
        verify(plan, binding.offsets, binding.sizes, binding.env)
        mine = ""
    except AtcError as e:
        mine = str(e)
    try:
        judge(plan)
        theirs = ""
    except Rejected as e:
        theirs = str(e) or "rejected"
    return mine, theirs


def test_good_plans_are_good() -> None:
    rng = random.Random(1)
    for _ in range(150):
        plan = good_plan(rng)
        assert verdicts(plan) == ("", ""), print_plan(plan)


def test_changed_plans_are_judged_alike() -> None:
    rng = random.Random(2)
    count: dict[tuple[str, bool], int] = {}
    for _ in range(1500):
        kind, plan = mutate(rng, good_plan(rng))
        mine, theirs = verdicts(plan)
        assert bool(mine) == bool(theirs), f"{kind}\nverifier: {mine}\noracle: {theirs}\n{print_plan(plan)}"
        count[kind, bool(theirs)] = count.get((kind, bool(theirs)), 0) + 1
    bad = {kind: n for (kind, is_bad), n in count.items() if is_bad}
    assert len(bad) == 13, bad  # every kind of change has made bad plans
    assert sum(bad.values()) < 1400


def test_plans_changed_twice_are_judged_alike() -> None:
    rng = random.Random(3)
    for _ in range(700):
        kind, plan = mutate(rng, mutate(rng, good_plan(rng))[1])
        mine, theirs = verdicts(plan)
        assert bool(mine) == bool(theirs), f"{kind}\nverifier: {mine}\noracle: {theirs}\n{print_plan(plan)}"
