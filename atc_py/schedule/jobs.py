"""Tasks as the clock sees them: an operator's work and the buffers that it touches.

    Conv(x, W, b) ─ Relu, one task of a plan      Job(work: one product, 2 vector operations an element; reads x, W, b;
                                                  writes y)
    Reshape                                       no job: it moves nothing
    Loop of 12 trips around three tasks           three jobs, 12 times each

Jobs are made of graphs (`graph_jobs`) and of plans (`plan_jobs`). A symbol takes its value from the hint; one that only
the run time knows counts as 16, unless its range is smaller, and so do the trips of a loop that ends by its condition.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any

from atc_py.ir.constants import Constant
from atc_py.ir.dims import DimOverflow, Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node, Range
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.base import Array, Cost, Infer, InferError, Layout, Op
from atc_py.ops.build import Values, known_value, lookup
from atc_py.ops.layouts import layout_of
from atc_py.target.cost import UNKNOWN, Work, counted_sizes, evaluated, work_of

TRIPS = 1 << 20
"""A loop with a higher limit than this ends by its condition."""
VOLUME = 5
"""The rank of a map of volumes."""
HALF = {DType.FLOAT32: DType.FLOAT16}
"""Element types that count as others under `--precision-mode fp16`."""


@dataclass(slots=True, eq=False)  # not frozen, like what follows: many are made, and nobody changes one
class Form:
    """How a buffer looks to the clock when it is seen as a tensor of one type: many buffers have few forms.

    Equal ones are one object (`Maker.form`).

    `constant`: weights. `stored`: it has a storage format; `fixed`: either, it is read as it lies. `narrowed`: its
    dtype counts as one of half the width. `image`: a feature map, of planes or volumes, that may lie in blocks of
    channels.
    """

    type: Type
    nbytes: int
    shape: tuple[int, ...] = ()
    constant: bool = False
    stored: bool = False
    narrowed: bool = False
    image: bool = False
    fixed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.fixed = self.constant or self.stored


@dataclass(slots=True)
class Touch:
    """A buffer that a job reads or writes, and how many bytes of it; `partial`: only a part of it is read."""

    key: Hashable
    nbytes: int
    form: Form
    partial: bool = False


@dataclass(slots=True)
class Job:
    """One task for the clock: `times` executions of `work`, which read and write buffers.

    `kernel` is the operator, of a fused task its anchor; `layout` is what that takes where nothing has a format yet.
    `place` says where the task is in what the jobs were made from: a node's id, or a task's number.
    """

    place: int
    name: str
    kernel: str
    engine: str
    work: Work
    dtype: DType
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]
    times: int = 1
    layout: Layout | None = None

    def at(self, place: int) -> Job:
        """The same job at another place."""
        return Job(
            place, self.name, self.kernel, self.engine, self.work, self.dtype, self.reads, self.writes, self.times,
            self.layout,
        )  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A model for the clock: its jobs in order, and what the caller gets of it."""

    jobs: tuple[Job, ...]
    outputs: tuple[Touch, ...] = ()

    def last_touches(self) -> list[list[Hashable]]:
        """For each job the buffers that nobody needs after it: made by a job, and not what the caller gets."""
        stay = {t.key for t in self.outputs}
        made: set[Hashable] = set()
        last: dict[Hashable, int] = {}
        for i, job in enumerate(self.jobs):
            for touch in job.reads:
                last[touch.key] = i
            for touch in job.writes:
                last[touch.key] = i
                made.add(touch.key)
        drops: list[list[Hashable]] = [[] for _ in self.jobs]
        for key, i in last.items():
            if key in made and key not in stay:
                drops[i].append(key)
        return drops

    def stays_in(self, capacity: int) -> bool:
        """Whether a cache of so many bytes holds at all times what is needed, and a job finds what it reads as it was.

        There has to be room for one buffer that is written anew beside what it was. False too where a buffer is read
        before it is written, or is seen in more than one size: then one has to look.
        """
        sizes: dict[Hashable, int] = {}
        made: dict[Hashable, int] = {}
        last: dict[Hashable, int] = {}
        for i, job in enumerate(self.jobs):
            for touch in job.reads:
                key = touch.key
                if sizes.setdefault(key, touch.nbytes) != touch.nbytes:
                    return False
                last[key] = i
            for touch in job.writes:
                key = touch.key
                if key not in sizes:
                    made[key], sizes[key] = i, touch.nbytes
                elif key not in made or sizes[key] != touch.nbytes:
                    return False
                last[key] = i
        stay, kept = {t.key for t in self.outputs}, sum(sizes.values())
        change = [0] * (len(self.jobs) + 1)
        for key, i in made.items():
            if key not in stay:  # it is dropped when it has been read
                nbytes = sizes[key]
                kept -= nbytes
                change[i] += nbytes
                change[last[key] + 1] -= nbytes
        return kept + max(accumulate(change)) + max(sizes.values(), default=0) <= capacity


