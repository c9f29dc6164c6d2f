"""Where engines meet: what crossing costs, and which small operators go over to the other side to save it.

    Unique (aicpu) ─ a ─ Neg ─ b ─ NonZero (aicpu)

    Neg on AI Core     3 us, copies of a and b 3 us each          9 us
    Neg on AI CPU      60 us with launches of 60 us                60 us        stays; with launches of 5 us it moves

Which nodes move is a minimum cut. Nodes of AI Core pull to one side by what they cost on the other, a value that is
read on the other side costs one copy, however many readers it has there, and nodes whose engine is fixed hold their
side. Of all cheapest cuts the one with the fewest moved nodes is taken; it is unique, whatever order the nodes have.
(Ford and Fulkerson, 1956; shortest augmenting paths by Edmonds and Karp, 1972; one auxiliary node for a value with many
readers, as Stone's program assignment, 1977, is extended to hyperedges.)

The search is bounded: a node can move only if its own copies cost more than the move does, so that few nodes are looked
at; beyond `RADIUS` nodes from a fixed one, and in groups of more than `MOST_NODES`, nodes stay where they are. Time
on the other engine counts a quarter more, so that figures which nearly tie move nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from atc_py.ir.dims import DimOverflow
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import Cost, Engine, Infer, InferError
from atc_py.ops.build import known_value, lookup
from atc_py.passes.cut import Network
from atc_py.target import Target
from atc_py.target.cost import VECTOR_BYTES, WIDE, Work, counted_sizes, evaluated, microseconds_of, work_of

HOST_VALUES = 1024
"""Elements of the largest value that an operator on the host may have."""
RADIUS = 8
"""How many nodes from one whose engine is fixed others may go over to it."""
MOST_NODES = 64
"""The largest group of nodes that is weighed as one."""
HYSTERESIS = 1.25
"""By what factor the time on the other engine counts."""


def is_copy(node: Node) -> bool:
    """Whether the node is a copy between engines."""
    return node.op == "TensorMove" and bool(node.attrs.get("to"))


def reads_bytes(graph: Graph, node: Node, index: int) -> bool:
    """Whether the node's own engine reads the bytes of input `index`.

    What launches the task (shapes, axes) is read by the host; Shape reads no bytes; an If or a Loop hands its inputs
    to its bodies.
    """
    if node.op in STRUCTURAL:
        return False
    if node.op == "Fused":
        body = node.subgraphs["body"]
        return any(reads_bytes(body, body.nodes[n], i) for n, i in body.values[body.inputs[index]].uses)
    op = lookup(node.op, node.attrs)
    return not (op.flags.control or op.flags.type_only or index in op.host_inputs)


def is_view(node: Node) -> bool:
    """Whether the node's result is its input's bytes, on any engine: a view, or a copy between engines."""
    if node.op in STRUCTURAL or not node.inputs or node.inputs[0] == ABSENT:
        return False
    return is_copy(node) or lookup(node.op, node.attrs).flags.alias


def maker(graph: Graph, value: int) -> int:
    """The value whose bytes `value` has, through views and copies."""
    while is_view(node := graph.producer(value)):
        value = node.inputs[0]
    return value


def readers(graph: Graph, value: int) -> Iterator[Node]:
    """The nodes that read a value's bytes, through views and copies; a node may come more than once."""
    stack = [value]
    while stack:
        for number, index in graph.values[stack.pop()].uses:
            node = graph.nodes[number]
            if is_view(node) and index == 0:
                stack.append(node.outputs[0])
            elif reads_bytes(graph, node, index):
                yield node


def settle(
    graph: Graph, target: Target, order: Sequence[Node], chosen: dict[int, Engine], away: Engine,
    works: dict[int, Work], hint: Mapping[str, int],
) -> dict[int, str]:  # fmt: skip
    """Move small AI Core nodes to `away` (AI CPU or the host) where that saves time; returns the reasons by node id.

    `works` keeps the work of nodes that has been asked for; `hint` has sizes of symbols.
    """
    prices = Prices(graph, target, away, works, hint)
    fixed = [n for n in order if chosen[n.id] is away and not lookup(n.op, n.attrs).flags.control]
    groups = list(_groups(graph, _candidates(graph, fixed, chosen, prices)))
    small = [group for group in groups if len(group) <= MOST_NODES]
    moved = sorted(n for group in small for n in _moved(graph, group, chosen, away, prices))
    chosen.update(dict.fromkeys(moved, away))
    reasons: dict[int, str] = {}
    for number in moved:
        node = graph.nodes[number]
        reasons[number] = (
            f"{away.value}: it stays with its neighbours, where it takes {prices.extra(node):.1f} us longer than on "
            f"AI Core; its copies would take up to {prices.copies(node):.1f} us"
        )
    return reasons


