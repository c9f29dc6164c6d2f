"""Graphs and the graphs inside them, laid out on one line of positions.

    root:  a = Conv(x);  y = If(c | a){ b = Relu(a) }{ d = Neg(a) };  z = Add(y, a)

    position   0      1        2       3       4        5
    step       Conv   If: in   Relu    Neg     If: out  Add

A step is a task, or a region: a node with bodies, which enters at `start`, leaves at `end`, and has its bodies' steps
in between. Values get one number for the whole plan: `frame.vid(value)`. Nodes that only rename bytes are no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import BLOCKED, Tensor, Type, on_host
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.schedule.joins import Views, is_late, views_of

REGIONS = frozenset({"If", "Loop", "Scan"})
"""Operators whose bodies become regions of the plan."""


@dataclass(eq=False, slots=True)
class Frame:
    """One graph: the number of its first value, its nodes in order, what moves no bytes, its steps, where it ends.

    `steps` are by node, in order; `regions` are those of them that have bodies. The numbers of the graph's values, and
    of the values of the graphs inside it, lie below `ceiling`.
    """

    graph: Graph
    base: int
    nodes: list[Node]
    views: Views
    steps: dict[int, Step] = field(default_factory=dict)
    regions: list[Step] = field(default_factory=list)
    end: int = 0
    ceiling: int = 0

    def vid(self, value: int) -> int:
        """The value's number in the plan."""
        return self.base + value

    def sources(self, node: Node) -> list[int]:
        """The producers of the bytes of a node that moves none."""
        return [self.graph.values[v].producer for v in self.views.sources(node)]


@dataclass(eq=False, slots=True)
class Step:
    """A task (`start == end`, no bodies) or a region, and its operator's declaration."""

    node: Node
    op: Op
    start: int
    end: int
    bodies: Mapping[str, Frame]

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


def roots(graph: Graph, nodes: list[Node]) -> dict[int, int]:
    """For each value the value whose bytes it views (itself unless it is made by a view)."""
    found: dict[int, int] = {}
    for node in nodes:
        alias = bool(node.outputs) and is_alias(graph, node)
        for i, value in enumerate(node.outputs):
            found[value] = found[node.inputs[0]] if alias and not i else value
    return found


def root_of(graph: Graph, value: int, views: Callable[[Node], bool]) -> int:
    """The value whose bytes a value views; `views` says which nodes' first outputs are views of their first inputs."""
    while graph.values[value].index == 0 and views(node := graph.producer(value)):
        value = node.inputs[0]
    return value


@dataclass(frozen=True)
class Ends:
    """What the If that a graph is a branch of says of the graph's outputs, by position; of other graphs nothing.

    `measured`: outputs whose shape is that of the array in their buffer, for only the run time knows it. `settled`: the
    types of outputs whose sizes are known before, and whose buffers have as many bytes, whatever the branch knows.
    """

    measured: frozenset[int] = frozenset()
    settled: Mapping[int, Type] = field(default_factory=dict)


NO_ENDS = Ends()


def insert_copies(graph: Graph) -> None:
    """Give each output that `copied_outputs` names a copy of its own.

    Bodies too: what leaves a body must be made in it. A fused task's is no such body.
    """
    stack: list[tuple[Graph, Ends]] = [(graph, NO_ENDS)]
    while stack:
        inner, ends = stack.pop()
        for node in inner.nodes.values():
            if node.subgraphs and node.op != "Fused":
                below = branch_ends(inner, node, ends)
                stack += [(body, below) for body in node.subgraphs.values()]
        _insert_copies(inner, ends)


def _insert_copies(graph: Graph, ends: Ends) -> None:
    end = graph.net_output
    for i in copied_outputs(graph, ends):
        value = end.inputs[i]
        origin = graph.producer(value).origin
        copy = graph.insert_on_edge(end, i, "TensorMove", ends.settled.get(i, graph.type(value)))
        copy.name = f"{graph.output_names[i]}.copy"
        copy.origin = origin or (graph.output_names[i],)
        copy.engine = "host" if on_host(graph.type(value)) else "aicore"


def copied_outputs(graph: Graph, ends: Ends = NO_ENDS) -> list[int]:
    """The positions of the outputs that need a copy, in order.

    These are inputs, constants, what shares bytes with an earlier output; of the measured outputs those that are views
    of another shape, for their buffer would hold the array that is viewed; and of the settled ones those of a size that
    only the run time knows, for that lies where there is room for any.
    """
    taken: set[int] = set()
    found = []
    for i, value in enumerate(graph.outputs):
        root = _root(graph, value)
        given = graph.producer(root).op in ("Data", "Const") or root in taken
        reshaped = i in ends.measured and not _alike(graph, value, root)
        if given or reshaped or (i in ends.settled and (_found_out(graph, value) or _found_out(graph, root))):
            found.append(i)
        else:
            taken.add(root)
    return found


