"""A body as a tile program: the steps of its operators, the regions that one tile needs, and where inner values lie.

    body:  Data x, Data w ─ MatMul ─ m ─ Softmax ─ y            x [512, 64], w [64, 256], tile [128, 0]

    tile 1 of 4       y[128:256, :]  ←  m[128:256, :]  ←  x[128:256, :], w[:, :]
    inner values      m 128 KiB at 0 of UB, y 128 KiB at 128 KiB of UB

Every value that an operator of the body makes is an inner value, also what leaves the task: a tile of it is made in the
buffer and copied out. The tile's lengths are those of the first output; a length of 0 is the whole dim. Other outputs
have as many tiles along each dim: of the same lengths where the dims are equal, else of as equal ones as can be. At the
end of a dim tiles are clipped.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph
from atc_py.ops.base import Array, Op
from atc_py.ops.build import known_value, lookup
from atc_py.ops.tiles import Dims, Need, Region, Untileable, Wanted, elements, hull, needed, whole

ALIGN = 32
"""Bytes that inner values are aligned to: one block of the unified buffer."""
BUFFERS = ("UB", "L1", "L0C")


@dataclass(slots=True)
class Step:
    """One operator of a body, with its attributes' defaults filled in; inputs and outputs are value ids."""

    op: Op
    attrs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Program:
    """A body's steps in order, the values that they make (`made`), and the last step that reads each value.

    `constants` are the values of the body's own constants as far as they are known without symbols.
    """

    steps: list[Step]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    made: tuple[int, ...]
    last: dict[int, int]
    constants: dict[int, Array] = field(default_factory=dict)


def program(body: Graph) -> Program:
    """The program of a body. Raises `AtcError` for an operator that is not known."""
    steps: list[Step] = []
    last: dict[int, int] = {}
    made: list[int] = []
    constants: dict[int, Array] = {}
    for node in body.order():
        if node.op in STRUCTURAL:
            if node.const is not None and (value := known_value(node.const)) is not None and value.dtype != object:
                constants[node.outputs[0]] = value
            continue
        op = lookup(node.op, node.attrs)
        for v in node.inputs:
            last[v] = len(steps)
        for v in node.outputs:
            last[v] = len(steps)
        made += node.outputs
        steps.append(Step(op, op.attributes(node.attrs), tuple(node.inputs), tuple(node.outputs)))
    last.pop(ABSENT, None)
    return Program(steps, tuple(body.inputs), tuple(body.outputs), tuple(made), last, constants)


@dataclass(slots=True)
class Trace:
    """What one tile needs: by step what its rule answered (None: the step has nothing to do), by value its region."""

    needs: list[Need | None]
    regions: dict[int, Region]


class Tracer:
    """Walks a program backwards from the wanted regions of its outputs, at one choice of sizes, all plain ints.

    With `anywhere`, what is needed is enough for tiles of these lengths wherever they lie.
    """

    def __init__(
        self,
        p: Program,
        shapes: Mapping[int, Dims],
        itemsizes: Mapping[int, int],
        values: Mapping[int, Array],
        anywhere: bool = False,
    ) -> None:
        self.anywhere = anywhere
        self.steps = [
            (
                step,
                tuple([shapes.get(v) for v in step.inputs]),
                tuple([values.get(v) for v in step.inputs]),
                tuple([shapes[v] for v in step.outputs]),
                tuple([itemsizes.get(v, 0) for v in step.inputs]),
            )
            for step in reversed(p.steps)
        ]

    def trace(self, wanted: Mapping[int, Region]) -> Trace:
        """What one tile needs. Raises `Untileable`."""
        want: dict[int, Region] = dict(wanted)
        needs: list[Need | None] = []
        for step, shapes, values, made, itemsizes in self.steps:
            outs = tuple([want.get(v) for v in step.outputs])
            if not any(map(elements, outs)):
                needs.append(None)
                continue
            need = needed(step.op, Wanted(shapes, step.attrs, values, outs, made, itemsizes, self.anywhere))
            needs.append(need)
            for v, region in zip(step.outputs, outs if need.outputs is None else need.outputs):
                if region is not None:
                    want[v] = region
            for v, region in zip(step.inputs, need.inputs):
                if region is not None:
                    known = want.get(v)
                    want[v] = region if known is None else hull(known, region)
        return Trace(needs[::-1], want)


# -- tiles ---------------------------------------------------------------------------------------------------------


