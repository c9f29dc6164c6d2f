"""Tasks as the clock sees them: an operator's work and the buffers that it touches, from a graph or from a plan.

    Conv(x, W, b) ─ Relu, one task of a plan      Job(work: one product, 2 vector operations an element; reads x, W, b;
                                                  writes y)
    Reshape                                       no job: it moves nothing
    Loop of 12 trips around three tasks           three jobs, 12 times each

A symbol takes its value from the hint; one that only the run time knows counts as 16, unless its range is smaller, and
so do the trips of a loop that ends by its condition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from atc_py.ir.dims import DimOverflow, Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node, Range
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.base import Array, Cost, Infer, InferError, Layout, Op
from atc_py.ops.build import Values, known_value, lookup
from atc_py.ops.layouts import layout_of
from atc_py.schedule.frames import REGIONS, is_alias, roots
from atc_py.target.cost import UNKNOWN, Work, counted_sizes, evaluated, work_of

TRIPS = 1 << 20
"""A loop with a higher limit than this ends by its condition."""
HALF = {DType.FLOAT32: DType.FLOAT16}
"""Element types that count as others under `--precision-mode fp16`."""


@dataclass(slots=True)  # not frozen, like what follows: many are made, and nobody changes one
class Touch:
    """A buffer that a job reads or writes, and how many bytes of it.

    `constant`: weights. `stored`: it has a storage format. `narrowed`: its dtype counts as one of half the width.
    `partial`: only a part of it is read.
    """

    key: Hashable
    nbytes: int
    shape: tuple[int, ...] = ()
    floating: bool = True
    constant: bool = False
    stored: bool = False
    narrowed: bool = False
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


@dataclass(frozen=True)
class Program:
    """A model for the clock: its jobs in order, and what the caller gets of it."""

    jobs: tuple[Job, ...]
    outputs: tuple[Touch, ...] = ()

    def last_touches(self) -> list[list[Hashable]]:
        """For each job the buffers that nobody needs after it: made by a job, and not what the caller gets."""
        stay = {t.key for t in self.outputs}
        made = {t.key for job in self.jobs for t in job.writes}
        last: dict[Hashable, int] = {}
        for i, job in enumerate(self.jobs):
            for touch in job.reads + job.writes:
                last[touch.key] = i
        drops: list[list[Hashable]] = [[] for _ in self.jobs]
        for key, i in last.items():
            if key in made and key not in stay:
                drops[i].append(key)
        return drops


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
    """An operator with the types and values of its inputs, wherever it stands."""

    op: Op
    attrs: Mapping[str, Any]
    types: tuple[Type | None, ...]
    outs: tuple[Type, ...]
    values: Values
    bodies: Mapping[str, Graph]

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
            return self.op, layout_of(self.op, self.attrs, self.types, self.outs, self.values)
        body = self.bodies["body"]
        first = next((n for n in body.order() if n.op not in STRUCTURAL), None)
        if first is None:
            return self.op, None
        types = tuple(None if v == ABSENT else body.type(v) for v in first.inputs)
        values = tuple(None if v == ABSENT else known_value(body.const(v)) for v in first.inputs)
        outs = [body.type(v) for v in first.outputs]
        op = lookup(first.op, first.attrs)
        return op, layout_of(op, first.attrs, types, outs, values)

    def dtype(self, sizes: Sizes) -> DType:
        """The element type that the units work in: bytes where the left operand is bytes, else the first float."""
        tensors = [t for t in (*self.types, *self.outs) if isinstance(t, Tensor) and t.dtype is not DType.STRING]
        first = self.types[0] if self.types else None
        if isinstance(first, Tensor) and first.dtype.is_int and first.dtype.itemsize == 1:
            return sizes.dtype(first)
        found = next((t for t in tensors if t.dtype.is_float), tensors[0] if tensors else None)
        return DType.FLOAT32 if found is None else sizes.dtype(found)


@dataclass(frozen=True)
class Needs:
    """What a call needs: all of a job that does not depend on which buffers it touches."""

    work: Work
    dtype: DType
    kernel: str
    layout: Layout | None


class Maker:
    """What makes jobs of calls: each buffer is measured once, and so is each operator over the same types."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._seen: dict[tuple[Hashable, int], Touch] = {}
        self._needs: dict[Hashable, Needs | None] = {}

    def needs(self, call: Call, left: int) -> Needs:
        """What a call needs whose left operand has `left` bytes; `left`, attributes and types say it, or values too."""
        if call.bodies:
            return self._needed(call, left)
        key = (call.op.name, tuple(call.attrs.items()), call.types, call.outs, left)
        try:
            hash(key)
        except TypeError:  # an attribute that is no key
            return self._needed(call, left)
        if key in self._needs:
            found = self._needs[key]
            return found if found is not None else self._by_values(key, call, left)
        found = self._needed(call, left)
        if call.values.asked:
            self._needs[key] = None
            self._needs[_with_values(key, call)] = found
        else:
            self._needs[key] = found
        return found

    def _by_values(self, key: Hashable, call: Call, left: int) -> Needs:
        """What a call needs of which values say it too."""
        key = _with_values(key, call)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = self._needed(call, left)
        return found

    def _needed(self, call: Call, left: int) -> Needs:
        work = work_of(call.cost(), self.sizes.env, left)
        anchor, layout = call.anchor()
        return Needs(work, call.dtype(self.sizes), anchor.name, layout)

    def touch(self, key: Hashable, type_: Type, constant: bool = False) -> Touch:
        """The whole of a buffer, seen as a tensor of one type."""
        at = (key, id(type_))
        found = self._seen.get(at)
        if found is None:
            found = self._seen[at] = self._measured(key, type_, constant)
        return found

    def _measured(self, key: Hashable, type_: Type, constant: bool) -> Touch:
        if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
            return Touch(key, 0)
        dtype = self.sizes.dtype(type_)
        shape = tuple(map(self.sizes.number, type_.shape))
        stored = type_.storage is not None
        lain = map(self.sizes.number, replace(type_, dtype=dtype).storage_shape) if stored else shape
        narrowed = dtype is not type_.dtype
        return Touch(key, prod(lain) * dtype.itemsize, shape, dtype.is_float, constant, stored, narrowed)

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
        """A job; `inputs` are (input position, buffer) of what the device reads."""
        left = sum([t.nbytes for i, t in inputs if not i])
        n = self.needs(call, left)
        reads: dict[Hashable, Touch] = {}
        for i, touch in inputs:
            if i in n.work.reads:
                some = n.work.reads[i] * n.dtype.itemsize
                touch = replace(touch, nbytes=min(touch.nbytes, some), partial=True)
            reads.setdefault(touch.key, touch)
        return Job(place, name, n.kernel, engine, n.work, n.dtype, tuple(reads.values()), writes, times, n.layout)


