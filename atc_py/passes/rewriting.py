"""Building blocks of rewrites: nodes that stand for others, and what goes when nobody reads it any more.

become(graph, last, "Add", [x, y])      last computes x + y now, under its name
sweep(graph, lineage, last, [first])    first goes, if it is not read elsewhere, and last stands for it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atc_py.ir.constants import Constant, Splat
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType
from atc_py.ops.build import Scope, dims_constant, lookup
from atc_py.passes.known import dims_of, known_at_start
from atc_py.passes.lineage import Lineage


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
    target = graph.add_const(dims_constant(dims), "", heir.origin)
    if op == "Expand":
        return emit(graph, "Expand", [value, target], {}, heir)
    zero = int(any(d == 0 or type(d) is not int for d in dims))
    return emit(graph, "Reshape", [value, target], {"allowzero": zero}, heir)
