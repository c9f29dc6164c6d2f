"""Which bytes an operand touches: operands under given offsets, sizes and symbol values.

    buffer 4: arena, at 1024          operand: float32[2, 3], delta 8, strides (24, 4)
    extent: area "arena", first element at 1032, runs [1032, 1044), [1056, 1068)

An area is an address space of its own: the arena, one port, the host's slots (one slot = one unit), one dynamic
buffer (one unit, for its size is not known). Extents are what the verifier reasons about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc_py.ir.dims import Size, UnboundSymbol, evaluate
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.plan.types import Operand, Plan, Space

MAX_RUNS = 1 << 16
"""Operands in more separate pieces than this are refused: nothing could be proved about them in reasonable time."""

Run = tuple[int, int]
"""Bytes from the first to the second address, the second one excluded."""


@dataclass(frozen=True)
class Form:
    """A type under the symbols' values. `shape` is that of the stored array, None while it is not known."""

    shape: tuple[int, ...] | None
    itemsize: int
    host: bool


class Extent:
    """The bytes of one operand.

    `first` is the address of element 0, `runs` are the bytes in rising order, `low` and `high` their bounds. `unit`:
    the area counts slots, not bytes. `late`: the size is known only at run time (no runs). `repeats`: two elements
    share bytes. `strides` are None for a C-ordered array. `scattered`: more than `MAX_RUNS` runs (`runs` has their
    bounds only).
    """

    __slots__ = ("area", "first", "form", "high", "late", "low", "repeats", "runs", "scattered", "strides", "unit")

    def __init__(self, area: int, first: int, form: Form, *, unit: bool = False, late: bool = False) -> None:
        self.area, self.first, self.form, self.unit, self.late = area, first, form, unit, late
        self.low = self.high = first
        self.runs: tuple[Run, ...] = ()
        self.strides: tuple[int, ...] | None = None
        self.repeats = self.scattered = False

    def cover(self, runs: tuple[Run, ...]) -> None:
        """Set the bytes."""
        self.runs = runs
        if runs:
            self.low, self.high = runs[0][0], runs[-1][1]

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
    """

    def __init__(self, plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
        self.plan, self.offsets, self.sizes, self.env = plan, offsets, sizes, env
        self.names: list[str] = []
        self.spaces: list[Space] = []
        self._numbers: dict[tuple[Space, int], int] = {}
        self._forms: dict[int, tuple[Type, Form]] = {}
        self.area_of = [self._area(b.space, b.id if b.space is Space.DYNAMIC else b.index) for b in plan.buffers]

    def _area(self, space: Space, index: int) -> int:
        key = (space, index if space in (Space.INPUT, Space.OUTPUT, Space.DYNAMIC) else -1)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.names)
            named = {Space.DYNAMIC: "dynamic buffer", Space.HOST: "host slot", Space.WEIGHTS: "weights"}
            name = named.get(space, space.value)
            self.names.append(name if key[1] < 0 else f"{name} {index}")
            self.spaces.append(space)
        return number

    def size(self, size: Size) -> int | None:
        """A size's value, None where it is known only at run time or makes no sense (a division by 0)."""
        if isinstance(size, int):
            return size
        try:
            return evaluate(size, self.env)
        except (UnboundSymbol, ZeroDivisionError):
            return None

    def form(self, type_: Type) -> Form:
        """The type under the symbols' values. Types that are one object are looked at once."""
        found = self._forms.get(id(type_))
        if found is None:
            found = self._forms[id(type_)] = (type_, self._form(type_))
        return found[1]

    def _form(self, type_: Type) -> Form:
        if not isinstance(type_, Tensor) or on_host(type_):
            return Form(None, 0, True)
        if type_.shape is None:
            return Form(None, type_.dtype.itemsize, False)
        try:
            shape = tuple([self.size(d) for d in type_.storage_shape])
        except ValueError:  # a blocked format of a rank that it does not have
            return Form(None, type_.dtype.itemsize, False)
        known = tuple([d for d in shape if d is not None])
        return Form(known if len(known) == len(shape) else None, type_.dtype.itemsize, False)

    def nbytes(self, type_: Type) -> int | None:
        """Bytes of the stored array, None while they are not known; 0 for what has no address."""
        form = self.form(type_)
        if form.shape is None:
            return 0 if form.host else None
        nbytes = form.itemsize
        for d in form.shape:
            nbytes *= d
        return nbytes

    def extent(self, operand: Operand) -> Extent:
        """The operand's bytes. Its buffer must exist."""
        number = operand.buffer
        area, form = self.area_of[number], self.form(operand.type)
        space = self.spaces[area]
        if space is Space.HOST or space is Space.DYNAMIC or form.host:
            slot = self.offsets[number] if space is Space.HOST else 0
            extent = Extent(area, slot, form, unit=True)
            extent.cover(((slot, slot + 1),))
            return extent
        delta = self.size(operand.delta)
        if form.shape is None or delta is None:
            return Extent(area, self.offsets[number], form, late=True)
        extent = Extent(area, self.offsets[number] + delta, form)
        if operand.strides is None:
            nbytes = form.itemsize
            for d in form.shape:
                nbytes *= d
            if nbytes > 0:
                extent.cover(((extent.first, extent.first + nbytes),))
            return extent
        strides = [self.size(s) for s in operand.strides]
        known = tuple([s for s in strides if s is not None])
        if len(known) != len(form.shape):
            extent.late = True
            return extent
        plain = _c_strides(form)
        known = tuple([p if d == 1 else s for s, p, d in zip(known, plain, form.shape)])
        extent.strides = None if known == plain else known
        _cover(extent, form, known)
        return extent

    def where(self, area: int, run: Run) -> str:
        """Bytes as people read them."""
        name = self.names[area]
        if self.spaces[area] is Space.HOST:
            return f"{name} {run[0]}"
        if self.spaces[area] is Space.DYNAMIC:
            return name
        return f"{name} [{run[0]}, {run[1]})"


def _c_strides(form: Form) -> tuple[int, ...]:
    strides: list[int] = []
    step = form.itemsize
    for d in reversed(form.shape or ()):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def _cover(extent: Extent, form: Form, strides: tuple[int, ...]) -> None:
    """Set the runs of a strided view: inner dims that touch become one run, outer ones repeat it."""
    shape = form.shape or ()
    if any(d <= 0 for d in shape):
        return
    start = extent.first
    axes: list[Run] = []
    for d, stride in zip(shape, strides, strict=True):
        if d > 1:
            start += stride * (d - 1) if stride < 0 else 0
            extent.repeats |= stride == 0
            axes.append((abs(stride), d))
    run, count = form.itemsize, 1
    outer: list[tuple[int, int]] = []
    for stride, d in sorted(a for a in axes if a[0]):
        if not outer and stride <= run:
            extent.repeats |= stride < run
            run += stride * (d - 1)
        else:
            outer.append((stride, d))
            count *= d
    if count > MAX_RUNS:
        extent.scattered = True
        extent.cover(((start, start + run + sum(s * (d - 1) for s, d in outer)),))
        return
    starts = [start]
    for stride, d in reversed(outer):
        starts = [s + k * stride for s in starts for k in range(d)]
    extent.cover(_merged(extent, sorted(starts), run))


def _merged(extent: Extent, starts: list[int], run: int) -> tuple[Run, ...]:
    runs: list[Run] = []
    for s in starts:
        if runs and s <= runs[-1][1]:
            extent.repeats |= s < runs[-1][1]
            runs[-1] = (runs[-1][0], s + run)
        else:
            runs.append((s, s + run))
    return tuple(runs)
