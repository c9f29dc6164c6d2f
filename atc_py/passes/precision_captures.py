"""Weights that a loop's body casts are converted outside of it, once.

    Loop(…, w)                                  Loop(…, Cast(w))           w a constant: its recipe, no Cast
      body: w ─ Cast float16 ─ MatMul             body: w: float16 ─ MatMul

A captured value is handed to all bodies of its node: it is cast outside where each of them reads it through such a Cast
only, or not at all. A branch of an If may not run, so that for an If only constants are.
"""

from __future__ import annotations

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.passes.lineage import Lineage
from atc_py.passes.precision_casts import Caster
from atc_py.passes.precision_choice import retyped


def hoist(graph: Graph, target: DType, caster: Caster) -> int:
    """Move Casts to `target` from bodies to what their nodes capture; returns how many captures changed."""
    moved = 0
    for node in [n for n in graph.nodes.values() if n.subgraphs and n.captures and n.op != "Fused"]:
        first = len(node.inputs) - node.captures
        for k in range(first, len(node.inputs)):
            casts = _casts(graph, node, k, target)
            if not casts or (node.op == "If" and graph.const(node.inputs[k]) is None):
                continue
            caster.read(node, k, target)
            for body, data, cast in casts:
                body.values[data].type = retyped(body.values[data].type, target)
                if cast is not None:
                    with Lineage(body) as lineage:
                        lineage.bypass(cast, data)
            moved += 1
    return moved


def _casts(graph: Graph, node: Node, k: int, target: DType) -> list[tuple[Graph, int, Node | None]]:
    """(body, its input, the one Cast that reads it) of captured input `k`; empty where some other node reads it."""
    value = node.inputs[k]
    type_ = None if value == ABSENT else graph.type(value)
    if not isinstance(type_, Tensor) or not type_.dtype.is_float or type_.dtype is target:
        return []
    found: list[tuple[Graph, int, Node | None]] = []
    for body in node.subgraphs.values():
        data = body.inputs[k - len(node.inputs)]
        readers = body.consumers(data)
        if any(r.op != "Cast" or r.attrs["to"] is not target for r in readers) or len(readers) > 1:
            return []
        found.append((body, data, readers[0] if readers else None))
    return found if any(cast is not None for _, _, cast in found) else []
