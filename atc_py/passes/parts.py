"""Parts that are cut and put together again: chains of Slice, Split, Concat and Pad become one, or none.

    Slice(Slice(x, 2:9), 1:4)                     →    Slice(x, 3:6)            also on different axes
    Slice(Concat([2], [3]), 2:5), Split(Concat)   →    the operand
    Concat(Concat(a, b), c)                       →    Concat(a, b, c)
    Concat(x[0:2], x[2:5], y)                     →    Concat(x[0:5], y)        and x itself where it is all of x
    x[0:2], x[2:5]: Slices that make up x         →    Split(x, [2, 3])
    Gather(x, [3])                                →    Slice(x, 3:4)            and a Reshape where 3 is a scalar
    Concat(a, empty), Split(x, [all, 0])          →    a, x
    Pad(Pad(x))                                   →    Pad(x)                   of one value
    Pad(x, 0) ─ Conv, AveragePool, MaxPool of x ≥ 0    →    the operator with larger pads

Laws: cutting is choosing elements of an axis, and the choice of a choice is a choice; what is cut where it was joined
is what was there. A padded convolution adds zeros outside of x, as the Pad does. All sizes involved are numbers; the
axes that they do not touch may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atc_py.ir.constants import blob
from atc_py.ir.graph import Graph, Node
from atc_py.ops.build import dims_constant
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, given, ints, known_at_start, same_types, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.rewriting import become, emit, sweep
from atc_py.passes.spans import Span, span

PASS = "parts"
NEVER_NEGATIVE = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Abs", "Exp", "Softmax", "Softplus"})


class _Parts:
    """One run over one graph."""

    def __init__(self, graph: Graph, ctx: PassContext, lineage: Lineage) -> None:
        self.graph, self.ctx, self.lineage = graph, ctx, lineage

    def numbers(self, values: Sequence[int], heir: Node) -> int:
        """An integer constant."""
        return self.graph.add_const(blob(np.array(values, np.int64)), "", heir.origin)

    def cut(self, node: Node, part: Span, gone: Sequence[Node]) -> bool:
        """The node becomes the part; what made it before goes."""
        graph, constants = self.graph, [v for v in node.inputs[1:] if v >= 0]
        dims = dims_of(graph, part.source)
        if dims is not None and part.length == dims[part.axis] and same_types(graph, part.source, node.outputs[0]):
            self.lineage.bypass(node, part.source)
            return True
        where = [self.numbers([n], node) for n in (part.start, part.stop, part.axis)]
        steps = [] if part.step == 1 else [self.numbers([part.step], node)]
        become(graph, node, "Slice", [part.source, *where, *steps])
        sweep(graph, self.lineage, node, gone, constants)
        return True

    # -- slices --------------------------------------------------------------------------------------------------

    def slice(self, node: Node) -> bool:
        """A Slice of a Slice, of a Split's part, or of a Concat"""
        part = span(self.graph, node.outputs[0])
        source = self.graph.producer(node.inputs[0])
        if part is None:
            return source.op == "Slice" and self._two_axes(node, source)
        if source.op == "Concat":
            return self._of_concat(node, source, part)
        outer = span(self.graph, node.inputs[0])
        if outer is None:
            return False
        if outer.axis != part.axis:
            return source.op == "Slice" and self._two_axes(node, source)
        if part.length == 0:
            return False
        start, step = outer.start + part.start * outer.step, outer.step * part.step
        whole = Span(outer.source, outer.axis, start, start + (part.length - 1) * step + 1, step)
        return self.cut(node, whole, [source])

    def _two_axes(self, node: Node, inner: Node) -> bool:
        """Slices of different axes are one Slice"""
        graph = self.graph
        if len(graph.values[node.inputs[0]].uses) != 1:
            return False
        both: list[list[int]] = [[], [], [], []]
        rank = len(dims_of(graph, inner.inputs[0]) or ())
        for n in (inner, node):
            starts, stops = ints(graph, n, 1), ints(graph, n, 2)
            if starts is None or stops is None or not rank:
                return False
            axes = ints(graph, n, 3) if given(n, 3) else list(range(len(starts)))
            steps = ints(graph, n, 4) if given(n, 4) else [1] * len(starts)
            if axes is None or steps is None:
                return False
            for have, more in zip(both, (starts, stops, [a % rank for a in axes], steps)):
                have += more
        if len(set(both[2])) < len(both[2]):
            return False
        constants = [v for v in node.inputs[1:] if v >= 0]
        become(graph, node, "Slice", [inner.inputs[0], *(self.numbers(n, node) for n in both)])
        sweep(graph, self.lineage, node, [inner], constants)
        return True

    def _of_concat(self, node: Node, concat: Node, part: Span) -> bool:
        """The part of a Concat that lies within one operand"""
        graph, at = self.graph, 0
        rank = len(dims_of(graph, node.inputs[0]) or (0,))
        if int(concat.attrs["axis"]) % rank != part.axis or part.length == 0:
            return False
        last = part.start + (part.length - 1) * part.step
        for value in concat.inputs:
            dims = dims_of(graph, value)
            length = dims[part.axis] if dims else None
            if type(length) is not int:
                return False
            if part.start >= at and last < at + length:
                inside = Span(value, part.axis, part.start - at, last - at + 1, part.step)
                return self.cut(node, inside, [concat])
            at += length
        return False

    def split(self, node: Node) -> bool:
        """The parts of a Concat that was put together of them; a part that is everything"""
        for value in node.outputs:
            uses = self.graph.values[value].uses
            if uses and same_types(self.graph, value, node.inputs[0]) and self._is_all(value):
                self.graph.replace_uses(value, node.inputs[0])
                return True
        graph, concat = self.graph, self.graph.producer(node.inputs[0])
        dims = dims_of(graph, node.inputs[0])
        if concat.op != "Concat" or dims is None or len(concat.inputs) != len(node.outputs):
            return False
        if int(concat.attrs["axis"]) % len(dims) != int(node.attrs.get("axis", 0)) % len(dims):
            return False
        pairs = list(zip(node.outputs, concat.inputs))
        if any(not same_types(graph, a, b) for a, b in pairs):
            return False
        for part, operand in pairs:
            if graph.values[part].name and not graph.values[operand].name:
                graph.values[operand].name = graph.values[part].name
            graph.replace_uses(part, operand)
            self.lineage.adopt(graph.producer(operand), node)
        sweep(graph, self.lineage, graph.producer(concat.inputs[0]), [node, concat])
        return True

    def _is_all(self, value: int) -> bool:
        part = span(self.graph, value)
        dims = None if part is None else dims_of(self.graph, part.source)
        return part is not None and dims is not None and part.length == dims[part.axis]

    # -- concat --------------------------------------------------------------------------------------------------

    def concat(self, node: Node) -> bool:
        """Concats within a Concat, and neighbouring parts of one tensor"""
        graph, rank = self.graph, len(dims_of(self.graph, node.outputs[0]) or ())
        if not rank:
            return False
        axis = int(node.attrs["axis"]) % rank
        flat, inner = self._flattened(node, axis, rank)
        if not flat:
            return False
        joined = self._joined(node, axis, flat)
        if len(joined) == len(node.inputs):
            return False
        gone = [*inner, *(graph.producer(v) for v in flat if graph.producer(v).op in ("Slice", "Split"))]
        values = [v if isinstance(v, int) else self._part(node, v) for v in joined]
        if len(values) == 1 and same_types(graph, values[0], node.outputs[0]):
            heir = graph.producer(values[0])
            self.lineage.bypass(node, values[0])
            reader = next((n for n in graph.consumers(values[0]) if n.op != "NetOutput"), None)
            target = reader if heir.op == "Data" and reader is not None else heir
            for part in gone:
                if part.id in graph.nodes and self.lineage.drop(part):
                    self.lineage.adopt(target, part)
            return True
        graph.set_inputs(node, values)
        node.attrs = {**node.attrs, "axis": axis}
        sweep(graph, self.lineage, node, gone)
        return True

    def _flattened(self, node: Node, axis: int, rank: int) -> tuple[list[int], list[Node]]:
        flat: list[int] = []
        inner: list[Node] = []
        for value in node.inputs:
            maker = self.graph.producer(value)
            alone = len(self.graph.values[value].uses) == 1
            dims = dims_of(self.graph, value)
            if dims is not None and dims[axis] == 0 and len(node.inputs) > 1:
                inner.append(maker)
            elif maker.op == "Concat" and alone and int(maker.attrs["axis"]) % rank == axis:
                flat += maker.inputs
                inner.append(maker)
            else:
                flat.append(value)
        return flat, inner

    def _joined(self, node: Node, axis: int, flat: Sequence[int]) -> list[int | Span]:
        joined: list[int | Span] = []
        for value in flat:
            part = span(self.graph, value)
            last = joined[-1] if joined else None
            before = span(self.graph, last) if isinstance(last, int) else last
            if part is not None and before is not None and self._follows(before, part, axis):
                joined[-1] = Span(part.source, axis, before.start, part.stop)
            else:
                joined.append(value)
        return joined

    @staticmethod
    def _follows(before: Span, part: Span, axis: int) -> bool:
        """Whether two parts of the axis lie beside each other."""
        same = part.source == before.source and part.axis == before.axis == axis
        return same and part.step == before.step == 1 and part.start == before.stop

    def _part(self, node: Node, part: Span) -> int:
        dims = dims_of(self.graph, part.source)
        if dims is not None and part.length == dims[part.axis]:
            return part.source
        where = [self.numbers([n], node) for n in (part.start, part.stop, part.axis)]
        return emit(self.graph, "Slice", [part.source, *where], {}, node)

    # -- gather --------------------------------------------------------------------------------------------------

    def gather(self, node: Node) -> bool:
        """One element of an axis, at a constant place: a Slice, without the axis where the place is a scalar"""
        graph, at = self.graph, self.graph.const(node.inputs[1])
        number, dims = uniform(at), dims_of(graph, node.inputs[0])
        out = dims_of(graph, node.outputs[0])
        if at is None or number is None or at.shape not in ((), (1,)) or dims is None or out is None:
            return False
        if graph.const(node.inputs[0]) is not None or not known_at_start(graph, out):
            return False
        axis = int(node.attrs.get("axis", 0)) % len(dims)
        size = dims[axis]
        first = int(number) + (size if number < 0 and type(size) is int else 0)
        if first < -1 or (first < 0 and type(size) is int) or (type(size) is int and first >= size):
            return False  # a place outside of the tensor fails at run time; far from the end, a size is needed
        stop = first + 1 if first >= 0 else 2**31 - 1
        where = [self.numbers([n], node) for n in (first, stop, axis)]
        if at.shape == ():
            one = emit(graph, "Slice", [node.inputs[0], *where], {}, node)
            target = graph.add_const(dims_constant(out), "", node.origin)
            become(graph, node, "Reshape", [one, target], {"allowzero": int(any(type(d) is not int for d in out))})
        else:
            become(graph, node, "Slice", [node.inputs[0], *where])
        return True

    # -- pads ----------------------------------------------------------------------------------------------------

    def pads(self, node: Node) -> list[int] | None:
        """The pads of a constant Pad for all axes, beginnings first."""
        dims, pads = dims_of(self.graph, node.inputs[0]), ints(self.graph, node, 1)
        if node.op != "Pad" or node.attrs.get("mode", "constant") != "constant" or dims is None or pads is None:
            return None
        axes = ints(self.graph, node, 3) if given(node, 3) else list(range(len(dims)))
        if axes is None or len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
            return None
        full = [0] * (2 * len(dims))
        for at, axis in enumerate(axes):
            full[axis % len(dims)], full[len(dims) + axis % len(dims)] = pads[at], pads[len(axes) + at]
        return full

    def filler(self, node: Node) -> float | None:
        """What a Pad puts around its input."""
        number = uniform(self.graph.const(node.inputs[2])) if given(node, 2) else 0
        return None if number is None else float(number)

    def pad(self, node: Node) -> bool:
        """A Pad of a Pad with the same value"""
        inner = self.graph.producer(node.inputs[0])
        outer, pads = self.pads(node), self.pads(inner) if inner.op == "Pad" else None
        if outer is None or pads is None or len(self.graph.values[node.inputs[0]].uses) != 1:
            return False
        if self.filler(node) is None or self.filler(node) != self.filler(inner):
            return False
        total = self.numbers([a + b for a, b in zip(outer, pads)], node)
        inputs = [inner.inputs[0], total, *node.inputs[2:3]]
        self.graph.set_inputs(node, inputs)
        sweep(self.graph, self.lineage, node, [inner])
        return True

    def window(self, node: Node) -> bool:
        """A Pad before a convolution or a pool"""
        graph, pad = self.graph, self.graph.producer(node.inputs[0])
        pads = self.pads(pad) if pad.op == "Pad" else None
        if pads is None or len(graph.values[node.inputs[0]].uses) != 1:
            return False
        rank = len(pads) // 2
        reason = self._unfit(node, pad, pads, rank)
        if reason:
            self.ctx.decline(node, PASS, f"Pad '{pad.name}' stays: {reason}")
            return False
        own = node.attrs.get("pads") or (0,) * (2 * rank - 4)
        more = [*pads[2:rank], *pads[rank + 2 :]]
        attrs = {**node.attrs, "pads": tuple(int(a) + b for a, b in zip(own, more)), "auto_pad": "NOTSET"}
        if node.op == "AveragePool":
            attrs["count_include_pad"] = 1
        node.attrs = attrs
        graph.set_input(node, 0, pad.inputs[0])
        sweep(graph, self.lineage, node, [pad])
        return True

    def _unfit(self, node: Node, pad: Node, pads: Sequence[int], rank: int) -> str:
        """Why the pads cannot go into the window, "" when they can."""
        own = node.attrs.get("pads") or ()
        if any(pads[i] for i in (0, 1, rank, rank + 1)):
            return "it pads batch or channels"
        if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return f"{node.op} chooses its own pads"
        if self.filler(pad) != 0:
            return f"it pads with {self.filler(pad)}"
        if node.op == "AveragePool":
            if any(own) and not node.attrs.get("count_include_pad", 0):
                return "the pool does not count its own pads"
            return "the pool rounds up" if node.attrs.get("ceil_mode", 0) else ""
        if node.op == "MaxPool":
            if len(node.outputs) > 1 or any(own) or node.attrs.get("ceil_mode", 0):
                return "the pool has pads of its own, rounds up, or tells indices"
            kernel = node.attrs.get("kernel_shape") or ()
            more = [*pads[2:rank], *pads[rank + 2 :]]
            if any(p >= k for p, k in zip(more, (*kernel, *kernel))):
                return "a window may lie outside of the input"
            maker = self.graph.producer(pad.inputs[0])
            return (
                "" if maker.op in ("Relu", "Sigmoid", "HardSigmoid", "Abs", "Exp", "Softmax") else "x may be negative"
            )
        return ""


