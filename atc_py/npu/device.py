"""Running a bound plan.

`BoundPlan` is a plan under one set of symbol values: kernels chosen and prepared, operands placed; it is immutable
and shared. `Context` is what one run needs: arena, slots, and the tasks' views into them. Tasks run in the plan's
order; each kernel reads and writes views at the planned addresses, nothing else. Results whose size is known only
when their producer has run are kept in the dynamic space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.memory import bind
from atc_py.npu.binder import Binder, Scratch, Step
from atc_py.npu.control import run_regions
from atc_py.npu.memory import (
    Array,
    Placed,
    Spaces,
    allocate,
    check_result,
    concrete,
    detached,
    fresh,
    kernel_failed,
    located,
    store,
)
from atc_py.npu.weights import Weights
from atc_py.ops.base import Call
from atc_py.plan.gears import in_gear
from atc_py.plan.live import branch_numbers, dead_branches, live
from atc_py.plan.types import Operand, Plan, Space, Task

LATE_KEPT = 512
"""How many late tasks a context keeps bound, each for the sizes that it had."""


class BoundPlan:
    """A plan under one set of symbol values, of gears the one that they name; contexts are made from it.

    Immutable once made.
    """

    def __init__(self, plan: Plan, weights: Weights, env: Mapping[str, int] | None = None, tiles: bool = False) -> None:
        self.weights = weights
        self.binding = bind(plan, env)
        self.plan = in_gear(plan, self.binding.env)
        self.binder = Binder(plan, self.binding, weights, tiles)
        self.dead = dead_branches(plan, self.binding.env)
        self.branches = branch_numbers(plan.regions) if self.dead else {}
        self.steps: dict[int, Step] = {
            t.id: self.binder.step(t, self.binding.env)
            for t in live(plan, self.binding.env).tasks()
            if not self.binder.is_late(t)
        }
        self.slots = 1 + max((b.offset or 0 for b in plan.buffers if b.space is Space.HOST), default=-1)
        self._output_types = self._types_of_outputs()
        self._fresh = [None if t is None else (t.dims, t.dtype.numpy) for t in self._output_types]
        placed_late = (Space.HOST, Space.DYNAMIC)
        self.late_outputs = [i for i, p in enumerate(plan.outputs) if plan.buffers[p.buffer].space in placed_late]

    def output_types(self) -> list[Tensor | None]:
        """The types of the outputs that are written where the caller says; None for the others."""
        return list(self._output_types)

    def _types_of_outputs(self) -> list[Tensor | None]:
        types: list[Tensor | None] = []
        for port in self.plan.outputs:
            t = concrete(port.type, self.binding.env)
            known = isinstance(t, Tensor) and t.shape is not None and not on_host(t)
            in_port = self.plan.buffers[port.buffer].space is Space.OUTPUT
            types.append(t if known and in_port else None)
        return types

    def output_arrays(self) -> list[Any]:
        """Fresh arrays for the outputs whose shape is known; None for the others."""
        return [None if t is None else fresh(*t) for t in self._fresh]


@dataclass
class _Draws:
    """Numbers for the executions of random tasks: the run's, and how often each task has run in it.

    Tasks are counted from the `first` of their gear, so that a gear draws what a plan of its sizes alone does.
    """

    first: int = 0
    run: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    def begin(self, run: int) -> None:
        """Another run."""
        self.run = run
        self.counts.clear()

    def key(self, task: int) -> tuple[int, int, int]:
        """The key of the task's next execution."""
        count = self.counts[task] = self.counts.get(task, -1) + 1
        return (0, task - self.first, self.run << 64 | count)


@dataclass
class _Job:
    """A step with its views in one context.

    `unplaced` are the inputs to be looked up at each execution, `ports` the views into the caller's arrays that a late
    task gets anew (those of other tasks are made once a run); `scratch` is a workspace that is made at each execution.
    """

    kernel: Callable[..., Any]
    call: Call
    random: bool
    inputs: list[Any]
    outs: list[Any]
    unplaced: list[tuple[int, Operand]]
    ports: list[tuple[list[Any], int, Placed]]
    scratch: Scratch | None


