"""What a tile of a body takes of the core's buffers, and what is said of a body that has no tile.

    Add(x, y) ─ Relu, tile [8, 64] of float32      UB: x and y 2 KiB each, the sum 2 KiB, the result at x's place: 6 KiB

Vector operators read and write the unified buffer (UB); what the cube reads lies in L1: an inner value in whole, an
operand of the task in pieces that stream past; sums lie in L0C. Values share bytes where their lives do not meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.ir.dims import evaluate
from atc_py.ir.graph import Graph
from atc_py.ir.types import Tensor, on_host
from atc_py.ops.tile_program import BUFFERS, Grid, Held, Program, Trace, Tracer, nbytes, pack
from atc_py.ops.tiles import Dims, Untileable

SHARE = 0.7
"""The part of each buffer that a tile may take."""
STREAM = 32 << 10
"""Bytes of L1 that an operand takes which the cube reads piece by piece: two pieces of 16 KiB."""


@dataclass(frozen=True)
class Fit:
    """A tile and what it takes.

    `tile` has a length for each dim of the first output (0: all of it); `inner` the bytes of each value that the body's
    operators make, in body order, and `places` the buffer of each; `buffers` the bytes used of "UB", "L1", "L0C", the
    tiles of operands included.
    """

    tile: tuple[int, ...]
    inner: tuple[int, ...]
    buffers: Mapping[str, int]
    places: tuple[str, ...] = ()

    def attrs(self) -> dict[str, Any]:
        """The attributes of the `Fused` node."""
        used = tuple(self.buffers.get(name, 0) for name in BUFFERS)
        return {"tile": self.tile, "inner": self.inner, "inner_in": self.places, "buffers": used}


@dataclass(frozen=True)
class Misfit:
    """Why a body has no tile: `constraint` is its short name, `reason` says it with numbers."""

    constraint: str
    reason: str


def show_bytes(n: int) -> str:
    """A number of bytes as people read it: 300 bytes, 64.0 KiB, 1.4 MiB."""
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"


@dataclass(slots=True)
class Use:
    """What one tile takes: bytes of each value made, its buffer, and of the buffers."""

    inner: tuple[int, ...]
    places: tuple[str, ...]
    buffers: dict[str, int]
    trace: Trace = field(repr=False)


@dataclass
class Sizes:
    """The body's shapes under one choice of its symbols."""

    shapes: dict[int, Dims]
    tracer: Tracer


class Meter:
    """Says what a tile of a body takes."""

    def __init__(self, body: Graph, p: Program) -> None:
        self.body, self.p = body, p
        self.itemsizes: dict[int, int] = {}
        for v, value in body.values.items():
            t = value.type
            if not isinstance(t, Tensor) or t.shape is None or on_host(t):
                raise Untileable(f"value '{value.name}' has no known shape on the device")
            self.itemsizes[v] = t.dtype.itemsize
        self.number = {v: k for k, v in enumerate(p.made)}

    def sizes(self, env: Mapping[str, int]) -> Sizes:
        """The shapes under `env`."""
        shapes: dict[int, Dims] = {}
        for v, value in self.body.values.items():
            dims = value.type.shape  # type: ignore[union-attr]
            shapes[v] = tuple([d if type(d) is int else evaluate(d, env) for d in dims])  # type: ignore[union-attr]
        return Sizes(shapes, Tracer(self.p, shapes, self.itemsizes, self.p.constants, anywhere=True))

    def use(self, sizes: Sizes, g: Grid, index: Dims) -> Use:
        """What the tile at `index` takes. Raises `Untileable`."""
        shapes, widths = sizes.shapes, self.itemsizes
        t = sizes.tracer.trace(g.wanted(index))
        places = self._places(t)
        regions = t.regions
        for v, region in regions.items():  # with `anywhere` regions reach over the borders
            shape = shapes[v]
            for (_, n), d in zip(region, shape):
                if n > d:
                    regions[v] = tuple([(s, min(n, d)) for (s, n), d in zip(region, shape)])
                    break
        inner = tuple([nbytes(regions[v], widths[v]) if v in regions else 0 for v in self.p.made])
        return Use(inner, places, self._buffers(t, inner, places), t)

    def _places(self, t: Trace) -> tuple[str, ...]:
        """L1 for what only the cube reads, UB for everything else."""
        cube: dict[int, bool] = dict.fromkeys(self.p.outputs, False)
        for step, need in zip(self.p.steps, t.needs):
            for i, v in enumerate(step.inputs):
                cube[v] = cube.get(v, True) and need is not None and i in need.cube
        return tuple(["L1" if cube.get(v, False) else "UB" for v in self.p.made])

    def _buffers(self, t: Trace, inner: Sequence[int], places: Sequence[str]) -> dict[str, int]:
        """Bytes of each buffer: inner values, where `layout` places them, tiles of operands, and what kernels take."""
        p, number = self.p, self.number
        held: dict[str, list[Held]] = {"UB": [], "L1": []}
        made: dict[str, list[Held]] = {"UB": [], "L1": []}
        sums = 0
        fetched: dict[tuple[int, str], Held] = {}
        for i, (step, need) in enumerate(zip(p.steps, t.needs)):
            if need is None:
                continue
            for k, v in enumerate(step.inputs):
                if need.inputs[k] is not None:
                    name = "L1" if k in need.cube else "UB"
                    own = number.get(v)
                    if (own is not None and places[own] == name) or (k in need.streamed and name == "UB"):
                        continue  # it is there already, or read where it lies
                    known = fetched.get((v, name))
                    if known is not None:
                        known.last = i
                        continue
                    size = nbytes(t.regions[v], self.itemsizes[v])
                    fetched[v, name] = h = Held(min(size, STREAM) if name == "L1" else size, i, i)
                    held[name].append(h)
            for v in step.outputs:
                if v in t.regions:
                    made[places[number[v]]].append(Held(inner[number[v]], i, p.last[v]))
            for name, extra in need.workspace.items():
                if name == "L0C":
                    sums = max(sums, extra)
                else:
                    held[name].append(Held(extra, i, i))
        used = {name: pack(sorted(made[name], key=_size) + sorted(held[name], key=_size))[1] for name in held}
        return {**used, "L0C": sums}


def _size(h: Held) -> int:
    return -h.nbytes
