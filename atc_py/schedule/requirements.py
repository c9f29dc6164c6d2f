"""What the symbols' values must satisfy, read off the lowered graph.

    x: float32[N, 120, H//16, W]  ─ Reshape ─▶  [N, 1, W, 120]        requires  120*N*W*(H//16) = 120*N*W
    Conv without padding, kernel 7, over H                            requires  H - 6 ≥ 0

Exporters write such assumptions into models without a word. Said as requirements they are checked at each bind, so that
a shape for which the model has no meaning is an error that names the node, never a wrong result.
"""

from __future__ import annotations

from dataclasses import replace

from atc_py.ir.dims import Dim, DimOverflow, Size, bounds, definitely_equal, prod, symbols_of
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import Tensor
from atc_py.plan.types import Requirement
from atc_py.schedule.frames import Frame, is_alias


def requirements(root: Frame) -> tuple[Requirement, ...]:
    """The requirements of a frame and of the frames inside it, each once, in order."""
    return _Collector(root).run()


class _Collector:
    def __init__(self, root: Frame) -> None:
        self.root = root
        self.ranges = {s: (r.lo, r.hi) for s, r in root.graph.symbols.items()}
        self.runtime = frozenset(s for s, r in root.graph.symbols.items() if r.runtime)
        self.found: dict[tuple[Size, Size, bool, int], Requirement] = {}
        self.ifs = 0

    def run(self) -> tuple[Requirement, ...]:
        self._frame(self.root, -1)
        return tuple(self.found.values())

    def _frame(self, frame: Frame, branch: int) -> None:
        for node in frame.nodes:
            for r in _of_node(frame.graph, node, self.ranges):
                late = any(s in self.runtime for size in (r.left, r.right) for s in symbols_of(size))
                if not late and (r.left, r.right, r.equal, -1) not in self.found:
                    self.found.setdefault((r.left, r.right, r.equal, branch), replace(r, branch=branch))
            step = frame.steps.get(node.id)
            if step is None or not step.bodies:
                continue
            first = 2 * self.ifs
            self.ifs += node.op == "If"
            for k, body in enumerate(step.bodies.values()):
                self._frame(body, first + k if node.op == "If" else branch)


def _of_node(graph: Graph, node: Node, ranges: dict[str, tuple[int, int | None]]) -> list[Requirement]:
    name = node.origin[0] if node.origin else node.name or node.op
    found: list[Requirement] = []
    for value in node.outputs:
        t = graph.type(value)
        if not isinstance(t, Tensor) or t.shape is None:
            continue
        for dim in t.shape:
            low = bounds(dim, ranges)[0] if isinstance(dim, Dim) else dim
            if low is None or low < 0:
                found.append(Requirement(dim, 0, name, equal=False))
    if node.outputs and is_alias(graph, node):
        found += _same_count(graph, node, name)
    return found


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
