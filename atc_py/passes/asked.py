"""What a model asks of the schedule, node by node, is kept while passes put other nodes in their place.

    MatMul "a" priority 3 ─ Add "b"   →   Gemm, from a and b, priority 3

Nodes never lose their origins, so priorities and stream labels are kept by these: a node has the highest priority of
the nodes of the model that it stands for, and their label where they have only one.
"""

from __future__ import annotations

from collections.abc import Mapping

from atc_py.ir.graph import STRUCTURAL, Graph, Node

Asked = Mapping[str, tuple[int, str]]
"""(priority, stream label) by origin, of those of which something is asked."""


def asked_of(graph: Graph) -> Asked:
    """What is asked of the nodes of a graph and of those inside it."""
    found: dict[str, tuple[int, str]] = {}
    for inner in graph.walk():
        for node in inner.nodes.values():
            if node.priority or node.stream:
                for origin in node.origin:
                    priority, label = found.get(origin, (node.priority, node.stream))
                    found[origin] = max(priority, node.priority), label or node.stream
    return found


def ask_again(graph: Graph, asked: Asked) -> None:
    """Ask the same of the nodes that have come to stand for them."""
    if not asked:
        return
    for inner in graph.walk():
        for node in inner.nodes.values():
            if node.op not in STRUCTURAL and any(origin in asked for origin in node.origin):
                _ask(node, asked)


def _ask(node: Node, asked: Asked) -> None:
    wishes = [asked.get(origin, (0, "")) for origin in node.origin]
    node.priority = max(priority for priority, _ in wishes)
    labels = {label for _, label in wishes if label}
    if len(labels) == 1:
        (node.stream,) = labels