def _with_values(key: Hashable, call: Call) -> Hashable:
    return (key, *[c and c.key for c in call.values.inputs])


# --- graphs -----------------------------------------------------------------------------------------------------


def graph_program(graph: Graph, sizes: Sizes) -> Program:
    """The jobs of a graph, each node a task, in its order; a buffer is a value with what names its bytes too."""
    maker = Maker(sizes)
    root = roots(graph, graph.order())
    jobs = tuple(_graph_jobs(graph, maker, 1, ()))
    return Program(jobs, tuple(maker.touch(((), root[v]), graph.type(v)) for v in graph.outputs))


def _graph_jobs(graph: Graph, maker: Maker, times: int, path: tuple[int, ...]) -> Iterator[Job]:
    order = graph.order()
    root = roots(graph, order)
    for node in order:
        if node.op in STRUCTURAL or is_alias(graph, node):
            continue
        if node.op in REGIONS:
            name, count = body_of(graph, node, maker.sizes)
            yield from _graph_jobs(node.subgraphs[name], maker, times * count, (*path, node.id))
        else:
            yield _node_job(graph, node, root, maker, times, path)


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


def _node_job(
    graph: Graph, node: Node, root: Mapping[int, int], maker: Maker, times: int, path: tuple[int, ...]
) -> Job:
    op, values = lookup(node.op, node.attrs), graph.values
    call = Call(
        op,
        node.attrs,
        tuple([None if v == ABSENT else values[v].type for v in node.inputs]),
        tuple([values[v].type for v in node.outputs]),
        Values(known_value, [graph.const(v) for v in node.inputs]),
        node.subgraphs,
    )
    inputs = [
        (i, maker.touch((path, root[v]), values[v].type, graph.const(root[v]) is not None))
        for i, v in enumerate(node.inputs)
        if v != ABSENT and i not in op.host_inputs
    ]
    writes = tuple([maker.touch((path, v), values[v].type) for v in node.outputs])
    return maker.job(node.id, node.name, node.engine or op.engine.value, call, inputs, writes, times)
