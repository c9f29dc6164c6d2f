"""The fusion engine: grows a chain from an anchor by one rule, and says why it stops.

    conv ─▶ add(conv, r) ─▶ relu ─▶ y

    chain [conv]              next add: one reader, same shape, operand r of the same shape      taken
    chain [conv, add]         next relu                                                          taken
    chain [conv, add, relu]   next is no follower                                                replaced by one Fused

A chain's inner values have one reader each, the next link. So every path that leaves the chain leaves at its end, and
one node in place of the chain closes no cycle, whatever the other operands are. Anchors are visited from the last one
back: where two branches meet in an Add, the later branch takes it, when the other one has already been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor, Type
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.target import Target


@dataclass(frozen=True)
class Link:
    """A follower that may join: `chain` is what there is so far, `value` its result, `node` the reader in question."""

    graph: Graph
    target: Target
    chain: Sequence[Node]
    value: int
    node: Node
    op: Op

    def positions(self) -> list[int]:
        """The inputs of the follower that read the chain's result."""
        return [i for i, v in enumerate(self.node.inputs) if v == self.value]

    def others(self) -> list[int]:
        """The follower's other inputs that are given."""
        return [v for v in self.node.inputs if v not in (self.value, ABSENT)]

    @property
    def type(self) -> Type:
        """The type of the chain's result."""
        return self.graph.type(self.value)

    @property
    def result(self) -> Type:
        """The type of the follower's result."""
        return self.graph.type(self.node.outputs[0])


@dataclass(frozen=True)
class Constraint:
    """A condition on a follower; `check` gives the reason, with its numbers, why it is not met, or None."""

    name: str
    check: Callable[[Link], str | None]


@dataclass(frozen=True)
class Match:
    """A chain that obeys a rule."""

    graph: Graph
    target: Target
    chain: tuple[Node, ...]


@dataclass(frozen=True)
class Rule:
    """One family of fusions, as data.

    `anchors` are the operators that a chain starts with, `admits` says whether an anchor may start one (a reason if
    not), `followers` whether an operator can follow at all (if not, nothing is said), `constraints` what a follower
    must meet. `replacement` puts one node in the place of a chain. `profit` is what the fusion saves, in bytes that
    the device need not move; a chain that is known to save nothing is left alone.
    """

    name: str
    doc: str
    anchors: frozenset[str]
    followers: Callable[[Op], bool]
    constraints: tuple[Constraint, ...]
    replacement: Callable[[Match], Node]
    profit: Callable[[Match], Size]
    admits: Callable[[Graph, Node], str | None] = lambda graph, node: None


@dataclass(frozen=True)
class Refusal:
    """Why a rule went no further than `node`."""

    node: Node
    rule: str
    reason: str


@dataclass
class Result:
    """How many tasks were made, and what was refused."""

    made: int = 0
    refused: list[Refusal] = field(default_factory=list)


def fuse(graph: Graph, rules: Sequence[Rule], target: Target) -> Result:
    """Apply the rules to one graph, each anchor once, the first rule first.

    Tasks that are there already stay as they are; what keeps them from growing is told again.
    """
    result = Result()
    anchors = frozenset({"Fused"}).union(*(r.anchors for r in rules)) if rules else frozenset()
    for anchor in reversed([n for n in graph.order() if n.op in anchors]):
        if graph.nodes.get(anchor.id) is not anchor:
            continue
        if anchor.op == "Fused":
            _retell(graph, rules, anchor, target, result)
            continue
        for rule in rules:
            if anchor.op in rule.anchors and _apply(graph, rule, anchor, target, result):
                break
    return result


def _apply(graph: Graph, rule: Rule, anchor: Node, target: Target, result: Result) -> bool:
    chain = [anchor]
    refusals: list[Refusal] = []
    while True:
        follower, refusal = _next(graph, rule, chain, target)
        if refusal is not None:
            refusals.append(refusal)
        if follower is None:
            break
        chain.append(follower)
    if len(chain) == 1:
        result.refused += refusals
        return False
    match = Match(graph, target, tuple(chain))
    profit = rule.profit(match)
    if type(profit) is int and profit <= 0:
        reason = f"fusing {' ─ '.join(n.op for n in chain)} saves {profit} bytes"
        result.refused.append(Refusal(anchor, rule.name, reason))
        return False
    fused = rule.replacement(match)
    # What stopped the chain is now to be told of the task that came of it.
    result.refused += [Refusal(fused, r.rule, r.reason) for r in refusals]
    result.made += 1
    return True


