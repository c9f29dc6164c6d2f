"""Binding: a task, its sizes and its operator become a step that can run.

    task 3 Conv, x: float32[N, 3, H, W]   under {N: 1, H: 64, W: 64}   →   kernel, prepared state, three places

A task whose sizes depend on what an earlier task finds out is *late*: it is bound when it is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.constants import DimVec
from atc_py.ir.dims import Dim, symbol, symbols_of
from atc_py.ir.types import DType, Tensor, Type
from atc_py.memory import Binding
from atc_py.npu.formats import adapted
from atc_py.npu.memory import Array, Placed, concrete, kernel_failed, located, outside, place
from atc_py.npu.weights import Weights
from atc_py.ops import check
from atc_py.ops.base import Call, InferError, Op
from atc_py.ops.build import lookup
from atc_py.ops.evaluate import tensor_type, workspace_nbytes
from atc_py.plan.types import Operand, Plan, Space, Task


@dataclass
class Step:
    """A task bound to sizes: its kernel, and for each operand a constant array, a place, or None."""

    task: Task
    kernel: Callable[..., Any]
    call: Call
    inputs: list[Any]
    places: list[Placed | None]
    outputs: list[Placed | None]
    random: bool
    """Whether the kernel draws numbers, so that each execution needs a key of its own."""
    workspace: Placed | None = None
    scratch: Scratch | None = None
    """What tells how many bytes a workspace without a place takes."""


@dataclass(frozen=True)
class Scratch:
    """A workspace that is made for each execution: its bytes, or what they follow from when the inputs are there."""

    op: Op
    task: Task
    types: tuple[Type | None, ...]
    known: int | None

    def nbytes(self, inputs: Sequence[Any]) -> int:
        """Bytes for inputs as they come (None where absent); those of known types may lie in any storage format."""
        if self.known is not None:
            return self.known
        types = [t if _known(t) else tensor_type(x) for t, x in zip(self.types, inputs, strict=True)]
        made = workspace_nbytes(self.op, self.task.attrs, types, dict(enumerate(inputs)), len(self.task.outputs))
        if made is None:
            raise InferError(f"nothing tells how many bytes of workspace {self.op.name} takes")
        return made


class Binder:
    """Makes steps of tasks. `weights` are the plan's constants; `runtime` the symbols that tasks bind.

    With `tiles`, tasks that are tile programs run as these, in buffers of the planned sizes.
    """

    def __init__(self, plan: Plan, binding: Binding, weights: Weights, tiles: bool = False) -> None:
        self.plan, self.binding, self.weights, self.tiles = plan, binding, weights, tiles
        self.runtime = frozenset(s for s, r in plan.symbols.items() if r.runtime)
        self._found: dict[int, list[tuple[int, str]]] = {}

    def is_late(self, task: Task) -> bool:
        """Whether the task's sizes depend on what an earlier task, or itself, finds out."""
        if task.binds or any(self.late(o) for o in task.operands()):
            return True
        constants = (self.plan.constants[k] for k in task.host_values.values())
        return any(self._mentions(e) for c in constants if isinstance(c, DimVec) for e in c.elements)

    def deciding(self, task: Task) -> tuple[str, ...]:
        """The run-time symbols by whose values a late task is bound."""
        if task.body is not None:
            return tuple(sorted(self.runtime))
        sizes: list[Any] = []
        for operand in task.operands():
            shape = operand.type.shape if isinstance(operand.type, Tensor) else None
            sizes += [*(shape or ()), *(operand.strides or ()), operand.delta]
        for constant in (self.plan.constants[k] for k in task.host_values.values()):
            sizes += constant.elements if isinstance(constant, DimVec) else ()
        return tuple(sorted({s for size in sizes for s in symbols_of(size)} & self.runtime))

    def founds(self, operand: Operand) -> list[tuple[int, str]]:
        """The run-time symbols that are whole dims of the operand's type: (axis, symbol)."""
        found = self._found.get(id(operand))
        if found is None:
            shape = operand.type.shape if isinstance(operand.type, Tensor) else None
            pairs = [(axis, symbols_of(d), d) for axis, d in enumerate(shape or ()) if isinstance(d, Dim)]
            found = [(axis, n[0]) for axis, n, d in pairs if len(n) == 1 and n[0] in self.runtime and d == symbol(n[0])]
            self._found[id(operand)] = found  # operands live as long as the plan
        return found

    def late(self, operand: Operand) -> bool:
        """Whether an operand's place or size is known only at run time."""
        t = operand.type
        return self.plan.buffers[operand.buffer].space is Space.DYNAMIC or (
            isinstance(t, Tensor) and t.shape is not None and any(self._mentions(d) for d in t.shape)
        )

    def _mentions(self, size: Any) -> bool:
        return bool(self.runtime) and any(s in self.runtime for s in symbols_of(size))

    def place(self, operand: Operand, env: Mapping[str, int]) -> Placed | None:
        """Where an operand lies under `env`; None without an address."""
        return place(self.plan, self.binding, operand, env)

    def step(self, task: Task, env: Mapping[str, int]) -> Step:
        """Bind one task under `env`: evaluate types, place operands, let the operator prepare.

        Raises `AtcError` for a task that is not as its operator's declaration says, or whose operands leave their
        buffers: plans come from files.
        """
        try:
            return self._step(task, env)
        except AtcError as e:
            raise located(e, task.name) from e
        except Exception as e:  # an operator's own functions, on what no frontend has seen
            raise kernel_failed(task.name, e) from e

    def _step(self, task: Task, env: Mapping[str, int]) -> Step:
        op = lookup(task.kernel, task.attrs)
        if op.kernel_fn is None:
            raise error("E40003", f"task '{task.name}'", f"there is no kernel for {task.kernel}", "")
        count = max([len(task.inputs), *(i + 1 for i in task.host_values)], default=0)
        inputs: list[Any] = [None] * count
        places: list[Placed | None] = [None] * count
        in_types: list[Type | None] = [None] * count
        consts: dict[int, Array] = {}
        for i, number in task.host_values.items():
            inputs[i] = consts[i] = array = self.weights.host_value(number, env)
            in_types[i] = Tensor(DType.of(array.dtype), array.shape)
        for i, operand in enumerate(task.inputs):
            if operand is None:
                continue
            in_types[i] = concrete(operand.type, env)
            placed = self.place(operand, env)
            if placed is not None and placed.space is Space.WEIGHTS:
                inputs[i] = consts[i] = self.weights.operand(placed, in_types[i])
            else:
                places[i] = placed
        outputs = [self.place(o, env) for o in task.outputs]
        out_types = tuple(concrete(o.type, env) for o in task.outputs)
        check.operation(op, task.attrs, in_types, out_types, consts, task.body)
        call = Call(task.attrs, out_types, [None] * len(outputs), consts, tuple(in_types), body=task.body)
        call.tiles = self.tiles
        needed = workspace_nbytes(op, task.attrs, in_types, consts, len(outputs))
        workspace = self._workspace(task, needed, env)
        scratch = None if task.workspace is None or workspace else Scratch(op, task, call.in_types, needed)
        if op.prepare_fn is not None and all(_known(t) for t in in_types):
            call.state = op.prepare_fn(call)
        kernel, call = adapted(op, op.kernel_fn, call, inputs, task.name)
        return Step(task, kernel, call, inputs, places, outputs, op.flags.random, workspace, scratch)

    def _workspace(self, task: Task, needed: int | None, env: Mapping[str, int]) -> Placed | None:
        """The place of the task's workspace, all its bytes in a row; None where it has none.

        Raises `AtcError` E40002 where the kernel needs more bytes than the plan has for it.
        """
        placed = None if task.workspace is None else self.place(task.workspace, env)
        low, high = (0, 0) if placed is None else placed.span
        if needed and (task.workspace is None or (placed is not None and needed > high - low)):
            cause = f"{task.kernel} takes {needed} bytes of workspace, the plan has {high - low}"
            hint = "the file was made with another declaration of the operator: convert the model again"
            raise error("E40002", f"task '{task.name}'", cause, hint)
        if placed is not None and placed.space is not Space.ARENA:
            raise outside(f"the workspace, [{low}, {high}) of {placed.space.value},", "the arena")
        return None if placed is None else Placed(Space.ARENA, -1, low, (high - low,), np.dtype(np.uint8), None)


def _known(type_: Type | None) -> bool:
    return not isinstance(type_, Tensor) or type_.shape is not None
