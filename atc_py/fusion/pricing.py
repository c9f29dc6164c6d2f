"""What a group costs as separate tasks and as one, in microseconds of the target.

    Conv ─ Relu, [1, 64, 56, 56] float16 on Ascend310P3

    separate    2 launches, the convolution's result written and read once
    fused       1 launch; saved: 2.93 us, and 2 · 401,408 bytes between L2 and the unified buffer

Units of a task work side by side, so that one task with the work of several never takes longer than they do one after
the other, but for two things that are counted here: work that several tiles repeat, and branches that separate tasks
could have run beside each other on different units. Symbols count as in `Pricer.env`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from atc_py.fusion.keys import frozen
from atc_py.fusion.rule import exits, outer_inputs
from atc_py.fusion.tiles import UNBOUNDED, Fit
from atc_py.ir.dims import DimOverflow
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Cost, Infer, InferError
from atc_py.ops.build import Values, known_value, lookup
from atc_py.ops.chains import Chains
from atc_py.target import Target
from atc_py.target.cost import Load, Sized, Traffic, Work, counted_sizes, evaluated, load_of, microseconds_of, work_of

SLACK = 0.05
"""The share of a node's work that tiles may do again before it counts: what blocks and ends of dims round up."""


@dataclass(frozen=True)
class Price:
    """Microseconds of a group as separate tasks and as one task; `saved` bytes need not move, `again` is work (in
    microseconds) that tiles repeat."""

    separate: float
    fused: float
    saved: int = 0
    again: float = 0.0


