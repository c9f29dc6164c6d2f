"""A part of a graph as a graph of its own.

    x ─ MatMul(w) ─ Relu ─ y        part of [MatMul, Relu]:   Data x, Data w ─ MatMul ─ Relu ─ NetOutput

Nodes and values are copied with their names, origins, engines and precisions; types, attributes' values and constants
are shared.
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.ir.graph import ABSENT, Graph, Node, Value


def part_of(graph: Graph, nodes: Sequence[Node], read: Sequence[int], own: Sequence[int], made: Sequence[int]) -> Graph:
    """The nodes, producers first, as the body of a task that takes `read` and gives `made`, values of the graph.

    Constants in `own` become constants of the body. All that the nodes read must be in one of both, or made by them.
    """
    part, values = Graph(nodes[-1].name, graph.symbols), graph.values
    inner: dict[int, int] = {ABSENT: ABSENT}
    for v in read:
        inner[v] = part.add_input(values[v].name, values[v].type)
    for v in own:
        constant = graph.const(v)
        assert constant is not None
        inner[v] = part.add_const(constant, values[v].name)
    for node in nodes:
        copy = _copied(part, node, inner)
        for i, v in enumerate(node.outputs):
            inner[v] = number = part._next_value
            part.values[number] = Value(number, values[v].type, values[v].name, copy.id, i)
            part._next_value = number + 1
            copy.outputs.append(number)
    part.set_outputs([inner[v] for v in made], ["Y"] if len(made) == 1 else [f"Y{i}" for i in range(len(made))])
    return part


def _copied(part: Graph, node: Node, inner: dict[int, int]) -> Node:
    """A copy of the node that reads the inner values, without results."""
    number = part._next_node
    inputs = [inner[v] for v in node.inputs]
    while inputs and inputs[-1] == ABSENT:
        inputs.pop()
    copy = Node(number, node.op, inputs, [], dict(node.attrs), node.name, node.origin)
    copy.engine, copy.precision = node.engine, node.precision
    part.nodes[number], part._next_node = copy, number + 1
    values = part.values
    for i, v in enumerate(inputs):
        if v != ABSENT:
            values[v].uses[(number, i)] = None
    return copy