def merge_parts(graph: Graph, ctx: PassContext) -> int:
    """Shorten chains of cuts and joins; returns how many nodes changed."""
    changed = 0
    with Lineage(graph) as lineage:
        parts = _Parts(graph, ctx, lineage)
        for node in [n for n in graph.nodes.values() if n.op in _RULES]:
            if node.id in graph.nodes and _RULES[node.op](parts, node):
                changed += 1
        for value in sorted({n.inputs[0] for n in graph.nodes.values() if n.op == "Slice"}):
            changed += _slices_to_split(parts, value)
    return changed


def _slices_to_split(parts: _Parts, value: int) -> int:
    """Slices that make up a tensor, and are all that is read of it or more than one: a Split"""
    graph = parts.graph
    spans = [
        (found, n)
        for n in graph.consumers(value)
        if n.op == "Slice" and (found := span(graph, n.outputs[0])) is not None and found.step == 1
    ]
    spans.sort(key=lambda s: (s[0].axis, s[0].start, s[1].id))
    dims = dims_of(graph, value)
    if len(spans) < 2 or dims is None or len({s.axis for s, _ in spans}) != 1:
        return 0
    axis, ends = spans[0][0].axis, [0, *(s.stop for s, _ in spans)]
    if any(s.start != end for (s, _), end in zip(spans, ends)) or ends[-1] != dims[axis]:
        return 0
    types = [graph.tensor(n.outputs[0]) for _, n in spans]
    heir = spans[0][1]
    sizes = parts.numbers([s.length for s, _ in spans], heir)
    names = [graph.values[n.outputs[0]].name for _, n in spans]
    attrs = {"axis": axis, "num_outputs": None}
    made = graph.add("Split", [value, sizes], types, attrs, name=heir.name, origin=heir.origin, names=names)
    for (_, node), output in zip(spans, list(made.outputs)):
        graph.values[node.outputs[0]].name = ""
        graph.replace_uses(node.outputs[0], output)
        constants = [v for v in node.inputs[1:] if v >= 0]
        sweep(graph, parts.lineage, made, [node], constants)
    return 1


_RULES: dict[str, Callable[[_Parts, Node], bool]] = {
    "Slice": _Parts.slice,
    "Split": _Parts.split,
    "Concat": _Parts.concat,
    "Gather": _Parts.gather,
    "Pad": _Parts.pad,
    "Conv": _Parts.window,
    "AveragePool": _Parts.window,
    "MaxPool": _Parts.window,
}