def counts(shape: Dims, tile: Sequence[int]) -> Dims:
    """How many tiles there are along each dim of the first output."""
    return tuple([1 if t == 0 else max(1, -(-d // t)) for d, t in zip(shape, tile, strict=True)])


def tile_lengths(shape: Dims, first: Dims, tile: Sequence[int], number: Dims) -> Dims:
    """The lengths of an output's tiles: those of the first output where the dims are equal, else of equal parts."""
    return tuple(
        [
            d if n == 1 or d == 1 else t if d == f else -(-d // n)
            for d, f, t, n in zip(shape, first, tile, number, strict=True)
        ]
    )


def part(shape: Dims, lengths: Dims, index: Dims) -> Region | None:
    """The region of one tile of an output; None where it lies behind the output's end."""
    region = []
    for d, n, i in zip(shape, lengths, index, strict=True):
        start = 0 if d == 1 else i * n
        if start >= d > 0:
            return None
        region.append((start, min(n, d - start)))
    return tuple(region)


@dataclass(slots=True)
class Grid:
    """How the outputs are cut: the number of tiles along each dim, and each output's shape and tile lengths."""

    number: Dims
    outputs: list[tuple[int, Dims, Dims]]

    def indices(self) -> Iterator[Dims]:
        """The indices of all tiles, the last dim first; one at a time, for there may be millions."""
        if not all(self.number):
            return
        index = [0] * len(self.number)
        while True:
            yield tuple(index)
            k = len(index) - 1
            while k >= 0 and index[k] + 1 == self.number[k]:
                index[k] = 0
                k -= 1
            if k < 0:
                return
            index[k] += 1

    def wanted(self, index: Dims) -> dict[int, Region]:
        """The regions of the outputs that one tile is to make."""
        found: dict[int, Region] = {}
        for v, shape, lengths in self.outputs:
            region = whole(shape) if shape == lengths else part(shape, lengths, index)
            if region is not None:
                found[v] = hull(found[v], region) if v in found else region
        return found


def grid(p: Program, shapes: Mapping[int, Dims], tile: Sequence[int]) -> Grid:
    """The cut that a tile means for outputs of the given shapes. Raises `Untileable` where their ranks differ.

    A task in one tile may have outputs of any ranks.
    """
    first = shapes[p.outputs[0]]
    if len(tile) != len(first):
        raise Untileable(f"a tile of {len(tile)} dims for a result of {len(first)}")
    number = counts(first, tile)
    outputs = []
    for v in p.outputs:
        shape = shapes[v]
        if all(n == 1 for n in number):
            outputs.append((v, shape, shape))
            continue
        if len(shape) != len(first):
            raise Untileable(f"its results have {len(first)} and {len(shape)} dims and cannot be cut alike")
        lengths = tile_lengths(shape, first, tile, number)
        for d, n, count in zip(shape, lengths, number):
            if d != 1 and count != 1 and d and -(-d // n) != count:
                raise Untileable(f"a result of {d} cannot be cut into {count} equal tiles")
        outputs.append((v, shape, lengths))
    return Grid(number if not all(n == 1 for n in number) else (1,) * len(first), outputs)


# -- places --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Held:
    """Bytes of a buffer that are held from one step to another, both included."""

    nbytes: int
    first: int
    last: int


def pack(held: Sequence[Held]) -> tuple[list[int], int]:
    """Offsets of values that share a buffer where their lives do not meet, first fit in the order given; its bytes."""
    placed: list[tuple[int, int, Held]] = []
    offsets: list[int] = []
    top = 0
    for h in held:
        size = -(-h.nbytes // ALIGN) * ALIGN
        at = 0
        for start, end, other in placed:  # sorted by start
            if other.last < h.first or h.last < other.first:
                continue
            if at + size <= start:
                break
            at = max(at, end)
        offsets.append(at)
        if size:
            insort(placed, (at, at + size, h), key=_start)
        top = max(top, at + size)
    return offsets, top


def _start(entry: tuple[int, int, Held]) -> int:
    return entry[0]


def lives(p: Program) -> dict[int, tuple[int, int]]:
    """For each value that a step makes: the first and the last step at which it is held."""
    found: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(p.steps):
        for v in step.outputs:
            found[v] = (i, p.last[v])
    return found


def layout(p: Program, inner: Sequence[int], places: Sequence[str]) -> tuple[list[int], dict[str, int]]:
    """Where the inner values lie: by value its offset in its buffer, and the bytes of each buffer.

    `inner` and `places` have the bytes and the buffer of each value of `p.made`. The largest are placed first, for a
    small one below them would leave a gap; whoever places more beside them places it behind, so that these stay.
    """
    life = lives(p)
    offsets = [0] * len(p.made)
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(places):
        chosen = sorted([k for k, place in enumerate(places) if place == name], key=lambda k: -inner[k])
        found, sizes[name] = pack([Held(inner[k], *life[p.made[k]]) for k in chosen])
        for k, offset in zip(chosen, found):
            offsets[k] = offset
    return offsets, sizes


def nbytes(region: Region, itemsize: int) -> int:
    """The bytes of a region's elements."""
    return itemsize * elements(region)


def plain(dims: Sequence[Size]) -> Dims:
    """Sizes that are known to be plain ints."""
    assert all(type(d) is int for d in dims)
    return tuple(dims)  # type: ignore[arg-type]
