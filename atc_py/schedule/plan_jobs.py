"""The jobs of graphs that are laid out, and of plans: the same ones, before and after their tasks have been made.

Concat without a task of a and b    the clock's buffers are a and b; who reads the whole reads both
Split of c without a task           the clock's buffer is c; who reads a part reads some of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atc_py.ir.constants import Constant
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import Tensor, Type
from atc_py.ops.build import known_value, lookup
from atc_py.plan.types import Alias, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task
from atc_py.schedule.frames import Frame, Step, all_frames
from atc_py.schedule.jobs import Call, Form, Job, Maker, Program, Sizes, Touch, body_of, counted, slices
from atc_py.schedule.places import Places, read_by_host
from atc_py.target.cost import UNKNOWN


def frame_program(root: Frame, places: Places, sizes: Sizes) -> Program:
    """The jobs of the tasks that a graph laid out becomes, by the positions of their steps; as `plan_program`'s are."""
    written = {
        frame.vid(v): places.types[frame.vid(v)]
        for frame in all_frames(root)
        for step in frame.steps.values()
        if not step.bodies
        for v in step.node.outputs
    }
    program = _FrameJobs(places, Names(places.aliases, written), Maker(sizes))
    jobs = tuple(program.jobs(root, 1))
    ends = [root.vid(v) for v in root.graph.outputs]
    return Program(jobs, tuple(t for v in ends for t in program.names.touches(program.maker, v, places.types[v])))


class Names:
    """Which buffer of the clock a value's bytes are: views are their sources, and what is joined is its parts.

    `aliases` have those of a value's parts and views after its own. A whole that tasks write in parts is known by
    these, so that the cache knows how much of it has been written.
    """

    def __init__(self, aliases: Sequence[Alias], written: Mapping[int, Type]) -> None:
        self.written = written
        made: dict[int, list[Alias]] = {}
        for a in reversed(aliases):
            if a.value in written or (a.value in made and len({k.delta for k in made[a.value]}) > 1):
                made.setdefault(a.source, []).append(a)
        self.parts = {v: kids for v, kids in made.items() if v not in written and len({k.delta for k in kids}) > 1}
        inner = {k.value for kids in self.parts.values() for k in kids}
        self.root: dict[int, int] = {a.value: a.source for a in aliases if a.value not in inner}
        for value in list(self.root):
            while self.root[value] in self.root:
                self.root[value] = self.root[self.root[value]]

    def touches(self, maker: Maker, value: int, type_: Type, constant: bool = False) -> list[Touch]:
        """The buffers in which a value seen as a type has its bytes."""
        root = self.root.get(value, value)
        if root not in self.parts:
            form = maker.form(type_, constant)
            return [Touch(root, form.nbytes, form)]
        found: list[Touch] = []
        stack = [root]
        while stack:
            at = stack.pop()
            if at in self.parts:
                stack += [k.value for k in self.parts[at]]
            else:
                form = maker.form(self.written[at])
                found.append(Touch(at, form.nbytes, form))
        return found


@dataclass(frozen=True)
class _FrameJobs:
    """Makes the jobs of a frame's steps."""

    places: Places
    names: Names
    maker: Maker

    def jobs(self, frame: Frame, times: int) -> Iterator[Job]:
        """The jobs of the steps that run, in order: of an If those of the longer branch."""
        for step in frame.steps.values():
            if not step.bodies:
                yield self._job(frame, step, times)
            elif step.loops:
                _, count = body_of(frame.graph, step.node, self.maker.sizes)
                yield from self.jobs(step.bodies["body"], times * count)
            else:
                yield from self.jobs(max(step.bodies.values(), key=lambda body: len(body.steps)), times)

    def _job(self, frame: Frame, step: Step, times: int) -> Job:
        node, op, maker, base = step.node, step.op, self.maker, frame.base
        types, constants = self.places.types, self.places.constants
        root, parts = self.names.root, self.names.parts
        forms: list[Form | None] = []
        values: list[Constant | None] = []
        inputs: list[tuple[int, Touch]] = []
        for i, value in enumerate(node.inputs):
            if value == ABSENT:
                forms.append(None)
                values.append(None)
                continue
            vid = base + value
            form, constant, at = maker.form(types[vid]), constants.get(vid), root.get(vid, vid)
            forms.append(form)
            values.append(constant)
            if constant is not None and (i in op.host_inputs or read_by_host(constant)):
                continue
            if at in parts:
                inputs += [(i, t) for t in self.names.touches(maker, vid, types[vid], constant is not None)]
            else:
                form = form if constant is None else maker.form(types[vid], True)
                inputs.append((i, Touch(at, form.nbytes, form)))
        made = [base + v for v in node.outputs]
        outs = tuple([maker.form(types[vid]) for vid in made])
        call = Call(op, node.attrs, tuple(forms), outs, values, node.subgraphs)
        writes = tuple([Touch(root.get(v, v), form.nbytes, form) for v, form in zip(made, outs, strict=True)])
        name = node.name or node.op
        return maker.job(step.start, name, node.engine or op.engine._value_, call, inputs, writes, times)


