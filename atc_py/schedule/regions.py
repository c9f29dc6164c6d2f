"""Steps become tasks and regions.

A run of tasks is one `Static` region, or several where the host has to know what one task makes to launch another; a
task that finds out a size is a `Host` step between two, or part of one where others run beside it; a node with bodies
is an `If`, `Loop` or `Scan` with the regions of its bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc_py.ir.graph import ABSENT
from atc_py.plan.types import Access, Carried, Collected, Host, If, Loop, Operand, Region, Scan, Static, Task
from atc_py.schedule.frames import Frame, Step
from atc_py.schedule.places import carried, carried_inputs, read_by_host
from atc_py.schedule.pool import Pool
from atc_py.schedule.segments import awaits, by_host, fresh_symbols
from atc_py.schedule.streams import Streams

_READ, _WRITE = Access.READ, Access.WRITE


class _Numbers:
    """Task numbers, in order over all regions, and what is known of tasks by the positions of their steps."""

    def __init__(self, streams: Streams, costs: Mapping[int, int]) -> None:
        self.next = 0
        self.streams, self.costs = streams, costs

    def region(self, step: Step) -> int:
        """The number of the step's segment, -1 on one stream."""
        return self.streams.lanes[step.start].region if step.start in self.streams.lanes else -1

    def take(self) -> int:
        self.next += 1
        return self.next - 1


def regions(pool: Pool, frame: Frame, streams: Streams, costs: Mapping[int, int]) -> tuple[Region, ...]:
    """The regions of a frame and of the frames inside it; `costs` are cycles, by the positions of the steps."""
    return _regions(pool, frame, _Numbers(streams, costs))


def _regions(pool: Pool, frame: Frame, numbers: _Numbers) -> tuple[Region, ...]:
    found: list[Region] = []
    run: list[Task] = []
    region = -1
    made: dict[int, int] = {}  # the run's nodes that the device runs
    for step in frame.steps.values():
        if not step.bodies:
            task = _task(pool, frame, step, numbers)
            mine = numbers.region(step)
            if not task.binds or mine >= 0:
                if run and (mine != region or awaits(frame, step, made)):
                    found.append(Static(tuple(run)))
                    run, made = [], {}
                region = mine
                if not by_host(step):
                    made[step.node.id] = len(run)
                run.append(task)
                continue
        if run:
            found.append(Static(tuple(run)))
            run, made = [], {}
        found.append(_region(pool, frame, step, numbers) if step.bodies else Host(task))
        if step.bodies and pool.late:
            fresh_symbols([frame.graph.type(v) for v in step.node.outputs], pool.bound)  # no task's to bind any more
    if run or not found:
        found.append(Static(tuple(run)))
    return tuple(found)


def _task(pool: Pool, frame: Frame, step: Step, numbers: _Numbers) -> Task:
    node, base, number, streams, start = step.node, frame.base, numbers.take(), numbers.streams, step.start
    constants, host_inputs, operand = pool.places.constants, step.op.host_inputs, pool.operand
    inputs: list[Operand | None] = []
    host_values: dict[int, int] = {}
    for i, value in enumerate(node.inputs):
        if value == ABSENT:
            inputs.append(None)
            continue
        constant = constants.get(base + value)
        if constant is not None and (i in host_inputs or read_by_host(constant)):
            host_values[i] = pool.constant(constant)
            inputs.append(None)
        else:
            inputs.append(operand(base + value, _READ))
    outputs = tuple([operand(base + v, _WRITE) for v in node.outputs])
    lane = streams.lanes.get(start)
    return Task(
        number,
        node.op,
        node.name or f"{node.op}_{number}",
        tuple(inputs),
        outputs,
        dict(node.attrs),
        node.subgraphs.get("body"),
        pool.workspace(start) if pool.places.workspaces else None,
        host_values,
        lane.stream if lane else 0,
        streams.waits.get(start, ()),
        streams.records.get(start, ()),
        node.engine or step.op.engine.value,
        node.priority,
        numbers.costs.get(start, 0),
        node.origin,
        tuple(fresh_symbols([o.type for o in outputs], pool.bound)) if pool.late else (),
    )


def _region(pool: Pool, frame: Frame, step: Step, numbers: _Numbers) -> Region:
    if step.node.op == "If":
        return _if(pool, frame, step, numbers)
    return _loop(pool, frame, step, numbers) if step.node.op == "Loop" else _scan(pool, frame, step, numbers)


