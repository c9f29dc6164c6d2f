"""Operators whose operands exceed the target's memory are cut into pieces that fit.

    memory 8 MiB;   A, B: [1024, 1024] float32      MatMul(A, B) takes 12 MiB

              ┌ rows 0:352 ─── MatMul(·, B) ┐
    A ─ Split ┼ rows 352:704 ─ MatMul       ┼ Concat        6.75 MiB each; where parts are runs of bytes of the whole,
              └ rows 704: ──── MatMul       ┘               Split and Concat move nothing

A row of large operators is cut along one axis together (`split_plan.py`): each piece goes through all of them before
the next one begins, so that no large value between them ever exists whole. Constants are cut at conversion.

Where an operator can be cut along no axis so that it fits, the conversion fails and says what takes how much, why each
axis does not serve, and which targets have the memory. Sizes that only the run time knows are not judged here; the
warning W20001 stands for the model as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc_py.errors import AtcError, Problem, Problems
from atc_py.ir.constants import Derived, blob
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.build import lookup
from atc_py.ops.shapes import show
from atc_py.ops.tiles import Region, lengths, whole
from atc_py.passes.base import PassContext
from atc_py.passes.split_plan import Cuts, Piece, Sizes, in_runs, plan_region
from atc_py.target import Target, load, names

WHOLE = frozenset({"Fused", "TensorMove", "TransData"})
"""What later passes make: tile programs and copies, which take their operands piece by piece."""

TOLD, REASONS = 4, 3
"""So many nodes are told, and so many reasons of each: one wrong size makes all nodes after it too large."""


def split_large(graph: Graph, ctx: PassContext) -> int:
    """Cut what does not fit; returns how many operators were cut. Raises `AtcError` E20040 for each that stays."""
    assert ctx.target is not None
    memory = ctx.target.memory
    sizes = Sizes(graph)
    if sum(map(sizes.value, graph.values)) <= memory:
        return 0
    order = [n for n in graph.order() if n.op not in STRUCTURAL]
    large = {n.id: size for n in order if n.op not in WHOLE and (size := sizes.operands(n)) > memory}
    problems, changed = Problems(), 0
    done: set[int] = set()
    for i, node in enumerate(order):
        if node.id not in large or node.id in done:
            continue
        found = plan_region(graph, order, i, large, sizes, memory)
        if isinstance(found, Cuts):
            done |= set(found.members)
            changed += len(found.members)
            _Cutter(graph, found).cut()
        else:
            problems.add("E20040", _place(node), _cause(graph, node, large[node.id], ctx.target, sizes, found),
                         _hint(large[node.id]))  # fmt: skip
    _raise_first(problems)
    return changed


def _raise_first(problems: Problems) -> None:
    """Raise the first few problems, and say of how many nodes the others are."""
    found = list(problems)
    if len(found) > TOLD:
        cause = f"{found[TOLD].place} and {len(found) - TOLD - 1} more do not fit either"
        found = [*found[:TOLD], Problem("E20040", "further nodes", cause, "start with the first of them")]
    if found:
        raise AtcError(*found)


def _place(node: Node) -> str:
    return node.origin[0] if node.origin else node.name or f"{node.op}#{node.id}"


def _cause(graph: Graph, node: Node, size: int, target: Target, sizes: Sizes, reasons: Sequence[str]) -> str:
    values = {v for v in (*node.inputs, *node.outputs) if v != ABSENT and sizes.value(v)}
    largest = sorted(values, key=lambda v: (-sizes.value(v), v))[:3]
    told = ", ".join(f"{_name(graph, v)} {show(graph.tensor(v).shape)} {sizes.value(v):,}" for v in largest)
    why = list(reasons[:REASONS])
    if len(reasons) > REASONS:
        why.append(f"{len(reasons) - REASONS} other ways fail too")
    return (
        f"the operands of {node.op} take {size:,} bytes ({told}), {target.name} has {target.memory:,}; "
        f"it cannot be split: {'; '.join(why)}"
    )


def _name(graph: Graph, value: int) -> str:
    return f"'{graph.values[value].name}'" if graph.values[value].name else f"%{value}"


def _hint(size: int) -> str:
    enough = [f"{t.name} ({t.memory:,})" for t in map(load, names()) if t.memory >= size]
    fitting = f"; {', '.join(enough)} have it" if enough else "; no target of this package has it"
    return f"it needs a target with {size:,} bytes{fitting}, or smaller shapes"


class _Cutter:
    """Puts the pieces of a region in the place of its members."""

    def __init__(self, graph: Graph, region: Cuts) -> None:
        self.graph, self.region = graph, region
        self.made: dict[int, list[int]] = {}
        self.slices: dict[tuple[int, Region], int] = {}

    def cut(self) -> None:
        """Piece by piece, each through all members; then what is read outside is put together."""
        graph, members = self.graph, self.region.members
        count = len(next(iter(members.values()))[1])
        nodes = [graph.nodes[n] for n in members]
        for i in range(count):
            for node in nodes:
                self.made.setdefault(node.outputs[0], []).append(self._piece(node, i, members[node.id][1][i]))
        for node in nodes:
            self._join(node, members[node.id][0])
        constants = dict.fromkeys(v for n in nodes for v in n.inputs if graph.const(v) is not None)
        for node in reversed(nodes):
            graph.remove(node)
        for value in constants:
            if not graph.values[value].uses:
                graph.remove(graph.producer(value))

    def _piece(self, node: Node, number: int, piece: Piece) -> int:
        graph = self.graph
        inputs = [self._input(node, i, number, piece) for i in range(len(node.inputs))]
        type_ = graph.tensor(node.outputs[0]).with_shape(lengths(piece.out))
        attrs = {**node.attrs, **piece.need.attrs}
        made = graph.add(node.op, inputs, [type_], attrs, name=f"{node.name}.{number}", origin=node.origin)
        _as(made, node)
        return made.outputs[0]

    def _input(self, node: Node, i: int, number: int, piece: Piece) -> int:
        value = node.inputs[i]
        region = piece.need.inputs[i] if i < len(piece.need.inputs) else None
        if value == ABSENT or region is None:
            return ABSENT
        if i in piece.need.values:
            type_ = self.graph.tensor(value)
            return self.graph.add_const(blob(np.asarray(piece.need.values[i], type_.dtype.numpy)), "", node.origin)
        if value in self.made:
            return self.made[value][number]
        if region == whole(_static(self.graph.tensor(value))):
            return value
        if (value, region) not in self.slices:
            self._cut_value(node, i, value, region)
        return self.slices[value, region]

    def _cut_value(self, node: Node, i: int, value: int, region: Region) -> None:
        """Parts of a value that lies whole: all of them by a Split that moves nothing, else this one by a Slice."""
        graph = self.graph
        pieces = self.region.members[node.id][1]
        axis = None if graph.const(value) is not None else in_runs(graph, value, pieces, i)
        if axis is None:
            self.slices[value, region] = self._slice(node, value, region)
            return
        regions = [r for p in pieces if (r := p.need.inputs[i]) is not None]
        sizes = graph.add_const(blob(np.array([r[axis][1] for r in regions], np.int64)), "", node.origin)
        types = [graph.tensor(value).with_shape(lengths(r)) for r in regions]
        attrs = lookup("Split", {}).attributes({"axis": axis})
        split = graph.add(
            "Split", [value, sizes], types, attrs, name=f"{node.name or node.op}.parts", origin=node.origin
        )
        _as(split, node)
        self.slices.update({(value, r): v for r, v in zip(regions, split.outputs, strict=True)})

    def _slice(self, node: Node, value: int, region: Region) -> int:
        graph = self.graph
        type_ = graph.tensor(value)
        dims = _static(type_)
        axes = [k for k, (span, d) in enumerate(zip(region, dims, strict=True)) if span != (0, d)]
        starts = [region[k][0] for k in axes]
        bounds = [starts, [s + region[k][1] for s, k in zip(starts, axes, strict=True)], axes, [1] * len(axes)]
        constants = [blob(np.array(b, np.int64)) for b in bounds]
        source = graph.const(value)
        attrs = lookup("Slice", {}).attributes({})
        if source is not None:
            part = Derived(type_.dtype, lengths(region), "Slice", (source, *constants), attrs)
            return graph.add_const(part, "", graph.producer(value).origin)
        inputs = [value, *(graph.add_const(c, "", node.origin) for c in constants)]
        cut = graph.add("Slice", inputs, [type_.with_shape(lengths(region))], attrs, origin=node.origin)
        cut.name = f"{node.name or node.op}.part"
        _as(cut, node)
        return cut.outputs[0]

    def _join(self, node: Node, axis: int) -> None:
        """One value again, for readers outside of the region."""
        graph, value = self.graph, node.outputs[0]
        outside = [(n, i) for n, i in graph.values[value].uses if n not in self.region.members]
        if not outside:
            return
        attrs = lookup("Concat", {}).attributes({"axis": axis})
        names = [graph.values[value].name]
        joined = graph.add("Concat", self.made[value], [graph.type(value)], attrs, origin=node.origin, names=names)
        joined.name = node.name
        _as(joined, node)
        graph.values[value].name = ""
        for number, index in outside:
            graph.set_input(graph.nodes[number], index, joined.outputs[0])


def _as(made: Node, node: Node) -> None:
    made.engine, made.precision = node.engine, node.precision
    made.stream, made.priority = node.stream, node.priority


def _static(type_: Tensor) -> tuple[int, ...]:
    return tuple(d for d in type_.dims if type(d) is int)
