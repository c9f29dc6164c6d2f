"""MODEL_INOUT_INFO: what the runtime tells about inputs and outputs without loading the graph.

The partition is a sequence of {u32 type, u32 length, value}. One float32 input "x" of 1 x 3 is

    type 0, length 53 | 1 tensor
    12 bytes (u64), format 2 (ND), dtype 0, lengths in bytes: name 1, dims 16, dims_v2 0, ranges 0
    "x" | 1, 3
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .errors import OmError, corrupt, invalid
from .stream import BytesLike

_U32: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<II")
_TENSOR: Final = struct.Struct("<QiiIIII")


class InOutEntry(IntEnum):
    """Types of the sequence's entries."""

    INPUT_DESC = 0
    OUTPUT_DESC = 1
    DYNAMIC_BATCH = 2
    DYNAMIC_HW = 3
    DYNAMIC_DIMS = 4
    DYNAMIC_OUTPUT_SHAPE = 5
    DESIGNATE_SHAPE_ORDER = 6


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of the model.

    `size` is in bytes; `format` is a `dtypes.Format`, `dtype` GE's in-memory number (`dtypes.ge_dtype`). A
    dim known only at run time is -1 and has its (least, greatest) in `ranges`, which is empty or has a pair
    for each dim; a greatest of -1 is no bound. `dims_v2` are the dims before static preprocessing (AIPP),
    empty without it.
    """

    name: str
    size: int
    format: int
    dtype: int
    dims: tuple[int, ...]
    dims_v2: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ModelInOut:
    """The partition's content.

    The dynamic fields list gears: batch sizes, (height, width) pairs, or the values of all dynamic dims.
    `dynamic_output_shape` has a text a gear, `designate_shape_order` the input names in the order their
    dims are given. `unknown` keeps entries of later versions as (type, value).
    """

    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    dynamic_batch: tuple[int, ...] = ()
    dynamic_hw: tuple[tuple[int, ...], ...] = ()
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    dynamic_output_shape: tuple[str, ...] = ()
    designate_shape_order: tuple[str, ...] = ()
    unknown: tuple[tuple[int, bytes], ...] = ()


def pack_inout(info: ModelInOut) -> bytes:
    """The partition's bytes, empty lists of gears left out. INVALID when a number does not fit its field."""
    entries: list[tuple[int, bytes]] = []
    try:
        entries.append((InOutEntry.INPUT_DESC, _pack_tensors(info.inputs)))
        entries.append((InOutEntry.OUTPUT_DESC, _pack_tensors(info.outputs)))
        if info.dynamic_batch:
            count = len(info.dynamic_batch)
            entries.append((InOutEntry.DYNAMIC_BATCH, struct.pack(f"<I{count}Q", count, *info.dynamic_batch)))
        if info.dynamic_hw:
            entries.append((InOutEntry.DYNAMIC_HW, _pack_gears(info.dynamic_hw)))
        if info.dynamic_dims:
            entries.append((InOutEntry.DYNAMIC_DIMS, _pack_gears(info.dynamic_dims)))
        if info.dynamic_output_shape:
            entries.append((InOutEntry.DYNAMIC_OUTPUT_SHAPE, _pack_texts(info.dynamic_output_shape)))
        if info.designate_shape_order:
            entries.append((InOutEntry.DESIGNATE_SHAPE_ORDER, _pack_texts(info.designate_shape_order)))
        entries.extend(info.unknown)
        return b"".join(_ENTRY.pack(kind, len(value)) + value for kind, value in entries)
    except struct.error as error:
        raise invalid(f"MODEL_INOUT_INFO: a number does not fit its field ({error})") from None


def _pack_tensors(tensors: Sequence[TensorInfo]) -> bytes:
    parts = [_U32.pack(len(tensors))]
    for tensor in tensors:
        name = tensor.name.encode("utf-8")
        bounds = [bound for pair in tensor.ranges for bound in pair]
        lists = [_pack_i64(tensor.dims), _pack_i64(tensor.dims_v2), _pack_i64(bounds)]
        lengths = [len(name), *(len(item) for item in lists)]
        parts.append(_TENSOR.pack(tensor.size, tensor.format, tensor.dtype, *lengths))
        parts.extend([name, *lists])
    return b"".join(parts)