def _read(pool: Pool, frame: Frame, value: int) -> Operand | None:
    return None if value == ABSENT else pool.operand(frame.vid(value), Access.READ)


def _if(pool: Pool, frame: Frame, step: Step, numbers: _Numbers) -> If:
    node = step.node
    predicate = pool.operand(frame.vid(node.inputs[0]), Access.READ)
    outputs = tuple(pool.operand(frame.vid(v), Access.WRITE) for v in node.outputs)
    then_branch = _regions(pool, step.bodies["then_branch"], numbers)
    else_branch = _regions(pool, step.bodies["else_branch"], numbers)
    return If(predicate, then_branch, else_branch, node.origin, outputs)


def _states(pool: Pool, frame: Frame, step: Step, body: Frame, results: Sequence[int]) -> tuple[Carried, ...]:
    positions, _ = carried_inputs(step)
    pairs = carried(step, body)
    return tuple(
        Carried(
            pool.operand(frame.vid(step.node.inputs[p]), Access.READ),
            pool.operand(body.vid(inner), Access.UPDATE),
            pool.operand(body.vid(result), Access.READ),
        )
        for p, (_, inner), result in zip(positions, pairs, results, strict=True)
    )


def _stacks(
    pool: Pool, frame: Frame, step: Step, body: Frame, items: Sequence[int], layout: Sequence[tuple[int, bool]]
) -> tuple[Collected, ...]:
    stacks = step.node.outputs[len(step.node.outputs) - len(items) :] if items else []
    return tuple(
        Collected(
            pool.operand(body.vid(item), Access.READ), pool.operand(frame.vid(stack), Access.WRITE), axis, reverse
        )
        for item, stack, (axis, reverse) in zip(items, stacks, layout, strict=True)
    )


def _loop(pool: Pool, frame: Frame, step: Step, numbers: _Numbers) -> Loop:
    node, body = step.node, step.bodies["body"]
    count = len(carried_inputs(step)[0])
    condition, *results = body.graph.outputs
    items = results[count:]
    return Loop(
        trips=_read(pool, frame, node.inputs[0]) if node.inputs else None,
        condition=_read(pool, frame, node.inputs[1]) if len(node.inputs) > 1 else None,
        counter=pool.operand(body.vid(body.graph.inputs[0]), Access.WRITE),
        state_condition=pool.operand(body.vid(body.graph.inputs[1]), Access.WRITE),
        next_condition=pool.operand(body.vid(condition), Access.READ),
        carried=_states(pool, frame, step, body, results[:count]),
        collected=_stacks(pool, frame, step, body, items, [(0, False)] * len(items)),
        body=_regions(pool, body, numbers),
        origin=node.origin,
        outputs=tuple(pool.operand(frame.vid(v), Access.WRITE) for v in node.outputs),
    )


def _scan(pool: Pool, frame: Frame, step: Step, numbers: _Numbers) -> Scan:
    node, body = step.node, step.bodies["body"]
    positions, _ = carried_inputs(step)
    states, slices = len(positions), node.attrs["num_scan_inputs"]
    axes = node.attrs.get("scan_input_axes") or (0,) * slices
    backwards = node.attrs.get("scan_input_directions") or (0,) * slices
    sliced = tuple(
        (
            pool.operand(frame.vid(node.inputs[states + k]), Access.READ),
            pool.operand(body.vid(body.graph.inputs[states + k]), Access.WRITE),
            int(axes[k]),
            bool(backwards[k]),
        )
        for k in range(slices)
    )
    results = body.graph.outputs
    items = results[states:]
    out_axes = node.attrs.get("scan_output_axes") or (0,) * len(items)
    out_backwards = node.attrs.get("scan_output_directions") or (0,) * len(items)
    layout = [(int(a), bool(b)) for a, b in zip(out_axes, out_backwards, strict=True)]
    return Scan(
        sliced=sliced,
        carried=_states(pool, frame, step, body, results[:states]),
        collected=_stacks(pool, frame, step, body, items, layout),
        body=_regions(pool, body, numbers),
        origin=node.origin,
        outputs=tuple(pool.operand(frame.vid(v), Access.WRITE) for v in node.outputs),
    )
