"""Patterns: trees of operators with named operands, and the rules that rewrite what they find.

    x = Var("x")
    square = Op("Mul", x, x) | Op("Pow", x, Num(2))
    Op("Div", x, Op("Sqrt", Op("Add", Op("ReduceMean", square, Con("axes")), Num("epsilon"))))

finds x / √(mean(x²) + ε) with x the same value wherever it is named, however the Add's operands stand, and gives the
match's `values` {"x": 5, "axes": 9} and `numbers` {"epsilon": 1e-6}. `Through("Cast", p)` is p with any of these
nodes in between; `p | q` tries p, then q.

A rule looks at each node of the graph that its pattern's root may be. What lies between the root and the named operands
must have no reader outside the match. A rule that does not rewrite what it found says why, and that is the near miss
which the report tells; a match that it has nothing to say about is passed over for the next one. A search backtracks
over the pattern, never over the graph: its cost does not depend on the graph's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from atc_py.ir.constants import Constant, Splat
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import Scope, as_constant, lookup
from atc_py.ops.shapes import as_objects
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, known_at_start, uniform
from atc_py.passes.lineage import Lineage

Then = Callable[[], bool]
"""What has to match after this; a pattern succeeds only when the rest does."""

MOST_THROUGH = 4
"""Nodes that `Through` looks through."""

_TOLERANCE = {DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}


def tolerance(dtype: DType) -> float:
    """Relative: what rounding a number to the dtype may change."""
    return _TOLERANCE.get(dtype, 1e-6)


class Pattern:
    """A pattern for one value."""

    def match(self, m: Match, value: int, then: Then) -> bool:
        """Whether the value fits and then the rest does; on failure `m` is as before."""
        raise NotImplementedError

    def may(self, graph: Graph, value: int) -> bool:
        """A glance at the value's producer: False when nothing can fit."""
        return value != ABSENT

    def __or__(self, other: Pattern) -> Pattern:
        return _Or(self, other)

    def roots(self) -> frozenset[str]:
        """The operators that may make a value which fits."""
        return frozenset()


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

    def may(self, graph: Graph, value: int) -> bool:
        """See `Pattern`."""
        return graph.const(value) is not None

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

    def may(self, graph: Graph, value: int) -> bool:
        """See `Pattern`."""
        return graph.const(value) is not None

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

    def roots(self) -> frozenset[str]:
        """See `Pattern`."""
        return self.ops

    def may(self, graph: Graph, value: int) -> bool:
        """See `Pattern`."""
        return value != ABSENT and graph.nodes[graph.values[value].producer].op in self.ops

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
        m.nodes.append(node)
        if self._glance(m.graph, node.inputs) and self._operands(m, node.inputs, 0, then):
            return True
        if count == 2 and node.inputs[0] != node.inputs[1] and self._glance(m.graph, node.inputs[::-1]):
            flags = lookup(node.op, node.attrs).flags
            if flags.commutative and self._operands(m, node.inputs[::-1], 0, then):
                return True
        m.nodes.pop()
        return False

    def _glance(self, graph: Graph, inputs: Sequence[int]) -> bool:
        return all(operand.may(graph, value) for operand, value in zip(self.operands, inputs))

    def _operands(self, m: Match, inputs: Sequence[int], i: int, then: Then) -> bool:
        if i == len(self.operands):
            return then()
        return self.operands[i].match(m, inputs[i], lambda: self._operands(m, inputs, i + 1, then))


@dataclass(frozen=True)
class _Or(Pattern):
    first: Pattern
    second: Pattern

    def roots(self) -> frozenset[str]:
        """See `Pattern`."""
        return self.first.roots() | self.second.roots()

    def may(self, graph: Graph, value: int) -> bool:
        """See `Pattern`."""
        return self.first.may(graph, value) or self.second.may(graph, value)

    def match(self, m: Match, value: int, then: Then) -> bool:
        """See `Pattern`."""
        return self.first.match(m, value, then) or self.second.match(m, value, then)


class Through(Pattern):
    """`inner`, with up to four nodes of the operators (separated by spaces) after it, each read at input 0."""

    def __init__(self, ops: str, inner: Pattern) -> None:
        self.ops, self.inner = frozenset(ops.split()), inner

    def roots(self) -> frozenset[str]:
        """See `Pattern`."""
        return self.ops | self.inner.roots()

    def may(self, graph: Graph, value: int) -> bool:
        """See `Pattern`."""
        return value != ABSENT and (graph.producer(value).op in self.ops or self.inner.may(graph, value))

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


# -- rules -------------------------------------------------------------------------------------------------------


