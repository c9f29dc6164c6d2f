"""TASK_INFO as a program: a reader that follows labels and events runs the tasks that the plan runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.emit.task_info import KERNEL_TYPES, copied, task_info, task_list
from atc_py.ir.types import Tensor
from atc_py.plan.types import If, Loop, Plan, Region, Static, Task, walk
from atc_py.runtime.loader import load
from om_format import KernelType, MemcpyKind, TaskType
from om_format.proto.task_pb2 import ModelTaskDef
from tests.making import BOOL, FLOAT, INT64, STRING, body_attribute, branching, graph, model, node
from tests.schedule.branching import towers


def followed(info: ModelTaskDef, choices: list[int]) -> list[int]:
    """The tasks that run when the switches read `choices`; an event is waited for after it has been recorded."""
    entries = list(info.task)
    regions = {e.label_set.op_index for e in entries if e.type == TaskType.LABEL_SET}
    labels = {e.label_set.label_id: i for i, e in enumerate(entries) if e.type == TaskType.LABEL_SET}
    assert len(labels) == sum(e.type == TaskType.LABEL_SET for e in entries), "a label is set once"
    at, left, ran, recorded = 0, list(choices), [], set()
    while at < len(entries):
        e = entries[at]
        at += 1
        assert e.stream_id < info.stream_num
        if e.type == TaskType.KERNEL:
            ran.append(e.kernel.context.op_index)
        elif e.type == TaskType.MEMCPY_ASYNC and e.memcpy_async.op_index not in regions:
            ran.append(e.memcpy_async.op_index)
        elif e.type == TaskType.EVENT_RECORD:
            assert e.event_id < info.event_num and e.event_id not in recorded
            recorded.add(e.event_id)
        elif e.type == TaskType.EVENT_WAIT:
            recorded.remove(e.event_id)
        elif e.type == TaskType.STREAM_LABEL_SWITCH_BY_INDEX:
            choice = left.pop(0)
            assert 0 <= choice < e.label_switch_by_index.label_max
            at = labels[e.label_id + choice]
        elif e.type == TaskType.STREAM_LABEL_GOTO:
            at = labels[e.label_goto_ex.label_id]
    assert not left and not recorded, "every event that is recorded is waited for"
    return ran


def planned(proto: ModelProto) -> Plan:
    return compile_model(proto, Options(opt_level=0)).plan


def ids(regions: Sequence[Region]) -> list[int]:
    return [t.id for r in walk(tuple(regions)) if isinstance(r, Static) for t in r.tasks]


def test_a_branch_is_a_switch() -> None:
    plan = planned(branching())
    before, region, after = plan.regions
    assert isinstance(region, If)
    info = ModelTaskDef.FromString(task_info(plan))
    assert followed(info, [1]) == ids([before]) + ids(region.then_branch) + ids([after])
    assert followed(info, [0]) == ids([before]) + ids(region.else_branch) + ids([after])


def test_a_loop_goes_on_while_its_switch_says_so() -> None:
    body = graph(
        [node("Neg", ["a"], ["n"]), node("Exp", ["n"], ["b"]), node("Identity", ["c"], ["again"])],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [4])},
        ["again", "b"],
        name="body",
    )
    loop = node("Loop", ["n", "", "x"], ["l"])
    loop.attribute.append(body_attribute(body, "body"))
    plan = planned(model([loop, node("Sin", ["l"], ["y"])], {"x": (FLOAT, [4])}, ["y"], {"n": np.array(3)}))
    region = next(r for r in walk(plan.regions) if isinstance(r, Loop))
    after = [t.id for t in plan.tasks() if t.id not in ids(region.body)]
    info = ModelTaskDef.FromString(task_info(plan))
    for trips in range(3):
        assert followed(info, [1] * trips + [0]) == ids(region.body) * trips + after
    loops = {e.label_set.op_index for e in info.task if e.type == TaskType.LABEL_SET}
    assert loops == {max(t.id for t in plan.tasks()) + 1}, "a region's number follows the tasks"
    copies = [e.memcpy_async for e in info.task if e.type == TaskType.MEMCPY_ASYNC]
    copies = [c for c in copies if c.op_index in loops]
    moved = [(s, c.state) for c in region.carried for s in (c.initial, c.result) if s.buffer != c.state.buffer]
    assert len(copies) == len(moved) > 0
    for copy, (source, target) in zip(copies, moved, strict=True):
        assert copy.kind == MemcpyKind.DEVICE_TO_DEVICE and copy.dst_max == copy.count
        assert copy.src == (plan.buffers[source.buffer].offset or 0)
        assert (copy.dst, copy.count) == (plan.buffers[target.buffer].offset, plan.buffers[target.buffer].nbytes)


def test_events_of_streams() -> None:
    plan = compile_model(towers(3)).plan
    info = ModelTaskDef.FromString(task_info(plan))
    assert followed(info, []) == [t.id for t in plan.tasks()]
    waits = [(e.stream_id, e.event_id) for e in info.task if e.type == TaskType.EVENT_WAIT]
    assert waits == [(t.stream, e) for t in plan.tasks() for e in t.waits]
    assert (info.stream_num, info.event_num) == (plan.streams, plan.events)


def test_streams_join_where_regions_end() -> None:
    """Two towers, a branch on what they give, two towers again: each stream waits for the ones before."""
    first, second = towers(2), towers(2)
    for n in second.graph.node:
        for k, name in enumerate(n.input):
            n.input[k] = name if name.startswith("w") else f"{name}'"
        for k, name in enumerate(n.output):
            n.output[k] = f"{name}'"
    then = graph([node("Neg", ["y"], ["t"])], {}, ["t"], name="then")
    other = graph([node("Abs", ["y"], ["e"])], {}, ["e"], name="else")
    nodes = [
        node("ReduceSum", ["y"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["i"]),
    ]
    nodes[-1].attribute.extend([body_attribute(then, "then_branch"), body_attribute(other, "else_branch")])
    nodes += [
        node("ReduceSum", ["i"], ["q"], keepdims=0),
        node("Add", ["x0", "q"], ["x0'"]),
        node("Add", ["x1", "q"], ["x1'"]),
    ]
    weights = {t.name: t for t in first.graph.initializer} | {"zero": np.float32(0)}
    proto = model(
        [*first.graph.node, *nodes, *second.graph.node],
        {v.name: (FLOAT, [1, 16, 16, 16]) for v in first.graph.input},
        ["y'"],
        weights,
    )
    om = compile_model(proto)
    plan = om.plan
    assert plan.streams >= 2 and len([r for r in plan.regions if isinstance(r, Static)]) == 2
    info = ModelTaskDef.FromString(task_info(plan))
    for choice in (0, 1):
        followed(info, [choice])
    assert info.event_num > plan.events, "streams join by events of their own"
    attr = load(om_bytes(om)).om.model_def().attr
    assert attr["event_num"].i == om.summary["events"] == info.event_num
    assert attr["label_num"].i == om.summary["labels"] == 3
    joined = [e for e in info.task if e.type == TaskType.EVENT_WAIT and e.event_id >= plan.events]
    assert {e.stream_id for e in joined} == set(range(plan.streams))


def test_a_kernel_says_which_processor_it_is_for() -> None:
    """The engines of the plan as the reference's kernel types: a sort of AI CPU, and strings on the host."""
    nodes = [node("NonZero", ["x"], ["z"]), node("Neg", ["x"], ["m"]), node("Identity", ["s"], ["t"])]
    plan = compile_model(model(nodes, {"x": (FLOAT, [4, 4]), "s": (STRING, [2])}, ["z", "m", "t"])).plan
    engines = {t.id: t.engine for t in plan.tasks()}
    assert {*engines.values()} == {"aicore", "aicpu", "host"}
    wanted = {"aicore": KernelType.TE, "aicpu": KernelType.AI_CPU, "host": KernelType.HOST_CPU}
    assert wanted == KERNEL_TYPES == {"aicore": 2, "aicpu": 6, "host": 8}
    contexts = [e.kernel.context for e in ModelTaskDef.FromString(task_info(plan)).task if e.type == TaskType.KERNEL]
    assert {c.op_index: c.kernel_type for c in contexts} == {
        t.id: wanted[t.engine] for t in plan.tasks() if copied(plan, t) is None
    }
    with pytest.raises(ValueError, match="no engine 'dsp'"):
        task_info(with_tasks(plan, lambda t: replace(t, engine="dsp")))


