"""The device's memory: one array a space, and views of it at planned addresses.

spaces.view(Placed(ARENA, offset=512, shape=(2, 8), float32))  →  arena[512:576] as a 2×8 float32 array
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.dims import evaluate
from atc_py.ir.types import Tensor, on_host
from atc_py.memory import Binding
from atc_py.ops.base import InferError
from atc_py.plan.types import Operand, Plan, Space, Task

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
PAGE = 4096


def allocate(nbytes: int) -> Array:
    """A page-aligned byte array; raises `AtcError` E30004 when the machine cannot give it."""
    try:
        raw = np.empty(nbytes + PAGE, np.uint8)
    except (MemoryError, ValueError) as e:
        raise error("E30004", "simulator", f"cannot allocate {nbytes} bytes: {e}", "use smaller shapes") from e
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


def fresh(shape: Sequence[Any], dtype: np.dtype[Any]) -> Array:
    """A new array; raises `AtcError` E30004 when the machine cannot give it."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as e:
        raise error("E30004", "simulator", f"cannot allocate {dtype}{list(shape)}: {e}", "use smaller shapes") from e


def as_bytes(array: Array) -> Array:
    """A contiguous array's bytes, without a copy."""
    return array.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Placed:
    """A bound operand: where its first element lies in its space and how the array is laid out (strides in bytes)."""

    space: Space
    index: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None

    @property
    def whole(self) -> bool:
        """Whether the array begins where its space does and lies in one piece."""
        return self.offset == 0 and self.strides is None and self.index >= 0

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of the space between which all elements lie: the first, and the one behind the last."""
        if 0 in self.shape:
            return self.offset, self.offset
        low = high = self.offset
        step = self.dtype.itemsize
        if self.strides is None:
            return low, high + step * prod(self.shape)
        for d, stride in zip(self.shape, self.strides, strict=True):
            low += min(0, stride * (d - 1))
            high += max(0, stride * (d - 1))
        return low, high + step

    def view(self, base: Array) -> Array:
        """The array at this place in `base`, the bytes of its space. Raises `AtcError` E30010 where it leaves them."""
        low, high = self.span
        if low < 0 or high > base.nbytes:
            raise outside(f"[{low}, {high}) of {self.space.value}", f"the {base.nbytes} bytes that it has")
        return np.ndarray(self.shape, self.dtype, buffer=base, offset=self.offset, strides=self.strides)


def concrete(type_: Any, env: Mapping[str, int]) -> Any:
    """A type with its dims evaluated; a dim whose symbol has no value yet makes the shape unknown."""
    if not isinstance(type_, Tensor) or type_.shape is None:
        return type_
    try:
        return type_.with_shape(tuple(evaluate(d, env) for d in type_.shape))
    except KeyError:
        return type_.with_shape(None)


def place(plan: Plan, binding: Binding, operand: Operand, env: Mapping[str, int]) -> Placed | None:
    """Where an operand lies, None for what has no address (host slots, sizes that are not known yet)."""
    buffer = plan.buffers[operand.buffer]
    if on_host(operand.type) or buffer.space in (Space.HOST, Space.DYNAMIC):
        return None
    type_ = concrete(operand.type, env)
    if type_.shape is None:
        return None
    shape = tuple(int(d) for d in type_.storage_shape)
    if any(d < 0 for d in shape):
        raise error("E30003", f"value %{operand.value}", f"has the shape {list(shape)}", "give inputs of other shapes")
    strides = None if operand.strides is None else tuple(evaluate(s, env) for s in operand.strides)
    start, nbytes = binding.offsets[buffer.id], binding.sizes[buffer.id]
    placed = Placed(buffer.space, buffer.index, start + evaluate(operand.delta, env), shape, type_.dtype.numpy, strides)
    low, high = placed.span
    if start < 0 or low < start or high > start + max(nbytes, 0):
        at = f"value %{operand.value}, [{low}, {high}) of {buffer.space.value},"
        raise outside(at, f"buffer {buffer.id}, [{start}, {start + nbytes})")
    return placed


def outside(what: str, of: str) -> AtcError:
    """The error for operands that are not where they may be."""
    return error("E30010", "plan", f"{what} is outside of {of}", "the file is damaged; convert the model again")


@dataclass
class Spaces:
    """The arrays of one context. `dynamic` holds buffers whose size came at run time, `slots` the host's values."""

    weights: Array
    arena: Array
    slots: list[Any]
    dynamic: dict[int, Array] = field(default_factory=dict)
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()

    def port(self, place: Placed) -> Array:
        """The view of a caller's array; the array itself where all of it is meant as it lies, which is the rule."""
        ports = self.inputs if place.space is Space.INPUT else self.outputs
        if place.whole and place.index < len(ports):
            array = ports[place.index]
            if type(array) is np.ndarray and array.shape == place.shape and array.dtype == place.dtype:
                return array
        return place.view(self.base(place))

    def base(self, place: Placed) -> Array:
        """The bytes of the space in which `place` lies."""
        if place.space is Space.ARENA:
            return self.arena
        if place.space is Space.WEIGHTS:
            return self.weights
        ports = self.inputs if place.space is Space.INPUT else self.outputs
        array = ports[place.index] if 0 <= place.index < len(ports) else None
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise outside(f"{place.space.value} {place.index}", "the ports that have bytes")
        return as_bytes(array)


def store(target: Array, result: Any, task: str) -> None:
    """Copy a kernel's result to its planned place; E40002 when shape or dtype are not what the plan says."""
    array = np.asarray(result)
    if array.shape != target.shape or array.dtype != target.dtype:
        raise error(
            "E40002",
            f"task '{task}'",
            f"the kernel gave {array.dtype}{list(array.shape)}, the plan has {target.dtype}{list(target.shape)}",
            "this is a fault of atc-py or of a custom operator's shape rule; please report it",
        )
    target[...] = array


def detached(value: Any) -> Any:
    """A host value whose arrays have bytes of their own: what it was made of may be overwritten while it lives on."""
    if isinstance(value, np.ndarray):
        return value if value.base is None else value.copy()
    if isinstance(value, list):
        return [detached(item) for item in value]
    return {k: detached(item) for k, item in value.items()} if isinstance(value, dict) else value


def kernel_failed(task: str, exc: Exception) -> AtcError:
    """The error for a kernel that raised: shapes that do not fit at run time, values out of range."""
    hint = "check the inputs' values and shapes"
    if isinstance(exc, InferError):
        return error("E40001", f"task '{task}'", exc.cause, exc.hint or hint)
    return error("E40001", f"task '{task}'", f"{type(exc).__name__}: {exc}", hint)


def located(problem: AtcError, task: str) -> AtcError:
    """The error of an operator's own functions, at the task that ran them where it says no place."""
    return AtcError(*(p if p.place else replace(p, place=f"task '{task}'") for p in problem.problems))


def check_result(type_: Any, result: Any, task: Task) -> None:
    """Hold a result of a size that only the run time knows against what is known of its type; E40002 if it differs."""
    shape = type_.shape if isinstance(type_, Tensor) else None
    if shape is None:
        return
    array = np.asarray(result)
    fits = len(shape) == array.ndim and all(not isinstance(d, int) or d == k for d, k in zip(shape, array.shape))
    if not fits:
        planned = "[" + ", ".join(map(str, shape)) + "]"
        cause = f"the kernel of {task.kernel} gave {array.dtype}{list(array.shape)}, the plan has {planned}"
        hint = "this is a fault of atc-py or of a custom operator's shape rule; please report it"
        raise error("E40002", f"task '{task.name}'", cause, hint)
