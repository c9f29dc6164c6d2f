"""Kernels over stored arrays: what lies between the formats of the plan and what tensors mean.

    Conv, x and y as NC1HWC0        unpack x to staging, run, pack y with zeros in its padding lanes
    Relu, x and y as NC1HWC0        run on the stored arrays: one element after another, whatever their order
    Add(x, [64, 1, 1])              the same, the constant packed when the task is bound
    TransData                       pack or unpack, nothing else

Kernels know nothing of formats: they get arrays in the shapes that tensors mean. Staging is memory of the simulator,
not of the plan, as kernels' scratch is. Padding lanes hold zero when a task has ended; an elementwise one that may
leave something else in them clears them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from atc_py.ir.types import BLOCKED, DType, Format, Tensor, Type, lanes
from atc_py.npu.memory import Array, store
from atc_py.ops.base import Call, Op
from atc_py.ops.formats import TRANS_DATA, clear_padding, pack, unpack

Kernel = Callable[..., Any]
_LOCAL = threading.local()
ALIGNMENT = 64


def _staging(nbytes: int) -> Array:
    """The thread's staging buffer, at least `nbytes` long (uint8)."""
    buffer: Array | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
        _LOCAL.buffer = buffer
    return buffer


@dataclass(frozen=True)
class Stored:
    """An operand that does not lie as it is meant: its position, its format, and what it means."""

    position: int
    format: Format
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes in staging."""
        return -(-prod(self.shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    @cached_property
    def flat(self) -> bool:
        """Whether the elements lie one after the other as they are meant: blocks of a single pixel."""
        if self.format is not Format.NC1HWC0:
            return False
        n, c, h, w = self.shape
        return h * w == 1 and (n == 1 or c % _lanes(self.dtype) == 0)

    def view(self, stored: Array) -> Array:
        """What a flat stored array means, as a contiguous view of it."""
        n, c, h, w = self.shape
        return stored.reshape(n, stored.shape[1] * stored.shape[4])[:, :c].reshape(n, c, h, w)

    def piece(self, buffer: Array, at: int) -> Array:
        """An array for what is meant, in staging."""
        nbytes = prod(self.shape) * self.dtype.itemsize
        return buffer[at : at + nbytes].view(self.dtype).reshape(self.shape)


def stored(types: Sequence[Type | None], skip: Sequence[bool] = ()) -> tuple[Stored, ...]:
    """The operands of concrete types that lie in blocks, those to be skipped left out."""
    found = []
    for i, t in enumerate(types):
        if isinstance(t, Tensor) and t.storage in BLOCKED and t.static and not (i < len(skip) and skip[i]):
            assert t.storage is not None
            found.append(Stored(i, t.storage, tuple(d for d in t.dims if type(d) is int), t.dtype.numpy))
    return tuple(found)


def adapted(op: Op, kernel: Kernel, call: Call, inputs: list[Any], task: str) -> tuple[Kernel, Call]:
    """The kernel over stored operands, and the call that it wants.

    `inputs` has the constants of the call in the form that they mean, None where an operand comes at run time;
    constants may be replaced. `task` is a name for messages.
    """
    ins = stored(call.in_types, [x is not None for x in inputs])
    outs = stored(call.out_types)
    if not ins and not outs:
        return kernel, call
    if op.name == TRANS_DATA and (direct := _conversion(call, ins, outs)) is not None:
        return direct, call
    if (shapes := _same_blocks(op, call, inputs, ins, outs)) is not None:
        clears = not (op.flags.keeps_zero and len(ins) == len(call.in_types))
        return _Elementwise(kernel, outs[0], clears), shapes
    return _Adapted(kernel, ins, outs, task), call


class _Adapted:
    """Any kernel: operands are unpacked before it and packed after it, where no view of them serves."""

    def __init__(self, kernel: Kernel, ins: tuple[Stored, ...], outs: tuple[Stored, ...], task: str) -> None:
        self.kernel, self.ins, self.outs, self.task = kernel, ins, outs, task
        self.nbytes = sum(s.nbytes for s in (*ins, *outs) if not s.flat)
        self._staged: tuple[Array, list[Array | None]] | None = None

    def _pieces(self) -> list[Array | None]:
        """The staging of the operands, inputs first; None for flat ones. Made anew when another thread's is here."""
        buffer = _staging(self.nbytes)
        staged = self._staged
        if staged is None or staged[0] is not buffer:
            pieces: list[Array | None] = []
            at = 0
            for s in (*self.ins, *self.outs):
                pieces.append(None if s.flat else s.piece(buffer, at))
                at += 0 if s.flat else s.nbytes
            staged = self._staged = buffer, pieces
        return staged[1]

    def __call__(self, call: Call, *inputs: Any) -> Any:
        pieces = self._pieces()
        given, planned = list(inputs), list[Any](call.outs)
        for s, piece in zip(self.ins, pieces):
            array = given[s.position]
            given[s.position] = s.view(array) if piece is None else unpack(array, s.format, s.shape, piece)
        made = list(planned)
        for s, piece in zip(self.outs, pieces[len(self.ins) :]):
            made[s.position] = s.view(planned[s.position]) if piece is None else piece
        result = self.kernel(call.at(*made), *given)
        results = list(result) if isinstance(result, tuple) else [result]
        for s in self.outs:
            results[s.position] = self._put(s, results[s.position], made[s.position], planned[s.position])
        return results[0] if len(results) == 1 else tuple(results)

    def _put(self, s: Stored, value: Any, view: Any, target: Any) -> Any:
        """Bring an output to where it lies."""
        if value is view and s.flat:
            clear_padding(target, s.format, s.shape)
            return target
        array = np.asarray(value)
        if array.shape != s.shape or array.dtype != s.dtype:
            store(view, value, self.task)  # says what is wrong
        return pack(array, s.format, target)