def with_tasks(plan: Plan, change: Callable[[Task], Task]) -> Plan:
    regions = [replace(r, tasks=tuple(map(change, r.tasks))) if isinstance(r, Static) else r for r in plan.regions]
    return replace(plan, regions=tuple(regions))


def test_what_only_copies_is_a_copy_of_the_device() -> None:
    plan = planned(
        model([node("Neg", ["x"], ["y"]), node("Identity", ["x"], ["z"])], {"x": (FLOAT, [3, 5])}, ["y", "z"])
    )
    copies = [t for t in plan.tasks() if copied(plan, t)]
    assert [t.kernel for t in copies] == ["TensorMove"]
    (entry,) = (e for e in ModelTaskDef.FromString(task_info(plan)).task if e.type == TaskType.MEMCPY_ASYNC)
    copy = entry.memcpy_async
    assert (copy.op_index, copy.count, copy.dst_max, copy.kind) == (copies[0].id, 60, 60, MemcpyKind.DEVICE_TO_DEVICE)
    assert (copy.args_format, copy.src, copy.dst) == ("input0,output1", 0, 0)

    def strided(t: Task) -> Task:
        return replace(t, inputs=tuple(None if o is None else replace(o, strides=(40, 8)) for o in t.inputs))

    def narrow(t: Task) -> Task:
        types = [o.type for o in t.outputs if isinstance(o.type, Tensor)]
        return replace(t, outputs=tuple(replace(o, type=x.with_shape((3, 4))) for o, x in zip(t.outputs, types)))

    changes = (strided, narrow, lambda t: replace(t, engine="host"), lambda t: replace(t, binds=(("n", 0, 0),)))
    for change in changes:
        other = with_tasks(plan, change)
        assert not any(copied(other, t) for t in other.tasks()), "is more than a copy of bytes"
        assert TaskType.MEMCPY_ASYNC not in {e.type for e in ModelTaskDef.FromString(task_info(other)).task}


