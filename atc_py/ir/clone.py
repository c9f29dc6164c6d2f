"""A copy of a graph that shares only its immutable parts (types and constants)."""

from __future__ import annotations

from atc_py.ir.graph import Graph, Node, Value


def clone(graph: Graph) -> Graph:
    """A deep copy with the same ids; subgraphs are copied too, and share the copy's symbols."""
    return _clone(graph, Graph(graph.name, dict(graph.symbols)))


def _clone(graph: Graph, copy: Graph) -> Graph:
    copy.nodes = {
        n.id: Node(
            n.id,
            n.op,
            n.inputs[:],
            n.outputs[:],
            n.attrs.copy(),
            n.name,
            n.origin,
            _bodies(n, copy) if n.subgraphs else {},
            n.captures,
            n.const,
            n.engine,
            n.precision,
            n.stream,
            n.priority,
            n.notes,
        )
        for n in graph.nodes.values()
    }
    copy.values = {v.id: Value(v.id, v.type, v.name, v.producer, v.index, v.uses.copy()) for v in graph.values.values()}
    copy.inputs = list(graph.inputs)
    copy.output_names = list(graph.output_names)
    copy.doc = dict(graph.doc)
    copy._next_node, copy._next_value = graph._next_node, graph._next_value
    copy._net_output = graph._net_output
    if graph._ordered_at == graph._changes:
        copy._order, copy._ordered_at = [copy.nodes[n.id] for n in graph._order], copy._changes
    return copy


def _bodies(node: Node, copy: Graph) -> dict[str, Graph]:
    return {name: _clone(body, Graph(body.name, copy.symbols)) for name, body in node.subgraphs.items()}
