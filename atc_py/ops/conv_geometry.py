"""Where the elements that a convolution meets lie: planes, families of kernel taps, phases of the output.

The input is copied into *planes*: zero-padded, and split by residues of the stride, so that the elements which one
kernel tap meets lie at a constant distance. For a row of 5 with kernel 3, stride 2 and pad 1 (3 positions):

    padded               0 a b c d e 0
    plane of residue 0   0 b d 0        taps 0 and 2 read it from offsets 0 and 1
    plane of residue 1   a c e          tap 1 reads it from offset 0

Taps of one residue by axis form a *family*: their places in the kernel and their offsets in the plane are arithmetic
progressions, so one strided copy moves them all.

A transposed convolution of stride s is s (by axis) ordinary ones of stride 1, one for each residue of the output
index, a *phase*: y[s·j + r - pad] = Σ over taps t with t·d ≡ r (mod s) of w[t] · x[j - (t·d - r)/s].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from atc_py.ops.window import Window, ints

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """Taps that read plane `plane`: by axis their slice of the phase's tap grid, first offset and offset step."""

    plane: int
    place: tuple[slice, ...]
    size: Ints
    offset: Ints
    step: Ints


@dataclass(frozen=True)
class Phase:
    """Output positions `start + step * j`, j < count (by axis); `grid` is its taps' shape, `taps` their indices."""

    start: Ints
    step: Ints
    count: Ints
    grid: Ints
    taps: tuple[int, ...]
    families: tuple[Family, ...]

    def positions(self, row: int, count: Ints) -> tuple[slice, ...]:
        """The slices of the output for `count` positions from row `row` on."""
        first = (self.start[0] + row * self.step[0], *self.start[1:])
        return tuple(slice(f, f + (c - 1) * s + 1, s) for f, c, s in zip(first, count, self.step))


