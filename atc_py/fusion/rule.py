"""Rules as data: what a family of fusions starts from, what may join, what must hold, and what takes its place.

    SCALED_SOFTMAX = Rule(
        name="scaled_softmax",
        doc="Softmax with the Mul or Div before it",
        anchors=frozenset({"Softmax"}),
        producers=lambda op: op.name in ("Mul", "Div"),
        constraints=(Constraint("engine", same_engine), Constraint("shape", same_shape)),
    )

    x ─ Mul(·, 0.125) ─ Softmax ─ y        →    Fused { Mul ─ Softmax }

A group begins with an anchor and grows node by node. A *follower* reads a value that the group makes, a *producer*
makes one that the group reads, a *sibling* reads what the anchor reads. Whoever is of the right kind and yet may not
join is a near miss: the constraint that it fails gives the reason, with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Type
from atc_py.ops.base import Op
from atc_py.target import Target

if TYPE_CHECKING:
    from atc_py.fusion.forms import Outline
    from atc_py.fusion.pricing import Price
    from atc_py.fusion.tiles import Fit, Misfit

ANCHOR, FOLLOWER, PRODUCER, SIBLING = "anchor", "follower", "producer", "sibling"


@dataclass(frozen=True)
class Refusal:
    """Why a rule left `node` as it is: the constraint's name, and the reason with its numbers.

    `about` are the ids of the nodes that did not join: once all of them are in one task with `node`, by whatever rule,
    the refusal is no longer true.
    """

    node: Node
    rule: str
    constraint: str
    reason: str
    about: tuple[int, ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """`constraint: reason`, as notes and reports tell it."""
        return f"{self.constraint}: {self.reason}" if self.constraint else self.reason


@dataclass(eq=False)
class Group:
    """Nodes that are to become one task: the anchor, all members by id, and which rules made it grow."""

    anchor: Node
    members: dict[int, Node]
    rules: tuple[str, ...] = ()
    fit: Fit | None = None
    price: Price | None = None
    notes: list[Refusal] = field(default_factory=list)
    outline: Outline | None = None

    def grown(self, outline: Outline) -> Group:
        """The group with the members of an outline, which may change without it."""
        return Group(self.anchor, outline.members, self.rules, self.fit, self.price, self.notes, outline)

    def made(self, graph: Graph, value: int) -> bool:
        """Whether a member makes the value."""
        return value != ABSENT and graph.values[value].producer in self.members


@dataclass(eq=False, slots=True)
class Join:
    """A node that may join a group: its role, and the value through which it is connected.

    For a follower `value` is a result of the group, for a producer a result of the node, for a sibling what the anchor
    reads too.
    """

    graph: Graph
    target: Target
    group: Group
    node: Node
    op: Op
    value: int
    role: str

    @property
    def anchor(self) -> Node:
        """The node from which the group began."""
        return self.group.anchor

    def positions(self) -> list[int]:
        """The inputs of the node that read the connecting value."""
        return [i for i, v in enumerate(self.node.inputs) if v == self.value]

    def others(self) -> list[int]:
        """The node's inputs that come from outside of the group, but for the connecting value."""
        return [v for v in self.node.inputs if v not in (self.value, ABSENT) and not self.group.made(self.graph, v)]

    @property
    def type(self) -> Type:
        """The type of the connecting value."""
        return self.graph.type(self.value)

    @property
    def result(self) -> Type:
        """The type of the node's first result."""
        return self.graph.type(self.node.outputs[0])


Check = Callable[[Join], "str | Misfit | None"]


@dataclass(frozen=True)
class Constraint:
    """A condition on a node that may join; `check` gives the reason, with its numbers, why it is not met, or None.

    A reason of `fusion.tiles` (`Misfit`) brings the name of its own constraint. An empty reason says that the node is
    not of the rule's kind in this group: it is left alone, and nothing is told.
    """

    name: str
    check: Check

    def refused(self, join: Join) -> tuple[str, str] | None:
        """(name of the constraint, reason); None when it is met."""
        found = self.check(join)
        return None if found is None else self.told(found)

    def told(self, found: str | Misfit) -> tuple[str, str]:
        """What `check` found, as (name of the constraint, reason)."""
        return (self.name, found) if isinstance(found, str) else (found.constraint, found.reason)