def _pack_i64(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _pack_gears(gears: Sequence[Sequence[int]]) -> bytes:
    lengths = [len(gear) for gear in gears]
    values = [value for gear in gears for value in gear]
    return struct.pack(f"<I{len(lengths)}I{len(values)}Q", len(gears), *lengths, *values)


def _pack_texts(texts: Sequence[str]) -> bytes:
    encoded = [text.encode("utf-8") for text in texts]
    return struct.pack(f"<I{len(encoded)}I", len(encoded), *(len(text) for text in encoded)) + b"".join(encoded)


class _Cursor:
    """Reads forward through bytes; every step is checked against what is left."""

    def __init__(self, data: memoryview, offset: int) -> None:
        self._data = data
        self._offset = offset
        self._at = 0

    @property
    def place(self) -> int:
        return self._offset + self._at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def fail(self, cause: str) -> OmError:
        return corrupt(f"MODEL_INOUT_INFO: {cause}", self.place)

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise self.fail(f"{size} bytes are announced where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(_U32.size))[0]
        return value

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        # The bytes are taken first, so a forged count fails before anything is allocated for it.
        data = self.take(count * struct.calcsize(f"<{code}"))
        return struct.unpack(f"<{count}{code}", data)

    def i64s(self, size: int) -> tuple[int, ...]:
        if size % 8:
            raise self.fail(f"a list of 64-bit numbers has {size} bytes")
        return self.numbers("q", size // 8)

    def text(self, size: int) -> str:
        place = self.place
        try:
            return bytes(self.take(size)).decode("utf-8")
        except UnicodeDecodeError:
            raise corrupt("MODEL_INOUT_INFO: a name is not UTF-8", place) from None


def parse_inout(data: BytesLike, offset: int = 0) -> ModelInOut:
    """Read a partition that starts at file byte `offset`. Raises CORRUPT."""
    cursor = _Cursor(memoryview(data), offset)
    fields: dict[str, object] = {}
    unknown: list[tuple[int, bytes]] = []
    while cursor.left:
        kind, place = cursor.u32(), cursor.place
        value = cursor.take(cursor.u32())
        if kind not in _PARSERS:
            unknown.append((kind, bytes(value)))
            continue
        name, parser = _PARSERS[kind]
        if name in fields:
            raise corrupt(f"MODEL_INOUT_INFO: {InOutEntry(kind).name} is there twice", place)
        inner = _Cursor(value, cursor.place - len(value))
        fields[name] = parser(inner)
        if inner.left:
            raise inner.fail(f"{inner.left} bytes are left in {InOutEntry(kind).name}")
    return ModelInOut(**fields, unknown=tuple(unknown))  # type: ignore[arg-type]


def _tensors(cursor: _Cursor) -> tuple[TensorInfo, ...]:
    count = cursor.u32()
    tensors: list[TensorInfo] = []
    while len(tensors) < count:
        size, layout, dtype, name, dims, dims_v2, ranges = _TENSOR.unpack(cursor.take(_TENSOR.size))
        if ranges % 16:
            raise cursor.fail(f"shape ranges of {ranges} bytes are not pairs")
        tensors.append(
            TensorInfo(
                name=cursor.text(name),
                size=size,
                format=layout,
                dtype=dtype,
                dims=cursor.i64s(dims),
                dims_v2=cursor.i64s(dims_v2),
                ranges=_pairs(cursor.i64s(ranges)),
            )
        )
    return tuple(tensors)


def _pairs(values: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(values[::2], values[1::2]))


def _batches(cursor: _Cursor) -> tuple[int, ...]:
    return cursor.numbers("Q", cursor.u32())


def _gears(cursor: _Cursor) -> tuple[tuple[int, ...], ...]:
    return tuple([cursor.numbers("Q", length) for length in cursor.numbers("I", cursor.u32())])


def _texts(cursor: _Cursor) -> tuple[str, ...]:
    return tuple([cursor.text(length) for length in cursor.numbers("I", cursor.u32())])


_PARSERS: Final[dict[int, tuple[str, Callable[[_Cursor], object]]]] = {
    InOutEntry.INPUT_DESC: ("inputs", _tensors),
    InOutEntry.OUTPUT_DESC: ("outputs", _tensors),
    InOutEntry.DYNAMIC_BATCH: ("dynamic_batch", _batches),
    InOutEntry.DYNAMIC_HW: ("dynamic_hw", _gears),
    InOutEntry.DYNAMIC_DIMS: ("dynamic_dims", _gears),
    InOutEntry.DYNAMIC_OUTPUT_SHAPE: ("dynamic_output_shape", _texts),
    InOutEntry.DESIGNATE_SHAPE_ORDER: ("designate_shape_order", _texts),
}
