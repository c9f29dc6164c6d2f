"""The weights space: the file's bytes as they are mapped, and behind them what is derived at bind.

[0, W)      mapped from the OM file, read only
[W, …)      Derived and Splat constants and unpacked 4-bit types, made when a task first reads them, once a plan

A weight that is stored in fractals is a re-layout of bytes in the file. Kernels get it as it is meant, which is these
bytes; the fractals are made only for who reads them as they lie, so that no weight is held twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from atc_py.ir.constants import Blob, Constant, DimVec, Splat, blob_array
from atc_py.ir.types import BLOCKED, Tensor, Type
from atc_py.npu.memory import Array, Placed, allocate, outside
from atc_py.ops.evaluate import evaluate
from atc_py.ops.formats import meant, unpack
from atc_py.plan.types import Buffer, Plan, Space


class Weights:
    """The constants of one plan. `mapped` are the file's bytes of the weights space."""

    def __init__(self, plan: Plan, mapped: Array) -> None:
        self.plan, self.mapped = plan, mapped
        start = plan.weights_nbytes
        behind = [b for b in plan.buffers if b.space is Space.WEIGHTS and (b.offset or 0) >= start]
        # A constant without bytes lies where the next one begins, and that one is meant by a byte there.
        self._behind = sorted(behind, key=lambda b: (b.offset or 0, b.nbytes != 0, b.id))
        self._starts = [b.offset or 0 for b in self._behind]
        self._made: dict[int, Array] = {}
        self._host: dict[int, Array] = {}
        self._meant: dict[int, Array] = {}

    @property
    def made_nbytes(self) -> int:
        """Bytes of the derived constants that have been made so far."""
        return sum(array.nbytes for array in self._made.values())

    def view(self, place: Placed) -> Array:
        """The constant's bytes at a place of the weights space, in the stored shape."""
        if place.offset < self.plan.weights_nbytes:
            return place.view(self.mapped)
        at = bisect_right(self._starts, place.offset) - 1
        if at < 0:
            raise outside(f"byte {place.offset} of weights", "what is made at bind")
        buffer = self._behind[at]
        return replace(place, offset=place.offset - self._starts[at]).view(self._bytes(buffer))

    def _bytes(self, buffer: Buffer) -> Array:
        """The bytes of a derived constant. Raises `AtcError` E30010 where they are not as many as the plan says."""
        found = self._made.get(buffer.id)
        if found is None:
            constant = self.plan.constants[buffer.index]
            if isinstance(constant, Blob) and constant.dtype.bits >= 8 and constant.nbytes:  # the file holds its bytes
                raise outside(f"constant {buffer.index} at byte {buffer.offset} of weights", "what is made at bind")
            # A Splat's operands have stride 0: one element is all they need, whatever its (symbolic) shape.
            if isinstance(constant, Splat):
                array = np.asarray(constant.value, constant.dtype.numpy)
            else:
                array = evaluate(constant)
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if raw.nbytes != buffer.nbytes:
                held = f"buffer {buffer.id} of {buffer.nbytes}"
                raise outside(f"constant {buffer.index} of {raw.nbytes} bytes", held)
            found = self._made[buffer.id] = allocate(raw.nbytes)
            found[...] = raw
            found.flags.writeable = False
        return found

    def operand(self, place: Placed, type_: Type | None) -> Array:
        """The constant as its type means it, whatever its format."""
        if not isinstance(type_, Tensor) or type_.storage is None or type_.storage not in BLOCKED:
            return self.view(place)
        constant = self.plan.constants[place.index]
        source, shape = meant(constant), tuple(d for d in type_.dims if type(d) is int)
        if source is constant or source.shape != shape or source.dtype is not type_.dtype:
            return unpack(self.view(place), type_.storage, shape)
        found = self._meant.get(place.index)
        if found is None:
            found = self._meant[place.index] = self._source(source)
        return found

    def _source(self, source: Constant) -> Array:
        return blob_array(source) if isinstance(source, Blob) else evaluate(source)

    def host_value(self, number: int, env: Mapping[str, int]) -> Array:
        """The value of constant `number` under `env`, as the host reads it to launch a task."""
        constant = self.plan.constants[number]
        if isinstance(constant, DimVec):
            return constant.bind(env)
        if number not in self._host:
            self._host[number] = evaluate(constant, env)
        return self._host[number]
