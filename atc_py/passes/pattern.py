"""Patterns: trees of operators with named operands.

    x = Var("x")
    square = Op("Mul", x, x) | Op("Pow", x, Num(2))
    Op("Div", x, Op("Sqrt", Op("Add", Op("ReduceMean", square, Con("axes")), Num("epsilon"))))

finds x / √(mean(x²) + ε) with x the same value wherever it is named, however the Add's operands stand, and gives the
match's `values` {"x": 5, "axes": 9} and `numbers` {"epsilon": 1e-6}. `Through("Cast", p)` is p with any of these
nodes in between; `p | q` tries p, then q.

A search backtracks over the pattern, never over the graph: its cost does not depend on the graph's size. What a pattern
asks of its root alone, and of the operators in a graph, it also tells without a graph (`fits`, `needs`), so that rules
(`passes.rules`) are tried only where they may be of use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isclose

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import lookup
from atc_py.passes.known import uniform

Then = Callable[[], bool]
"""What has to match after this; a pattern succeeds only when the rest does."""

MOST_THROUGH = 4
"""Nodes that `Through` looks through."""

_TOLERANCE = {DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}


def tolerance(dtype: DType) -> float:
    """Relative: what rounding a number to the dtype may change."""
    return _TOLERANCE.get(dtype, 1e-6)


Needs = frozenset[frozenset[str]]


class Pattern:
    """A pattern for one value."""

    def match(self, m: Match, value: int, then: Then) -> bool:
        """Whether the value fits and then the rest does; on failure `m` is as before."""
        raise NotImplementedError

    def makers(self) -> frozenset[str] | None:
        """The operators that may make a value which fits; None: any."""
        return None

    def __or__(self, other: Pattern) -> Pattern:
        return _Or(self, other)

    def needs(self) -> Needs:
        """Sets of operators, of each of which one is part of every match."""
        return frozenset()

    def fits(self, op: str, makers: Sequence[str]) -> bool:
        """A glance: False when a node of `op` whose inputs are made by `makers` is not the root of a match."""
        return True


@dataclass
class Match:
    """What a pattern found: values and numbers by name, and the nodes of the match, the root first."""

    graph: Graph
    values: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)

    @property
    def root(self) -> Node:
        """The node whose result the match computes."""
        return self.nodes[0]

    @property
    def result(self) -> int:
        """The root's value."""
        return self.root.outputs[0]

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def type(self, name: str) -> Tensor:
        """The type of a named value."""
        return self.graph.tensor(self.values[name])

    def inner(self) -> list[Node]:
        """The nodes of the match but the root, each once."""
        return list({n.id: n for n in self.nodes if n is not self.root}.values())

    def outside(self) -> str | None:
        """Which inner result is read outside of the match, told as a reason; None when none is."""
        inside = {n.id for n in self.nodes}
        for node in self.inner():
            readers = [n for v in node.outputs for n, _ in self.graph.values[v].uses]
            if any(n not in inside for n in readers):
                return f"the result of {node.op} '{node.name}' has {len(readers)} readers"
        return None


@dataclass(frozen=True)
class Var(Pattern):
    """Any value; under the same name always the same one."""

    name: str

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        if value == ABSENT:
            return False
        if self.name in m.values:
            return m.values[self.name] == value and then()
        m.values[self.name] = value
        if then():
            return True
        del m.values[self.name]
        return False


@dataclass(frozen=True)
class Con(Pattern):
    """A constant."""

    name: str

    def makers(self) -> frozenset[str]:
        """See `Pattern`."""
        return frozenset({"Const"})

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        if value == ABSENT or m.graph.const(value) is None or m.values.get(self.name, value) != value:
            return False
        before = m.values.get(self.name)
        m.values[self.name] = value
        m.constants.append(value)
        if then():
            return True
        m.constants.pop()
        if before is None:
            del m.values[self.name]
        return False


@dataclass(frozen=True)
class Num(Pattern):
    """A constant that is one number: a given one (within its dtype's rounding), or any under a name."""

    want: float | str

    def makers(self) -> frozenset[str]:
        """See `Pattern`."""
        return frozenset({"Const"})

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        constant = None if value == ABSENT else m.graph.const(value)
        number = uniform(constant)
        if constant is None or number is None:
            return False
        if not isinstance(self.want, str):
            close = isclose(float(number), self.want, rel_tol=tolerance(constant.dtype))
            return close and self._go_on(m, value, then)
        if self.want in m.numbers:
            return m.numbers[self.want] == number and self._go_on(m, value, then)
        m.numbers[self.want] = float(number)
        if self._go_on(m, value, then):
            return True
        del m.numbers[self.want]
        return False

    @staticmethod
    def _go_on(m: Match, value: int, then: Then) -> bool:
        m.constants.append(value)
        if then():
            return True
        m.constants.pop()
        return False


