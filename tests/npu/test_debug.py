"""Debug execution: wrong plans are caught at the read that is wrong, right ones run in every order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import Session
from atc_py.compiler import Options, compile_graph, compile_model
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.graph import Builder
from atc_py.npu.debug import DebugContext
from atc_py.npu.device import BoundPlan
from atc_py.plan.types import Plan, Space, Static
from atc_py.runtime.loader import load

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["small_cnn", "small_transformer", "corpus/yolo_raw", "corpus/loop_while_if", "corpus/scan_rnn",
          "corpus/moe_nonzero", "corpus/if_shape", "corpus/cond_dyn"]  # fmt: skip


def feeds_of(session: Session) -> dict[str, Any]:
    from atc_py.cli.running import make_feeds

    return dict(make_feeds(session, (), "", 0).arrays)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", [0, 2])
def test_right_plans_raise_no_alarm_in_any_order(name: str, level: int) -> None:
    data = om_bytes(compile_model(ROOT / f"models/{name}.onnx", Options(opt_level=level)))
    plain = Session(data)
    feeds = feeds_of(plain)
    expected = plain.run(None, feeds)
    debug = Session(data, debug_memory=True, shuffle=3)
    for _ in range(5):
        for a, b in zip(expected, debug.run(None, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def towers() -> bytes:
    """Two towers that are long enough for streams of their own."""
    b = Builder("towers")
    x = b.data("x", "float32", (64, 64))
    rng = np.random.default_rng(0)
    ends = []
    for side in ("l", "r"):
        v = x
        for i in range(4):
            weight = b.const(rng.normal(size=(64, 64)).astype(np.float32))
            v = b.op("Softmax", b.op("MatMul", v, weight), name=f"{side}{i}")
        ends.append(v)
    return om_bytes(compile_graph(b.build(y=b.op("Add", *ends, name="sum")), Options(opt_level=0)))


def changed(data: bytes, change: Any) -> BoundPlan:
    loaded = load(data)
    return BoundPlan(change(loaded.plan), loaded.weights)


def run(bound: BoundPlan, seed: int | None = None) -> list[Any]:
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    return DebugContext(bound, seed).run([x], bound.output_arrays())


def test_an_address_that_another_value_needs_is_told_with_both_tasks() -> None:
    def moved(plan: Plan) -> Plan:
        """The first task's result moves onto that of the last task but one."""
        tasks = list(plan.tasks())
        ends = [b for t in (tasks[0], tasks[-2]) for b in [t.outputs[0].buffer]]
        arena = [b for b in plan.buffers if b.space is Space.ARENA and b.id not in ends]
        taken = arena[0]
        buffers = tuple(replace(b, offset=taken.offset) if b.space is Space.ARENA else b for b in plan.buffers)
        return replace(plan, buffers=buffers)

    with pytest.raises(AtcError) as caught:
        run(changed(towers(), moved))
    [problem] = caught.value.problems
    assert problem.code == "E40006" and "task" in problem.place and "task" in problem.cause
    assert "arena [" in problem.cause


def test_a_read_of_what_nobody_wrote_is_told() -> None:
    def dropped(plan: Plan) -> Plan:
        region = plan.regions[0]
        assert isinstance(region, Static)
        return replace(plan, regions=(Static(region.tasks[1:]), *plan.regions[1:]))

    with pytest.raises(AtcError, match="nobody has written"):
        run(changed(towers(), dropped))


def test_without_its_events_an_order_is_drawn_that_reads_too_early() -> None:
    data = towers()
    plan = load(data).plan

    def apart(plan: Plan) -> Plan:
        """Every second task on a stream of its own, with no event."""
        region = plan.regions[0]
        assert isinstance(region, Static)
        tasks = tuple(replace(t, stream=i % 2, waits=(), records=()) for i, t in enumerate(region.tasks))
        return replace(plan, regions=(Static(tasks), *plan.regions[1:]), streams=2, events=0)

    assert len(plan.regions) == 1
    broken = changed(data, apart)
    found = 0
    for seed in range(20):
        try:
            run(broken, seed)
        except AtcError as e:
            found += e.problems[0].code == "E40006"
    assert found, "no drawn order read too early"


