"""Graphs and the graphs inside them, laid out on one line of positions.

    root:  a = Conv(x);  y = If(c | a){ b = Relu(a) }{ d = Neg(a) };  z = Add(y, a)

    position   0      1        2       3       4        5
    step       Conv   If: in   Relu    Neg     If: out  Add

A step is a task, or a region: a node with bodies, which enters at `start`, leaves at `end`, and has its bodies' steps
in between. Values get one number for the whole plan: `frame.vid(value)`. Nodes that only rename bytes are no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import BLOCKED, Tensor, on_host
from atc_py.ops.build import lookup
from atc_py.schedule.joins import Views, views_of

REGIONS = frozenset({"If", "Loop", "Scan"})
"""Operators whose bodies become regions of the plan."""


@dataclass(eq=False)
class Frame:
    """One graph: the number of its first value, its nodes in order, what moves no bytes, its steps, where it ends."""

    graph: Graph
    base: int
    nodes: list[Node]
    views: Views
    steps: dict[int, Step] = field(default_factory=dict)
    end: int = 0

    def vid(self, value: int) -> int:
        """The value's number in the plan."""
        return self.base + value

    def sources(self, node: Node) -> list[int]:
        """The producers of the bytes of a node that is no step."""
        values = () if node.op in STRUCTURAL else self.views.sources(node)
        return [self.graph.values[v].producer for v in values]


@dataclass(eq=False)
class Step:
    """A task (`start == end`, no bodies) or a region."""

    node: Node
    start: int
    end: int
    bodies: dict[str, Frame] = field(default_factory=dict)

    @property
    def loops(self) -> bool:
        """Whether the bodies run more than once."""
        return self.node.op in ("Loop", "Scan")


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether the node's first output is a view of its first input, so that it becomes no task.

    A view's shape must be known as soon as its source's is: a shape that only the node itself finds out needs a task.
    So does a value in blocks: its elements lie in another order in another shape.
    """
    if node.op in STRUCTURAL or not lookup(node.op, node.attrs).flags.alias:
        return False
    source, result = graph.type(node.inputs[0]), graph.type(node.outputs[0])
    if on_host(result) or not isinstance(source, Tensor) or not isinstance(result, Tensor):
        return False
    if source.shape is None or result.shape is None or {source.storage, result.storage} & BLOCKED:
        return False
    mine = {s for d in result.shape for s in symbols_of(d) if graph.symbols[s].runtime}
    return mine <= {s for d in source.shape for s in symbols_of(d)}


def roots(graph: Graph, nodes: list[Node], views: Views | None = None) -> dict[int, int]:
    """For each value the value whose bytes it views (itself unless it is made by a view)."""
    found: dict[int, int] = {}
    for node in nodes:
        alias = bool(node.outputs) and (is_alias(graph, node) if views is None else node.id in views.aliases)
        for i, value in enumerate(node.outputs):
            found[value] = found[node.inputs[0]] if alias and not i else value
    return found


def insert_copies(graph: Graph) -> None:
    """Give each output that is an input, a constant, or shares bytes with an earlier output a copy of its own.

    Bodies too: what leaves a body must be made in it.
    """
    graphs = list(graph.walk())
    fused = {id(s) for g in graphs for n in g.nodes.values() if n.op == "Fused" for s in n.subgraphs.values()}
    for inner in graphs:
        if id(inner) not in fused:
            _insert_copies(inner)


def _insert_copies(graph: Graph) -> None:
    found = roots(graph, graph.order())
    taken: set[int] = set()
    end = graph.net_output
    for i, value in enumerate(list(end.inputs)):
        root = found[value]
        if graph.producer(root).op not in ("Data", "Const") and root not in taken:
            taken.add(root)
            continue
        origin = graph.producer(value).origin
        copy = graph.insert_on_edge(end, i, "TensorMove", graph.type(value))
        copy.name = f"{graph.output_names[i]}.copy"
        copy.origin = origin or (graph.output_names[i],)
        copy.engine = "host" if on_host(graph.type(value)) else "aicore"


Arrange = Callable[[Graph, Views, list[Node]], list[Node]]
"""Puts the nodes of one graph into another valid order."""


def lay_out(graph: Graph, arrange: Arrange | None = None, joining: bool = True) -> tuple[Frame, int]:
    """The root frame, and the number of positions; `joining`: joins and cuts that can do without a task have none."""
    counter = _Counter(arrange, joining)
    frame = _frame(graph, counter)
    return frame, counter.position


@dataclass
class _Counter:
    arrange: Arrange | None
    joining: bool
    position: int = 0
    values: int = 0

    def step(self) -> int:
        self.position += 1
        return self.position - 1


def _frame(graph: Graph, counter: _Counter) -> Frame:
    order = graph.order()
    views = views_of(graph, order, is_alias, counter.joining)
    if counter.arrange is not None:
        order = counter.arrange(graph, views, order)
    frame = Frame(graph, counter.values, order, views)
    counter.values += max(graph.values, default=-1) + 1
    for node in frame.nodes:
        if node.op in STRUCTURAL or views.moves_nothing(node.id):
            continue
        start = counter.step()
        if node.op in REGIONS:
            names = sorted(node.subgraphs, reverse=True)  # then_branch before else_branch, as the regions have it
            bodies = {name: _frame(node.subgraphs[name], counter) for name in names}
            end = counter.step()
            for body in bodies.values():
                body.end = end
            frame.steps[node.id] = Step(node, start, end, bodies)
        else:
            frame.steps[node.id] = Step(node, start, start)
    frame.end = counter.position
    return frame


def all_frames(root: Frame) -> Iterator[Frame]:
    """The frame and all frames inside it, outer ones first, in order."""
    stack = [root]
    while stack:
        frame = stack.pop()
        yield frame
        inner = [body for step in frame.steps.values() for body in step.bodies.values()]
        stack.extend(reversed(inner))


def captured(step: Step, body: Frame) -> Iterator[tuple[int, int]]:
    """(input position of the node, value of the body) for each captured value."""
    count = step.node.captures
    first = len(step.node.inputs) - count
    formals = body.graph.inputs[len(body.graph.inputs) - count :] if count else []
    for i, value in enumerate(formals):
        yield first + i, value
