"""What a group costs as separate tasks and as one, in microseconds of the target.

    Conv ─ Relu, [1, 64, 56, 56] float16 on Ascend310P3

    separate    2 launches, the convolution's result written and read once
    fused       1 launch; saved: 2.93 us, and 2 · 401,408 bytes between L2 and the unified buffer

Units of a task work side by side, so that one task with the work of several never takes longer than they do one after
the other, but for two things that are counted here: work that several tiles repeat, and branches that separate tasks
could have run beside each other on different units. Symbols count as in `Pricer.env`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from atc_py.fusion.forms import Form, Forms
from atc_py.fusion.rule import exits, outer_inputs
from atc_py.fusion.tiles import UNBOUNDED, Fit
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import lookup
from atc_py.ops.chains import Chains
from atc_py.target import Target
from atc_py.target.cache import Cache
from atc_py.target.cost import (
    STEP,
    Load,
    Sized,
    Traffic,
    Work,
    counted_sizes,
    evaluated,
    gemm_of,
    load_of,
    microseconds_of,
)

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
    """Prices the groups of one graph on one target, at the sizes that a hint gives its symbols: once for each form."""

    def __init__(
        self, graph: Graph, target: Target, hint: Mapping[str, int] | None = None, forms: Forms | None = None
    ) -> None:
        self.graph, self.target = graph, target
        self.forms = forms or Forms(graph)
        self.env = counted_sizes(graph.symbols, hint)
        self.largest = Sized({s: UNBOUNDED if r.hi is None else r.hi for s, r in graph.symbols.items()}, UNBOUNDED)
        self._bytes: dict[int, int] = {}
        self._alone: dict[int, float] = {}
        self._cube: dict[str, bool] = {}
        self._together: dict[int, float] = {}
        self._joined: dict[int, float] = {}
        self._chained: dict[int, bool] = {}
        self._price: dict[tuple[int, bool], Price] = {}
        self._repeated: dict[int, tuple[float, ...]] = {}
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

    def uses_cube(self, node: Node) -> bool:
        """Whether the cube does a part of the node's work."""
        found = self._cube.get(node.op)
        if found is None:
            found = self._cube[node.op] = bool(lookup(node.op, node.attrs).flags.cube)
        return found

    def chained(self, form: Form) -> bool:
        """Whether a product of the group feeds another one."""
        found = self._chained.get(form.number)
        if found is None:
            several = sum(map(self.uses_cube, form.nodes)) > 1
            found = self._chained[form.number] = several and self._chains(form.nodes, ()).chained
        return found

    def _chains(self, nodes: Sequence[Node], again: Sequence[float]) -> Chains:
        chains = Chains()
        for i, node in enumerate(nodes):
            chains.add(node.inputs, node.outputs, self.forms.kinds.cost(node).products, again[i] if again else 0.0)
        return chains

    def alone_us(self, node: Node) -> float:
        """Microseconds of a node as a task of its own."""
        found = self._alone.get(node.id)
        if found is None:
            found = self._alone[node.id] = self.together_us(self.forms.alone(node))
        return found

    def together_us(self, form: Form) -> float:
        """Microseconds of the nodes as one task that repeats nothing."""
        found = self._together.get(form.number)
        if found is None:
            found = self._together[form.number] = self.task_us(form.nodes)
        return found

    def joined_us(self, form: Form) -> float:
        """Microseconds of the nodes as one task, with the rows that cores compute twice."""
        found = self._joined.get(form.number)
        if found is None:
            found = self._joined[form.number] = self.task_us(form.nodes, self.slab(form.nodes))
        return found

    def task_us(self, nodes: Sequence[Node], again: Sequence[float] = ()) -> float:
        """Microseconds of one task that does the work of all the nodes, given in order; `again`: see `slab`."""
        inside = {n.id: n for n in nodes}
        costs = [self.forms.kinds.cost(n) for n in nodes]
        vector: float = 0
        wide: float = 0
        for i, cost in enumerate(costs):
            share = 1 + again[i] if again else 1
            vector += evaluated(cost.vector, self.env) * share
            wide += evaluated(cost.wide, self.env) * share
        products = self._chains(nodes, again).products()
        gemms = tuple([gemm for p in products if (gemm := gemm_of(p, self.env)) is not None])
        outer, made = outer_inputs(nodes), exits(self.graph, nodes, inside)
        weights = [v for v in outer if self.graph.const(v) is not None]
        traffic = Traffic(sum(map(self.nbytes, outer)), sum(map(self.nbytes, made)), sum(map(self.nbytes, weights)))
        if traffic.read + traffic.written - traffic.ddr > self.target.l2:
            traffic.ddr += self._beyond_cache([v for v in outer if v not in weights], made)
        load = load_of(Work(gemms, ceil(vector), ceil(wide)), traffic, _dtype(self.graph, nodes[0]), self.target)
        return microseconds_of(cycles(load, self.target), self.target)

    def _beyond_cache(self, read: Sequence[int], made: Sequence[int]) -> float:
        """Bytes between L2 and DDR for a task that reads what has just been made."""
        cache = Cache(self.target.l2)
        for v in read:
            cache.write(v, self.nbytes(v))
        return sum([cache.read(v, self.nbytes(v)) for v in read]) + sum([cache.write(v, self.nbytes(v)) for v in made])

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

    def price(self, form: Form, fit: Fit | None) -> Price:
        """What the group costs as separate tasks, and as one that is cut as `fit`, its form's tile, says."""
        key = (form.number, fit is None)
        found = self._price.get(key)
        if found is None:
            found = self._price[key] = self._priced(form, fit)
        return found

    def _priced(self, form: Form, fit: Fit | None) -> Price:
        nodes = form.nodes
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
        if self.chained(form):
            separate = sum(map(self.task_us, self._apart(nodes)))
            fused = self.joined_us(form) if fit is None else self.task_us(nodes, self.repeated(form, fit))
            return Price(separate, fused, read + written, again)
        launches = self.target.rates.task_us * len(nodes)
        moved = read * self.read_us + written * self.write_us
        return Price(launches + moved, self.target.rates.task_us + again, read + written, again)

    def _apart(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """The tasks that there are without a chain: a product with what follows it elementwise, others by themselves.

        An operator that reads several of these tasks belongs to the last one.
        """
        tasks: list[list[Node]] = []
        task_of: dict[int, int] = {}
        shape = {v: self.graph.tensor(v).shape for node in nodes for v in node.outputs}
        for node in nodes:
            same = [task_of[v] for v in node.inputs if v in task_of and shape[v] == shape[node.outputs[0]]]
            number = len(tasks) if self.uses_cube(node) or not same else max(same)
            if number == len(tasks):
                tasks.append([])
            tasks[number].append(node)
            task_of.update(dict.fromkeys(node.outputs, number))
        return tasks

    def repeated(self, form: Form, fit: Fit) -> tuple[float, ...]:
        """The share of each node's work that tiles or cores repeat; empty where there is none to speak of."""
        found = self._repeated.get(form.number)
        if found is None:
            tiles = self.repeats(form.nodes, fit)
            cores = self.slab(form.nodes) if self.chained(form) else [0.0] * len(tiles)
            shares = [round(max(a, b), 3) for a, b in zip(tiles, cores, strict=True)]
            found = self._repeated[form.number] = tuple(shares) if any(x > SLACK for x in shares) else ()
        return found

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
        """
        if not any(fit.tile):
            return [0.0] * len(nodes)
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
        return made


def cycles(load: Load, target: Target) -> float:
    """Cycles of one task: `target.cost.price` for a single load, without arrays."""
    rates = target.rates
    into, out = target.l2_read_bytes_per_cycle, target.l2_write_bytes_per_cycle
    ddr = load.ddr / (target.ddr_bytes_per_cycle * target.aicores * rates.ddr)
    one = max(load.cube / rates.cube, load.feed, load.fetched / (into * rates.l1), ddr)
    moved = (load.read + load.pieces * rates.piece_bytes) / (into * rates.ub) + load.written / (out * rates.ub)
    other = load.vector / rates.vector + moved
    waits = rates.task_us * target.frequency_mhz + load.steps * STEP
    return waits + max(one, other) + (1.0 if load.steps > 0 else rates.exposed) * min(one, other)


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