def _neighbours(graph: Graph, node: Node) -> Iterator[Node]:
    """Makers of what the node reads, and readers of its results."""
    for index, value in enumerate(node.inputs):
        if value != ABSENT and reads_bytes(graph, node, index):
            yield graph.producer(maker(graph, value))
    for value in node.outputs:
        yield from readers(graph, value)


def _candidates(graph: Graph, fixed: Sequence[Node], chosen: Mapping[int, Engine], prices: Prices) -> dict[int, Node]:
    """AI Core nodes that could go over, by id: near a fixed node, and cheaper to move than their copies."""
    near: dict[int, Node] = {}
    front = list(fixed)
    for _ in range(RADIUS):
        found: dict[int, Node] = {}
        for node in front:
            for other in _neighbours(graph, node):
                if other.id in near or other.id in found or chosen.get(other.id) is not Engine.AICORE:
                    continue
                if prices.movable(other) and prices.extra(other) < prices.copies(other):
                    found[other.id] = other
        near.update(found)
        front = list(found.values())
        if not front:
            break
    return near


def _groups(graph: Graph, near: Mapping[int, Node]) -> Iterator[list[Node]]:
    """The candidates in groups that share values."""
    seen: set[int] = set()
    for start in sorted(near):
        if start in seen:
            continue
        seen.add(start)
        group = [near[start]]
        for node in group:
            for other in _neighbours(graph, node):
                if other.id in near and other.id not in seen:
                    seen.add(other.id)
                    group.append(other)
        yield group


def _moved(graph: Graph, group: Sequence[Node], chosen: Mapping[int, Engine], away: Engine, prices: Prices) -> set[int]:
    """Those of the group that the cheapest cut puts on the other side."""
    core, other = "aicore", away.value
    network = Network()
    members = {n.id for n in group}

    def place(node: Node) -> object:
        if node.id in members:
            return node.id
        engine = chosen.get(node.id)
        if away is Engine.AICPU and engine is Engine.HOST:
            return None  # a copy to the host is due from either side
        return other if engine is away else core

    for node in group:
        network.edge(core, node.id, prices.units(prices.extra(node)))
    for value in sorted({v for n in group for v in _values(graph, n)}):
        source = graph.producer(value)
        made = None if source.op in STRUCTURAL or _control(source) else place(source)
        if made is None:
            continue
        price = prices.units(prices.copy(value))
        network.edge(made, ("out", value), price)
        network.edge(("back", value), made, price)
        for reader in readers(graph, value):
            if (read := place(reader)) is not None:
                network.limitless(("out", value), read)
                network.limitless(read, ("back", value))
    return {n for n in network.sink_side(core, other) if isinstance(n, int)}


def _control(node: Node) -> bool:
    return lookup(node.op, node.attrs).flags.control


def _values(graph: Graph, node: Node) -> Iterator[int]:
    """The values that the node reads and makes, as their makers know them."""
    for index, value in enumerate(node.inputs):
        if value != ABSENT and reads_bytes(graph, node, index):
            yield maker(graph, value)
    yield from node.outputs


