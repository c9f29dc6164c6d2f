"""Parts of one axis: what a Slice or an output of a Split takes, in numbers.

Example: output 1 of Split([2, 3] of axis 1) is Span(source, axis = 1, start = 2, stop = 5, step = 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from atc_py.ir.graph import Graph, Node
from atc_py.passes.known import dims_of, given, ints

MOST_CUTS = 8
"""Cuts of cuts that are followed."""


@dataclass(frozen=True)
class Span:
    """The elements `start`, `start + step`, … below `stop` of one axis of `source`."""

    source: int
    axis: int
    start: int
    stop: int
    step: int = 1

    @property
    def length(self) -> int:
        """How many elements of the axis these are."""
        return len(range(self.start, self.stop, self.step))


def span(graph: Graph, value: int) -> Span | None:
    """What part of one axis the value is, None where it is none or sizes are not known as numbers."""
    node = graph.producer(value)
    if node.op == "Split":
        return _of_split(graph, node, graph.values[value].index)
    return _of_slice(graph, node) if node.op == "Slice" else None


def last_span(graph: Graph, value: int) -> Span | None:
    """The part of the last axis that the value is."""
    found = span(graph, value)
    dims = None if found is None else dims_of(graph, found.source)
    return found if found is not None and dims is not None and found.axis == len(dims) - 1 else None


def rooted_span(graph: Graph, value: int) -> Span | None:
    """The part of the last axis that the value is of the tensor from which it is cut, in any number of steps."""
    dims = dims_of(graph, value)
    if not dims or type(dims[-1]) is not int:
        return None
    found = Span(value, len(dims) - 1, 0, dims[-1])
    for _ in range(MOST_CUTS):
        outer = last_span(graph, found.source)
        if outer is None or outer.step != 1:
            break
        found = Span(outer.source, found.axis, outer.start + found.start, outer.start + found.stop)
    return found


def _of_split(graph: Graph, node: Node, at: int) -> Span | None:
    dims = dims_of(graph, node.inputs[0])
    if not dims:
        return None
    axis, start, stop = int(node.attrs.get("axis", 0)) % len(dims), 0, 0
    for value in node.outputs[: at + 1]:
        part = dims_of(graph, value)
        length = part[axis] if part else None
        if type(length) is not int:
            return None
        start, stop = stop, stop + length
    return Span(node.inputs[0], axis, start, stop)


def _of_slice(graph: Graph, node: Node) -> Span | None:
    dims = dims_of(graph, node.inputs[0])
    starts, stops = ints(graph, node, 1), ints(graph, node, 2)
    axes = ints(graph, node, 3) if given(node, 3) else [0]
    steps = ints(graph, node, 4) if given(node, 4) else [1]
    if not dims or not starts or not stops or axes is None or steps is None or len(starts) != 1 or len(axes) != 1:
        return None
    axis = axes[0] % len(dims)
    size = dims[axis]
    if type(size) is not int or len(steps) != 1 or steps[0] < 1:
        return None
    start, stop, step = slice(starts[0], stops[0], steps[0]).indices(size)
    return Span(node.inputs[0], axis, start, max(start, stop), step)