class Context:
    """Arena, slots and views for one run at a time."""

    def __init__(self, bound: BoundPlan) -> None:
        self.bound, self.plan = bound, bound.plan
        self.env: dict[str, int] = {}
        own = in_gear(self.plan, bound.binding.env).tasks()
        self._draws = _Draws(first=min([t.id for t in own], default=0))
        self.spaces = Spaces(bound.weights.mapped, allocate(bound.binding.arena), [None] * bound.slots)
        self._patches: list[tuple[list[Any], int, Placed]] = []
        self._jobs = {number: self._job(step, self._patches) for number, step in bound.steps.items()}
        self._late: dict[tuple[Any, ...], _Job] = {}
        self._deciding: dict[int, tuple[str, ...]] = {}
        self._fixed: dict[int, Any] = {}
        self._in_ports: dict[int, Placed] = {}

    # -- views -------------------------------------------------------------------------------------------------

    def _job(self, step: Step, ports: list[tuple[list[Any], int, Placed]]) -> _Job:
        call = step.call.at()
        unplaced = [
            (i, o)
            for i, o in enumerate(step.task.inputs)
            if o is not None and step.places[i] is None and step.inputs[i] is None
        ]
        outs: list[Any] = [None] * len(step.outputs)
        job = _Job(step.kernel, call, step.random, list(step.inputs), outs, unplaced, ports, step.scratch)
        if step.workspace is not None:
            call.workspace = step.workspace.view(self.spaces.arena)
        for views, places in ((job.inputs, step.places), (job.outs, step.outputs)):
            for i, placed in enumerate(places):
                if placed is not None:
                    if placed.space in (Space.INPUT, Space.OUTPUT):
                        ports.append((views, i, placed))
                    else:
                        views[i] = placed.view(self.spaces.base(placed))
        call.outs = job.outs
        return job

    def _late_job(self, task: Task) -> _Job:
        """A late task, bound to the sizes of now; those of earlier executions, also in earlier runs, are kept."""
        names = self._deciding.get(task.id)
        if names is None:
            names = self._deciding[task.id] = self.bound.binder.deciding(task)
        key = (task.id, *[self.env.get(n) for n in names])
        job = self._late.get(key)
        if job is None:
            job = self._job(self.bound.binder.step(task, self.env), [])
            if len(self._late) >= LATE_KEPT:
                self._late.clear()
            self._late[key] = job
        for views, i, placed in job.ports:
            views[i] = self.spaces.port(placed)
        return job

    def load(self, operand: Operand) -> Any:
        """The array (or host value) that an operand means now."""
        fixed = self._fixed.get(id(operand))  # operands live as long as the plan
        return self._load(operand) if fixed is None else fixed

    def _load(self, operand: Operand) -> Any:
        in_port = self._in_ports.get(id(operand))
        if in_port is not None:
            return self.spaces.port(in_port)
        buffer = self.plan.buffers[operand.buffer]
        if buffer.space is Space.HOST:
            return self.spaces.slots[self.bound.binding.offsets[buffer.id]]
        if buffer.space is Space.DYNAMIC:
            return self._dynamic(buffer.id, operand.type)
        placed = self.bound.binder.place(operand, self.env)
        if placed is None:
            return self.spaces.inputs[buffer.index]
        late = self.bound.binder.late(operand)
        if placed.space in (Space.INPUT, Space.OUTPUT):
            if not late:
                self._in_ports[id(operand)] = placed
            return self.spaces.port(placed)
        weights = placed.space is Space.WEIGHTS
        view = self.bound.weights.view(placed) if weights else placed.view(self.spaces.base(placed))
        if not late:
            self._fixed[id(operand)] = view
        return view

    def save(self, operand: Operand, value: Any, by: str) -> None:
        """Put a value where an operand lies; a size that becomes known with it binds its symbol."""
        buffer = self.plan.buffers[operand.buffer]
        if buffer.space is Space.HOST:
            self.spaces.slots[self.bound.binding.offsets[buffer.id]] = detached(value)
        elif buffer.space is Space.DYNAMIC:
            assert isinstance(operand.type, Tensor)
            array = np.asarray(value)
            if array.dtype != operand.type.dtype.numpy:
                cause = f"gave {array.dtype}, the plan has {operand.type.dtype.value}"
                raise error("E40002", f"task '{by}'", cause, "please report this")
            self.spaces.dynamic[buffer.id] = array if array.flags.owndata else array.copy()
            self.bind_symbols(operand, array.shape)
        else:
            target = self.load(operand)
            if target is not value:
                store(target, value, by)

    def bind_symbols(self, operand: Operand, shape: Sequence[int]) -> None:
        """Give the run-time symbols that are whole dims of the operand's type their values."""
        found = self.bound.binder.founds(operand)
        if found and isinstance(operand.type, Tensor) and len(operand.type.dims) == len(shape):
            for axis, name in found:
                self.env[name] = int(shape[axis])

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any], outputs: list[Any], number: int = 0) -> list[Any]:
        """Run the plan on contiguous input arrays; `outputs` as `BoundPlan.output_arrays` gives them.

        `number` is the run's: random operators draw other numbers in each. Returns the outputs, in order. Raises
        `AtcError` E4xxxx when a kernel fails.
        """
        self.spaces.inputs, self.spaces.outputs = inputs, outputs
        self.spaces.dynamic.clear()
        self.env = dict(self.bound.binding.env)
        self._draws.begin(number)
        for views, i, placed in self._patches:
            views[i] = self.spaces.port(placed)
        try:
            with np.errstate(all="ignore"):
                run_regions(self, self.plan.regions)
        except AtcError:
            raise
        except Exception as e:  # kernels are guarded one by one: this is a plan that contradicts itself
            raise error("E40002", "plan", f"cannot be carried out: {type(e).__name__}: {e}", "verify the file") from e
        results = list(outputs)
        for i in self.bound.late_outputs:
            results[i] = self._result(i)
        self.spaces.inputs = self.spaces.outputs = ()
        return results

    def order(self, tasks: Sequence[Task]) -> Iterable[Task]:
        """The order in which a region's tasks run: the plan's."""
        return tasks

    def renamed(self, source: Operand, target: Operand) -> None:
        """Told that what lies in a place is another value from now on."""

    def execute(self, task: Task) -> None:
        """Run one task."""
        job = self._jobs.get(task.id)
        if job is None:
            job = self._late_job(task)
        inputs = job.inputs
        for i, operand in job.unplaced:
            inputs[i] = self.load(operand)
        if job.random:
            job.call.key = self._draws.key(task.id)
        try:
            if job.scratch is not None:
                job.call.workspace = self.made_workspace(job.scratch.nbytes(inputs))
            result = job.kernel(job.call, *inputs)
        except AtcError as e:
            raise located(e, task.name) from e
        except Exception as e:
            raise kernel_failed(task.name, e) from e
        for i, _ in job.unplaced:
            inputs[i] = None  # what lies in the dynamic space must not outlive the run here
        if job.scratch is not None:
            job.call.workspace = None
        outs = job.outs
        if len(outs) == 1 and result is outs[0] and result is not None:
            return  # the kernel has written its only output where it lies
        results = result if isinstance(result, tuple) else (result,)
        if len(results) < len(task.outputs):
            cause = f"gave {len(results)} results, the plan has {len(task.outputs)}"
            raise error("E40002", f"task '{task.name}'", cause, "please report this")
        for operand, out, value in zip(task.outputs, outs, results, strict=False):
            if out is None:
                check_result(operand.type, value, task)
                self.save(operand, value, task.name)
            elif value is not out:
                store(out, value, task.name)

    def made_workspace(self, nbytes: int) -> Array:
        """A workspace whose size only the run time knows."""
        return fresh((nbytes,), np.dtype(np.uint8))

    def _result(self, index: int) -> Any:
        """An output that does not lie in a caller's array."""
        port = self.plan.outputs[index]
        buffer = self.plan.buffers[port.buffer]
        if buffer.space is Space.HOST:
            return self.spaces.slots[self.bound.binding.offsets[buffer.id]]
        return self._dynamic(buffer.id, port.type)

    def _dynamic(self, number: int, type_: Type) -> Any:
        """What a dynamic buffer holds, in a type's shape as far as that is known."""
        array = self.spaces.dynamic.get(number)
        t = concrete(type_, self.env)
        if array is None or not isinstance(t, Tensor) or (t.shape is not None and prod(t.dims) != array.size):
            held = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            read = (
                f"{t.dtype.value}[{'?' if t.shape is None else ', '.join(map(str, t.shape))}]"
                if isinstance(t, Tensor)
                else t
            )
            hint = "its size depends on the inputs: give others, for with these the model has no meaning"
            raise error("E40002", f"buffer {number}", f"holds {held}, what reads it needs {read}", hint)
        return array if t.shape is None else array.reshape(t.shape)