def branch_ends(graph: Graph, node: Node, ends: Ends) -> Ends:
    """What a node of the graph says of the outputs of its bodies.

    The graph's own measured outputs lie in the same buffers as the outputs of the If's that they come of.
    """
    if node.op != "If":
        return NO_ENDS
    pairs = [(graph.outputs[i], _root(graph, graph.outputs[i])) for i in sorted(ends.measured)]
    leaving = {root for value, root in pairs if _alike(graph, value, root)}
    measured = frozenset(i for i, value in enumerate(node.outputs) if value in leaving or _found_out(graph, value))
    settled = {i: graph.type(v) for i, v in enumerate(node.outputs) if i not in measured and not on_host(graph.type(v))}
    return Ends(measured, settled)


def _root(graph: Graph, value: int) -> int:
    return root_of(graph, value, lambda node: is_alias(graph, node))


def _alike(graph: Graph, value: int, root: int) -> bool:
    """Whether a view has the shape of what it views."""
    one, other = graph.type(value), graph.type(root)
    return value == root or (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape)


def _found_out(graph: Graph, value: int) -> bool:
    """Whether only the run time knows the shape of a tensor."""
    t = graph.type(value)
    if not isinstance(t, Tensor) or t.shape is None:
        return isinstance(t, Tensor)
    return any(graph.symbols[s].runtime for d in t.shape for s in symbols_of(d))


Order = Callable[[Graph, frozenset[int]], tuple[list[Node], Views]]
"""The nodes of one graph in a valid order, and which of them move no bytes; given the outputs of unknown size."""


def lay_out(graph: Graph, joining: bool = True) -> Frame:
    """The root frame, in the canonical order; `joining`: joins and cuts that can do without a task have none."""

    def canonical(inner: Graph, late: frozenset[int]) -> tuple[list[Node], Views]:
        order = inner.order()
        return order, views_of(inner, order, is_alias, joining, late)

    return _frame(graph, _Counter(canonical))


def laid_again(root: Frame, arrange: Callable[[Frame], list[Node]]) -> Frame:
    """The root frame of the same graphs, with the nodes of each in the valid order that `arrange` gives."""
    known = {id(frame.graph): frame for frame in all_frames(root)}  # frames keep their graphs

    def arranged(inner: Graph, _: frozenset[int]) -> tuple[list[Node], Views]:
        frame = known[id(inner)]
        return arrange(frame), frame.views

    return _frame(root.graph, _Counter(arranged))


@dataclass
class _Counter:
    order: Order
    position: int = 0
    values: int = 0


def _frame(graph: Graph, counter: _Counter, late: frozenset[int] = frozenset()) -> Frame:
    nodes, views = counter.order(graph, late)
    frame = Frame(graph, counter.values, nodes, views)
    counter.values += max(graph.values, default=-1) + 1
    steps = frame.steps
    still = views.still
    for node in nodes:
        if node.op in STRUCTURAL or node.id in still:
            continue
        start = counter.position
        counter.position += 1
        bodies = _bodies(graph, node, counter, late) if node.op in REGIONS else {}
        step = steps[node.id] = Step(node, lookup(node.op, node.attrs), start, counter.position - 1, bodies)
        for body in bodies.values():
            body.end = step.end
        if bodies:
            frame.regions.append(step)
    frame.end, frame.ceiling = counter.position, counter.values
    return frame


def _bodies(graph: Graph, node: Node, counter: _Counter, late: frozenset[int]) -> dict[str, Frame]:
    """The frames of a region, and the position at which it ends counted."""
    names = sorted(node.subgraphs, reverse=True)  # then_branch before else_branch, as the regions have it
    bodies = {}
    for name in names:
        body = node.subgraphs[name]
        ends = zip(node.outputs, body.outputs) if node.op == "If" else ()  # a branch writes where the If's output lies
        inner = frozenset([v for outer, v in ends if outer in late or is_late(graph, outer)])
        bodies[name] = _frame(body, counter, inner)
    counter.position += 1
    return bodies


def all_frames(root: Frame) -> Iterator[Frame]:
    """The frame and all frames inside it, outer ones first, in order."""
    stack = [root]
    while stack:
        frame = stack.pop()
        yield frame
        inner = [body for step in frame.regions for body in step.bodies.values()]
        stack.extend(reversed(inner))


def captured(step: Step, body: Frame) -> Iterator[tuple[int, int]]:
    """(input position of the node, value of the body) for each captured value."""
    count = step.node.captures
    first = len(step.node.inputs) - count
    formals = body.graph.inputs[len(body.graph.inputs) - count :] if count else []
    for i, value in enumerate(formals):
        yield first + i, value
