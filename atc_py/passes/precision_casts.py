"""Making a graph what was chosen (`precision_choice`): dtypes, Casts where they differ, weights converted.

    x: float32 ─┬─ Conv ─ Relu ─┬─ Exp ─ y          x ─ Cast ─┬─ Conv ─ Relu ─┬─ Cast ─ Exp ─ y
                └─ MaxPool ─ …  └─ Conv ─ …                   └─ MaxPool ─ …  └─ Conv ─ …
                                                     one Cast a value and dtype, shared by all its readers

A value that a Cast has made from the wanted dtype without loss is not cast back: its source is read. Constants become
recipes (`Derived`: the OM stores the bytes once), single elements are converted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from atc_py.ir.constants import Blob, Constant, Derived, Splat, blob
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.evaluate import evaluate
from atc_py.passes.casts import lossless
from atc_py.passes.lineage import Lineage
from atc_py.passes.precision_choice import Change, Mode, retyped, takes_any

Converted = Callable[[Constant, DType, str], None]
"""Told of each constant that is converted: the constant, the dtype, and what to call it."""


def apply(graph: Graph, changes: Mapping[int, Change], mode: Mode, converted: Converted) -> int:
    """Make the changes; returns how many Casts were put in. `converted` is told of each constant that is converted."""
    caster, target = Caster(graph, converted, mode.widens), mode.target
    for node in graph.order():
        change = changes.get(node.id)
        if change is not None:
            caster.retype(node, change, target)
        elif node.op not in ("Data", "Const"):
            caster.restore(node)
    caster.finish()
    return caster.made


class Caster:
    """Changes one graph, producers first: when a node is met, what it reads has its new dtype."""

    def __init__(self, graph: Graph, converted: Converted, widens: bool = False) -> None:
        self.graph, self.converted, self.widens = graph, converted, widens
        self.made = 0
        self._old: dict[int, DType] = {}
        self._restored: dict[int, int] = {}
        self._cast: dict[int, int] = {}
        self._equal: list[Node] = []

    def retype(self, node: Node, change: Change, target: DType) -> None:
        """Let the node read what was chosen, and give its outputs their types."""
        graph = self.graph
        values, known = graph.values, self._cast
        for i in change.reads:
            type_ = values[node.inputs[i]].type
            if isinstance(type_, Tensor) and type_.dtype is not target:
                self._read(node, i, target, known)
        if self._old and len(change.reads) < len(node.inputs) and not self._any(node):
            for i, value in enumerate(node.inputs):
                if value in self._old and i not in change.reads:
                    self._back(node, i)
        node.attrs.update(change.attrs)
        for value, type_ in zip(node.outputs, change.types, strict=True):
            old = graph.values[value].type
            if isinstance(old, Tensor) and isinstance(type_, Tensor) and old.dtype is not type_.dtype:
                self._old[value] = old.dtype
            graph.values[value].type = type_

    def restore(self, node: Node) -> None:
        """A node that stays as it is reads values in the dtypes that they had."""
        old = self._old
        if not any(v in old for v in node.inputs):
            return
        if self._any(node):
            if self.graph.type(node.inputs[0]) == (self.graph.type(node.outputs[0]) if node.outputs else None):
                self._equal.append(node)
            return
        for i, value in enumerate(node.inputs):
            if value in old:
                self._back(node, i)

    def finish(self) -> None:
        """Casts of the model whose input has become what they make go, and so does what nobody reads any more."""
        with Lineage(self.graph) as lineage:
            for node in self._equal:
                if node.op == "Cast":
                    lineage.bypass(node, node.inputs[0])
            for value in self._cast:
                unread = self.graph.producer(value) if value in self.graph.values else None
                if unread is None or (unread.const is None and unread.op != "Cast"):
                    continue
                heir = self.graph.producer(unread.inputs[0]) if unread.inputs else None
                if lineage.drop(unread) and heir is not None and heir.op not in STRUCTURAL:
                    lineage.adopt(heir, unread)

    @staticmethod
    def _any(node: Node) -> bool:
        return takes_any(node, None if node.op in STRUCTURAL else get(node.op))

    def read(self, node: Node, i: int, target: DType) -> None:
        """Let input `i` of the node be read in the mode's dtype."""
        self._read(node, i, target, self._cast)

    def _back(self, node: Node, i: int) -> None:
        """Let input `i` be read in the dtype that it had."""
        self._read(node, i, self._old[node.inputs[i]], self._restored)

    def _read(self, node: Node, i: int, dtype: DType, known: dict[int, int]) -> None:
        """Read what a Cast reads, the constant converted, or a Cast; `known` has what was found before."""
        value = node.inputs[i]
        found = known.get(value)
        if found is None:
            type_ = self.graph.values[value].type
            if not isinstance(type_, Tensor) or type_.dtype is dtype:
                return
            source = self._source(value, type_, dtype)
            found = self._convert(value, type_, dtype, node, i) if source is None else source
            known[value] = found
        self.graph.set_input(node, i, found)

    def _source(self, value: int, type_: Tensor, dtype: DType) -> int | None:
        """What was cast to make the value, where that has the wanted dtype; a mode that widens undoes rounding too."""
        producer = self.graph.producer(value)
        if producer.op != "Cast":
            return None
        source = self.graph.type(producer.inputs[0])
        if not isinstance(source, Tensor) or source.dtype is not dtype:
            return None
        if self.widens or lossless(dtype, type_.dtype):
            return producer.inputs[0]
        return None

    def _convert(self, value: int, type_: Tensor, dtype: DType, reader: Node, i: int) -> int:
        graph = self.graph
        producer = graph.producer(value)
        if producer.const is not None:
            name = graph.values[value].name or producer.name or f"input {i} of {reader.op} '{reader.name}'"
            self.converted(producer.const, dtype, name)
            return graph.add_const(converted(producer.const, dtype), graph.values[value].name, producer.origin)
        self.made += 1
        made = retyped(type_, dtype)
        origin = reader.origin if producer.op in STRUCTURAL else producer.origin
        node = graph.add("Cast", [value], [made], {"to": dtype, "saturate": 1, "round_mode": "up"}, origin=origin)
        node.engine = "aicore"
        return node.outputs[0]


def converted(constant: Constant, dtype: DType) -> Constant:
    """A constant in another floating-point dtype; its bytes are not touched unless it is one element."""
    if isinstance(constant, Splat):
        one = evaluate(_cast(Splat(constant.dtype, (1,), constant.value), dtype))
        return replace(constant, dtype=dtype, value=one[0])
    if isinstance(constant, Blob) and constant.nbytes <= constant.dtype.itemsize:
        return blob(evaluate(_cast(constant, dtype)))
    return _cast(constant, dtype)


def _cast(constant: Constant, dtype: DType) -> Derived:
    shape = tuple(d for d in constant.shape if isinstance(d, int))
    assert len(shape) == len(constant.shape)
    return Derived(dtype, shape, "Cast", (constant,), {"to": dtype, "saturate": 1, "round_mode": "up"})
