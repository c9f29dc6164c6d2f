"""`atc verify` on OM files of which a few numbers of the packed plan were changed by hand, all digests right again.

    waits of l1+: event 1 → event 3     stream 0:  … l1+ (waits for r3's record) … l3     the two wait for each other
    waits of r1+: event 0 → event 2     stream 1:  … r1+ (waits for l3's record) … r3     for ever

What other edits of plans lead to is in `test_planted.py`; here the file itself is what was changed, nothing else in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.compiler import Options, compile_graph
from atc_py.emit import om_bytes
from atc_py.graph import Builder
from atc_py.plan import partition
from atc_py.plan import records as r
from atc_py.plan.table import Table
from atc_py.plan.types import Plan, Space, Static, Task
from atc_py.runtime.loader import load
from om_format import Partition
from tests.mutations import joined, parts_of
from tests.plan.mutants import edges

from .helpers import atc

Rows = dict[str, Any]
"""The sections of a packed plan as arrays that write through to the file's bytes."""


def ladder() -> bytes:
    """An OM of two chains on two streams, each of which reads what the other has made, at steps 1 and 4."""
    b = Builder("ladder")
    weight = b.const(np.eye(32, dtype=np.float32))
    left, right = (b.data(name, "float32", (32, 32)) for name in ("a", "b"))
    for k in range(7):
        one, other = left, right
        left, right = b.op("MatMul", one, weight, name=f"l{k}"), b.op("MatMul", other, weight, name=f"r{k}")
        if k in (1, 4):
            left, right = b.op("Add", left, other, name=f"l{k}+"), b.op("Add", right, one, name=f"r{k}+")
    return om_bytes(compile_graph(b.build(x=left, y=right), Options(opt_level=0, stream_num=2)))


def edited(data: bytes, change: Callable[[Rows], None]) -> bytes:
    """The file with numbers of its plan changed in place."""
    parts, header = parts_of(data)
    raw = bytearray(parts[Partition.PLAN_TABLE])
    plan = partition.unpack(memoryview(raw), len(parts.get(Partition.WEIGHTS_DATA, b""))).plans[0]
    table, start = Table(plan), bytes(raw).index(bytes(plan))
    change({n: np.frombuffer(raw, d, len(table.rows[n]), start + table.offsets[n]) for n, d in r.SECTIONS})
    return joined({**parts, Partition.PLAN_TABLE: bytes(raw)}, header)


@dataclass
class Verdict:
    """What `atc verify` says."""

    code: int
    text: str

    def names(self, plan: Plan, *numbers: int) -> bool:
        """Whether the tasks at these positions are named, with their ids."""
        tasks = list(plan.tasks())
        return all(f"task {tasks[k].id} '{tasks[k].name}'" in self.text for k in numbers)


def verdict(tmp_path: Path, data: bytes) -> Verdict:
    path = tmp_path / "m.om"
    path.write_bytes(data)
    result = atc("verify", path)
    return Verdict(result.exit_code, re.sub(r"\s+", " ", result.output))


def tasks_of(plan: Plan) -> list[Task]:
    (region,) = plan.regions
    assert isinstance(region, Static) and plan.streams == 2
    return list(region.tasks)


def row_of_wait(tasks: list[Task], late: int, event: int) -> int:
    """The row in the section `waits` of a task's wait."""
    return sum(len(t.waits) for t in tasks[:late]) + tasks[late].waits.index(event)


def test_the_file_itself_is_good(tmp_path: Path) -> None:
    found = verdict(tmp_path, edited(ladder(), lambda rows: None))
    assert found.code == 0, found.text


def test_a_race_in_a_file(tmp_path: Path) -> None:
    """A buffer of one stream is put where the other stream has one: tasks, bytes and the missing order are told."""
    data = ladder()
    plan = load(data).plan
    made = {
        s: [(k, o.buffer) for k, t in enumerate(tasks_of(plan)) for o in t.outputs if t.stream == s] for s in (0, 1)
    }
    (early, one), (late, other) = (
        next((k, b) for k, b in made[s] if plan.buffers[b].space is Space.ARENA) for s in (0, 1)
    )

    def change(rows: Rows) -> None:
        rows["buffers"]["offset"][other] = rows["buffers"]["offset"][one]

    found = verdict(tmp_path, edited(data, change))
    assert found.code == 1 and "E31017" in found.text and found.names(plan, early, late)
    start, size = plan.buffers[one].offset, plan.buffers[one].nbytes
    assert isinstance(start, int) and isinstance(size, int)
    assert f"arena [{start}, {start + size})" in found.text
    first, second = sorted((early, late))
    a, b = tasks_of(plan)[first], tasks_of(plan)[second]
    assert f"nothing orders the two: it does not wait for task {a.id}, nor for a later task of stream {a.stream}" in (
        found.text
    )
    assert f"task {b.id} '{b.name}' (stream {b.stream})" in found.text


def test_a_deadlock_in_a_file(tmp_path: Path) -> None:
    """Two waits are given later events: each stream then waits for what comes after the other's wait."""
    data = ladder()
    plan = load(data).plan
    tasks = tasks_of(plan)
    by_stream = {s: [e for e in edges(tasks) if tasks[e[2]].stream == s] for s in (0, 1)}
    (first, _, one), (later, early_of_later, _) = by_stream[0][0], by_stream[0][-1]
    (second, _, other), (last, early_of_last, _) = by_stream[1][0], by_stream[1][-1]
    assert early_of_later > other and early_of_last > one, "each later record comes after the other's wait"
    assert len({first, later, second, last}) == 4

    def change(rows: Rows) -> None:
        rows["waits"][row_of_wait(tasks, one, first)] = later
        rows["waits"][row_of_wait(tasks, other, second)] = last

    found = verdict(tmp_path, edited(data, change))
    assert found.code == 1 and "E31010" in found.text
    assert found.names(plan, one, early_of_later, other, early_of_last)
    for waiter, recorder in ((one, early_of_later), (other, early_of_last)):
        a, b = tasks[waiter], tasks[recorder]
        who, whom = (f"task {t.id} '{re.escape(t.name)}'" for t in (a, b))
        assert re.search(rf"{who} cause waits for event \d+, which {whom} records, and that comes later", found.text)
