"""A copy of a graph that shares only its immutable parts (types and constants)."""

from __future__ import annotations

from atc_py.ir.graph import Graph, Node, Value


def clone(graph: Graph) -> Graph:
    """A deep copy with the same ids; subgraphs are copied too, and share the copy's symbols."""
    return _clone(graph, Graph(graph.name, dict(graph.symbols)))


def _clone(graph: Graph, copy: Graph) -> Graph:
    for node in graph.nodes.values():
        copy.nodes[node.id] = Node(
            node.id,
            node.op,
            list(node.inputs),
            list(node.outputs),
            dict(node.attrs),
            node.name,
            node.origin,
            {name: _clone(body, Graph(body.name, copy.symbols)) for name, body in node.subgraphs.items()},
            node.captures,
            node.const,
            node.engine,
            node.precision,
            node.stream,
            node.priority,
            node.notes,
        )
    for value in graph.values.values():
        copy.values[value.id] = Value(value.id, value.type, value.name, value.producer, value.index, dict(value.uses))
    copy.inputs = list(graph.inputs)
    copy.output_names = list(graph.output_names)
    copy.doc = dict(graph.doc)
    copy._next_node, copy._next_value = graph._next_node, graph._next_value
    copy._net_output = graph._net_output
    return copy
