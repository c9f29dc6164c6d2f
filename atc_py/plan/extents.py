"""Which bytes an operand touches: operands under given offsets, sizes and symbol values.

    buffer 4: arena, at 1024          operand: float32[2, 3], delta 8, strides (24, 4)
    extent: area "arena", first element at 1032, runs [1032, 1044), [1056, 1068)

An area is an address space of its own: the arena, one port, the host's slots (one slot = one unit), one dynamic
buffer (one unit, for its size is not known). Extents are what the verifier reasons about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from atc_py.ir.dims import Size, UnboundSymbol, evaluate
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.plan.types import Buffer, Operand, Plan, Space

MAX_RUNS = 1 << 16
"""Operands in more separate pieces than this are refused: nothing could be proved about them in reasonable time."""

Run = tuple[int, int]
"""Bytes from the first to the second address, the second one excluded."""


class Form(NamedTuple):
    """A type under the symbols' values.

    `shape` is that of the stored array and `nbytes` its bytes; both are None while they are not known. What has no
    address (`host`) has no shape, and 0 bytes.
    """

    shape: tuple[int, ...] | None
    itemsize: int
    nbytes: int | None
    host: bool = False


_ON_HOST = Form(None, 0, 0, host=True)
_DYNAMIC, _BY_INDEX = Space.DYNAMIC, frozenset({Space.INPUT, Space.OUTPUT})
_NAMES = {Space.DYNAMIC: "dynamic buffer", Space.HOST: "host slot"}


class Extent:
    """The bytes of one operand.

    `first` is the address of element 0, `runs` are the bytes in rising order, `low` and `high` their bounds. `unit`:
    the area counts slots, not bytes. `late`: the size is known only at run time (no runs). `repeats`: two elements
    share bytes. `strides` are None for a C-ordered array. `scattered`: more than `MAX_RUNS` runs (`runs` has their
    bounds only).
    """

    __slots__ = ("area", "first", "form", "high", "late", "low", "repeats", "runs", "scattered", "strides", "unit")

    def __init__(
        self, area: int, first: int, form: Form, runs: tuple[Run, ...] = (), unit: bool = False, late: bool = False
    ) -> None:
        self.area, self.first, self.form, self.unit, self.late = area, first, form, unit, late
        self.strides: tuple[int, ...] | None = None
        self.repeats = self.scattered = False
        self.runs = runs
        if runs:
            self.low, self.high = runs[0][0], runs[-1][1]
        else:
            self.low = self.high = first

    def overlap(self, other: Extent) -> Run | None:
        """The first bytes that both have, or None."""
        if self.area != other.area or self.low >= other.high or other.low >= self.high:
            return None
        i = j = 0
        while i < len(self.runs) and j < len(other.runs):
            (a, b), (c, d) = self.runs[i], other.runs[j]
            if a < d and c < b:
                return max(a, c), min(b, d)
            if b <= d:
                i += 1
            else:
                j += 1
        return None


class Layout:
    """The areas of a plan and the extents of its operands.

    `offsets` and `sizes` (bytes; -1: not known before run time) have one entry a buffer, `env` the symbols' values.
    `buffers` are those of each space. `area_of` has the area of each buffer; `names` and `spaces` have one entry an
    area; `slots` says which of them count slots, not bytes.
    """

    def __init__(self, plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
        self.plan, self.offsets, self.sizes, self.env = plan, offsets, sizes, env
        self.names: list[str] = []
        self.buffers: dict[Space, list[Buffer]] = {space: [] for space in Space}
        self.spaces: list[Space] = []
        self.slots: list[bool] = []
        self._forms: dict[tuple[object, ...], Form] = {}
        self.area_of = self._areas()

    def _areas(self) -> list[int]:
        """The area of each buffer; fills `buffers`, `names`, `spaces` and `slots`."""
        found: list[int] = []
        numbers: dict[tuple[Space, int], int] = {}
        members = self.buffers
        for b in self.plan.buffers:
            space = b.space
            members[space].append(b)
            key = (space, b.id if space is _DYNAMIC else b.index if space in _BY_INDEX else -1)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(self.names)
                name = _NAMES.get(space, space.value)
                self.names.append(name if key[1] < 0 else f"{name} {key[1]}")
                self.spaces.append(space)
                self.slots.append(space is Space.HOST or space is _DYNAMIC)
            found.append(number)
        return found

    def size(self, size: Size) -> int | None:
        """A size's value, None where it is known only at run time or makes no sense (a division by 0)."""
        if isinstance(size, int):
            return size
        try:
            return evaluate(size, self.env)
        except (UnboundSymbol, ZeroDivisionError):
            return None

    def form(self, type_: Type) -> Form:
        """The type under the symbols' values."""
        if not isinstance(type_, Tensor):
            return _ON_HOST
        key = (type_.shape, type_.dtype, type_.format, type_.storage)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self._form(type_)
        return found

    def _form(self, type_: Tensor) -> Form:
        if on_host(type_):
            return _ON_HOST
        itemsize = type_.dtype.itemsize
        if type_.shape is None:
            return Form(None, itemsize, None)
        try:
            stored = type_.storage_shape
        except ValueError:  # a blocked format of a rank that it does not have
            return Form(None, itemsize, None)
        shape = self._known(stored)
        return Form(shape, itemsize, None if shape is None else prod(shape) * itemsize)

    def _known(self, sizes: Sequence[Size]) -> tuple[int, ...] | None:
        """The sizes' values, None where one is not known."""
        known = [s for s in sizes if type(s) is int]
        if len(known) < len(sizes):
            known = [v for v in map(self.size, sizes) if v is not None]
        return tuple(known) if len(known) == len(sizes) else None

    def nbytes(self, type_: Type) -> int | None:
        """Bytes of the stored array, None while they are not known; 0 for what has no address."""
        return self.form(type_).nbytes

    def extent(self, operand: Operand) -> Extent:
        """The operand's bytes. Its buffer must exist."""
        number, delta = operand.buffer, operand.delta
        area, form = self.area_of[number], self.form(operand.type)
        if self.slots[area] or form.host:
            slot = self.offsets[number] if self.spaces[area] is Space.HOST else 0
            return Extent(area, slot, form, ((slot, slot + 1),), unit=True)
        known_delta = delta if type(delta) is int else self.size(delta)
        if form.shape is None or form.nbytes is None or known_delta is None:
            return Extent(area, self.offsets[number], form, late=True)
        first = self.offsets[number] + known_delta
        if operand.strides is not None:
            strides = self._known(operand.strides)
            if strides is None or len(strides) != len(form.shape):
                return Extent(area, first, form, late=True)
            plain = _c_strides(form.shape, form.itemsize)
            strides = tuple([p if d == 1 else s for s, p, d in zip(strides, plain, form.shape)])
            if strides != plain:
                return _strided(area, first, form, strides)
        return Extent(area, first, form, ((first, first + form.nbytes),) if form.nbytes > 0 else ())

    def where(self, area: int, run: Run) -> str:
        """Bytes as people read them."""
        name = self.names[area]
        if self.spaces[area] is Space.HOST:
            return f"{name} {run[0]}"
        if self.spaces[area] is Space.DYNAMIC:
            return name
        return f"{name} [{run[0]}, {run[1]})"


