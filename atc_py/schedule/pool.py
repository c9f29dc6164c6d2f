"""Buffers, constants and operands, made from places as tasks ask for them.

operand(value 7, READ)  →  Operand(value 7, buffer 3, float32[1, 64, 56, 56])     buffer 3: arena, 802,816 bytes
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import accumulate

from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.dims import DimOverflow, Size, dmax, evaluate
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor
from atc_py.memory.bind import aligned
from atc_py.plan.types import Access, Buffer, Operand, Port, Space
from atc_py.schedule.jobs import Sizes
from atc_py.schedule.places import Group, Places

WEIGHT_ALIGNMENT = 64
"""Bytes to which constants are aligned in the weights space."""


class Pool:
    """Makes buffers, constants and operands; numbers them in the order in which they are first asked for."""

    def __init__(self, places: Places, symbols: Mapping[str, Range]) -> None:
        self.places, self.symbols = places, symbols
        self.buffers: list[Buffer] = []
        self.constants: list[Constant] = []
        self.bound: set[str] = {s for s, r in symbols.items() if not r.runtime}
        self._constant_ids: dict[Hashable, int] = {}
        self._buffer_of: dict[int, int] = {}
        self._weight_buffers: dict[int, int] = {}
        self._weight_values: dict[int, int] = {}
        self._slots = 0

    def constant(self, constant: Constant) -> int:
        """The number of a constant, equal ones once."""
        number = self._constant_ids.get(constant.key)
        if number is None:
            number = self._constant_ids[constant.key] = len(self.constants)
            self.constants.append(constant)
        return number

    def buffer(self, value: int) -> int:
        """The value's buffer."""
        key = self.places.of[value]
        if key not in self._buffer_of:
            group = self.places.groups[key]
            if group.space is Space.WEIGHTS:
                self._buffer_of[key] = self._weight_buffer(group.values[0])
            else:
                self._buffer_of[key] = self._plain_buffer(group)
        return self._buffer_of[key]

    def has_buffer(self, value: int) -> bool:
        """Whether anything has asked for the value's buffer."""
        return self.places.of[value] in self._buffer_of

    def initial(self) -> tuple[tuple[int, int], ...]:
        """(value, buffer) of each constant that has a buffer."""
        found = [
            (v, self._buffer_of[key])
            for key in sorted(self._buffer_of)
            if (group := self.places.groups[key]).space is Space.WEIGHTS
            for v in group.values[:1]
        ]
        return tuple(found)

    def _weight_buffer(self, value: int) -> int:
        constant = self.places.constants[value]
        number = self.constant(constant)
        if number not in self._weight_buffers:
            self._weight_buffers[number] = self._add(Space.WEIGHTS, constant_nbytes(constant), None, number)
        return self._weight_buffers[number]

    def place_weights(self) -> int:
        """Give the weights their offsets: those that lie in the file first; returns where these end, in bytes."""
        weights = [b for b in self.buffers if b.space is Space.WEIGHTS]
        end = in_file = 0
        for mapped in (True, False):
            for b in weights:
                if is_mapped(self.constants[b.index]) is mapped:
                    assert isinstance(b.nbytes, int)
                    self.buffers[b.id] = replace(b, offset=end)
                    end += -(-b.nbytes // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
            in_file = end if mapped else in_file
        return in_file

    def _plain_buffer(self, group: Group) -> int:
        if group.space is Space.HOST:
            self._slots += 1
            return self._add(Space.HOST, 1, self._slots - 1, -1, group)
        fixed = 0 if group.space in (Space.INPUT, Space.OUTPUT) else None
        return self._add(group.space, group_nbytes(self.places, group), fixed, group.index, group)

    def _add(self, space: Space, nbytes: Size, offset: int | None, index: int, group: Group | None = None) -> int:
        first, last = (group.first, group.last) if group is not None else (-1, -1)
        self.buffers.append(Buffer(len(self.buffers), space, nbytes, offset, index, first, last))
        return len(self.buffers) - 1

    def operand(self, value: int, access: Access) -> Operand:
        """A view of the whole value; a Splat's has stride 0."""
        type_ = self.places.types[value]
        strides = None
        constant = self.places.constants.get(self.places.group(value).values[0])
        if isinstance(constant, Splat) and isinstance(type_, Tensor):
            strides = (0,) * len(type_.dims)
        return Operand(value, access, self.buffer(value), type_, self.places.deltas.get(value, 0), strides)

    def ports(self, values: list[int], names: list[str]) -> tuple[Port, ...]:
        """Ports of the plan for inputs or outputs of the root graph."""
        return tuple(Port(name, self.places.types[v], self.buffer(v), v) for v, name in zip(values, names, strict=True))


def is_mapped(constant: Constant) -> bool:
    """Whether the constant's bytes are used as they lie in the file (below eight bits they are unpacked at bind)."""
    return isinstance(constant, Blob) and constant.dtype.bits >= 8


def constant_nbytes(constant: Constant) -> int:
    """Bytes of a constant in the weights space: a Splat needs one element, sub-byte types one byte an element."""
    if isinstance(constant, Splat):
        return constant.dtype.itemsize
    count = 1
    for d in constant.shape:
        count *= evaluate(d, {})
    return count * constant.dtype.itemsize


def group_nbytes(places: Places, group: Group) -> Size:
    """Bytes of a group's buffer: what its largest value needs; parts lie inside of a value that is there too."""
    types = [t for v in group.values if v not in places.deltas and isinstance(t := places.types[v], Tensor)]
    sizes = list(dict.fromkeys(t.nbytes for t in types if t.shape is not None))
    if not sizes or (group.space is Space.DYNAMIC and len(sizes) > 1):
        return 0
    try:
        return sizes[0] if len(sizes) == 1 else dmax(*sizes)
    except DimOverflow:
        return sizes[0]


def live_peak(places: Places, sizes: Sizes) -> int:
    """The most bytes of the arena that are live at one position, under the symbols' values of `sizes`."""
    change: dict[int, int] = {}
    for group in places.groups:
        if group.space is Space.ARENA:
            nbytes = aligned(sizes.number(group_nbytes(places, group)))
            change[group.first] = change.get(group.first, 0) + nbytes
            change[group.last + 1] = change.get(group.last + 1, 0) - nbytes
    return max(accumulate(change[at] for at in sorted(change)), default=0)
