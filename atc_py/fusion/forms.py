"""Groups by their form: those that are alike are priced and cut once.

    layer 0   RMSNormalization ─ MatMul, MatMul, MatMul      form 17: a tile is looked for, and priced
    layer 1   RMSNormalization ─ MatMul, MatMul, MatMul      form 17: the same tile and price

Two nodes are of one kind when operator, attributes and types agree, which operands are constants, and the values of
those constants that decide about tiles or work. Two groups have one form when they have grown in the same way: nodes of
the same kinds joined, at the same places of the order, connected in the same way with what was there and with what
remains outside. A form is a number; that of a group with one more node follows from the group's own and from what the
node adds, so that it costs as much as the node has edges.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence

from atc_py.fusion.bodies import host_constants
from atc_py.fusion.keys import frozen
from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.dims import DimOverflow
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.base import Cost, Infer, InferError
from atc_py.ops.build import Values, known_value, lookup

CLOSED = -2
"""In a form, behind an operand: nobody outside reads it any more."""
LARGEST = 4096
"""Bytes of a constant that are compared; larger ones are equal only to themselves."""


class Kinds:
    """Numbers for the nodes of one graph, equal for those that are alike, and their work."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.costs: list[Cost] = []
        """The work of each kind, as the operator declares it."""
        self._kind: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._asking: set[int] = set()
        self._large: dict[int, Constant] = {}
        """Constants that are known by their `id`; held, so that no other one gets it."""

    def of(self, node: Node) -> int:
        """The node's kind."""
        found = self._kind.get(node.id)
        if found is None:
            found = self._kind[node.id] = self._find(node)
        return found

    def cost(self, node: Node) -> Cost:
        """The node's work."""
        return self.costs[self.of(node)]

    def _find(self, node: Node) -> int:
        nodes, values = self.graph.nodes, self.graph.values
        parts: list[Hashable] = [node.op, frozen(node.attrs) if node.attrs else None]
        for v in node.inputs:
            if v == ABSENT:
                parts.append(None)
                continue
            parts.append(values[v].type)
            if nodes[values[v].producer].const is not None:
                parts.append(True)
        parts.append(False)
        parts += [values[v].type for v in node.outputs]
        if lookup(node.op, node.attrs).host_inputs:
            parts += [(node.inputs.index(v), self._content(v)) for v in host_constants(self.graph, [node])]
        same = node.id if node.subgraphs else tuple(parts)
        known = self._numbers.get(same)
        if known is None:
            cost, asked = self._cost(node)
            known = self._numbers[same] = self._new(cost)
            if asked:  # what it does is also in its values
                self._asking.add(known)
        return self._with_values(known, node) if known in self._asking else known

    def _with_values(self, kind: int, node: Node) -> int:
        """The kind of a node whose work depends on the values of its constants."""
        told = (kind, *[None if self.graph.const(v) is None else self._content(v) for v in node.inputs])
        found = self._numbers.get(told)
        if found is None:
            found = self._numbers[told] = self._new(self._cost(node)[0])
        return found

    def _new(self, cost: Cost) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _cost(self, node: Node) -> tuple[Cost, bool]:
        """The node's work, and whether values of operands have a part in it."""
        graph, op = self.graph, lookup(node.op, node.attrs)
        types = tuple([None if v == ABSENT else graph.type(v) for v in node.inputs])
        outs = [graph.type(v) for v in node.outputs]
        values = Values(known_value, [graph.const(v) for v in node.inputs])
        n = Infer(types, op.attributes(node.attrs), len(outs), values, bodies=node.subgraphs)
        try:
            return op.work(n, outs), values.asked
        except (InferError, DimOverflow):
            return Cost(), values.asked

    def _content(self, value: int) -> Hashable:
        constant = self.graph.const(value)
        if isinstance(constant, Blob) and constant.nbytes <= LARGEST:
            return constant.dtype, constant.shape, bytes(constant.data)
        if isinstance(constant, Splat):
            return constant.dtype, constant.shape, repr(constant.value)
        if constant is None:
            return None
        self._large[id(constant)] = constant
        return id(constant)