def _retell(graph: Graph, rules: Sequence[Rule], fused: Node, target: Target, result: Result) -> None:
    """Why a task that a rule has made takes no further follower."""
    chain = [n for n in fused.subgraphs["body"].order() if n.op not in STRUCTURAL]
    for rule in rules:
        if chain[0].op in rule.anchors:
            _, refusal = _next(graph, rule, chain, target, fused)
            if refusal is not None:
                result.refused.append(Refusal(fused, refusal.rule, refusal.reason))
            return


def _next(
    graph: Graph, rule: Rule, chain: Sequence[Node], target: Target, task: Node | None = None
) -> tuple[Node | None, Refusal | None]:
    """The follower that joins the chain, or why none does (None where no reader could be one).

    `task` is the node that stands for the chain already.
    """
    last = chain[-1]
    value = (task or last).outputs[0]
    links = [link for node in graph.consumers(value) if (link := _link(graph, rule, chain, value, node, target))]
    if not links:
        return None, None
    if task is None and len(chain) == 1 and (reason := rule.admits(graph, last)) is not None:
        return None, Refusal(last, rule.name, reason)
    if (reason := _several_readers(graph, last, value)) is not None:
        return None, Refusal(last, rule.name, f"{links[0].node.op} is not fused: {reason}")
    link = links[0]
    for constraint in rule.constraints:
        reason = constraint.check(link)
        if reason is not None:
            return None, Refusal(last, rule.name, f"{link.node.op} is not fused: {reason}")
    return link.node, None


def _link(graph: Graph, rule: Rule, chain: Sequence[Node], value: int, node: Node, target: Target) -> Link | None:
    if node.op in STRUCTURAL or len(node.outputs) != 1:
        return None
    op = lookup(node.op, node.attrs)
    return Link(graph, target, chain, value, node, op) if rule.followers(op) else None


def _several_readers(graph: Graph, last: Node, value: int) -> str | None:
    """Why the value has to be stored whether or not the chain goes on."""
    readers = graph.consumers(value)
    used = [v for v in graph.producer(value).outputs[1:] if graph.values[v].uses]
    if used:
        return f"{last.op} has {1 + len(used)} results that are read"
    if len(readers) == 1:
        return None
    names = ", ".join(sorted(n.op for n in readers if n.op != "NetOutput"))
    if graph.is_output(value):
        return f"the result of {last.op} is an output of the graph"
    return f"the result of {last.op} is read by {len(readers)} nodes ({names})"


def saved_bytes(match: Match) -> Size:
    """Bytes that the inner values no longer travel: each would be written once and read once."""
    total: Size = 0
    for node in match.chain[:-1]:
        type_ = match.graph.type(node.outputs[0])
        if isinstance(type_, Tensor) and type_.shape is not None:
            total = total + 2 * type_.nbytes
    return total


def fused_task(match: Match) -> Node:
    """One `Fused` node in place of the chain; its body holds the chain, its Data nodes are the node's inputs."""
    graph, chain = match.graph, match.chain
    body = Graph(chain[-1].name, graph.symbols)
    inner: dict[int, int] = {ABSENT: ABSENT}
    outer = list(dict.fromkeys(_outer_inputs(chain)))
    for value in outer:
        inner[value] = body.add_input(graph.values[value].name, graph.type(value))
    for node in chain:
        copy = body.add(
            node.op,
            [inner[v] for v in node.inputs],
            [graph.type(node.outputs[0])],
            node.attrs,
            name=node.name,
            origin=node.origin,
            names=[graph.values[node.outputs[0]].name],
        )
        copy.engine, copy.precision = node.engine, node.precision
        inner[node.outputs[0]] = copy.outputs[0]
    body.set_outputs([inner[chain[-1].outputs[0]]], ["Y"])
    anchor = chain[0]
    fused = graph.replace_chain(chain, "Fused", outer, {}, subgraphs={"body": body}, captures=len(outer))
    fused.engine, fused.precision = anchor.engine, anchor.precision
    fused.stream, fused.priority = anchor.stream, anchor.priority
    return fused


def _outer_inputs(chain: Sequence[Node]) -> Iterator[int]:
    made = {node.outputs[0] for node in chain}
    for node in chain:
        yield from (v for v in node.inputs if v != ABSENT and v not in made)