@dataclass(frozen=True)
class Geometry:
    """Planes (residue by axis; element j of a plane is padded element `j * stride + residue`) and output phases.

    `extent` is the size of a plane that serves all positions, `span` the rows that a block reads beyond its own.
    """

    spatial: Ints
    strides: Ints
    before: Ints
    planes: tuple[Ints, ...]
    phases: tuple[Phase, ...]
    extent: Ints
    span: int

    @property
    def covers(self) -> bool:
        """Whether the phases have taps for every output position (else the rest is bias alone)."""
        return all(p.taps for p in self.phases)

    def fill(self, residue: Ints, axis: int, size: int, row: int = 0) -> tuple[slice, slice]:
        """Slices (of a plane axis of `size` elements that begins at output row `row`, of the input) that correspond."""
        stride, extent = self.strides[axis], self.spatial[axis]
        base = residue[axis] - self.before[axis] + row * stride
        low = min(max(0, -(base // stride)), size)
        high = max(low, min(size, -((base - extent) // stride)))
        source = slice(low * stride + base, (high - 1) * stride + base + 1, stride) if high > low else slice(0, 0)
        return slice(low, high), source


@dataclass(frozen=True)
class _Progression:
    """The taps of one axis that share a residue: first tap, step and count; first offset and offset step."""

    residue: int
    first: int
    step: int
    size: int
    offset: int
    offset_step: int


def _progressions(kernel: int, stride: int, dilation: int) -> list[_Progression]:
    found = []
    by_residue: dict[int, list[int]] = {}
    for t in range(kernel):
        by_residue.setdefault(t * dilation % stride, []).append(t)
    for residue, taps in sorted(by_residue.items()):
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        shift = step * dilation // stride if len(taps) > 1 else 0
        found.append(_Progression(residue, taps[0], step, len(taps), taps[0] * dilation // stride, shift))
    return found


def geometry(w: Window) -> Geometry:
    """The planes and taps of an ordinary convolution; all sizes must be bound."""
    kernel = ints(w.kernel)
    axes = [_progressions(k, s, d) for k, s, d in zip(kernel, w.strides, w.dilations)]
    combined = list(product(*axes))
    families = tuple(
        Family(
            plane,
            tuple(slice(p.first, p.first + (p.size - 1) * p.step + 1, p.step) for p in parts),
            tuple(p.size for p in parts),
            tuple(p.offset for p in parts),
            tuple(p.offset_step for p in parts),
        )
        for plane, parts in enumerate(combined)
    )
    planes = tuple(tuple(p.residue for p in parts) for parts in combined)
    one, zero = (1,) * w.rank, (0,) * w.rank
    phase = Phase(zero, one, ints(w.out), kernel, tuple(range(prod(kernel))), families)
    return _finish(ints(w.spatial), w.strides, ints(w.before), planes, (phase,))


def transposed_geometry(w: Window) -> Geometry:
    """The phases of a transposed convolution (see the module docstring); all sizes must be bound."""
    kernel, out, pads = ints(w.kernel), ints(w.out), ints(w.before)
    axes = [_progressions(k, s, d) for k, s, d in zip(kernel, w.strides, w.dilations)]
    by_residue = [{p.residue: p for p in parts} for parts in axes]
    phases = []
    # Of a stride larger than the output only the residues that have a position.
    residues = [sorted((q + p) % s for q in range(min(o, s))) for o, p, s in zip(out, pads, w.strides)]
    for residue in product(*residues):
        first = tuple(-((r - p) // s) for r, p, s in zip(residue, pads, w.strides))
        start = tuple(j * s + r - p for j, s, r, p in zip(first, w.strides, residue, pads))
        count = tuple(max(0, -((b - o) // s)) for b, o, s in zip(start, out, w.strides))
        if all(count):
            parts = [table.get(r) for table, r in zip(by_residue, residue)]
            phases.append(_output_phase(start, w.strides, count, kernel, first, parts))
    left = tuple(
        max([0, *(-(f.offset[a] + (f.size[a] - 1) * f.step[a]) for p in phases for f in p.families)])
        for a in range(w.rank)
    )
    moved = tuple(_shifted(phase, left) for phase in phases)
    return _finish(ints(w.spatial), (1,) * w.rank, left, ((0,) * w.rank,), moved)


def _output_phase(
    start: Ints, step: Ints, count: Ints, kernel: Ints, first: Ints, parts: Sequence[_Progression | None]
) -> Phase:
    present = [p for p in parts if p is not None]
    if len(present) < len(parts):
        return Phase(start, step, count, (0,) * len(kernel), (), ())
    grid = tuple(p.size for p in present)
    axes = [range(p.first, p.first + p.size * p.step, p.step) for p in present]
    taps = tuple(sum(t * prod(kernel[a + 1 :]) for a, t in enumerate(tap)) for tap in product(*axes))
    offset = tuple(j - p.offset for j, p in zip(first, present))
    family = Family(0, (slice(None),) * len(kernel), grid, offset, tuple(-p.offset_step for p in present))
    return Phase(start, step, count, grid, taps, (family,))


def _shifted(phase: Phase, left: Ints) -> Phase:
    families = tuple(
        Family(f.plane, f.place, f.size, tuple(o + a for o, a in zip(f.offset, left)), f.step) for f in phase.families
    )
    return Phase(phase.start, phase.step, phase.count, phase.grid, phase.taps, families)


def _finish(
    spatial: Ints, strides: Ints, before: Ints, planes: tuple[Ints, ...], phases: tuple[Phase, ...]
) -> Geometry:
    def last(f: Family, axis: int) -> int:
        return max(f.offset[axis], f.offset[axis] + (f.size[axis] - 1) * f.step[axis])

    extent = tuple(
        max([1, *(p.count[a] + last(f, a) for p in phases for f in p.families)]) for a in range(len(strides))
    )
    span = max([0, *(last(f, 0) for p in phases for f in p.families)])
    return Geometry(spatial, strides, before, planes, phases, extent, span)


@dataclass(frozen=True)
class Block:
    """A piece of the work: half-open ranges of groups, samples and rows (first axis of the phase grids)."""

    groups: tuple[int, int]
    samples: tuple[int, int]
    rows: tuple[int, int]


def blocks(groups: int, samples: int, rows: int, span: int, budget: int) -> list[Block]:
    """Cut the work so that groups · samples · (rows + span) of a block stay within `budget`.

    Several whole samples go into one block where they fit; otherwise groups are cut first, then rows.
    """
    if groups * (rows + span) <= budget:
        some = max(1, min(samples, budget // (groups * (rows + span))))
        return [Block((0, groups), (n, min(n + some, samples)), (0, rows)) for n in range(0, samples, some)]
    some = max(1, min(groups, budget // (rows + span)))
    step = rows if rows + span <= budget else max(1, budget - span, min(rows, 2 * span))
    return [
        Block((g, min(g + some, groups)), (n, n + 1), (r, min(r + step, rows)))
        for n in range(samples)
        for g in range(0, groups, some)
        for r in range(0, rows, step)
    ]