class Pricer:
    """Prices the groups of one graph on one target, at the sizes that a hint gives its symbols."""

    def __init__(self, graph: Graph, target: Target, hint: Mapping[str, int] | None = None) -> None:
        self.graph, self.target = graph, target
        self.env = counted_sizes(graph.symbols, hint)
        self.largest = Sized({s: UNBOUNDED if r.hi is None else r.hi for s, r in graph.symbols.items()}, UNBOUNDED)
        self._bytes: dict[int, int] = {}
        self._cost: dict[int, Cost] = {}
        self._alone: dict[int, float] = {}
        self._joined: dict[tuple[int, ...], float] = {}
        self._cube: dict[str, bool] = {}
        self._kind: dict[int, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._kind_cost: dict[int, Cost] = {}
        self._task: dict[tuple[bool, Hashable], float] = {}
        self._repeats: dict[int, tuple[Fit, list[float]]] = {}
        rates, units = target.rates, target.vector_units
        per_us = target.frequency_mhz * units * rates.ub
        self.read_us = 1 / (target.l2_read_bytes_per_cycle * per_us)
        self.write_us = 1 / (target.l2_write_bytes_per_cycle * per_us)

    def nbytes(self, value: int) -> int:
        """The bytes of a value; 0 for what has no address."""
        found = self._bytes.get(value)
        if found is None:
            t = self.graph.values[value].type
            if not isinstance(t, Tensor) or t.shape is None or t.dtype is DType.STRING:
                found = 0
            else:
                size = t.nbytes
                found = size if type(size) is int else evaluated(size, self.env)
            self._bytes[value] = found
        return found

    def cost(self, node: Node) -> Cost:
        """A node's work, as its operator declares it."""
        found = self._cost.get(node.id)
        return self._weigh(node) if found is None else found

    def _weigh(self, node: Node) -> Cost:
        """Find a node's work and its kind: nodes of one kind do the same work on operands of the same types."""
        graph, op = self.graph, lookup(node.op, node.attrs)
        types = tuple([None if v == ABSENT else graph.type(v) for v in node.inputs])
        outs = tuple([graph.type(v) for v in node.outputs])
        constants = [graph.const(v) for v in node.inputs]
        same: Hashable = (node.op, frozen(node.attrs), types, outs, tuple([c is not None for c in constants]))
        kind = self._kinds.setdefault(node.id if node.subgraphs else same, len(self._kinds))
        found = self._kind_cost.get(kind)
        if found is None:
            values = Values(known_value, constants)
            n = Infer(types, op.attributes(node.attrs), len(outs), values, bodies=node.subgraphs)
            try:
                found = op.work(n, outs)
            except (InferError, DimOverflow):
                found = Cost()
            if values.asked:  # what it does is also in its values: it is like no other node
                kind = self._kinds.setdefault(node.id, len(self._kinds))
            self._kind_cost[kind] = found
        self._cost[node.id], self._kind[node.id] = found, kind
        return found

    def structure(self, nodes: Sequence[Node]) -> Hashable:
        """Equal for groups that do the same work: their nodes are of the same kinds and connected in the same way."""
        place: dict[int, int] = {}
        entries: list[int] = []
        inside = {n.id: n for n in nodes}
        for node in nodes:
            self.cost(node)
            entries.append(self._kind[node.id])
            entries += [place.setdefault(v, len(place)) for v in (*node.inputs, *node.outputs)]
        return tuple(entries), tuple([place[v] for v in exits(self.graph, nodes, inside)])

    def uses_cube(self, node: Node) -> bool:
        """Whether the cube does a part of the node's work."""
        found = self._cube.get(node.op)
        if found is None:
            found = self._cube[node.op] = bool(lookup(node.op, node.attrs).flags.cube)
        return found

    def chained(self, nodes: Sequence[Node]) -> bool:
        """Whether a product of the group feeds another one."""
        return sum(self.uses_cube(n) for n in nodes) > 1 and self._chains(nodes, ()).chained

    def _chains(self, nodes: Sequence[Node], again: Sequence[float]) -> Chains:
        chains = Chains()
        for i, node in enumerate(nodes):
            chains.add(node.inputs, node.outputs, self.cost(node).products, again[i] if again else 0.0)
        return chains

    def alone_us(self, node: Node) -> float:
        """Microseconds of a node as a task of its own."""
        found = self._alone.get(node.id)
        if found is None:
            found = self._alone[node.id] = self.together_us([node])
        return found

    def together_us(self, nodes: Sequence[Node]) -> float:
        """Microseconds of the nodes as one task that repeats nothing."""
        key = (False, self.structure(nodes))
        found = self._task.get(key)
        if found is None:
            found = self._task[key] = self.task_us(nodes)
        return found

    def joined_us(self, nodes: Sequence[Node]) -> float:
        """Microseconds of the nodes as one task, with the rows that cores compute twice."""
        ids = tuple([n.id for n in nodes])
        found = self._joined.get(ids)
        if found is None:
            key = (True, self.structure(nodes))
            found = self._task.get(key)
            if found is None:
                found = self._task[key] = self.task_us(nodes, self.slab(nodes))
            self._joined[ids] = found
        return found

    def task_us(self, nodes: Sequence[Node], again: Sequence[float] = ()) -> float:
        """Microseconds of one task that does the work of all the nodes, given in order; `again`: see `slab`."""
        inside = {n.id: n for n in nodes}
        costs = [self.cost(n) for n in nodes]
        vector = sum(evaluated(c.vector, self.env) * (1 + (again[i] if again else 0)) for i, c in enumerate(costs))
        wide = sum(evaluated(c.wide, self.env) * (1 + (again[i] if again else 0)) for i, c in enumerate(costs))
        gemms = work_of(Cost(products=self._chains(nodes, again).products()), self.env).gemms
        outer = outer_inputs(nodes)
        read = sum(self.nbytes(v) for v in outer)
        written = sum(self.nbytes(v) for v in exits(self.graph, nodes, inside))
        weights = sum(self.nbytes(v) for v in outer if self.graph.const(v) is not None)
        work = Work(gemms, ceil(vector), ceil(wide))
        load = load_of(work, Traffic(read, written, weights), _dtype(self.graph, nodes[0]), self.target)
        return microseconds_of(cycles(load, self.target), self.target)

    def slab(self, nodes: Sequence[Node]) -> list[float]:
        """How much of each node's work is repeated when each core makes its part of the rows of the last node's map.

        A window that reads beyond a core's rows makes the rows before it be computed by two cores.
        """
        last = nodes[-1]
        need: dict[int, float] = {}
        dims = sizes(self.env, self.graph.tensor(last.outputs[0]))
        mine = ceil(dims[0] * dims[2] / self.target.aicores) if len(dims) == 4 else 0
        found: list[float] = []
        for node in reversed(nodes):
            dims = sizes(self.env, self.graph.tensor(node.outputs[0]))
            rows = dims[0] * dims[2] if len(dims) == 4 else 0
            wanted = mine if node is last else max((need.get(v, 0.0) for v in node.outputs), default=0.0)
            share = wanted * self.target.aicores / rows - 1 if rows and wanted else 0.0
            # Rows that do not divide by the cores are no repetition: the busiest core has them anyway.
            found.append(max(0.0, min(share, self.target.aicores - 1.0)) if node is not last else 0.0)
            reach = _reach(self.graph, node, wanted)
            for v in node.inputs:
                need[v] = max(need.get(v, 0.0), reach)
        return found[::-1]

    def price(self, nodes: Sequence[Node], fit: Fit | None, units: int) -> Price:
        """What the group costs as `units` separate tasks, and as one that is cut as `fit` says."""
        inside = {n.id: n for n in nodes}
        values = self.graph.values
        read = written = 0
        seen: set[int] = set()
        for node in nodes:
            for v in dict.fromkeys(node.inputs):
                if v == ABSENT:
                    continue
                if values[v].producer in inside or v in seen:
                    read += self.nbytes(v)
                seen.add(v)
            for v in node.outputs:
                if values[v].uses and all(user in inside for user, _ in values[v].uses):
                    written += self.nbytes(v)
        again = 0.0 if fit is None else self._again(nodes, fit)
        if self.chained(nodes):
            separate = sum(self.alone_us(n) for n in nodes)
            return Price(separate, self.joined_us(nodes) + again, read + written, again)
        launches = self.target.rates.task_us * units
        moved = read * self.read_us + written * self.write_us
        return Price(launches + moved, self.target.rates.task_us + again, read + written, again)

    def repeated(self, nodes: Sequence[Node], fit: Fit) -> tuple[float, ...]:
        """The share of each node's work that tiles or cores repeat; empty where there is none to speak of."""
        tiles = self.repeats(nodes, fit)
        cores = self.slab(nodes) if self.chained(nodes) else [0.0] * len(nodes)
        found = [round(max(a, b), 3) for a, b in zip(tiles, cores, strict=True)]
        return tuple(found) if any(x > SLACK for x in found) else ()

    def _again(self, nodes: Sequence[Node], fit: Fit) -> float:
        """Microseconds of the work that several tiles do, beyond doing it once."""
        total = 0.0
        for node, more in zip(nodes, self.repeats(nodes, fit), strict=True):
            if more > SLACK:
                total += more * (self.alone_us(node) - self.target.rates.task_us)
        return total

    def repeats(self, nodes: Sequence[Node], fit: Fit) -> list[float]:
        """How much of each node's work tiles do again: a tile's part of its result, beyond its part of the task's.

        At the sizes for which the tile was chosen, but no more than there are tiles at those that symbols count as.
        Bodies of one structure share their fit, and so the answer.
        """
        if not any(fit.tile):
            return [0.0] * len(nodes)
        found = self._repeats.get(id(fit))
        if found is not None:
            return found[1]
        first = self.graph.tensor(exits(self.graph, nodes, {n.id: n for n in nodes})[0])
        share, tiles = 1.0, 1
        for size, length, here in zip(sizes(self.largest, first), fit.tile, sizes(self.env, first), strict=True):
            if length and size:
                share *= min(length, size) / size
                tiles *= -(-here // length)
        made: list[float] = []
        k = 0
        for node in nodes:
            nbytes = self.graph.tensor(node.outputs[0]).nbytes
            whole = nbytes if type(nbytes) is int else evaluated(nbytes, self.largest)
            made.append(min(tiles, min(fit.inner[k], whole) / whole / share) - 1 if whole else 0.0)
            k += len(node.outputs)
        self._repeats[id(fit)] = (fit, made)
        return made


def cycles(load: Load, target: Target) -> float:
    """Cycles of one task: `target.cost.price` for a single load, without arrays."""
    rates = target.rates
    into, out = target.l2_read_bytes_per_cycle, target.l2_write_bytes_per_cycle
    ddr = load.ddr / (target.ddr_bytes_per_cycle * target.aicores * rates.ddr)
    one = max(load.cube / rates.cube, load.feed, load.fetched / (into * rates.l1), ddr)
    moved = (load.read + load.pieces * rates.piece_bytes) / (into * rates.ub) + load.written / (out * rates.ub)
    other = load.vector / rates.vector + moved
    return rates.task_us * target.frequency_mhz + max(one, other) + rates.exposed * min(one, other)


def _dtype(graph: Graph, node: Node) -> DType:
    types: list[Any] = [graph.type(v) for v in (*node.inputs, *node.outputs) if v != ABSENT]
    found = next((t.dtype for t in types if isinstance(t, Tensor) and t.dtype.is_float), None)
    return found or DType.FLOAT32


def _reach(graph: Graph, node: Node, rows: float) -> float:
    """How many rows of its input a node needs for some of its result's."""
    kernel = node.attrs.get("kernel_shape")
    if not kernel and node.op == "Conv":
        kernel = graph.tensor(node.inputs[1]).dims[2:]
    if not kernel or len(kernel) < 2 or type(kernel[0]) is not int:
        return rows
    stride = (node.attrs.get("strides") or (1,))[0]
    dilation = (node.attrs.get("dilations") or (1,))[0]
    return max(0.0, (rows - 1) * int(stride) + (kernel[0] - 1) * int(dilation) + 1)


def sizes(env: Mapping[str, int], type_: Tensor) -> tuple[int, ...]:
    """A tensor's dims under `env`."""
    return tuple(evaluated(d, env) for d in type_.dims)