@dataclass(frozen=True)
class Match:
    """A group that obeys a rule, ready to be replaced.

    `nodes` are its members, producers first; `price` what it costs as separate tasks and as one, in microseconds;
    `again` the share of each member's work that tiles or cores repeat (empty: none).
    """

    graph: Graph
    target: Target
    anchor: Node
    nodes: tuple[Node, ...]
    price: Price
    fit: Fit | None = None
    again: tuple[float, ...] = ()


def named(graph: Graph, node: Node) -> str:
    """A node as reasons name it: its operator and its name, without one that of its first result."""
    if node.op == "NetOutput":
        return "the graph's output"
    name = node.name or (graph.values[node.outputs[0]].name if node.outputs else "")
    return f"{node.op} '{name or f'#{node.id}'}'"


def nobody(op: Op) -> bool:
    """The kind that no operator is of."""
    return False


def saved_us(match: Match) -> float:
    """The microseconds that one task saves, by the target's cost model."""
    return match.price.separate - match.price.fused


@dataclass(frozen=True)
class Rule:
    """One family of fusions, as data.

    `anchors` are the operators from which a group grows, by their names or by a test of their declaration, `admits`
    what an anchor must meet. `followers`, `producers`
    and `siblings` say which operators may join in that role at all: of others nothing is said. `constraints` are what a
    node must meet to join; tiles, convexity, the critical path and the profit are checked by the engine for all rules.
    `profit` is in microseconds: a group that saves nothing is left alone. `replacement` puts one node in the place of
    a group; None: a `Fused` node whose body is the group. `least` is how many nodes a group must have. `growing`: the
    rule may also enlarge a group that another rule made.
    """

    name: str
    doc: str
    anchors: frozenset[str] | Callable[[Op], bool]
    followers: Callable[[Op], bool] = nobody
    producers: Callable[[Op], bool] = nobody
    siblings: Callable[[Op], bool] = nobody
    constraints: tuple[Constraint, ...] = ()
    admits: tuple[Constraint, ...] = ()
    profit: Callable[[Match], float] = saved_us
    replacement: Callable[[Match], Node] | None = None
    least: int = 2
    growing: bool = True
    weighed: bool = False
    """Each product that joins has to pay by itself: it is weighed when it joins, not only when the group is done."""

    def begins(self, op: Op) -> bool:
        """Whether a group may grow from the operator."""
        return self.anchors(op) if callable(self.anchors) else op.name in self.anchors

    def roles(self, op: Op) -> list[str]:
        """In which roles the rule knows the operator at all."""
        kinds = {ANCHOR: self.begins, FOLLOWER: self.followers, PRODUCER: self.producers, SIBLING: self.siblings}
        return [role for role, kind in kinds.items() if kind(op)]


@dataclass
class Result:
    """How many tasks were made, and what was refused."""

    made: int = 0
    refused: list[Refusal] = field(default_factory=list)


def outer_inputs(nodes: Sequence[Node]) -> list[int]:
    """The values that the nodes read and do not make, each once, in the order in which they are read."""
    made = {v for n in nodes for v in n.outputs}
    return list(dict.fromkeys(v for n in nodes for v in n.inputs if v != ABSENT and v not in made))


def exits(graph: Graph, members: Iterable[Node], inside: Container[int]) -> list[int]:
    """The values that the members make and that others than `inside` read, in the members' order."""
    values = graph.values
    found = []
    for node in members:
        for v in node.outputs:
            for user, _ in values[v].uses:
                if user not in inside:
                    found.append(v)
                    break
    return found