def made_by(graph: Graph, node: Node) -> tuple[str, ...]:
    """The operators that make the node's inputs; "" where one is absent."""
    nodes, values = graph.nodes, graph.values
    return tuple(["" if v == ABSENT else nodes[values[v].producer].op for v in node.inputs])


class Op(Pattern):
    """A node of one of the operators (separated by spaces) whose inputs fit the operands.

    The two operands of a commutative operator may stand in either order. `when` is asked of the node. With `rest`,
    inputs behind the named ones may be anything. `output` is which of the node's results is meant.
    """

    def __init__(
        self,
        ops: str,
        *operands: Pattern,
        when: Callable[[Graph, Node], bool] | None = None,
        rest: bool = False,
        output: int = 0,
    ) -> None:
        self.ops = frozenset(ops.split())
        self.operands, self.when, self.rest, self.output = operands, when, rest, output
        self._makers = tuple([operand.makers() for operand in operands])

    def makers(self) -> frozenset[str]:
        """See `Pattern`."""
        return self.ops

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        if value == ABSENT:
            return False
        made = m.graph.values[value]
        node = m.graph.nodes[made.producer]
        if node.op not in self.ops or made.index != self.output:
            return False
        count = len(self.operands)
        if len(node.inputs) != count and not (self.rest and len(node.inputs) > count):
            return False
        if self.when is not None and not self.when(m.graph, node):
            return False
        makers = made_by(m.graph, node)
        m.nodes.append(node)
        if self._glance(makers) and self._operands(m, node.inputs, 0, then):
            return True
        if count == 2 and node.inputs[0] != node.inputs[1] and self._glance(makers[1::-1]):
            flags = lookup(node.op, node.attrs).flags
            if flags.commutative and self._operands(m, node.inputs[1::-1], 0, then):
                return True
        m.nodes.pop()
        return False

    def needs(self) -> Needs:
        """See `Pattern`."""
        return frozenset({self.ops}).union(*(operand.needs() for operand in self.operands))

    def fits(self, op: str, makers: Sequence[str]) -> bool:
        """See `Pattern`."""
        count = len(self.operands)
        if op not in self.ops or len(makers) < count:
            return False
        return self._glance(makers) or (count == 2 and self._glance(makers[1::-1]))

    def _glance(self, makers: Sequence[str]) -> bool:
        """Whether what makes the inputs may fit the operands."""
        return all(maker and (fit is None or maker in fit) for fit, maker in zip(self._makers, makers))

    def _operands(self, m: Match, inputs: Sequence[int], i: int, then: Then) -> bool:
        if i == len(self.operands):
            return then()
        return self.operands[i].match(m, inputs[i], lambda: self._operands(m, inputs, i + 1, then))


@dataclass(frozen=True)
class _Or(Pattern):
    first: Pattern
    second: Pattern

    def needs(self) -> Needs:
        """See `Pattern`."""
        makers, both = self.makers(), self.first.needs() & self.second.needs()
        return both if makers is None else both | {makers}

    def fits(self, op: str, makers: Sequence[str]) -> bool:
        """See `Pattern`."""
        return self.first.fits(op, makers) or self.second.fits(op, makers)

    def makers(self) -> frozenset[str] | None:
        """See `Pattern`."""
        first, second = self.first.makers(), self.second.makers()
        return None if first is None or second is None else first | second

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        return self.first.match(m, value, then) or self.second.match(m, value, then)


class Through(Pattern):
    """`inner`, with up to four nodes of the operators (separated by spaces) after it, each read at input 0."""

    def __init__(self, ops: str, inner: Pattern) -> None:
        self.ops, self.inner = frozenset(ops.split()), inner

    def needs(self) -> Needs:
        """See `Pattern`."""
        return self.inner.needs()

    def makers(self) -> frozenset[str] | None:
        """See `Pattern`."""
        inner = self.inner.makers()
        return None if inner is None else self.ops | inner

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        start = len(m.nodes)
        for _ in range(MOST_THROUGH):
            if self.inner.match(m, value, then):
                return True
            node = m.graph.producer(value) if value != ABSENT else None
            if node is None or node.op not in self.ops:
                break
            m.nodes.append(node)
            value = node.inputs[0]
        del m.nodes[start:]
        return False
