"""The IR's stable text form: `print_graph` and its inverse, `parse_graph`.

    graph "detector" {
      doc "producer" "pytorch 2.8"
      symbol N in [1, inf]
      symbol NonZero3.count in [0, inf] runtime
      #0 %0 "x": float32[N, 8] = Data() {index = 0}
      #1 %1 "w": float32[8, 8] = Const(blob 0)
      #2 %2 "y": float32[N, 8] = MatMul(%0, %1) name "fc" from "fc", "fc_bias" @aicore precision "fp16"
      #3 %3 "i": int64[2, NonZero3.count] = NonZero(%2) from "nz" note "its size depends on data"
      #4 %4: float32[] = If(%5, %0) captures 1 from "if_1"
        else_branch: graph "e" {
          ...
        }
        then_branch: graph "t" {
          ...
        }
      #5 NetOutput(%3, %4) -> "i", "z"
    }

One line is one node: `#id`, its outputs with names and types, `= Operator(inputs)` with `_` for an absent
input and a constant as last item, then what the node carries, in this fixed order: `captures`, `name`,
`from` (origin), `@engine`, `precision`, `stream`, `priority`, `note`, `-> names` (of the graph's outputs),
`{attributes}`. A `Data` or `Const` is named like its value unless it says otherwise. Subgraphs follow their
node. `attr_text` has the forms of types, constants and attributes. Lines that begin with `//` are comments.

Everything comes back as it was: ids, names, Python types, the order of symbols. Nodes are written producers
first, so the order of the dictionaries and of each value's uses is that of the lines (in a graph in
canonical order: that of the ids). What rarely differs from what the lines say is written only where it
does: `inputs %3, %0`, `next #9 %12`, and `symbols own` of a subgraph that does not share its parent's.

The text of a file is hostile. What parses is well-formed as far as ids go; `atc_py.ir.validate` checks the
rest.
"""

from __future__ import annotations

from atc_py.errors import error
from atc_py.ir.attr_text import (
    BlobTable,
    attrs_text,
    const_text,
    parse_attrs,
    parse_const,
    parse_type,
    print_attrs,
    print_const,
    print_type,
)
from atc_py.ir.graph import ABSENT, Graph, Node, Value
from atc_py.ir.graph_reader import default_name, parse_graph
from atc_py.ir.lexer import MAX_DEPTH, name_text, operator_text, quote, words_text
from atc_py.ir.types import Tensor

__all__ = [
    "BlobTable",
    "parse_attrs",
    "parse_const",
    "parse_graph",
    "parse_type",
    "print_attrs",
    "print_const",
]
__all__ += ["print_graph", "print_type"]


_Part = tuple[Graph, Graph | None, str, str]
"""A graph that is still to be printed: its parent, its indentation, and the words before it."""


def print_graph(graph: Graph, blobs: BlobTable | None = None) -> str:
    """The text of a graph with all its subgraphs; ends with a line break.

    Blobs of more than 32 bytes go into `blobs`. Without a table they are written as `blob ?`, which can be
    read but not parsed. Raises `AtcError` (EI103) for an attribute that has no text form.
    """
    lines: list[str] = []
    todo: list[str | _Part] = [(graph, None, "", "")]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            lines.append(item)
            continue
        inner, parent, indent, title = item
        if len(indent) >= 4 * MAX_DEPTH:
            raise error("EI103", f"graph '{inner.name}'", f"graphs nest more than {MAX_DEPTH} deep")
        lines.append(f"{indent}{title}graph {quote(inner.name)} {{")
        lines += [f"{indent}  {line}" for line in _head(inner, parent)]
        body: list[str | _Part] = []
        for node in _nodes(inner):
            body.append(f"{indent}  {_node_text(inner, node, blobs)}")
            body += [(g, inner, f"{indent}    ", f"{name_text(name)}: ") for name, g in node.subgraphs.items()]
        todo.append(f"{indent}}}")
        todo += reversed(body)
    return "\n".join(lines) + "\n"


def _nodes(graph: Graph) -> list[Node]:
    try:
        return graph.order()
    except (ValueError, KeyError):  # a broken graph is printed too: that is when one wants to see it
        return list(graph.nodes.values())


def _head(graph: Graph, parent: Graph | None) -> list[str]:
    lines = [f"doc {quote(key)} {quote(value)}" for key, value in graph.doc.items()]
    if parent is not None and graph.symbols is not parent.symbols:
        lines.append("symbols own")
    if parent is None or graph.symbols is not parent.symbols:
        for name, r in graph.symbols.items():
            hi = "inf" if r.hi is None else r.hi
            lines.append(f"symbol {name_text(name)} in [{r.lo}, {hi}]{' runtime' if r.runtime else ''}")
    if graph.inputs != [n.outputs[0] for n in _nodes(graph) if n.op == "Data" and n.outputs]:
        lines.append("inputs " + ", ".join(f"%{v}" for v in graph.inputs))
    following = (graph._next_node, graph._next_value)
    if following != (max(graph.nodes, default=-1) + 1, max(graph.values, default=-1) + 1):
        lines.append(f"next #{following[0]} %{following[1]}")
    return lines


def _node_text(graph: Graph, node: Node, blobs: BlobTable | None) -> str:
    parts = [f"#{node.id} "]
    values = [graph.values[v] for v in node.outputs]
    if values:
        parts.append(", ".join([_value_text(v) for v in values]))
        parts.append(" = ")
    items = ["_" if v == ABSENT else f"%{v}" for v in node.inputs]
    if node.const is not None:
        first = values[0].type if values else None
        items.append(const_text(node.const, blobs, first if isinstance(first, Tensor) else None))
    parts.append(f"{operator_text(node.op)}({', '.join(items)})")
    if node.captures:
        parts.append(f" captures {node.captures}")
    if node.name != default_name(node.op, values[0].name if values else ""):
        parts.append(f" name {quote(node.name)}")
    if node.origin:
        parts.append(f" from {words_text(node.origin)}")
    if node.engine or node.precision or node.stream or node.priority or node.notes:
        parts += _decisions(node)
    if node.id == graph._net_output:
        parts.append(f" -> {words_text(graph.output_names)}".rstrip())
    if node.attrs:
        parts += (" ", attrs_text(node.attrs, blobs, 0))
    return "".join(parts)


def _value_text(value: Value) -> str:
    name = f" {quote(value.name)}" if value.name else ""
    return f"%{value.id}{name}: {print_type(value.type)}"


def _decisions(node: Node) -> list[str]:
    parts = [f" @{name_text(node.engine)}"] if node.engine else []
    parts += [f" {key} {quote(word)}" for key, word in (("precision", node.precision), ("stream", node.stream)) if word]
    parts += [f" priority {node.priority}"] if node.priority else []
    return parts + ([f" note {words_text(node.notes)}"] if node.notes else [])
