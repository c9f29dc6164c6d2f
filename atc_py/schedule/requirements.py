"""What the symbols' values must satisfy, read off the lowered graph.

    x: float32[N, 120, H//16, W]  ─ Reshape ─▶  [N, 1, W, 120]        requires  120*N*W*(H//16) = 120*N*W
    Conv without padding, kernel 7, over H                            requires  H - 6 ≥ 0

Exporters write such assumptions into models without a word. Said as requirements they are checked at each bind, so that
a shape for which the model has no meaning is an error that names the node, never a wrong result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from atc_py.ir.dims import Dim, DimOverflow, Size, bounds, definitely_equal, prod, symbol, symbols_of
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import Infer, InferError
from atc_py.ops.build import known_value, lookup
from atc_py.ops.shapes import assumptions
from atc_py.plan.types import Requirement
from atc_py.schedule.frames import Frame, is_alias


def requirements(root: Frame) -> tuple[Requirement, ...]:
    """The requirements of a frame and of the frames inside it, each once, in order."""
    return _Collector(root).run()


class _Collector:
    def __init__(self, root: Frame) -> None:
        self.root = root
        self.ranges = {s: (r.lo, r.hi) for s, r in root.graph.symbols.items()}
        self.known = frozenset(s for s, r in root.graph.symbols.items() if not r.runtime)
        self.found: dict[tuple[Size, Size, str, int], Requirement] = {}
        self.ifs = 0

    def run(self) -> tuple[Requirement, ...]:
        self._frame(self.root, -1)
        return tuple(self.found.values())

    def _frame(self, frame: Frame, branch: int) -> None:
        for node in frame.nodes:
            for r in _of_node(frame.graph, node, self.ranges) if self.ranges else ():
                late = any(s not in self.known for size in (r.left, r.right) for s in symbols_of(size))
                if not late and not self._certain(r) and (r.left, r.right, r.relation, -1) not in self.found:
                    self.found.setdefault((r.left, r.right, r.relation, branch), replace(r, branch=branch))
            step = frame.steps.get(node.id)
            if step is None or not step.bodies:
                continue
            first = 2 * self.ifs
            self.ifs += node.op == "If"
            for k, body in enumerate(step.bodies.values()):
                self._frame(body, first + k if node.op == "If" else branch)

    def _certain(self, r: Requirement) -> bool:
        """Whether the requirement holds for all values of the symbols."""
        low = None if r.relation != ">=" else bounds(r.left - r.right, self.ranges)[0]
        return low is not None and low >= 0


def _of_node(graph: Graph, node: Node, ranges: dict[str, tuple[int, int | None]]) -> list[Requirement]:
    name = node.origin[0] if node.origin else node.name or node.op
    found = _assumed(graph, node, name)
    # A rule that asks for room has said more than that no size is negative.
    if not any(r.relation == ">=" for r in found):
        found += _no_negative_size(graph, node, name, ranges)
    if node.outputs and is_alias(graph, node):
        found += _same_count(graph, node, name)
    return found


def _no_negative_size(
    graph: Graph, node: Node, name: str, ranges: dict[str, tuple[int, int | None]]
) -> list[Requirement]:
    found: list[Requirement] = []
    for value in node.outputs:
        t = graph.type(value)
        for dim in t.shape or () if isinstance(t, Tensor) else ():
            low = bounds(dim, ranges)[0] if isinstance(dim, Dim) else dim
            if low is None or low < 0:
                found.append(Requirement(dim, 0, name, ">="))
    return found


def _assumed(graph: Graph, node: Node, name: str) -> list[Requirement]:
    """What the shape rules of the node, and of the operators fused in it, take for granted."""
    if node.op in STRUCTURAL or not _symbolic(graph, node):
        return []
    if node.op == "Fused":
        body = node.subgraphs["body"]
        inner = [n for n in body.nodes.values() if n.op not in STRUCTURAL]
        return [r for n in inner for r in _assumed(body, n, n.origin[0] if n.origin else name)]
    op = lookup(node.op, node.attrs)
    if op.infer_fn is None or op.bodies:
        return []
    n = Infer(
        tuple(None if v == ABSENT else graph.type(v) for v in node.inputs),
        node.attrs,
        len(node.outputs),
        tuple(known_value(graph.const(v)) for v in node.inputs),
        lambda why: symbol(f"{name}.{why}"),
    )
    with assumptions() as found, suppress(InferError, DimOverflow, LookupError, ValueError):
        op.infer_fn(n)
    return [Requirement(a.left, a.right, name, a.relation, why=a.why) for a in found]


def _symbolic(graph: Graph, node: Node) -> bool:
    """Whether a size of the node depends on a symbol."""
    values = [v for v in (*node.inputs, *node.outputs) if v != ABSENT]
    return any(isinstance(t := graph.type(v), Tensor) and t.shape is not None and not t.static for v in values)


def _same_count(graph: Graph, node: Node, name: str) -> list[Requirement]:
    """A view holds as many elements as its source; common dims are left out of both sides."""
    source = list(graph.tensor(node.inputs[0]).dims)
    result = list(graph.tensor(node.outputs[0]).dims)
    for dim in list(source):
        if dim in result and dim != 0:
            source.remove(dim)
            result.remove(dim)
    try:
        left, right = prod(source), prod(result)
    except DimOverflow:
        return []
    return [] if definitely_equal(left, right) else [Requirement(left, right, name)]