def plan_program(plan: Plan, sizes: Sizes) -> Program:
    """The jobs of a plan's tasks, in order; a buffer is a value with what names its bytes too."""
    written = {o.value: o.type for task in plan.tasks() for o in task.outputs}
    program = _PlanJobs(plan, Names(plan.aliases, written), Maker(sizes))
    jobs = tuple(program.job(task, times) for task, times in executions(plan, sizes))
    ends = (t for p in plan.outputs for t in program.names.touches(program.maker, p.value, p.type))
    return Program(jobs, tuple(ends))


def executions(plan: Plan, sizes: Sizes) -> Iterator[tuple[Task, int]]:
    """The tasks that run, in order, and how often: of an If those of the longer branch, of gears those of the sizes."""
    yield from _executions(plan, plan.regions, sizes, 1)


def _executions(plan: Plan, regions: Sequence[Region], sizes: Sizes, times: int) -> Iterator[tuple[Task, int]]:
    for region in regions:
        if isinstance(region, Static):
            yield from ((task, times) for task in region.tasks)
        elif isinstance(region, Host):
            yield region.task, times
        elif isinstance(region, If):
            yield from _executions(plan, longer(region), sizes, times)
        elif isinstance(region, (Loop, Scan)):
            yield from _executions(plan, region.body, sizes, times * trips_of(plan, region, sizes))
        else:
            yield from _executions(plan, gear_of(region, sizes), sizes, times)


def longer(region: If) -> tuple[Region, ...]:
    """The branch that is taken for the one that runs: the one with more tasks."""
    return max(region.then_branch, region.else_branch, key=_length)


def gear_of(region: Gears, sizes: Sizes) -> tuple[Region, ...]:
    """The gear that the sizes name; the first where they name none."""
    values = tuple([sizes.env.get(s) for s in region.symbols])
    return region.bodies[region.gears.index(values) if values in region.gears else 0]


def trips_of(plan: Plan, region: Loop | Scan, sizes: Sizes) -> int:
    """How often a loop's body runs."""
    if isinstance(region, Scan):
        whole, _, axis, _ = region.sliced[0]
        return slices(whole.type, axis, sizes)
    buffer = None if region.trips is None else plan.buffers[region.trips.buffer]
    if buffer is None or buffer.space is not Space.WEIGHTS or buffer.index < 0:
        return UNKNOWN
    return counted(known_value(plan.constants[buffer.index]), sizes)


@dataclass(frozen=True)
class _PlanJobs:
    """Makes the jobs of a plan's tasks."""

    plan: Plan
    names: Names
    maker: Maker

    def job(self, task: Task, times: int) -> Job:
        """The job of a task."""
        host = {i: self.plan.constants[number] for i, number in task.host_values.items()}
        maker, root = self.maker, self.names.root
        forms = [None if o is None else maker.form(o.type) for o in task.inputs]
        for i, constant in host.items():
            forms[i] = maker.form(Tensor(constant.dtype, constant.shape))
        outs = tuple([maker.form(o.type) for o in task.outputs])
        values = [host.get(i) if o is None or i in host else self._constant(o) for i, o in enumerate(task.inputs)]
        bodies = {} if task.body is None else {"body": task.body}
        call = Call(lookup(task.kernel, task.attrs), task.attrs, tuple(forms), outs, values, bodies)
        inputs = [(i, t) for i, o in enumerate(task.inputs) if o is not None for t in self._read(o)]
        written = zip(task.outputs, outs, strict=True)
        writes = tuple([Touch(root.get(o.value, o.value), form.nbytes, form) for o, form in written])
        return maker.job(task.id, task.name, task.engine, call, inputs, writes, times)

    def _constant(self, operand: Operand) -> Constant | None:
        """The constant that an operand is, as a whole."""
        buffer = self.plan.buffers[operand.buffer]
        if buffer.space is not Space.WEIGHTS or buffer.index < 0:
            return None
        constant, type_ = self.plan.constants[buffer.index], operand.type
        whole = isinstance(type_, Tensor) and (type_.dtype, type_.shape) == (constant.dtype, constant.shape)
        return constant if whole else None

    def _read(self, operand: Operand) -> list[Touch]:
        constant = self.plan.buffers[operand.buffer].space is Space.WEIGHTS
        return self.names.touches(self.maker, operand.value, operand.type, constant)


def _length(regions: Sequence[Region]) -> int:
    return sum(len(r.tasks) if isinstance(r, Static) else 1 for r in regions)
