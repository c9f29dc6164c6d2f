"""Reading a graph from its text; `text` shows the form.

    #2 %2 "y": float32[8] = Relu(%1) from "act"
    id ─────outputs──────── ──call── ───tail───   →  Node(2, "Relu", [1], [2], origin=("act",)), Value(2, ...)

Each part is one pattern matched where the last one ended. Types and attributes that have been seen before
are taken from a cache by their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from atc_py.ir.attr_reader import TENSOR, Buffers, Reader, tensor_of
from atc_py.ir.attr_text import attrs_of
from atc_py.ir.constants import Constant
from atc_py.ir.graph import ABSENT, Graph, Node, Range, Value
from atc_py.ir.lexer import MAX_DEPTH, NAME, OPERATOR, STRING, Mistake, integer, named, unquote, words
from atc_py.ir.types import Tensor, Type

_ITEM = r"(?:%[0-9]{1,9}|_(?![A-Za-z0-9_.(]))"
_LIST = rf"{STRING}(?:, ?{STRING})*"
_OUTPUT = re.compile(rf"%([0-9]{{1,9}})(?: ({STRING}))?: ({TENSOR})(, ?| = )")
_OUTPUT_HEAD = re.compile(rf"%([0-9]{{1,9}})(?: ({STRING}))?: ")
_ID = re.compile(r"#([0-9]{1,9}) +")
_CALL = re.compile(rf"({OPERATOR}|{STRING})\(({_ITEM}(?:, ?{_ITEM})*)?(\)|, ?|)")
_TAIL = re.compile(
    r"(?: captures (?P<captures>[0-9]{1,9}))?"
    rf"(?: name (?P<name>{STRING}))?"
    rf"(?: from (?P<origin>{_LIST}))?"
    rf"(?: @(?P<engine>{NAME}|{STRING}))?"
    rf"(?: precision (?P<precision>{STRING}))?"
    rf"(?: stream (?P<stream>{STRING}))?"
    r"(?: priority (?P<priority>-?[0-9]{1,9}))?"
    rf"(?: note (?P<notes>{_LIST}))?"
    rf"(?: ->(?P<outputs>(?: {_LIST})?))?"
)
_GRAPH = re.compile(rf"(?:({NAME}|{STRING}): ?)?graph ({STRING}) ?\{{")
_DOC = re.compile(rf"doc ({STRING}) ({STRING})")
_SYMBOL = re.compile(rf"symbol ({NAME}|{STRING}) in \[(-?[0-9]+), ?(?:(-?[0-9]+)|inf)\]( runtime)?")
_INPUTS = re.compile(r"inputs ?((?:%[0-9]{1,9}(?:, ?%[0-9]{1,9})*)?)")
_NEXT = re.compile(r"next #([0-9]{1,9}) %([0-9]{1,9})")


def parse_graph(text: str, blobs: Buffers = ()) -> Graph:
    """The graph that `text` denotes; `blob K` is `blobs[K]`, referenced and not copied.

    Raises `AtcError` with line and column: EI101 for malformed text, EI102 for what exceeds a limit.
    """
    return _Parser(blobs).run(text)


@dataclass
class _Open:
    """A graph whose closing brace has not come yet; `lines` are the nodes' lines."""

    graph: Graph
    last: Node | None = None
    inputs: list[int] | None = None
    following: tuple[int, int] | None = None
    lines: dict[int, int] = field(default_factory=dict)


