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

from collections.abc import Callable
from typing import TypeVar

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
from atc_py.ir.types import Tensor, Type

__all__ = [
    "BlobTable",
    "parse_attrs",
    "parse_const",
    "parse_graph",
    "parse_type",
    "print_attrs",
    "print_const",
]
__all__ += ["GraphPrinter", "print_graph", "print_type"]


T = TypeVar("T")
_Part = tuple[Graph, Graph | None, str, str]
"""A graph that is still to be printed: its parent, its indentation, and the words before it."""
_Decided = tuple[str, str, str, int, tuple[str, ...]]
"""What has been decided about a node: engine, precision, stream, priority, notes."""
_UNDECIDED: _Decided = ("", "", "", 0, ())


def print_graph(graph: Graph, blobs: BlobTable | None = None) -> str:
    """The text of a graph with all its subgraphs; ends with a line break.

    Blobs of more than 32 bytes go into `blobs`. Without a table they are written as `blob ?`, which can be
    read but not parsed. Raises `AtcError` (EI103) for an attribute that has no text form.
    """
    return GraphPrinter(blobs).text(graph)


def _nodes(graph: Graph) -> list[Node]:
    try:
        return graph.order()
    except (ValueError, KeyError):  # a broken graph is printed too: that is when one wants to see it
        return list(graph.nodes.values())


def _head(graph: Graph, parent: Graph | None, order: list[Node]) -> list[str]:
    lines = [f"doc {quote(key)} {quote(value)}" for key, value in graph.doc.items()]
    if parent is not None and graph.symbols is not parent.symbols:
        lines.append("symbols own")
    if parent is None or graph.symbols is not parent.symbols:
        for name, r in graph.symbols.items():
            hi = "inf" if r.hi is None else r.hi
            lines.append(f"symbol {name_text(name)} in [{r.lo}, {hi}]{' runtime' if r.runtime else ''}")
    if graph.inputs != [n.outputs[0] for n in order if n.op == "Data" and n.outputs]:
        lines.append("inputs " + ", ".join(f"%{v}" for v in graph.inputs))
    following = (graph._next_node, graph._next_value)
    if following != (max(graph.nodes, default=-1) + 1, max(graph.values, default=-1) + 1):
        lines.append(f"next #{following[0]} %{following[1]}")
    return lines


class _Words(dict[T, str]):
    """Words, each made when it is first needed: names and types come again and again."""

    def __init__(self, make: Callable[[T], str]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, key: T) -> str:
        word = self[key] = self.make(key)
        return word


class GraphPrinter:
    """Prints graphs; what many nodes have alike, in one graph or in several, is made once."""

    def __init__(self, blobs: BlobTable | None) -> None:
        self.blobs = blobs
        self.quoted: _Words[str] = _Words(quote)
        self.operators: _Words[str] = _Words(operator_text)
        self.decisions: _Words[_Decided] = _Words(_decisions_text)
        self.types: dict[int, tuple[str, Type]] = {}

    def text(self, graph: Graph) -> str:
        """The text of a graph, as `print_graph` says."""
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
            order = _nodes(inner)
            lines.append(f"{indent}{title}graph {self.quoted[inner.name]} {{")
            lines += [f"{indent}  {line}" for line in _head(inner, parent, order)]
            body: list[str | _Part] = []
            for node in order:
                body.append(f"{indent}  {self.line(inner, node)}")
                if node.subgraphs:
                    body += [(g, inner, f"{indent}    ", f"{name_text(name)}: ") for name, g in node.subgraphs.items()]
            body.append(f"{indent}}}")
            todo += reversed(body)
        return "\n".join(lines) + "\n"

    def line(self, graph: Graph, node: Node) -> str:
        """The line of a node."""
        quoted, name, made, first = self.quoted, "", "", None
        for v in node.outputs:
            value = graph.values[v]
            if first is None:
                first, name, made = value.type, value.name, self.value(value)
            else:
                made = f"{made}, {self.value(value)}"
        made = f"{made} = " if made else ""
        items = ", ".join(["_" if v == ABSENT else f"%{v}" for v in node.inputs]) if node.inputs else ""
        if node.const is not None:
            text = const_text(node.const, self.blobs, first if isinstance(first, Tensor) else None)
            items = f"{items}, {text}" if items else text
        line = f"#{node.id} {made}{self.operators[node.op]}({items})"
        if node.captures:
            line += f" captures {node.captures}"
        if node.name != default_name(node.op, name):
            line += f" name {quoted[node.name]}"
        if node.origin:
            line += f" from {', '.join([quoted[name] for name in node.origin])}"
        decided = (node.engine, node.precision, node.stream, node.priority, node.notes)
        if decided != _UNDECIDED:
            line += self.decisions[decided]
        if node.id == graph._net_output:
            line += f" -> {words_text(graph.output_names)}".rstrip()
        return f"{line} {attrs_text(node.attrs, self.blobs, 0)}" if node.attrs else line

    def value(self, value: Value) -> str:
        """A value with its name and type."""
        found = self.types.get(id(value.type))
        if found is None:  # kept with its type, so that the id stays the type's own
            found = self.types[id(value.type)] = (print_type(value.type), value.type)
        return f"%{value.id} {self.quoted[value.name]}: {found[0]}" if value.name else f"%{value.id}: {found[0]}"


def _decisions_text(decided: _Decided) -> str:
    engine, precision, stream, priority, notes = decided
    parts = [f" @{name_text(engine)}"] if engine else []
    parts += [f" {key} {quote(word)}" for key, word in (("precision", precision), ("stream", stream)) if word]
    parts += [f" priority {priority}"] if priority else []
    return "".join(parts) + (f" note {words_text(notes)}" if notes else "")
