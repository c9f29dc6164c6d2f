"""`atc verify` on plans edited by hand: a race and a deadlock, with both tasks, the bytes, and the missing order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from atc_py import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.plan.types import Plan, Space, Static, Task
from tests.schedule.branching import towers

from .helpers import atc

Edit = Callable[[Plan], Plan]


def verified(tmp_path: Path, edit: Edit) -> tuple[int, str]:
    """Exit code and output of `atc verify` on the two-tower model with its plan edited."""
    om = compile_model(towers(), Options())
    om.plans[:] = [edit(om.plan)]
    path = tmp_path / "m.om"
    path.write_bytes(om_bytes(om))
    result = atc("verify", path)
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def with_tasks(plan: Plan, tasks: list[Task]) -> Plan:
    return replace(plan, regions=(Static(tuple(tasks)),))


def pair(plan: Plan) -> tuple[int, int]:
    """Positions of a task that records an event and of the one that waits for it."""
    tasks = list(plan.tasks())
    late = next(k for k, t in enumerate(tasks) if t.waits)
    return next(k for k, t in enumerate(tasks) if tasks[late].waits[0] in t.records), late


def race(plan: Plan) -> Plan:
    tasks = list(plan.tasks())
    _, late = pair(plan)
    tasks[late] = replace(tasks[late], waits=tasks[late].waits[1:])
    return with_tasks(plan, tasks)


def deadlock(plan: Plan) -> Plan:
    """The recorder waits for what its waiter records."""
    tasks = list(plan.tasks())
    early, late = pair(plan)
    tasks[early] = replace(tasks[early], waits=(*tasks[early].waits, plan.events))
    tasks[late] = replace(tasks[late], records=(*tasks[late].records, plan.events))
    return replace(with_tasks(plan, tasks), events=plan.events + 1)


def test_the_model_itself_is_good(tmp_path: Path) -> None:
    code, output = verified(tmp_path, lambda plan: plan)
    assert code == 0, output


def test_a_race_names_both_tasks_the_bytes_and_the_missing_order(tmp_path: Path) -> None:
    plan = compile_model(towers()).plan
    early, late = pair(plan)
    tasks = list(plan.tasks())
    code, output = verified(tmp_path, race)
    assert code != 0 and "E31017" in output
    for task in (tasks[early], tasks[late]):
        assert f"task {task.id} '{task.name}' (stream {task.stream})" in output
    assert re.search(r"(arena|output \d) \[\d+, \d+\)", output)
    missing = f"does not wait for task {tasks[early].id}, nor for a later task of stream {tasks[early].stream}"
    assert missing in output


def test_a_deadlock_names_both_tasks(tmp_path: Path) -> None:
    plan = compile_model(towers()).plan
    early, late = pair(plan)
    tasks = list(plan.tasks())
    code, output = verified(tmp_path, deadlock)
    assert code != 0 and "E31010" in output
    cause = f"which task {tasks[late].id} '{tasks[late].name}' records, and that comes later"
    assert f"task {tasks[early].id} '{tasks[early].name}'" in output and cause in output


def test_memory_that_two_streams_share_is_a_race(tmp_path: Path) -> None:
    """Buffers of two towers at one address: nothing orders their users."""
    plan = compile_model(towers()).plan
    tasks = list(plan.tasks())
    streams: dict[int, set[int]] = {}
    for t in tasks:
        for o in t.outputs:
            if plan.buffers[o.buffer].space is Space.ARENA:
                streams.setdefault(o.buffer, set()).add(t.stream)
    one = next(b for b, s in streams.items() if s == {0})
    other = next(b for b, s in streams.items() if s == {1})

    def alias(p: Plan) -> Plan:
        pieces = list(p.buffers)
        pieces[other] = replace(pieces[other], offset=pieces[one].offset)
        return replace(p, buffers=tuple(pieces))

    code, output = verified(tmp_path, alias)
    assert code != 0 and "nothing orders the two" in output


@pytest.mark.parametrize("edit", [race, deadlock])
def test_edits_change_one_thing(edit: Edit) -> None:
    plan = compile_model(towers()).plan
    before, after = list(plan.tasks()), list(edit(plan).tasks())
    assert 1 <= sum(a != b for a, b in zip(before, after, strict=True)) <= 2