class Rewrite:
    """A match, and the ways to put something else in its place."""

    def __init__(self, m: Match, ctx: PassContext, lineage: Lineage) -> None:
        self.m, self.ctx, self.lineage, self.graph = m, ctx, lineage, m.graph

    def emit(self, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None) -> int:
        """A new node that stands for what the root stands for; returns its value. Its type is inferred."""
        return emit(self.graph, op, inputs, attrs, self.m.root)

    def constant(self, constant: Constant) -> int:
        """A new constant that stands for what the root stands for."""
        return self.graph.add_const(constant, "", self.m.root.origin)

    def replace(self, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None) -> None:
        """The root becomes one node of `op`; what of the match is no longer read goes."""
        become(self.graph, self.m.root, op, inputs, attrs)
        sweep(self.graph, self.lineage, self.m.root, self.m.inner(), self.m.constants)


Rewriter = Callable[[Rewrite], "str | None"]
"""Rewrites a match; or leaves it alone and returns the reason ("" when it is nobody's business)."""


@dataclass(frozen=True)
class Rule:
    """A law: the pattern, and what takes its place. `shared`: inner results may be read outside of the match."""

    name: str
    pattern: Pattern
    rewrite: Rewriter
    shared: bool = False


def index_rules(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Rules by the operator of their root, in their order."""
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in sorted(rule.pattern.roots()):
            table.setdefault(op, []).append(rule)
    return table


def apply_rules(graph: Graph, ctx: PassContext, name: str, table: Mapping[str, Sequence[Rule]]) -> int:
    """Try the rules on each node, the first one that rewrites it wins; returns how many rewrites were made."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op in table]:
            if node.id not in graph.nodes or node.op not in table:
                continue
            for rule in table[node.op]:
                reason = _apply(graph, ctx, lineage, rule, node)
                if reason is None:
                    changed += 1
                    break
                if reason:
                    ctx.decline(node, name, f"no {rule.name}: {reason}")
    return changed


def _apply(graph: Graph, ctx: PassContext, lineage: Lineage, rule: Rule, node: Node) -> str | None:
    """Rewrite the first match that the rule takes; else the first reason why it took none, "" without any."""
    m, reasons = Match(graph), [""]

    def take() -> bool:
        last = next(reversed(graph.nodes))
        reason = (None if rule.shared else m.outside()) or rule.rewrite(Rewrite(m, ctx, lineage))
        if reason is None:
            return True
        while (made := next(reversed(graph.nodes))) != last:
            graph.remove(graph.nodes[made])
        reasons.append(reason)
        return False

    taken = rule.pattern.match(m, node.outputs[0], take)
    return None if taken else next((r for r in reasons if r), "")


# -- building blocks of rewrites ---------------------------------------------------------------------------------


def emit(graph: Graph, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None, heir: Node) -> int:
    """A new node of which the types are inferred; it stands for what `heir` stands for."""
    return Scope(graph).emit(op, inputs, attrs or {}, origin=heir.origin)[0]


def become(graph: Graph, node: Node, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None) -> None:
    """The node computes something else that has its result's type."""
    ids = list(inputs)
    while ids and ids[-1] == ABSENT:
        ids.pop()
    node.op, node.attrs = op, lookup(op, attrs or {}).attributes(attrs or {})
    graph.set_inputs(node, ids)


def sweep(graph: Graph, lineage: Lineage, heir: Node, nodes: Sequence[Node], constants: Sequence[int] = ()) -> None:
    """Remove those of the nodes, and of the constants, that nobody reads any more; `heir` stands for them."""
    waiting = list({n.id: n for n in nodes if n is not heir}.values())
    while waiting:
        left = []
        for node in waiting:
            if node.id in graph.nodes and lineage.drop(node):
                lineage.inherit(heir, node)
            else:
                left.append(node)
        if len(left) == len(waiting):
            break
        waiting = left
    for value in dict.fromkeys(constants):
        if value in graph.values and lineage.drop(source := graph.producer(value)):
            lineage.inherit(heir, source)


def filled(graph: Graph, dtype: DType, dims: Sequence[Size], number: float) -> Constant | None:
    """The number repeated over dims that are known before anything runs; None where they are not."""
    if not known_at_start(graph, tuple(dims)):
        return None
    return Splat(dtype, tuple(dims), dtype.numpy.type(number))


def shaped(graph: Graph, value: int, dims: tuple[Size, ...], heir: Node, op: str = "") -> int:
    """The value as a tensor of these dims: a Reshape, or an Expand; the value itself where it has them."""
    if dims_of(graph, value) == dims:
        return value
    target = graph.add_const(as_constant(as_objects(dims), DType.INT64), "", heir.origin)
    if op == "Expand":
        return emit(graph, "Expand", [value, target], {}, heir)
    zero = int(any(d == 0 or type(d) is not int for d in dims))
    return emit(graph, "Reshape", [value, target], {"allowzero": zero}, heir)
