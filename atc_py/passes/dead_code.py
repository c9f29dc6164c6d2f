"""What nobody reads goes: nodes that reach no output, and captured values that no body looks at.

    x ─ Relu ─ y                                      x ─ Relu ─ y
    └─ Exp (read by nobody)                 →
    If(c; a, b){ a + 1 }{ a - 1 }                     If(c; a){ a + 1 }{ a - 1 }

Graph inputs stay: they are the model's interface. A captured constant is written into the bodies first, so that these
can be folded. A collective that nobody needs goes too: all devices of its group run the same model.
"""

from __future__ import annotations

from atc_py.ir.captures import captured, drop_unused_captures
from atc_py.ir.constants import Constant
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.passes.base import PassContext


def remove_dead_code(graph: Graph, ctx: PassContext) -> int:
    """Delete what reaches no output; returns how many nodes, constants not counted, and captures went."""
    changed = sum(1 for node in graph.prune() if node.op not in STRUCTURAL)
    for node in [n for n in graph.nodes.values() if n.captures and n.op != "Fused"]:
        changed += _constants_into_bodies(graph, node)
        gone = drop_unused_captures(graph, node)
        if gone:
            graph.prune()
        changed += gone
    return changed


def _constants_into_bodies(graph: Graph, node: Node) -> int:
    first = len(node.inputs) - node.captures
    changed = 0
    for i in range(node.captures):
        source = graph.producer(node.inputs[first + i])
        if source.const is None:
            continue
        for body in node.subgraphs.values():
            inner = captured(node, body, i)
            if body.values[inner].uses:
                body.replace_uses(inner, _copy(body, source, source.const))
                changed += 1
    return changed


def _copy(body: Graph, source: Node, constant: Constant) -> int:
    return body.add_const(constant, source.name, source.origin)
