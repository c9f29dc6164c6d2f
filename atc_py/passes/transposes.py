"""Consecutive transposes become one, or none.

    x: [2, 3, 4] ─ Transpose(2, 0, 1) ─ Transpose(1, 2, 0) ─ y                  →    x ─ y
    x: [2, 3, 4, 5] ─ Transpose(0, 2, 3, 1) ─ Transpose(0, 3, 2, 1) ─ y         →    x ─ Transpose(0, 1, 3, 2) ─ y

Law: axis i of the second result is axis q[i] of the first, which is axis p[q[i]] of x.
"""

from __future__ import annotations

from atc_py.ir.graph import Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, same_types
from atc_py.passes.lineage import Lineage


def perm_of(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, None where the rank is unknown and no permutation is given."""
    perm = node.attrs.get("perm")
    if perm is not None:
        rank = len(perm)
        return tuple([p % rank for p in perm])
    dims = dims_of(graph, node.inputs[0])
    return None if dims is None else tuple(reversed(range(len(dims))))


def merge_transposes(graph: Graph, ctx: PassContext) -> int:
    """Let the second of two transposes read what the first one reads; returns how many chains were shortened."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.order() if n.op == "Transpose"]:
            first = graph.producer(node.inputs[0])
            if first.op != "Transpose":
                continue
            p, q = perm_of(graph, first), perm_of(graph, node)
            if p is None or q is None or len(p) != len(q):
                continue
            merged = tuple(p[i] for i in q)
            node.attrs["perm"] = merged
            graph.set_input(node, 0, first.inputs[0])
            if lineage.drop(first):
                lineage.inherit(node, first)
            if merged == tuple(range(len(merged))) and same_types(graph, node.inputs[0], node.outputs[0]):
                lineage.bypass(node, node.inputs[0])
            changed += 1
    return changed