def _c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def _strided(area: int, first: int, form: Form, strides: tuple[int, ...]) -> Extent:
    """The extent of a strided view: inner dims that touch become one run, outer ones repeat it."""
    axes = [(s, d) for s, d in zip(strides, form.shape or ()) if d != 1]
    empty = [d for _, d in axes if d <= 0]
    runs, repeats, scattered = ((), False, False) if empty else _runs(first, form.itemsize, axes)
    extent = Extent(area, first, form, runs)
    extent.strides, extent.repeats, extent.scattered = strides, repeats, scattered
    return extent


def _runs(first: int, run: int, axes: Sequence[tuple[int, int]]) -> tuple[tuple[Run, ...], bool, bool]:
    """The runs of elements of `run` bytes along axes (stride, number), whether any share bytes, whether there are too
    many: then there is one, from the first byte to the last."""
    steps = sorted([(abs(s), d) for s, d in axes if s])
    repeats = len(steps) < len(axes)
    start = first + sum([s * (d - 1) for s, d in axes if s < 0])
    outer: list[tuple[int, int]] = []
    for stride, d in steps:
        if not outer and stride <= run:
            repeats |= stride < run
            run += stride * (d - 1)
        else:
            outer.append((stride, d))
    if prod([d for _, d in outer]) > MAX_RUNS:
        return ((start, start + run + sum([s * (d - 1) for s, d in outer])),), repeats, True
    starts = [start]
    for stride, d in reversed(outer):
        starts = [s + k * stride for s in starts for k in range(d)]
    runs = [(start, start + run)]
    for s in sorted(starts)[1:]:
        last, end = runs[-1]
        if s <= end:
            repeats |= s < end
            runs[-1] = (last, s + run)
        else:
            runs.append((s, s + run))
    return tuple(runs), repeats, False