@dataclass(frozen=True)
class Sizes:
    """How jobs are measured: `env` gives symbols their values; `dtypes` replaces element types (float32 by float16)."""

    env: Mapping[str, int]
    dtypes: Mapping[DType, DType] = field(default_factory=dict)

    def dtype(self, type_: Tensor) -> DType:
        """The element type that counts."""
        return self.dtypes.get(type_.dtype, type_.dtype)

    def number(self, size: Size) -> int:
        """A size as a number."""
        return size if type(size) is int else evaluated(size, self.env)

    def nbytes(self, type_: Tensor) -> int:
        """Bytes of a tensor whose rank is known, in its own element type."""
        if type_.static:
            return self.number(type_.nbytes)
        if type_.storage is None and type_.shape is not None:
            return prod([self.number(d) for d in type_.shape]) * type_.dtype.itemsize
        return self.number(type_.nbytes)


def sizes_of(
    symbols: Mapping[str, Range], hint: Mapping[str, int] | None, dtypes: Mapping[DType, DType] | None = None
) -> Sizes:
    """Measures under a hint."""
    return Sizes(counted_sizes(symbols, hint), dtypes or {})


@dataclass(slots=True)
class Call:
    """An operator with the forms of its operands, wherever it stands, and those of its inputs that are constants."""

    op: Op
    attrs: Mapping[str, Any]
    inputs: tuple[Form | None, ...]
    outputs: tuple[Form, ...]
    constants: Sequence[Constant | None]
    bodies: Mapping[str, Graph]


@dataclass(slots=True)
class _Typed:
    """A call as the operator's declaration sees it: the types and values of its inputs."""

    op: Op
    attrs: Mapping[str, Any]
    types: tuple[Type | None, ...]
    outs: tuple[Type, ...]
    values: Values
    bodies: Mapping[str, Graph]

    @classmethod
    def of(cls, call: Call) -> _Typed:
        """A call whose work is not known yet."""
        types = tuple([None if f is None else f.type for f in call.inputs])
        values = Values(known_value, call.constants)
        return cls(call.op, call.attrs, types, tuple([f.type for f in call.outputs]), values, call.bodies)

    def cost(self) -> Cost:
        """The operator's work; nothing where a size depends on data in a way that no symbol says."""
        n = Infer(self.types, self.op.attributes(self.attrs), len(self.outs), self.values, bodies=self.bodies)
        try:
            return self.op.work(n, self.outs)
        except (InferError, DimOverflow):
            return Cost()

    def anchor(self) -> tuple[Op, Layout | None]:
        """The operator, of a fused task the first one of its body, and in which formats it takes its operands."""
        if self.op.name != "Fused" or "body" not in self.bodies:
            return self.op, layout_of(self.op, self.attrs, _planes(self.types), _planes(self.outs), self.values)
        body = self.bodies["body"]
        first = next((n for n in body.order() if n.op not in STRUCTURAL), None)
        if first is None:
            return self.op, None
        types = tuple(None if v == ABSENT else body.type(v) for v in first.inputs)
        values = tuple(None if v == ABSENT else known_value(body.const(v)) for v in first.inputs)
        outs = [body.type(v) for v in first.outputs]
        op = lookup(first.op, first.attrs)
        return op, layout_of(op, first.attrs, _planes(types), _planes(outs), values)

    def dtype(self, sizes: Sizes) -> DType:
        """The element type that the units work in: bytes where the left operand is bytes, else the first float."""
        tensors = [t for t in (*self.types, *self.outs) if isinstance(t, Tensor) and t.dtype is not DType.STRING]
        first = self.types[0] if self.types else None
        if isinstance(first, Tensor) and first.dtype.is_int and first.dtype.itemsize == 1:
            return sizes.dtype(first)
        found = next((t for t in tensors if t.dtype.is_float), tensors[0] if tensors else None)
        return DType.FLOAT32 if found is None else sizes.dtype(found)


def _planes(types: Sequence[Any]) -> tuple[Any, ...]:
    """Types with volumes [N, C, D, H, W] as maps of planes [N·D, C, H, W]: units take both in blocks of channels."""
    return tuple([_plane(t) if isinstance(t, Tensor) and t.rank == VOLUME else t for t in types])


def _plane(volume: Tensor) -> Tensor:
    batch, channels, depth, height, width = volume.dims
    return volume.with_shape((batch * depth, channels, height, width))


@dataclass(frozen=True)
class Needs:
    """What a call needs: all of a job that does not depend on which buffers it touches.

    `valued`: it follows from the values of constants too.
    """

    work: Work
    dtype: DType
    kernel: str
    layout: Layout | None
    valued: bool


