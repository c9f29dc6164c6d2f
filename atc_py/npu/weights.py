"""The weights space: the file's bytes as they are mapped, and behind them what is derived at bind.

[0, W)      mapped from the OM file, read only
[W, …)      Derived and Splat constants and unpacked 4-bit types, made once a plan and shared by its contexts
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from atc_py.ir.constants import DimVec, Splat
from atc_py.npu.memory import PAGE, Array, Placed, allocate, outside
from atc_py.ops.evaluate import evaluate
from atc_py.plan.types import Plan, Space


class Weights:
    """The constants of one plan. `mapped` are the file's bytes of the weights space."""

    def __init__(self, plan: Plan, mapped: Array) -> None:
        self.plan, self.mapped = plan, mapped
        self._host: dict[int, Array] = {}

    @cached_property
    def derived(self) -> Array:
        """The bytes behind the mapped ones."""
        start = self.plan.weights_nbytes
        buffers = [b for b in self.plan.buffers if b.space is Space.WEIGHTS and (b.offset or 0) >= start]
        end = max(((b.offset or 0) + _int(b.nbytes) for b in buffers), default=start)
        if end - start > sum(_int(b.nbytes) + PAGE for b in buffers):
            raise outside(f"constant up to byte {end} of weights", f"the {len(buffers)} that are made at bind")
        space = allocate(end - start)
        for b in buffers:
            constant = self.plan.constants[b.index]
            # A Splat's operands have stride 0: one element is all they need, whatever its (symbolic) shape.
            if isinstance(constant, Splat):
                array = np.asarray(constant.value, constant.dtype.numpy)
            else:
                array = evaluate(constant)
            offset = (b.offset or 0) - start
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if raw.nbytes != _int(b.nbytes):
                raise outside(f"constant {b.index} of {raw.nbytes} bytes", f"buffer {b.id} of {b.nbytes}")
            space[offset : offset + raw.nbytes] = raw
        space.flags.writeable = False
        return space

    def view(self, place: Placed) -> Array:
        """The constant at a place of the weights space."""
        start = self.plan.weights_nbytes
        if place.offset < start:
            return place.view(self.mapped)
        moved = Placed(place.space, place.index, place.offset - start, place.shape, place.dtype, place.strides)
        return moved.view(self.derived)

    def host_value(self, number: int, env: Mapping[str, int]) -> Array:
        """The value of constant `number` under `env`, as the host reads it to launch a task."""
        constant = self.plan.constants[number]
        if isinstance(constant, DimVec):
            return constant.bind(env)
        if number not in self._host:
            self._host[number] = evaluate(constant, env)
        return self._host[number]


def _int(size: object) -> int:
    assert isinstance(size, int)
    return size