class _Parser:
    """Reads line by line; `open` holds the graphs that are not closed yet, the innermost last."""

    def __init__(self, blobs: Buffers) -> None:
        self.reader = Reader("", blobs)
        self.open: list[_Open] = []
        self.root: Graph | None = None
        self.line = 0

    def run(self, text: str) -> Graph:
        """The graph of the whole text."""
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip(" \t\r")
            if not line or line.startswith("//"):
                continue
            self.line = number
            try:
                self.read(line)
            except Mistake as mistake:
                mistake.raise_error("graph text", number, raw.index(line[0]))
        if self.root is None or self.open:
            self.wrong("the text ends before its graph does")
        return self.root

    def wrong(self, cause: str, line: int | None = None) -> NoReturn:
        """Raise a mistake that concerns a whole line."""
        Mistake(0, cause).raise_error("graph text", self.line if line is None else line)

    def read(self, line: str) -> None:
        """One line without the blanks around it."""
        reader = self.reader
        reader.text, reader.at, reader.depth = line, 0, 0
        if not self.open:
            self.begin(line)
        elif line[0] == "#":
            self.node()
        elif line == "}":
            self.finish()
        else:
            for pattern, act in _STATEMENTS:
                match = pattern.fullmatch(line)
                if match is not None:
                    act(self, self.open[-1], match)
                    return
            self.begin(line)

    def begin(self, line: str) -> None:
        """The first line of a graph."""
        match = _GRAPH.fullmatch(line)
        if match is None or (match[1] is None) != (self.root is None) or (self.root is not None and not self.open):
            self.reader.expected("a node, a statement or '}'" if self.open else "one graph")
        if len(self.open) >= MAX_DEPTH:
            self.reader.fail(f"graphs nest more than {MAX_DEPTH} deep", "EI102")
        graph = Graph(unquote(match[2]))
        if self.root is None:
            self.root = graph
        else:
            owner, name = self.open[-1].last, named(match[1])
            if owner is None or name in owner.subgraphs:
                self.reader.fail(f"a second subgraph '{name}'" if owner else "a subgraph without its node")
            owner.subgraphs[name] = graph
            graph.symbols = self.open[-1].graph.symbols
        self.open.append(_Open(graph))

    def own_symbols(self, frame: _Open, match: re.Match[str]) -> None:
        """`symbols own`."""
        frame.graph.symbols = {}

    def doc(self, frame: _Open, match: re.Match[str]) -> None:
        """`doc "key" "value"`."""
        frame.graph.doc[unquote(match[1])] = unquote(match[2])

    def symbol(self, frame: _Open, match: re.Match[str]) -> None:
        """`symbol N in [1, inf] runtime`."""
        name, symbols = named(match[1]), frame.graph.symbols
        if name in symbols:
            self.reader.fail(f"symbol '{name}' is declared twice")
        hi = None if match[3] is None else integer(match[3])
        symbols[name] = Range(integer(match[2]), hi, match[4] is not None)

    def inputs(self, frame: _Open, match: re.Match[str]) -> None:
        """`inputs %3, %0`."""
        frame.inputs = _ids(match[1])

    def next_ids(self, frame: _Open, match: re.Match[str]) -> None:
        """`next #9 %12`."""
        frame.following = (int(match[1]), int(match[2]))

    def node(self) -> None:
        """A node's line."""
        reader, frame = self.reader, self.open[-1]
        line, graph = reader.text, frame.graph
        match = _ID.match(line)
        if match is None:
            reader.expected("a node's number")
        number = int(match[1])
        if number in graph.nodes:
            reader.fail(f"node #{number} comes twice")
        reader.at = match.end()
        outputs = self.outputs(graph, number)
        match = _CALL.match(line, reader.at)
        if match is None:
            reader.expected("an operator and its inputs")
        op, inputs = named(match[1], reader.at), _ids(match[2])
        reader.at = match.end()
        const = None if match[3] == ")" else self.const(graph, outputs)
        first = graph.values[outputs[0]].name if outputs else ""
        node = Node(number, op, inputs, outputs, name=default_name(op, first), const=const)
        graph.nodes[number] = node
        self.tail(graph, node)
        if reader.at != len(line):
            reader.need(" ")
            node.attrs = self.attrs(line)
        frame.lines[number] = self.line
        frame.last = node

    def outputs(self, graph: Graph, producer: int) -> list[int]:
        """The values before the `=` sign."""
        reader, text = self.reader, self.reader.text
        result: list[int] = []
        more = text.startswith("%", reader.at)
        while more:
            type_: Type
            match = _OUTPUT.match(text, reader.at)
            if match is not None:
                type_ = tensor_of(match[3], match.start(3))
                reader.at = match.end()
                more = match[5] != " = "
            else:
                match = _OUTPUT_HEAD.match(text, reader.at)
                if match is None:
                    reader.expected("an output, as in '%1: float32[2]'")
                reader.at = match.end()
                type_ = reader.type()
                more = reader.take(", ")
                if not more:
                    reader.need(" = ")
            number = int(match[1])
            if number in graph.values:
                reader.fail(f"value %{number} comes twice")
            name = unquote(match[2], match.start(2)) if match[2] else ""
            graph.values[number] = Value(number, type_, name, producer, len(result))
            result.append(number)
        return result

    def const(self, graph: Graph, outputs: list[int]) -> Constant:
        """The constant that ends the list of inputs."""
        type_ = graph.values[outputs[0]].type if outputs else None
        const = self.reader.const(type_ if isinstance(type_, Tensor) else None)
        self.reader.need(")")
        return const

    def tail(self, graph: Graph, node: Node) -> None:
        """What stands between the inputs and the attributes."""
        reader = self.reader
        match = _TAIL.match(reader.text, reader.at)
        if match is None or match.end() == reader.at:
            return
        reader.at = match.end()
        captures, name, origin, engine, precision, stream, priority, notes, outputs = match.groups()
        node.captures = int(captures or 0)
        if name is not None:
            node.name = unquote(name)
        node.origin = tuple(words(origin)) if origin else ()
        if engine or precision or stream or priority or notes:
            node.engine = named(engine) if engine else ""
            node.precision = unquote(precision) if precision else ""
            node.stream = unquote(stream) if stream else ""
            node.priority = int(priority or 0)
            node.notes = tuple(words(notes)) if notes else ()
        if outputs is not None:
            if graph._net_output is not None or node.op != "NetOutput":
                reader.fail("output names belong to the graph's one NetOutput")
            graph._net_output = node.id
            graph.output_names = words(outputs)

    def attrs(self, line: str) -> dict[str, Any]:
        """The attributes, which end the line; equal texts are parsed once."""
        start, text = self.reader.at, line[self.reader.at :]
        if "blob " in text:
            return self.reader.whole(Reader.attrs)
        self.reader.at = len(line)
        try:
            return attrs_of(text)
        except Mistake as mistake:
            mistake.at += start
            raise

    def finish(self) -> None:
        """A graph's last line: the uses follow from the inputs."""
        frame = self.open.pop()
        graph, values = frame.graph, frame.graph.values
        for node in graph.nodes.values():
            for i, value in enumerate(node.inputs):
                if value == ABSENT:
                    continue
                if value not in values:
                    self.wrong(f"value %{value} is read and never made", frame.lines[node.id])
                values[value].uses[(node.id, i)] = None
        data = [n.outputs[0] for n in graph.nodes.values() if n.op == "Data" and n.outputs]
        graph.inputs = data if frame.inputs is None else frame.inputs
        following = max(graph.nodes, default=-1) + 1, max(values, default=-1) + 1
        graph._next_node, graph._next_value = frame.following or following
        if any(v not in values for v in graph.inputs):
            self.wrong("an input of the graph is never made")
        if graph._next_node < following[0] or graph._next_value < following[1]:
            self.wrong("the next id is one that is taken")


_Act = Callable[[_Parser, _Open, "re.Match[str]"], None]
_STATEMENTS: tuple[tuple[re.Pattern[str], _Act], ...] = (
    (_DOC, _Parser.doc),
    (_SYMBOL, _Parser.symbol),
    (_INPUTS, _Parser.inputs),
    (_NEXT, _Parser.next_ids),
    (re.compile("symbols own"), _Parser.own_symbols),
)


def default_name(op: str, first: str) -> str:
    """The name that a node has without saying so, `first` being its first output's name."""
    if op == "NetOutput":
        return op
    return first if op in ("Data", "Const") else ""


def _ids(text: str | None) -> list[int]:
    if not text:
        return []
    return [ABSENT if item[0] == "_" else int(item[1:]) for item in text.replace(" ", "").split(",")]
