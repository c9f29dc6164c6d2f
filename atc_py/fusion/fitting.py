"""Fits by structure: layers that are alike are cut once.

    layer 0   RMSNormalization ─ MatMul, MatMul, MatMul      a tile is looked for
    layer 1   RMSNormalization ─ MatMul, MatMul, MatMul      the same operators, attributes, shapes and edges: its tile

The key of a structure holds small numbers only: each type, each operator with its attributes and each constant that the
host reads has been given one when it was first met.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from atc_py.fusion.bodies import body_of, host_constants
from atc_py.fusion.keys import frozen
from atc_py.fusion.rule import exits
from atc_py.fusion.tiles import Fit, Misfit, fit
from atc_py.ir.constants import Blob, Splat
from atc_py.ir.dims import DimOverflow
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import InferError
from atc_py.target import Target


class Fitting:
    """The tiles of groups of one graph on one target."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self._numbers: dict[Hashable, int] = {}
        self._type: dict[int, int] = {}
        self._kind: dict[int, int] = {}
        self._found: dict[Hashable, Fit | Misfit] = {}

    def fit(self, nodes: Sequence[Node]) -> Fit | Misfit:
        """The largest tile of the group of nodes, given in order."""
        key = self._key(nodes)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._fit(nodes)
        return found

    def _fit(self, nodes: Sequence[Node]) -> Fit | Misfit:
        try:
            return fit(body_of(self.graph, nodes)[0], self.target)
        except (InferError, DimOverflow) as problem:  # sizes that symbols may have, but for which nothing is computed
            return Misfit("rule", str(problem))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, nodes: Sequence[Node]) -> Hashable:
        place: dict[int, int] = {ABSENT: -1}
        entries: list[int] = []
        inside = {n.id: n for n in nodes}
        for node in nodes:
            entries.append(self._kind_of(node))
            for v in node.inputs:
                known = place.get(v)
                if known is None:
                    known = place[v] = len(place)
                    entries.append(self._type_of(v))
                entries.append(known)
            for v in node.outputs:
                place[v] = len(place)
                entries.append(self._type_of(v))
        return tuple(entries), tuple([place[v] for v in exits(self.graph, nodes, inside)])

    def _type_of(self, value: int) -> int:
        found = self._type.get(value)
        if found is None:
            t = self.graph.values[value].type
            key: Hashable = (t.dtype, t.shape) if isinstance(t, Tensor) else t
            found = self._type[value] = self._number(key)
        return found

    def _kind_of(self, node: Node) -> int:
        """The operator with its attributes and what the host reads for it."""
        found = self._kind.get(node.id)
        if found is None:
            constants = [(node.inputs.index(v), self._constant(v)) for v in host_constants(self.graph, [node])]
            found = self._kind[node.id] = self._number((node.op, frozen(node.attrs), tuple(constants)))
        return found

    def _constant(self, value: int) -> Hashable:
        constant = self.graph.const(value)
        if isinstance(constant, Blob) and constant.nbytes <= 4096:
            return constant.dtype, constant.shape, bytes(constant.data)
        if isinstance(constant, Splat):
            return constant.dtype, constant.shape, repr(constant.value)
        return id(constant)
