"""The canonical order: what a graph's ids are when names and file order do not count.

    file A                       file B                        both become
    t1 = Relu(x)                 c = Const 2                   #0 %0 = Data()
    t2 = Neg(t1)                 p = Relu(x)                   #1 %1 = Relu(%0)
    k  = Const 2                 q = Mul(p, c)                 #2 %2 = Neg(%1)
    t3 = Mul(t1, k)              r = Neg(p)                    #3 %3 = Const 2
    y  = Add(t2, t3)             y = Add(r, q)                 #4 %4 = Mul(%1, %3)
                                                               #5 %5 = Add(%2, %4)
                                                               #6 NetOutput(%5)

The walk is depth first from `NetOutput` along the inputs by position; a node comes after what it reads
(postorder), the graph's inputs come first, by position too. Every node that reaches an output is met, and
where it is met depends on the positions on the way to it and on nothing else: two graphs that differ in
names and in the order of their nodes get the same ids. Hashes that are refined until they are stable would
tell the same nodes apart (a node that reaches an output is known by any path of positions that leads to
it), but a walk needs no hash, no rounds and no tie break, and it leaves constants and branches beside their
readers. A node that reaches no output has no place in it; it is removed.

Subgraphs are ordered in the same way. Two more things carry the order of the file and are settled with it:
captured values come in the order in which the bodies first read them, and run-time symbols are named after
the node where they first appear, `<operator><id>.<why>`. Names of symbols of the inputs do matter: they are
part of types.

Cost: O(nodes + edges), no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from atc_py.ir.dims import Dim, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.symbols import dims_in, node_symbols, rename_symbols

_SERIAL = re.compile(r"_[0-9]+$")


def canonicalize(graph: Graph) -> None:
    """Give the graph and its subgraphs their canonical order and ids, in place; nodes that reach no output go.

    Attributes and subgraphs are sorted by name, absent inputs at the end dropped, and run-time symbols renamed. Raises
    `ValueError` on a cycle.
    """
    for inner in reversed(list(graph.walk())):
        for node in inner.nodes.values():
            if len(node.attrs) > 1:
                node.attrs = dict(sorted(node.attrs.items()))
            if node.subgraphs or ABSENT in node.inputs:
                _settle(inner, node)
        if inner is not graph:
            inner.prune()
    layout = _layout(graph)
    for inner, order in layout:
        inner.renumber(order)
    if not graph.symbols:
        return
    names = _symbol_names(graph, layout)
    ranges = {new: graph.symbols[old] for old, new in names.items()}
    rename_symbols(graph, {old: symbol(new) for old, new in names.items() if old != new})
    graph.symbols.clear()
    graph.symbols.update(ranges)


def structural_order(graph: Graph) -> list[Node]:
    """The nodes that reach an output and the graph's inputs, in canonical order. `ValueError` on a cycle."""
    nodes, values = graph.nodes, graph.values
    order = [graph.producer(v) for v in graph.inputs]
    done: dict[int, bool] = dict.fromkeys([n.id for n in order], True)
    end = graph.net_output
    done[end.id] = False
    stack = [(end, 0)]
    while stack:
        node, i = stack.pop()
        inputs = node.inputs
        while i < len(inputs):
            value = inputs[i]
            i += 1
            if value == ABSENT:
                continue
            source = values[value].producer
            finished = done.get(source)
            if finished:
                continue
            if finished is not None:
                raise ValueError(f"graph '{graph.name}' has a cycle through node #{source}")
            maker = nodes[source]
            if maker.inputs:
                done[source] = False
                stack += ((node, i), (maker, 0))
                break
            done[source] = True
            order.append(maker)
        else:
            done[node.id] = True
            order.append(node)
    return order


def _settle(graph: Graph, node: Node) -> None:
    """Subgraphs by name, captures as they are first read, no absent inputs at the end; bodies are settled already."""
    if node.subgraphs:
        node.subgraphs = dict(sorted(node.subgraphs.items()))
        _order_captures(graph, node)
    elif node.inputs[-1] == ABSENT:
        kept = max((i + 1 for i, v in enumerate(node.inputs) if v != ABSENT), default=0)
        graph.set_inputs(node, node.inputs[:kept])


def _order_captures(graph: Graph, node: Node) -> None:
    """Captures in the order in which the bodies first read them; those that nobody reads are dropped."""
    count = node.captures
    if not count:
        return
    read: dict[int, None] = {}
    for body in node.subgraphs.values():
        slots = {value: i for i, value in enumerate(body.inputs[-count:])}
        for reader in structural_order(body):
            read.update(dict.fromkeys(slots[v] for v in reader.inputs if v in slots))
    order = list(read)
    captured = node.inputs[-count:]
    graph.set_inputs(node, node.inputs[:-count] + [captured[i] for i in order])
    node.captures = len(order)
    for body in node.subgraphs.values():
        own, passed = body.inputs[:-count], body.inputs[-count:]
        body.inputs = own + [passed[i] for i in order]
        for i, value in enumerate(passed):
            if i not in read:
                body.remove(body.producer(value))
        for i, value in enumerate(body.inputs):
            body.producer(value).attrs["index"] = i


def _layout(graph: Graph) -> list[tuple[Graph, list[Node]]]:
    """The graph and all graphs inside it with their nodes in order; outer ones first, by position and name."""
    result: list[tuple[Graph, list[Node]]] = []
    stack = [graph]
    while stack:
        inner = stack.pop()
        order = structural_order(inner)
        result.append((inner, order))
        bodies = [node.subgraphs[name] for node in order if node.subgraphs for name in sorted(node.subgraphs)]
        stack += reversed(bodies)
    return result


def _symbol_names(graph: Graph, layout: list[tuple[Graph, list[Node]]]) -> dict[str, str]:
    """The canonical name of each symbol, in order of first appearance.

    Symbols of the inputs keep theirs; those that appear nowhere come last. Run-time symbols that appear nowhere
    are left out.
    """
    symbols = graph.symbols
    fixed = {name for name, r in symbols.items() if not r.runtime}
    names: dict[str, str] = {}
    taken = set(fixed)
    for inner, order in layout:
        for position, node in enumerate(order):
            for name in _appearing(inner, node):
                if name in names or name not in symbols:
                    continue
                why = _SERIAL.sub("", name.rpartition(".")[2])
                new = name if name in fixed else _free(f"{node.op.rpartition('::')[2]}{position}.{why}", taken)
                names[name] = new
                taken.add(new)
    return names | {name: name for name in sorted(fixed) if name not in names}


def _free(name: str, taken: set[str]) -> str:
    new, i = name, 1
    while new in taken:
        i += 1
        new = f"{name}_{i}"
    return new


def _appearing(graph: Graph, node: Node) -> Iterator[str]:
    """The symbols of a node; those that stand alone as a size come first, for an expression sorts by names."""
    if not any(True for _ in node_symbols(graph, node)):
        return
    attrs = [value for _, value in sorted(node.attrs.items())]
    dims: list[Dim] = list(dims_in([*(graph.type(v) for v in node.outputs), node.const, *attrs]))
    for dim in sorted(dims, key=lambda d: len(symbols_of(d))):
        yield from symbols_of(dim)
