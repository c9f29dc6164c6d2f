"""Operators that only rename a tensor's shape become one Reshape with a known target.

    x: [N, 64, 1, 1] ─ Squeeze(2, 3) ─ Unsqueeze(0) ─ Flatten ─ y: [1, 64*N]      →      x ─ Reshape([1, 64*N]) ─ y
    x: [N, 1, 8] ─ Transpose(1, 0, 2) ─ y: [1, N, 8]                              →      x ─ Reshape([1, N, 8]) ─ y

Law: such operators keep the elements in C order, so only the last shape counts; a Transpose that moves nothing but axes
of size 1 is one of them. A target that holds a symbol which only a node of the graph binds is left alone.
"""

from __future__ import annotations

import struct

from atc_py.ir.constants import Blob, DimVec
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.build import dims_constant
from atc_py.passes.base import PassContext
from atc_py.passes.known import known_at_start, same_types
from atc_py.passes.lineage import Lineage
from atc_py.passes.transposes import perm_of

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def merge_reshapes(graph: Graph, ctx: PassContext) -> int:
    """Make each reshape-like node a Reshape of the first tensor of its chain; returns how many changed."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in graph.order():
            if node.op in RESHAPES or (node.op == "Transpose" and _keeps_order(graph, node)):
                changed += _merge(graph, lineage, node)
    return changed


def _merge(graph: Graph, lineage: Lineage, node: Node) -> int:
    type_ = graph.type(node.outputs[0])
    if not isinstance(type_, Tensor) or type_.shape is None or not known_at_start(graph, type_.shape):
        return 0
    first = graph.producer(node.inputs[0])
    chained = first.op in RESHAPES
    if not chained and _is_canonical(graph, node, type_.shape):
        return 0
    source = first.inputs[0] if chained else node.inputs[0]
    zero = int(any(d == 0 or type(d) is not int for d in type_.shape))
    target = graph.add_const(dims_constant(type_.shape), "", node.origin)
    node.op, node.attrs = "Reshape", {"allowzero": zero}
    graph.set_inputs(node, [source, target])
    if chained and lineage.drop(first):
        lineage.inherit(node, first)
    if same_types(graph, source, node.outputs[0]):
        lineage.bypass(node, source)
    return 1


def _is_canonical(graph: Graph, node: Node, dims: tuple[Size, ...]) -> bool:
    """Whether the node is a Reshape that names its result's dims, each of them."""
    constant = graph.const(node.inputs[1]) if node.op == "Reshape" else None
    if isinstance(constant, DimVec):
        return constant.elements == dims
    if isinstance(constant, Blob) and all(type(d) is int for d in dims):
        return constant.data.tobytes() == struct.pack(f"<{len(dims)}q", *dims)
    return False


def _keeps_order(graph: Graph, node: Node) -> bool:
    type_, perm = graph.type(node.inputs[0]), perm_of(graph, node)
    if not isinstance(type_, Tensor) or type_.shape is None or perm is None:
        return False
    moved = [i for i in perm if type_.shape[i] != 1]
    return moved == sorted(moved)
