"""Buffers, constants and operands, made from places as tasks ask for them.

operand(value 7, READ)  →  Operand(value 7, buffer 3, float32[1, 64, 56, 56])     buffer 3: arena, 802,816 bytes
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from math import prod

from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.dims import DimOverflow, Size, dmax, evaluate
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor
from atc_py.memory.bind import aligned
from atc_py.plan.types import NO_VALUE, Access, Buffer, Operand, Port, Space
from atc_py.schedule.jobs import Sizes
from atc_py.schedule.places import Group, Places

WEIGHT_ALIGNMENT = 64
"""Bytes to which constants are aligned in the weights space."""


class Pool:
    """Makes buffers, constants and operands; numbers them in the order in which they are first asked for.

    `bound` are the symbols that have values by now; `late`: there are some that only the run time knows.
    """

    def __init__(self, places: Places, symbols: Mapping[str, Range]) -> None:
        self.places, self.symbols = places, symbols
        self.buffers: list[Buffer] = []
        self.constants: list[Constant] = []
        self.bound: set[str] = {s for s, r in symbols.items() if not r.runtime}
        self.late = len(self.bound) < len(symbols)
        self._constant_ids: dict[Hashable, int] = {}
        self._buffer_of = [-1] * len(places.groups)
        self._weight_buffers: dict[int, int] = {}
        self._splats: set[int] = set()  # groups
        self._slots = 0

    def constant(self, constant: Constant) -> int:
        """The number of a constant, equal ones once."""
        number = self._constant_ids.setdefault(constant.key, len(self.constants))
        if number == len(self.constants):
            self.constants.append(constant)
        return number

    def buffer(self, value: int) -> int:
        """The value's buffer."""
        key = self.places.of[value]
        number = self._buffer_of[key]
        return number if number >= 0 else self._made(key)

    def _made(self, key: int) -> int:
        """The new buffer of a group; constants that are equal have one."""
        group = self.places.groups[key]
        made = self._weight_buffer(key, group) if group.space is Space.WEIGHTS else self._plain_buffer(group)
        self._buffer_of[key] = made
        return made

    def has_buffer(self, value: int) -> bool:
        """Whether anything has asked for the value's buffer."""
        return self._buffer_of[self.places.of[value]] >= 0

    def initial(self) -> tuple[tuple[int, int], ...]:
        """(value, buffer) of each constant that has a buffer."""
        groups = zip(self.places.groups, self._buffer_of, strict=True)
        return tuple([(g.values[0], b) for g, b in groups if b >= 0 and g.space is Space.WEIGHTS])

    def _weight_buffer(self, key: int, group: Group) -> int:
        constant = self.places.constants[group.values[0]]
        if isinstance(constant, Splat):
            self._splats.add(key)
        number = self.constant(constant)
        found = self._weight_buffers.get(number)
        if found is None:
            found = self._weight_buffers[number] = len(self.buffers)
            self.buffers.append(Buffer(found, Space.WEIGHTS, constant_nbytes(constant), None, number))
        return found

    def place_weights(self) -> int:
        """Give the weights their offsets: those that lie in the file first; returns where these end, in bytes."""
        mapped: list[Buffer] = []
        derived: list[Buffer] = []
        for number in self._weight_buffers.values():
            b = self.buffers[number]
            (mapped if is_mapped(self.constants[b.index]) else derived).append(b)
        in_file = lay_down(mapped, 0)
        lay_down(derived, in_file)
        return in_file

    def _plain_buffer(self, group: Group) -> int:
        if group.space is Space.HOST:
            self._slots += 1
            return self._add(group, 1, self._slots - 1, -1)
        fixed = 0 if group.space in (Space.INPUT, Space.OUTPUT) else None
        return self._add(group, group_nbytes(self.places, group), fixed, group.index)

    def _add(self, group: Group, nbytes: Size, offset: int | None, index: int) -> int:
        number = len(self.buffers)
        self.buffers.append(Buffer(number, group.space, nbytes, offset, index, group.first, group.last))
        return number

    def operand(self, value: int, access: Access) -> Operand:
        """A view of the whole value; a Splat's has stride 0."""
        places = self.places
        key, type_, strides = places.of[value], places.types[value], None
        buffer = self._buffer_of[key]
        if buffer < 0:
            buffer = self._made(key)
        if key in self._splats and isinstance(type_, Tensor):
            strides = (0,) * len(type_.dims)
        return Operand(value, access, buffer, type_, places.deltas.get(value, 0), strides)

    def workspace(self, start: int) -> Operand | None:
        """The workspace of the task at a position, in a buffer of its own that is kept while it runs; None without."""
        found = self.places.workspaces.get(start)
        if found is None:
            return None
        space, type_ = found
        nbytes = 0 if type_.shape is None else type_.nbytes
        number = self._add(Group(space, [], -1, start, start), nbytes, None, -1)
        return Operand(NO_VALUE, Access.WRITE, number, type_)

    def ports(self, values: list[int], names: list[str]) -> tuple[Port, ...]:
        """Ports of the plan for inputs or outputs of the root graph."""
        return tuple(Port(name, self.places.types[v], self.buffer(v), v) for v, name in zip(values, names, strict=True))


def lay_down(weights: Sequence[Buffer], start: int) -> int:
    """Give buffers their offsets, one after the other from `start` on; returns where they end."""
    for b in weights:
        assert isinstance(b.nbytes, int)
        b.offset = start
        start += -(-b.nbytes // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return start


def is_mapped(constant: Constant) -> bool:
    """Whether the constant's bytes are used as they lie in the file (below eight bits they are unpacked at bind)."""
    return isinstance(constant, Blob) and constant.dtype.bits >= 8


def constant_nbytes(constant: Constant) -> int:
    """Bytes of a constant in the weights space: a Splat needs one element, sub-byte types one byte an element."""
    if is_mapped(constant):
        return constant.nbytes
    if isinstance(constant, Splat):
        return constant.dtype.itemsize
    shape = constant.shape if isinstance(constant, Blob) else [evaluate(d, {}) for d in constant.shape]
    return prod(shape) * constant.dtype.itemsize


def group_nbytes(places: Places, group: Group) -> Size:
    """Bytes of a group's buffer: what its largest value needs; parts lie inside of a value that is there too."""
    sizes: list[Size] = []
    for value in group.values:
        t = places.types[value]
        if isinstance(t, Tensor) and t.shape is not None and value not in places.deltas and t.nbytes not in sizes:
            sizes.append(t.nbytes)
    if not sizes or (group.space is Space.DYNAMIC and len(sizes) > 1):
        return 0
    try:
        return sizes[0] if len(sizes) == 1 else dmax(*sizes)
    except DimOverflow:
        return sizes[0]


def live_peak(places: Places, sizes: Sizes) -> int:
    """The most bytes of the arena that are live at one position, under the symbols' values of `sizes`."""
    change: dict[int, int] = {}
    spans = [(g.first, g.last, group_nbytes(places, g)) for g in places.groups if g.space is Space.ARENA]
    spans += [(at, at, t.nbytes) for at, (space, t) in places.workspaces.items() if space is Space.ARENA]
    for first, last, size in spans:
        nbytes = aligned(sizes.number(size))
        change[first] = change.get(first, 0) + nbytes
        change[last + 1] = change.get(last + 1, 0) - nbytes
    return max(accumulate(change[at] for at in sorted(change)), default=0)