def test_the_list_counts_what_is_in_it() -> None:
    for plan in (planned(branching()), compile_model(towers(3)).plan, planned(swapping())):
        listed = task_list(plan)
        info = ModelTaskDef.FromString(listed.content)
        labels = {e.label_set.label_id for e in info.task if e.type == TaskType.LABEL_SET}
        events = {e.event_id for e in info.task if e.type in (TaskType.EVENT_RECORD, TaskType.EVENT_WAIT)}
        assert labels == {*range(listed.labels)}
        assert len(events) <= listed.events == info.event_num and max(events, default=-1) < listed.events
        assert (listed.streams, listed.weights) == (info.stream_num, info.weight_size)
        switches = {
            e.label_switch_by_index.op_index: tuple(range(e.label_id, e.label_id + e.label_switch_by_index.label_max))
            for e in info.task
            if e.type == TaskType.STREAM_LABEL_SWITCH_BY_INDEX
        }
        assert switches == listed.switches and all(labels >= {*found} for found in switches.values())


def swapping() -> ModelProto:
    """A Loop whose values change places in each iteration."""
    body = graph(
        [node("Neg", ["a"], ["d"]), node("Exp", ["b"], ["c"]), node("Identity", ["go"], ["again"])],
        {"i": (INT64, []), "go": (BOOL, []), "a": (FLOAT, [4]), "b": (FLOAT, [4])},
        ["again", "c", "d"],
        name="body",
    )
    loop = node("Loop", ["n", "", "x", "y"], ["l", "m"])
    loop.attribute.append(body_attribute(body, "body"))
    return model([loop], {"x": (FLOAT, [4]), "y": (FLOAT, [4])}, ["l", "m"], {"n": np.array(3)})


def test_numbers_that_have_no_place_are_refused() -> None:
    plan = planned(branching())
    for changed in (replace(plan, streams=-1), replace(plan, events=1 << 32), replace(plan, arena=-5)):
        with pytest.raises(ValueError, match="bits"):
            task_info(changed)


def test_the_bytes_are_those_that_protobuf_writes() -> None:
    for plan in (planned(branching()), compile_model(towers(3)).plan):
        made = task_info(plan)
        assert ModelTaskDef.FromString(made).SerializeToString(deterministic=True) == made