def test_the_drawn_order_is_the_seeds() -> None:
    data = towers()
    bound = changed(data, lambda plan: plan)
    tasks = bound.plan.regions[0].tasks  # type: ignore[union-attr]
    orders = {tuple(t.id for t in DebugContext(bound, s).order(tasks)) for s in (1, 1)}
    assert len(orders) == 1
    assert sorted(next(iter(orders))) == sorted(t.id for t in tasks)


def test_freed_memory_holds_nan() -> None:
    bound = changed(towers(), lambda plan: plan)
    context = DebugContext(bound)
    x = np.ones((64, 64), np.float32)
    [y] = context.run([x], bound.output_arrays())
    assert np.isfinite(y).all()
    arena = context.spaces.arena[: bound.binding.arena].view(np.float32)
    assert np.isnan(arena).all(), "after the run nothing in the arena is needed any more"


# -- tasks that wait in vain ---------------------------------------------------------------------------------------


def waiting(waits: dict[int, tuple[int, ...]], records: dict[int, tuple[int, ...]]) -> BoundPlan:
    """The two towers, every second task on a stream of its own, with other waits and records, by index."""

    def set_(plan: Plan) -> Plan:
        region = plan.regions[0]
        assert isinstance(region, Static)
        tasks = tuple(
            replace(t, stream=i % 2, waits=waits.get(i, ()), records=records.get(i, ()))
            for i, t in enumerate(region.tasks)
        )
        return replace(plan, regions=(Static(tasks), *plan.regions[1:]), streams=2, events=3)

    return changed(towers(), set_)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_streams_that_wait_for_each_other_stop_the_run(seed: int | None) -> None:
    """Task 2 of stream 0 waits for task 5 of stream 1, before which task 3 waits for task 4 of stream 0."""
    bound = waiting({2: (0,), 3: (1,)}, {5: (0,), 4: (1,)})
    tasks = bound.plan.regions[0].tasks  # type: ignore[union-attr]
    with pytest.raises(AtcError) as caught:
        list(DebugContext(bound, seed).order(tasks))
    said = {p.place: p.cause for p in caught.value.problems}
    assert [p.code for p in caught.value.problems] == ["E40007"] * 2 and all(p.hint for p in caught.value.problems)
    for waits, event, records in ((2, 0, 5), (3, 1, 4)):
        cause = said[f"task {tasks[waits].id} '{tasks[waits].name}'"]
        assert f"waits for event {event} on stream {waits % 2}" in cause
        assert f"which task {tasks[records].id} '{tasks[records].name}' records on stream {records % 2}" in cause


@pytest.mark.parametrize("seed", [None, 0])
def test_a_wait_that_nobody_ends_stops_the_run(seed: int | None) -> None:
    bound = waiting({3: (2,)}, {})
    tasks = bound.plan.regions[0].tasks  # type: ignore[union-attr]
    with pytest.raises(AtcError, match="waits for event 2 on stream 1, which no task records") as caught:
        list(DebugContext(bound, seed).order(tasks))
    assert [p.code for p in caught.value.problems] == ["E40007"]


def test_a_record_that_comes_later_is_waited_for() -> None:
    """A device would run task 3 of stream 1 before task 2 of stream 0: no deadlock, whatever the plan's order."""
    bound = waiting({2: (0,)}, {3: (0,)})
    tasks = bound.plan.regions[0].tasks  # type: ignore[union-attr]
    for seed in (None, 0, 1, 2):
        order = [t.id for t in DebugContext(bound, seed).order(tasks)]
        assert sorted(order) == [t.id for t in tasks]
        assert order.index(tasks[3].id) < order.index(tasks[2].id)


def test_without_a_seed_good_plans_run_in_their_own_order() -> None:
    bound = changed(towers(), lambda plan: plan)
    tasks = bound.plan.regions[0].tasks  # type: ignore[union-attr]
    assert list(DebugContext(bound).order(tasks)) == list(tasks)
