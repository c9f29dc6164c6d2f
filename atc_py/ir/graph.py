"""Graph, Node and Value: an index-based graph that keeps its own invariants.

    g = Graph("example")
    x = g.add_input("x", Tensor(DType.FLOAT32, (1, 8)))
    y = g.add("Relu", [x], [g.values[x].type])      # → the new node; y.outputs[0] is its value's id
    g.set_outputs([y.outputs[0]], ["y"])

A node holds ids, never pointers. Inputs of the graph are `Data` nodes, constants `Const` nodes, the graph's outputs
are the inputs of its one `NetOutput` node. `ABSENT` (-1) stands for an optional input that is not given. Producers and
uses are kept current by the methods below; nothing else writes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.ir.constants import Constant
from atc_py.ir.dims import Dim, Size, symbol
from atc_py.ir.types import DType, Tensor, Type

ABSENT = -1
STRUCTURAL = frozenset({"Data", "Const", "NetOutput"})
"""Operators that stand for no work."""


@dataclass(eq=False, slots=True)
class Value:
    """One result of one node. `uses` are (node id, input index) pairs in the order in which they were made."""

    id: int
    type: Type
    name: str
    producer: int
    index: int
    uses: dict[tuple[int, int], None] = field(default_factory=dict, repr=False)

    @property
    def tensor(self) -> Tensor:
        """The type, which must be a tensor."""
        assert isinstance(self.type, Tensor), f"value %{self.id} is no tensor"
        return self.type


@dataclass(eq=False, slots=True)
class Node:
    """One operation. Read its fields freely; change `inputs`, `outputs` and `subgraphs` only through the graph.

    `origin` names the ONNX nodes that this node stands for and only ever grows. `captures` is how many of the last
    inputs are handed to the last `Data` inputs of each subgraph. `notes` are reasons why rules left the node alone.
    """

    id: int
    op: str
    inputs: list[int]
    outputs: list[int]
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    origin: tuple[str, ...] = ()
    subgraphs: dict[str, Graph] = field(default_factory=dict)
    captures: int = 0
    const: Constant | None = None
    engine: str = ""
    precision: str = ""
    stream: str = ""
    priority: int = 0
    notes: tuple[str, ...] = ()

    def note(self, reason: str) -> None:
        """Remember why a rule left this node alone."""
        if reason not in self.notes:
            self.notes += (reason,)


def merge_origins(nodes: Iterable[Node]) -> tuple[str, ...]:
    """All ONNX nodes that the given nodes stand for, each once, in order."""
    return tuple(dict.fromkeys(o for n in nodes for o in n.origin))


@dataclass(frozen=True)
class Range:
    """What a symbol may be: `lo` ≤ symbol ≤ `hi` (None: no bound). `runtime`: bound when its producer has run."""

    lo: int = 0
    hi: int | None = None
    runtime: bool = False


class Graph:
    """Nodes and values by integer id, with named symbols shared by all subgraphs."""

    def __init__(self, name: str = "", symbols: dict[str, Range] | None = None) -> None:
        self.name = name
        self.nodes: dict[int, Node] = {}
        self.values: dict[int, Value] = {}
        self.inputs: list[int] = []
        self.output_names: list[str] = []
        self.symbols: dict[str, Range] = {} if symbols is None else symbols
        self.doc: dict[str, str] = {}
        self.calls: dict[Any, Any] = {}
        """What `ops.build` remembers of the nodes that it has typed; no part of the graph's meaning."""
        self._next_node = 0
        self._next_value = 0
        self._net_output: int | None = None
        self._const_types: dict[tuple[DType, tuple[Size, ...]], Tensor] = {}
        self._changes = 0
        self._order: list[Node] = []
        self._ordered_at = -1

    # -- building ----------------------------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: Sequence[int],
        types: Sequence[Type],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        origin: tuple[str, ...] = (),
        names: Sequence[str] = (),
        subgraphs: Mapping[str, Graph] | None = None,
        captures: int = 0,
        const: Constant | None = None,
    ) -> Node:
        """Add a node with one new value for each of `types`; trailing absent inputs are dropped."""
        ids = list(inputs)
        while ids and ids[-1] == ABSENT and not captures:
            ids.pop()
        number = self._next_node
        node = Node(number, op, ids, [], dict(attrs or {}), name, origin, dict(subgraphs or {}), captures, const)
        self._next_node = number + 1
        self._changes += 1
        self.nodes[number] = node
        if types:
            self.add_outputs(node, types, names)
        values = self.values
        for i, value in enumerate(ids):
            if value != ABSENT:
                values[value].uses[(number, i)] = None
        return node

    def add_outputs(self, node: Node, types: Sequence[Type], names: Sequence[str] = ()) -> None:
        """Give the node more results: one new value for each of `types`."""
        self._changes += 1
        values, outputs, given = self.values, node.outputs, len(names)
        for i, type_ in enumerate(types):
            number = self._next_value
            self._next_value = number + 1
            values[number] = Value(number, type_, names[i] if i < given else "", node.id, len(outputs))
            outputs.append(number)

    def add_input(self, name: str, type_: Type) -> int:
        """Add a graph input; returns its value's id."""
        node = self.add("Data", [], [type_], {"index": len(self.inputs)}, name=name, names=[name])
        self.inputs.append(node.outputs[0])
        return node.outputs[0]

    def add_const(self, constant: Constant, name: str = "", origin: tuple[str, ...] = ()) -> int:
        """Add a constant; returns its value's id."""
        key = (constant.dtype, constant.shape)
        type_ = self._const_types.get(key)
        if type_ is None:
            type_ = self._const_types[key] = Tensor(*key)
        number, made = self._next_node, self._next_value
        self.nodes[number] = Node(number, "Const", [], [made], {}, name, origin, {}, 0, constant)
        self.values[made] = Value(made, type_, name, number, 0)
        self._next_node, self._next_value = number + 1, made + 1
        self._changes += 1
        return made

    def set_outputs(self, values: Sequence[int], names: Sequence[str]) -> None:
        """Make `values` the graph's outputs (once, when the graph is built)."""
        assert self._net_output is None and len(values) == len(names)
        self._net_output = self.add("NetOutput", values, [], name="NetOutput").id
        self.output_names = list(names)

    def fresh_symbol(self, why: str, range_: Range | None = None) -> Dim:
        """A new symbol whose name tells where it comes from."""
        name, i = why, 1
        while name in self.symbols:
            i += 1
            name = f"{why}_{i}"
        self.symbols[name] = range_ or Range(runtime=True)
        return symbol(name)

    # -- looking up --------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> list[int]:
        """The graph's outputs: the inputs of its `NetOutput`."""
        return [] if self._net_output is None else self.nodes[self._net_output].inputs

    @property
    def net_output(self) -> Node:
        """The `NetOutput` node."""
        assert self._net_output is not None, "the graph has no outputs yet"
        return self.nodes[self._net_output]

    def type(self, value: int) -> Type:
        """A value's type."""
        return self.values[value].type

    def tensor(self, value: int) -> Tensor:
        """A value's type, which must be a tensor."""
        return self.values[value].tensor

    def producer(self, value: int) -> Node:
        """The node that makes the value."""
        return self.nodes[self.values[value].producer]

    def const(self, value: int) -> Constant | None:
        """The value's constant, or None when it is computed or absent."""
        return None if value == ABSENT else self.nodes[self.values[value].producer].const

    def consumers(self, value: int) -> list[Node]:
        """The nodes that read the value, each once, in the order in which the uses were made."""
        return [self.nodes[n] for n in dict.fromkeys(n for n, _ in self.values[value].uses)]

    def sole_consumer(self, value: int) -> Node | None:
        """The only reader of a value that is read once, else None (graph outputs count as readers)."""
        uses = self.values[value].uses
        return self.nodes[next(iter(uses))[0]] if len(uses) == 1 else None

    def is_output(self, value: int) -> bool:
        """Whether the value is an output of the graph."""
        return any(n == self._net_output for n, _ in self.values[value].uses)

    def order(self) -> list[Node]:
        """All nodes, producers first; among ready nodes the lowest id first. `ValueError` on a cycle."""
        if self._ordered_at != self._changes:  # passes that change nothing ask again and again
            self._order, self._ordered_at = self._sorted(), self._changes
        return self._order[:]

    def _sorted(self) -> list[Node]:
        """Nodes by id, except that a node which reads a later one comes as soon as that has come."""
        nodes, values = self.nodes, self.values
        result: list[Node] = []
        late: dict[int, int] = {}  # how many inputs a node still waits for whose turn by id is over
        waits: dict[int, list[int]] = {}  # by producer: who waits for it
        pending: set[int] = set()  # what has not come although its turn by id is over
        for number in sorted(nodes):
            node = nodes[number]
            missing = 0
            for value in node.inputs:
                if value != ABSENT:
                    source = values[value].producer
                    if source >= number or source in pending:
                        waits.setdefault(source, []).append(number)
                        missing += 1
            if missing:
                late[number] = missing
                pending.add(number)
                continue
            result.append(node)
            if number in waits:
                self._released(number, waits, late, pending, result)
        if pending:
            raise ValueError(f"graph '{self.name}' has a cycle through {len(pending)} nodes")
        return result

    def _released(
        self, number: int, waits: dict[int, list[int]], late: dict[int, int], pending: set[int], result: list[Node]
    ) -> None:
        """Append the nodes that waited for node `number` and can come now, the lowest id first."""
        ready: list[int] = []
        while True:
            for waiting in waits.pop(number, ()):
                late[waiting] -= 1
                if not late[waiting]:
                    heapq.heappush(ready, waiting)
            if not ready:
                return
            number = heapq.heappop(ready)
            pending.discard(number)
            result.append(self.nodes[number])

    def walk(self) -> Iterator[Graph]:
        """This graph and all graphs inside it, outer ones first."""
        stack = [self]
        while stack:
            graph = stack.pop()
            yield graph
            inner = [s for n in graph.nodes.values() if n.subgraphs for s in n.subgraphs.values()]
            stack.extend(reversed(inner))

    # -- rewriting ---------------------------------------------------------------------------------------------

    def set_input(self, node: Node, index: int, value: int) -> None:
        """Let input `index` of `node` read `value` (or ABSENT)."""
        self._changes += 1
        old = node.inputs[index]
        if old != ABSENT:
            del self.values[old].uses[(node.id, index)]
        node.inputs[index] = value
        if value != ABSENT:
            self.values[value].uses[(node.id, index)] = None

    def set_inputs(self, node: Node, inputs: Sequence[int]) -> None:
        """Give `node` other inputs; the number may change."""
        self._changes += 1
        for i, old in enumerate(node.inputs):
            if old != ABSENT:
                del self.values[old].uses[(node.id, i)]
        node.inputs[:] = inputs
        for i, value in enumerate(node.inputs):
            if value != ABSENT:
                self.values[value].uses[(node.id, i)] = None

    def replace_uses(self, old: int, new: int) -> None:
        """Let every reader of `old` (the graph's outputs included) read `new`."""
        if old == new:
            return
        self._changes += 1
        source, target = self.values[old], self.values[new]
        for node, index in source.uses:
            self.nodes[node].inputs[index] = new
            target.uses[(node, index)] = None
        source.uses = {}

    def replace_chain(
        self,
        chain: Sequence[Node],
        op: str,
        inputs: Sequence[int],
        attrs: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> Node:
        """Put one new node in the place of `chain`: it takes over the last node's output values and all origins.

        The other values of the chain must have no reader outside of it. `extra` goes to `add`.
        """
        last = chain[-1]
        extra.setdefault("name", last.name)
        extra.setdefault("origin", merge_origins(chain))
        node = self.add(op, inputs, [], attrs, **extra)
        node.outputs = last.outputs
        for value in node.outputs:
            self.values[value].producer = node.id
        last.outputs = []
        for old in reversed(chain):
            self.remove(old)
        return node

    def replace_nodes(
        self,
        nodes: Sequence[Node],
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> Node:
        """Put one new node in the place of `nodes`: it makes `outputs`, values of theirs, and takes over all origins.

        Their other values must have no reader outside. The new node is the caller's to place without a cycle.
        """
        extra.setdefault("origin", merge_origins(nodes))
        made = self.add(op, inputs, [], attrs, **extra)
        made.outputs = list(outputs)
        for i, value in enumerate(outputs):
            self.values[value].producer, self.values[value].index = made.id, i
        kept = set(outputs)
        for node in nodes:
            for i, value in enumerate(node.inputs):
                if value != ABSENT:
                    del self.values[value].uses[(node.id, i)]
            node.inputs = []
        for node in nodes:
            node.outputs = [v for v in node.outputs if v not in kept]
            self.remove(node)
        return made

    def insert_on_edge(
        self, node: Node, index: int, op: str, type_: Type, attrs: Mapping[str, Any] | None = None
    ) -> Node:
        """Put a new one-input node between input `index` of `node` and its producer.

        It stands for what `node` stands for, or before an output for what the producer does.
        """
        source = node.inputs[index]
        inserted = self.add(op, [source], [type_], attrs, origin=node.origin or self.producer(source).origin)
        self.set_input(node, index, inserted.outputs[0])
        return inserted

    def remove(self, node: Node) -> None:
        """Delete a node whose outputs nobody reads, with its values."""
        self._changes += 1
        for value in node.outputs:
            assert not self.values[value].uses, f"%{value} of {node.op} is still read"
        for i, value in enumerate(node.inputs):
            if value != ABSENT:
                del self.values[value].uses[(node.id, i)]
        for value in node.outputs:
            del self.values[value]
        del self.nodes[node.id]

    def bypass(self, node: Node, source: int) -> None:
        """Let readers of the node's first output read `source` instead, and delete the node.

        What the node stood for is handed to the producer of `source`, unless that is structural.
        """
        old = self.values[node.outputs[0]]
        producer = self.producer(source)
        if producer.op not in STRUCTURAL:
            producer.origin = merge_origins((producer, node))
        if old.name and not self.values[source].name:
            self.values[source].name = old.name
        self.replace_uses(old.id, source)
        self.remove(node)

    def prune(self) -> list[Node]:
        """Delete nodes that reach no output (graph inputs stay); returns them."""
        nodes, values = self.nodes, self.values
        stack = [self.net_output.id, *(values[v].producer for v in self.inputs)]
        live = set(stack)
        while stack:
            for value in nodes[stack.pop()].inputs:
                if value != ABSENT and (p := values[value].producer) not in live:
                    live.add(p)
                    stack.append(p)
        dead = [] if len(live) == len(nodes) else [n for n in nodes.values() if n.id not in live]
        for node in dead:
            for i, value in enumerate(node.inputs):
                if value != ABSENT:
                    values[value].uses.pop((node.id, i), None)
        for node in dead:
            for value in node.outputs:
                del values[value]
            del nodes[node.id]
        self._changes += len(dead)
        return dead

    def renumber(self, order: Sequence[Node]) -> None:
        """Give nodes and values new ids that follow `order`; what is not in it goes (nothing of it may read that)."""
        old_values, values = self.values, dict[int, Value]()
        new_ids = {ABSENT: ABSENT}
        for number, node in enumerate(order):
            outputs = node.outputs
            for i, old in enumerate(outputs):
                value = old_values[old]
                new_ids[old] = value.id = outputs[i] = len(values)
                value.producer, value.uses = number, {}
                values[value.id] = value
        inputs = [new_ids[v] for v in self.inputs]
        end = None if self._net_output is None else self.nodes[self._net_output]
        forward = True
        for number, node in enumerate(order):
            node.id = number
            read = node.inputs
            for i, old in enumerate(read):
                read[i] = new = new_ids[old]
                if new != ABSENT:
                    value = values[new]
                    value.uses[(number, i)] = None
                    forward &= value.producer < number
        self.inputs, self.values = inputs, values
        self.nodes = dict(enumerate(order))
        self._net_output = None if end is None else end.id
        self._next_node, self._next_value = len(order), len(values)
        self._changes += 1
        if forward:
            self._order, self._ordered_at = list(order), self._changes