class Prices:
    """What nodes cost here and there, and copies, in microseconds at the symbols' usual sizes."""

    def __init__(
        self, graph: Graph, target: Target, away: Engine, works: dict[int, Work], hint: Mapping[str, int]
    ) -> None:
        self.graph, self.target, self.away, self._works, self._hint = graph, target, away, works, hint
        self._extra: dict[int, float] = {}
        self._copies: dict[int, float] = {}
        self._bytes: dict[int, int] = {}

    @cached_property
    def env(self) -> Mapping[str, int]:
        """Values of the symbols."""
        return counted_sizes(self.graph.symbols, self._hint)

    @staticmethod
    def units(microseconds: float) -> int:
        """Whole nanoseconds: sums of capacities must not depend on their order."""
        return round(microseconds * 1000)

    def nbytes(self, value: int) -> int:
        """Bytes of a value as it is meant; 0 where its rank is unknown."""
        found = self._bytes.get(value)
        if found is None:
            type_ = self.graph.values[value].type
            found = type_.dtype.itemsize if isinstance(type_, Tensor) and type_.shape is not None else 0
            for d in type_.dims if found and isinstance(type_, Tensor) else ():
                found *= d if type(d) is int else evaluated(d, self.env)
            self._bytes[value] = found
        return found

    def copy(self, value: int) -> float:
        """Copying a value from one engine to another: a task that reads and writes it."""
        moved = 2 * self.nbytes(value)
        rate = self.target.ddr_bytes_per_cycle * self.target.aicores * self.target.rates.ddr
        return self.target.rates.task_us + microseconds_of(moved / rate, self.target)

    def copies(self, node: Node) -> float:
        """The most that the copies of a node's values can cost."""
        if node.id not in self._copies:
            values = sorted(set(_values(self.graph, node)))
            made = [v for v in values if self.graph.producer(v).op not in STRUCTURAL]
            self._copies[node.id] = sum(map(self.copy, made))
        return self._copies[node.id]

    def movable(self, node: Node) -> bool:
        """Whether the node may run on the other engine: no matrix product, no bodies, sizes that are known or small."""
        op = lookup(node.op, node.attrs)
        if node.subgraphs or is_view(node) or op.flags.control or op.flags.side_effects or is_copy(node):
            return False
        types = [self.graph.type(v) for v in (*node.inputs, *node.outputs) if v != ABSENT]
        if not all(isinstance(t, Tensor) and t.shape is not None for t in types):
            return False
        if self.away is Engine.HOST and not all(isinstance(t, Tensor) and _small(t) for t in types):
            return False
        return not self._work(node).gemms

    def extra(self, node: Node) -> float:
        """How much longer the node takes on the other engine than on AI Core, at least 0."""
        if node.id not in self._extra:
            self._extra[node.id] = max(0.0, self._elsewhere(node) * HYSTERESIS - self._here(node))
        return self._extra[node.id]

    def _here(self, node: Node) -> float:
        """A launch, and the longer of what moves and what the vector units compute."""
        target, work = self.target, self._work(node)
        moved = self._touched(node) / (target.ddr_bytes_per_cycle * target.aicores * target.rates.ddr)
        itemsize = self.graph.tensor(node.outputs[0]).dtype.itemsize
        computed = (work.vector * itemsize + work.wide * WIDE) / VECTOR_BYTES
        cycles = max(moved, computed / (target.vector_units * target.rates.vector))
        return target.rates.task_us + microseconds_of(cycles, target)

    def _elsewhere(self, node: Node) -> float:
        """A launch there, and element operations at AI CPU's rate."""
        rates, work = self.target.rates, self._work(node)
        launch = rates.host_task_us if self.away is Engine.HOST else rates.aicpu_task_us
        return launch + max(work.vector + work.wide, self._touched(node) // 4) / rates.aicpu_per_us

    def _touched(self, node: Node) -> int:
        return sum(self.nbytes(v) for v in (*node.inputs, *node.outputs) if v != ABSENT)

    def _work(self, node: Node) -> Work:
        found = self._works.get(node.id)
        if found is None:
            found = self._works[node.id] = work_of(self._cost(node), self.env)
        return found

    def _cost(self, node: Node) -> Cost:
        graph, op = self.graph, lookup(node.op, node.attrs)
        types = tuple(None if v == ABSENT else graph.type(v) for v in node.inputs)
        values = tuple(None if v == ABSENT else known_value(graph.const(v)) for v in node.inputs)
        try:
            n = Infer(types, op.attributes(node.attrs), len(node.outputs), values)
            return op.work(n, [graph.type(v) for v in node.outputs])
        except (InferError, DimOverflow):
            return Cost()


def _small(type_: Tensor) -> bool:
    elements = type_.elements if type_.static else HOST_VALUES + 1
    return type(elements) is int and elements <= HOST_VALUES