# -- elementwise -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Elementwise:
    """An elementwise kernel on stored arrays."""

    kernel: Kernel
    out: Stored
    clears: bool

    def __call__(self, call: Call, *inputs: Any) -> Any:
        target: Any = call.outs[0]
        result = self.kernel(call, *inputs)
        result = result[0] if isinstance(result, tuple) else result
        if result is not target:
            np.copyto(target, result)
        if self.clears:
            clear_padding(target, self.out.format, self.out.shape)
        return target


def _same_blocks(op: Op, call: Call, inputs: list[Any], ins: Sequence[Stored], outs: Sequence[Stored]) -> Call | None:
    """The call over stored arrays, where each operand lies in blocks as the result does or is a constant that can."""
    flags = op.flags
    if not (flags.elementwise and flags.layout_agnostic) or flags.random or op.prepare_fn is not None:
        return None
    if len(call.out_types) != 1 or len(outs) != 1 or outs[0].format is not Format.NC1HWC0:
        return None
    width, out = _lanes(outs[0].dtype), outs[0]
    blocked = {s.position for s in ins if s.format is out.format and s.shape[1] == out.shape[1]}
    if any(s.position not in blocked or _lanes(s.dtype) != width for s in ins):
        return None
    consts: dict[int, Array] = {}
    for i, t in enumerate(call.in_types):
        if i in blocked or t is None:
            continue
        found = None if inputs[i] is None else _broadcastable(inputs[i], out.shape[1], width)
        if found is None:
            return None
        consts[i] = found
    for i, array in consts.items():
        inputs[i] = array
    types = [_as_stored(t, consts.get(i)) for i, t in enumerate(call.in_types)]
    return replace(call, in_types=tuple(types), out_types=(_as_stored(call.out_types[0], None),), consts=consts)


def _lanes(dtype: np.dtype[Any]) -> int:
    return lanes(DType.of(dtype))


def _broadcastable(array: Any, channels: int, width: int) -> Array | None:
    """A constant so that it broadcasts with arrays in blocks; None where it does not."""
    if not isinstance(array, np.ndarray) or array.ndim > 4:
        return None
    if array.size == 1:
        return array.reshape(())
    whole = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if whole.shape[1] == 1:
        return whole[..., None]
    return pack(whole, Format.NC1HWC0) if whole.shape[1] == channels and _lanes(array.dtype) == width else None


def _as_stored(type_: Type | None, constant: Array | None) -> Type | None:
    """The type of what the kernel sees."""
    if not isinstance(type_, Tensor):
        return type_
    return Tensor(type_.dtype, type_.storage_shape if constant is None else constant.shape)


# -- conversions -------------------------------------------------------------------------------------------------


def _conversion(call: Call, ins: Sequence[Stored], outs: Sequence[Stored]) -> Kernel | None:
    """TransData between a plain tensor and a blocked one; None where it is left to the kernel."""
    source, target = call.in_types[0], call.out_types[0]
    assert isinstance(source, Tensor) and isinstance(target, Tensor)
    if source.dtype is not target.dtype and not (_assigns(source.dtype) and _assigns(target.dtype)):
        return None
    perm = call.attrs.get("perm")
    if outs and not ins:
        fmt = outs[0].format
        return lambda call, x: pack(x if perm is None else x.transpose(perm), fmt, call.outs[0])
    if ins and not outs and perm is None:
        fmt, shape = ins[0].format, ins[0].shape
        return lambda call, x: unpack(x, fmt, shape, call.outs[0])
    return None


def _assigns(dtype: DType) -> bool:
    """Whether a cast between two such types is what an assignment does."""
    return dtype in (DType.FLOAT16, DType.FLOAT32)
