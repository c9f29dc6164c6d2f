"""Values that a node's subgraphs capture: the node's last inputs, and the last inputs of each body.

If(c; a, b){ inputs a, b: a + 1 }{ inputs a, b: a - 1 }     two captures, of which no body reads b
If(c; a){ inputs a: a + 1 }{ inputs a: a - 1 }              after `drop_unused_captures`
"""

from __future__ import annotations

from atc_py.ir.graph import Graph, Node


def captured(node: Node, body: Graph, i: int) -> int:
    """The body's value for capture `i` of the node."""
    return body.inputs[len(body.inputs) - node.captures + i]


def drop_unused_captures(graph: Graph, node: Node) -> int:
    """Take away the captured inputs that no body of the node reads; returns how many."""
    first = len(node.inputs) - node.captures
    bodies = list(node.subgraphs.values())
    keep = [i for i in range(node.captures) if any(b.values[captured(node, b, i)].uses for b in bodies)]
    gone = node.captures - len(keep)
    if not gone:
        return 0
    for body in bodies:
        at = len(body.inputs) - node.captures
        unused = [body.inputs[at + i] for i in range(node.captures) if i not in keep]
        body.inputs = [*body.inputs[:at], *(body.inputs[at + i] for i in keep)]
        for value in unused:
            body.remove(body.producer(value))
        for index, value in enumerate(body.inputs):
            body.producer(value).attrs["index"] = index
    inputs = [*node.inputs[:first], *(node.inputs[first + i] for i in keep)]
    node.captures = len(keep)
    graph.set_inputs(node, inputs)
    return gone
