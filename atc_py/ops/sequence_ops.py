"""Sequences and optionals: Python lists, and None for an empty optional, in slots of the host.

    SplitToSequence(x: [5, 2], split=2)        ->  [[2, 2], [2, 2], [1, 2]]
    ConcatFromSequence(that, axis=0)           ->  [5, 2]

A sequence's type has one element type for all of its tensors: dims in which they differ are symbols.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from atc_py.ir.dims import Size
from atc_py.ir.types import DType, Optional, Sequence, Tensor, Type
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Infer, InferError, Result, declare
from atc_py.ops.control import union
from atc_py.ops.shapes import axis, concrete

HOST = Engine.HOST


def _sequence(n: Infer, i: int) -> Sequence:
    t = n.types[i] if i < len(n.types) else None
    if not isinstance(t, Sequence):
        raise InferError(f"input {i} must be a sequence, but is {'absent' if t is None else type(t).__name__}")
    return t


def _element(n: Infer, i: int) -> Tensor:
    """The type of the tensors of sequence `i`."""
    t = _sequence(n, i).element
    if not isinstance(t, Tensor):
        raise InferError(f"input {i} must be a sequence of tensors, but is one of {type(t).__name__}")
    return t


def place(position: Any, length: int, op: str, last: int) -> int:
    """A position counted from the front; raises `InferError` outside [-length, last]."""
    at = int(np.asarray(position).reshape(-1)[0])
    if not -length <= at <= last:
        raise InferError(f"{op}: position {at} is outside [{-length}, {last}]")
    return at + length if at < 0 else at


construct = declare("SequenceConstruct", inputs="inputs*", outputs="output_sequence", engine=HOST)


@construct.infer
def _(n: Infer) -> Result:
    if not n.types:
        raise InferError("SequenceConstruct needs at least one input")
    element: Type = n.tensor(0)
    for i in range(1, len(n.types)):
        element = union(element, n.tensor(i), n.fresh, "element")
    return Sequence(element)


@construct.kernel
def _(call: Call, *values: Any) -> list[Any]:
    return list(values)


empty = declare(
    "SequenceEmpty", inputs="", outputs="output", attrs={"dtype": Attr("dtype", DType.FLOAT32)}, engine=HOST
)


@empty.infer
def _(n: Infer) -> Result:
    return Sequence(Tensor(n.attrs["dtype"] or DType.FLOAT32, None))


@empty.kernel
def _(call: Call) -> list[Any]:
    return []


insert = declare(
    "SequenceInsert",
    inputs="input_sequence tensor position?",
    outputs="output_sequence",
    engine=HOST,
    host_inputs=(2,),
)


@insert.infer
def _(n: Infer) -> Result:
    return Sequence(union(_element(n, 0), n.tensor(1), n.fresh, "element"))


@insert.kernel
def _(call: Call, sequence: list[Any], tensor: Any, position: Array | None = None) -> list[Any]:
    length = len(sequence)
    at = length if position is None else place(position, length, "SequenceInsert", length)
    return [*sequence[:at], tensor, *sequence[at:]]


erase = declare(
    "SequenceErase",
    inputs="input_sequence position?",
    outputs="output_sequence",
    engine=HOST,
    host_inputs=(1,),
)


@erase.infer
def _(n: Infer) -> Result:
    return _sequence(n, 0)


@erase.kernel
def _(call: Call, sequence: list[Any], position: Array | None = None) -> list[Any]:
    at = place(-1 if position is None else position, len(sequence), "SequenceErase", len(sequence) - 1)
    return [*sequence[:at], *sequence[at + 1 :]]


at_op = declare("SequenceAt", inputs="input_sequence position", outputs="tensor", engine=HOST, host_inputs=(1,))


@at_op.infer
def _(n: Infer) -> Result:
    return _own_dims(n, _element(n, 0))


def _own_dims(n: Infer, t: Tensor) -> Tensor:
    """One tensor of a sequence has sizes of its own where the sequence's are not the same for all."""
    if t.shape is None:
        return t
    return t.with_shape(tuple(d if type(d) is int else n.fresh(f"dim{i}") for i, d in enumerate(t.shape)))


@at_op.kernel
def _(call: Call, sequence: list[Any], position: Array) -> Any:
    return sequence[place(position, len(sequence), "SequenceAt", len(sequence) - 1)]


length_op = declare("SequenceLength", inputs="input_sequence", outputs="length", engine=HOST)


@length_op.infer
def _(n: Infer) -> Result:
    _sequence(n, 0)
    return Tensor(DType.INT64, ())