class Form:
    """A group as it stands: `number` is equal for groups that are alike, `nodes` are the group's own, in order."""

    __slots__ = ("_nodes", "_rank", "number")

    def __init__(self, number: int, nodes: Sequence[Node], rank: Mapping[int, int] | None) -> None:
        """`rank`: where each node comes; None: they are given in order."""
        self.number, self._nodes, self._rank = number, nodes, rank

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, producers first."""
        rank = self._rank
        if rank is not None:
            self._nodes, self._rank = sorted(self._nodes, key=lambda n: rank[n.id]), None
        return self._nodes


class Outline:
    """A group as it grows: its members as they joined, what crosses its border, and its form."""

    def __init__(self, forms: Forms, rank: Mapping[int, int]) -> None:
        self.forms, self.rank = forms, rank
        self.members: dict[int, Node] = {}
        self.open: dict[int, int] = {}
        """The values that members make, with how many uses they have outside."""
        self.known: dict[int, int] = {ABSENT: -1}
        """The values that members read or make, numbered as they came."""
        self._numbers = [0]
        self._sizes = [1]
        self._nodes: list[Node] = []
        self._ranks: list[int] = []
        self._border: tuple[list[int], list[int]] | None = None

    def copy(self) -> Outline:
        """One that can grow on its own."""
        made = Outline(self.forms, self.rank)
        made.members, made.open, made.known = dict(self.members), dict(self.open), dict(self.known)
        made._numbers, made._sizes = self._numbers[:], self._sizes[:]
        made._nodes, made._ranks = self._nodes[:], self._ranks[:]
        return made

    def border(self) -> tuple[list[int], list[int]]:
        """(The values that members make and others read, those that members read and others make), as they came."""
        if self._border is None:
            read = [v for v in self.known if v not in self.open]
            self._border = [v for v, uses in self.open.items() if uses], read
        return self._border

    def form(self, count: int | None = None) -> Form:
        """The form of the group, or of what it was when `count` nodes had joined."""
        if count is None or count == len(self.members):
            return Form(self._numbers[-1], self._nodes[:], None)
        return Form(self._numbers[count], list(self.members.values())[:count], self.rank)

    def with_(self, node: Node) -> Form:
        """The form of the group with one more node."""
        self.join(node)
        found = self.form()
        self.leave()
        return found

    def join(self, node: Node) -> None:
        """Take one more node in.

        What it adds to the form: its kind, its place in the order, and how it is connected. An operand that nobody
        outside reads any more is followed by `CLOSED`; a result by whether anybody outside reads it (2), anybody at all
        (1), or nobody (0).
        """
        known, opened, members, values = self.known, self.open, self.members, self.forms.graph.values
        rank = self.rank[node.id]
        place = bisect(self._ranks, rank)
        adds = [self._numbers[-1], self.forms.kinds.of(node), place]
        for v in node.inputs:
            adds.append(known.setdefault(v, len(known)))
            if v in opened:
                opened[v] -= 1
                if not opened[v]:
                    adds.append(CLOSED)
        for v in node.outputs:
            adds.append(known.setdefault(v, len(known)))
            uses, outside = values[v].uses, 0
            for user, _ in uses:
                if user not in members:
                    outside += 1
            opened[v] = outside
            adds.append(2 if outside else 1 if uses else 0)
        self._numbers.append(self.forms.number(tuple(adds)))
        self._sizes.append(len(known))
        self._ranks.insert(place, rank)
        self._nodes.insert(place, node)
        members[node.id] = node
        self._border = None

    def leave(self) -> None:
        """Let the node go that has joined last."""
        _, node = self.members.popitem()
        self._border = None
        self._numbers.pop()
        self._sizes.pop()
        place = bisect(self._ranks, self.rank[node.id]) - 1
        del self._ranks[place], self._nodes[place]
        for v in node.outputs:
            del self.open[v]
        for v in node.inputs:
            if v in self.open:
                self.open[v] += 1
        while len(self.known) > self._sizes[-1]:
            self.known.popitem()


class Forms:
    """The forms of the groups of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kinds = Kinds(graph)
        self._numbers: dict[tuple[int, ...], int] = {}
        self._alone: dict[tuple[int, ...], int] = {}

    def number(self, grown: tuple[int, ...]) -> int:
        """The form of a group: of what it was (0: of no node) and what the last one to join has added."""
        return self._numbers.setdefault(grown, len(self._numbers) + 1)

    def of(self, nodes: Sequence[Node], rank: Mapping[int, int] | None = None) -> Outline:
        """The outline of a group that has grown so; `rank` says where each node comes (None: they come in order)."""
        outline = Outline(self, {n.id: i for i, n in enumerate(nodes)} if rank is None else rank)
        for node in nodes:
            outline.join(node)
        return outline

    def alone(self, node: Node) -> Form:
        """The form of a node by itself."""
        values, inputs = self.graph.values, node.inputs
        key = (self.kinds.of(node), *[bool(values[v].uses) for v in node.outputs], *map(inputs.index, inputs))
        found = self._alone.get(key)
        if found is None:
            found = self._alone[key] = self.of([node]).form().number
        return Form(found, [node], None)