class Maker:
    """What makes jobs of calls: each type is measured once, and so is each operator over the same types."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._forms: dict[tuple[Type, bool], Form] = {}
        self._seen: tuple[dict[int, Form], dict[int, Form]] = ({}, {})
        self._alive: list[Type] = []
        self._needs: dict[Hashable, Needs] = {}

    def form(self, type_: Type, constant: bool = False) -> Form:
        """How a buffer of a type looks; equal types have one form."""
        seen = self._seen[constant]
        found = seen.get(id(type_))
        if found is None:
            self._alive.append(type_)  # so that its id stays its own
            found = self._forms.get((type_, constant))
            if found is None:
                found = self._forms[type_, constant] = self._measured(type_, constant)
            seen[id(type_)] = found
        return found

    def _measured(self, type_: Type, constant: bool) -> Form:
        if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
            return Form(type_, 0, constant=constant)
        dtype = self.sizes.dtype(type_)
        shape = tuple(map(self.sizes.number, type_.shape))
        stored = type_.storage is not None
        lain = map(self.sizes.number, replace(type_, dtype=dtype).storage_shape) if stored else shape
        image = len(shape) in (4, VOLUME) and dtype.is_float and not constant and not stored
        return Form(type_, prod(lain) * dtype.itemsize, shape, constant, stored, dtype is not type_.dtype, image)

    def needs(self, call: Call, left: int) -> Needs:
        """What a call needs whose left operand has `left` bytes; `left`, attributes and types say it, or values too."""
        if call.bodies:
            return self._needed(call, left)
        key: Hashable = (call.op.name, tuple(call.attrs.items()), call.inputs, call.outputs, left)
        try:
            found = self._needs.get(key)
        except TypeError:  # an attribute that is no key
            return self._needed(call, left)
        if found is None:
            found = self._needs[key] = self._needed(call, left)
            if found.valued:
                self._needs[_with_values(key, call)] = found
        elif found.valued:
            key = _with_values(key, call)
            found = self._needs.get(key)
            if found is None:
                found = self._needs[key] = self._needed(call, left)
        return found

    def _needed(self, call: Call, left: int) -> Needs:
        typed = _Typed.of(call)
        work = work_of(typed.cost(), self.sizes.env, left)
        anchor, layout = typed.anchor()
        return Needs(work, typed.dtype(self.sizes), anchor.name, layout, typed.values.asked)

    def job(
        self,
        place: int,
        name: str,
        engine: str,
        call: Call,
        inputs: Sequence[tuple[int, Touch]],
        writes: tuple[Touch, ...],
        times: int,
    ) -> Job:
        """A job; `inputs` are (input position, buffer) of what the device reads, by position."""
        left = 0
        for i, touch in inputs:
            if i:
                break
            left += touch.nbytes
        n = self.needs(call, left)
        some = n.work.reads
        reads: dict[Hashable, Touch] = {}
        for i, touch in inputs:
            if touch.key in reads:
                continue
            if i in some:
                nbytes = min(touch.nbytes, some[i] * n.dtype.itemsize)
                touch = Touch(touch.key, nbytes, touch.form, partial=True)
            reads[touch.key] = touch
        return Job(place, name, n.kernel, engine, n.work, n.dtype, tuple(reads.values()), writes, times, n.layout)


def _with_values(key: Hashable, call: Call) -> Hashable:
    return (key, *[c and c.key for c in call.constants])


def body_of(graph: Graph, node: Node, sizes: Sizes) -> tuple[str, int]:
    """(body, how often it runs): of an If the longer branch, of a loop its body."""
    if node.op == "If":
        return max(sorted(node.subgraphs), key=lambda name: len(node.subgraphs[name].nodes)), 1
    if node.op == "Loop":
        known = None if node.inputs[0] == ABSENT else known_value(graph.const(node.inputs[0]))
        return "body", counted(known, sizes)
    count = node.attrs["num_scan_inputs"]
    whole = graph.type(node.inputs[len(node.inputs) - node.captures - count])
    return "body", slices(whole, (node.attrs.get("scan_input_axes") or (0,))[0], sizes)


def counted(known: Array | None, sizes: Sizes) -> int:
    """The trips of a loop whose limit is `known`; a loop that ends by its condition counts as any unknown size does."""
    trips = UNKNOWN if known is None or known.size != 1 else int(sizes.number(known.reshape(-1).tolist()[0]))
    return max(1, trips) if trips <= TRIPS else UNKNOWN


def slices(whole: Type, axis: int, sizes: Sizes) -> int:
    """The trips of a Scan over an axis of `whole`."""
    shape = whole.shape if isinstance(whole, Tensor) else None
    return max(1, sizes.number(shape[axis])) if shape else 1