@length_op.kernel
def _(call: Call, sequence: list[Any]) -> Array:
    return np.array(len(sequence), np.int64)


concat_from = declare(
    "ConcatFromSequence",
    inputs="input_sequence",
    outputs="concat_result",
    attrs={"axis": Attr("int"), "new_axis": Attr("int", 0)},
    engine=HOST,
)


@concat_from.infer
def _(n: Infer) -> Result:
    t = _element(n, 0)
    if t.shape is None:
        return t
    new = bool(n.attrs["new_axis"])
    at = axis(n.attrs["axis"], len(t.shape) + new)
    joined = n.fresh(f"dim{at}")
    dims = _own_dims(n, t).dims if not new else t.shape
    return t.with_shape((*dims[:at], joined, *dims[at + (not new) :]))


@concat_from.kernel
def _(call: Call, sequence: list[Any]) -> Array:
    if not sequence:
        raise InferError("ConcatFromSequence: the sequence is empty")
    if call.attrs["new_axis"]:
        return np.stack(sequence, axis=call.attrs["axis"])
    return np.concatenate(sequence, axis=call.attrs["axis"])


split_to = declare(
    "SplitToSequence",
    inputs="input split?",
    outputs="output_sequence",
    attrs={"axis": Attr("int", 0), "keepdims": Attr("int", 1)},
    engine=HOST,
    host_inputs=(1,),
)


@split_to.infer
def _(n: Infer) -> Result:
    data = n.tensor(0)
    if data.shape is None:
        return Sequence(data)
    at = axis(n.attrs["axis"], len(data.shape))
    if not n.has(1):
        kept: tuple[Size, ...] = (1,) if n.attrs["keepdims"] else ()
        return Sequence(data.with_shape((*data.shape[:at], *kept, *data.shape[at + 1 :])))
    sizes, d = concrete(n, 1), data.shape[at]
    if sizes and len(set(sizes)) == 1 and (n.shape(1) != () or (type(d) is int and d % sizes[0] == 0)):
        part: Size = sizes[0]
    else:
        part = n.fresh(f"dim{at}")
    return Sequence(data.with_shape((*data.shape[:at], part, *data.shape[at + 1 :])))


@split_to.kernel
def _(call: Call, x: Array, split: Array | None = None) -> list[Any]:
    at = axis(call.attrs["axis"], x.ndim)
    d = x.shape[at]
    if split is None:
        parts = [x[(slice(None),) * at + (slice(i, i + 1),)] for i in range(d)]
        return [p if call.attrs["keepdims"] else np.squeeze(p, axis=at) for p in parts]
    if split.ndim == 0:
        step = int(split)
        if step < 1:
            raise InferError(f"SplitToSequence: split is {step}, expected a positive size")
        bounds = [*range(0, d, step), d]
    else:
        bounds = [0, *np.cumsum(split).tolist()]
        if bounds[-1] != d:
            raise InferError(f"SplitToSequence: sizes {split.tolist()} do not add up to {d}")
    return [x[(slice(None),) * at + (slice(a, b),)] for a, b in pairwise(bounds)]


optional = declare("Optional", inputs="input?", outputs="output", attrs={"type": Attr("type", None)}, engine=HOST)


@optional.infer
def _(n: Infer) -> Result:
    t = n.types[0] if n.has(0) else n.attrs["type"]
    if t is None:
        raise InferError("Optional has neither an input nor the attribute 'type'")
    return Optional(t.element if isinstance(t, Optional) and not n.has(0) else t)


@optional.kernel
def _(call: Call, value: Any = None) -> Any:
    return value


get_element = declare("OptionalGetElement", inputs="input", outputs="output", engine=HOST)


@get_element.infer
def _(n: Infer) -> Result:
    t = n.types[0]
    return t.element if isinstance(t, Optional) else t


@get_element.kernel
def _(call: Call, value: Any) -> Any:
    if value is None:
        raise InferError("OptionalGetElement: the optional is empty")
    return value


has_element = declare("OptionalHasElement", inputs="input?", outputs="output", engine=HOST)


@has_element.infer
def _(n: Infer) -> Result:
    return Tensor(DType.BOOL, ())


@has_element.value
def _(n: Infer) -> Array | None:
    if n.has(0) and isinstance(n.types[0], Optional):
        return None
    return np.array(n.has(0))


@has_element.kernel
def _(call: Call, value: Any = None) -> Array:
    return np.array(value is not None)


for _op in (at_op, length_op, concat_from, get_element, has_element):  # the host moves bytes, and computes nothing
    _op.cost(lambda n: Cost())
