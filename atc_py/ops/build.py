"""Adding typed nodes to a graph: one place that calls an operator's `infer` and `value`.

    scope = Scope(graph)
    [y] = scope.emit("Reshape", [x, shape])     # types follow from the declaration; y's value is known when x's is

A scope remembers the values that are known while a graph is built (`facts`): arrays of numbers, or arrays of dtype
object with ints and Dims. Shape arithmetic is thereby computed as the graph grows, on concrete and symbolic dims.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.constants import Blob, Constant, DimVec, Splat, blob, blob_array
from atc_py.ir.dims import Dim, DimOverflow, Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops import MARK, get
from atc_py.ops.base import REGISTRY, Array, Infer, InferError, Op, Result
from atc_py.ops.shapes import as_objects

KNOWN_LIMIT = 1024
"""Values with more elements than this are not followed."""
KEPT = 128
"""Bytes of the largest value for which types are remembered."""


def known_value(constant: Constant | None) -> Array | None:
    """A constant's value where it is small enough to be followed, else None."""
    if isinstance(constant, Blob) and prod(constant.shape) <= KNOWN_LIMIT and constant.dtype is not DType.STRING:
        return blob_array(constant)
    if isinstance(constant, Splat) and constant.dtype is not DType.STRING:
        shape = [d for d in constant.shape if isinstance(d, int)]
        if len(shape) == len(constant.shape) and prod(shape) <= KNOWN_LIMIT:
            return np.full(shape, constant.value, constant.dtype.numpy)
    if isinstance(constant, DimVec):
        flat = np.empty(len(constant.elements), dtype=object)
        flat[:] = constant.elements
        return flat.reshape(constant.shape)
    return None


class Values(Sequence["Array | None"]):
    """What is known of the inputs of a call, found by `find` when it is asked for.

    `places` are the inputs that somebody has asked for, and whether they were known.
    """

    def __init__(self, find: Callable[[Any], Array | None], inputs: Sequence[Any]) -> None:
        self._find, self.inputs = find, inputs
        self.places: dict[int, bool] = {}

    @property
    def asked(self) -> bool:
        """Whether anybody has asked."""
        return bool(self.places)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: Any) -> Any:
        places = range(len(self.inputs))[i]
        return self._get(places) if isinstance(places, int) else [self._get(place) for place in places]

    def _get(self, i: int) -> Array | None:
        value = self._find(self.inputs[i])
        self.places[i] = value is not None
        return value


@dataclass
class _Call:
    """What follows from the operator, the attributes and the types of a call.

    `types` of the results are kept by the inputs whose values were asked for, and these values; `asked` are the inputs
    that the last such call has asked for. `silent`: inputs without which nothing is known of the results; None: not
    found out yet.
    """

    types: dict[Hashable, list[Type]] = field(default_factory=dict)
    asked: tuple[int, ...] = ()
    silent: tuple[int, ...] | None = None


def lookup(name: str, attrs: Mapping[str, Any]) -> Op:
    """The operator of a node: its declaration, custom ones included, or one made from onnx's reference implementation.

    Raises `AtcError` E16002, or E40005 for a custom operator whose module is not here.
    """
    op = REGISTRY.get(name) or get(name) or (_custom(name, attrs[MARK]) if MARK in attrs else None)
    if op is None:
        from atc_py.ops import reference

        op = reference.lookup(name, attrs)
    if op is None:
        hint = "atc convert lists all unknown operators at once"
        raise error("E16002", name, f"operator '{name}' is not known", hint)
    return op


def _custom(name: str, module: object) -> Op:
    from atc_py.ops import plugins

    op = plugins.find(name)
    if op is None:
        raise AtcError(plugins.missing(name, module))
    return op


def _depends_on_symbols(types: Sequence[Type | None]) -> bool:
    """Whether sizes are not all known: a rule may then take something for granted, and has to say so each time."""
    return any(t is not None and not (isinstance(t, Tensor) and t.static) for t in types)


def as_types(result: Result) -> list[Type | None]:
    """What an infer function returned, as a list with one entry an output."""
    if result is None or isinstance(result, (Tensor, SequenceType, Optional, Map)):
        return [result]
    return list(result)


class Scope:
    """Builds one graph; see the module's page. `facts` holds the known values by value id."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.facts: dict[int, Array] = {}
        self._symbols: dict[tuple[int, str], Dim] = {}
        self._inner: dict[int, Scope] = {}
        self._calls: dict[Hashable, _Call] = graph.calls

    def known(self, value: int) -> Array | None:
        """The value's content when it is known."""
        found = self.facts.get(value)
        if found is None and value != ABSENT:
            constant = self.graph.const(value)
            found = None if constant is None else known_value(constant)
            if found is not None:
                self.facts[value] = found
        return found

    def emit(
        self,
        op_name: str,
        inputs: Sequence[int],
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        name: str = "",
        origin: tuple[str, ...] = (),
        names: Sequence[str] = (),
        subgraphs: Mapping[str, Graph] | None = None,
        captures: int = 0,
    ) -> list[int]:
        """Add a node of `op_name`; returns its output value ids. Raises `InferError` when the operator refuses."""
        given = attrs or {}
        op = lookup(op_name, given)
        filled = op.attributes(given)
        self.check_arity(op, len(inputs) - captures, outputs)
        if ABSENT in inputs:
            for i, (kind, value) in enumerate(zip(op.inputs, inputs)):
                if value == ABSENT and not kind.endswith(("?", "*")):
                    raise InferError(f"input {i} ({kind}) of {op.name} is absent")
        node = self.graph.add(
            op_name, inputs, [], filled, name=name, origin=origin, subgraphs=subgraphs, captures=captures
        )
        try:
            types, call = self._infer(op, node, outputs)
        except Exception:
            self.graph.remove(node)
            raise
        self.graph.add_outputs(node, types, names)
        self._propagate(op, node, call)
        return list(node.outputs)

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> int:
        """Add a small constant."""
        return self.graph.add_const(blob(np.asarray(array, dtype)), name)

    def inner(self, body: Graph) -> Scope:
        """The scope of a subgraph of one of this graph's nodes: always the same one, so that its symbols stay."""
        found = self._inner.get(id(body))
        if found is None or found.graph is not body:
            found = self._inner[id(body)] = Scope(body)
        return found

    def reinfer(self, fixed: Mapping[int, Array] | None = None) -> None:
        """Infer all types again, e.g. after the inputs' types have changed.

        Known values are computed anew from the constants and from `fixed`, values of the graph's inputs.
        """
        self.facts = dict(fixed or {})
        for node in self.graph.order():
            if node.op in STRUCTURAL:
                continue
            op = lookup(node.op, node.attrs)
            types, call = self._infer(op, node, len(node.outputs))
            for value, type_ in zip(node.outputs, types, strict=True):
                self.graph.values[value].type = type_
            self._propagate(op, node, call)

    @staticmethod
    def check_arity(op: Op, given: int, outputs: int = 0) -> None:
        """Raise `InferError` when `op` does not take `given` inputs, or has not so many outputs."""
        most = op.max_inputs
        if given < op.min_inputs or (most is not None and given > most and not op.bodies):
            span = f"{op.min_inputs}" if most == op.min_inputs else f"{op.min_inputs} to {most or 'any number of'}"
            raise InferError(f"{op.name} takes {span} inputs, but has {given}")
        if outputs > len(op.outputs) and not (op.outputs and op.outputs[-1].endswith("*")):
            raise InferError(f"{op.name} has {len(op.outputs)} outputs, but {outputs} are asked for")

    def _asking(self, node: Node, outputs: int) -> tuple[Infer, Values]:
        """The call as the operator's functions see it, and what they ask of its values."""
        values = self.graph.values
        given = Values(self.known, node.inputs)
        n = Infer(
            tuple([None if v == ABSENT else values[v].type for v in node.inputs]),
            node.attrs,
            outputs,
            given,
            lambda why: self._fresh(node, why),
            lambda body, types, values: self._infer_body(node.subgraphs[body], types, values),
            node.captures,
        )
        return n, given

    def _infer(self, op: Op, node: Node, outputs: int) -> tuple[list[Type], _Call | None]:
        """The types of the results, and what is remembered of such calls."""
        values = self.graph.values
        types = tuple([None if v == ABSENT else values[v].type for v in node.inputs])
        call = None
        if not (node.subgraphs or _depends_on_symbols(types)):
            call = self._remembered((op.name, tuple(node.attrs.items()), types, outputs))
        if call is not None:
            answers = self._answers(node, call.asked)
            if answers in call.types:
                return call.types[answers], call
        n, given = self._asking(node, outputs)
        symbols = len(self._symbols)
        found = self._called(op, n)
        if call is not None and symbols == len(self._symbols):  # new ones are for this node alone
            call.asked = tuple(given.places)
            answers = self._answers(node, call.asked)
            if answers is not None:
                call.types[answers] = found
        return found, call

    def _remembered(self, key: Hashable) -> _Call | None:
        """What is remembered under the key; None where an attribute makes it none."""
        try:
            call = self._calls.get(key)
        except TypeError:
            return None
        if call is None:
            call = self._calls[key] = _Call()
        return call

    def _answers(self, node: Node, asked: tuple[int, ...]) -> Hashable:
        """What is known of inputs, as a key; None where that is much, or holds symbols."""
        if not asked:
            return asked
        contents: list[Hashable] = [asked]
        for i in asked:
            known = self.known(node.inputs[i])
            if known is None:
                contents.append(None)
            elif known.dtype == object or known.nbytes > KEPT:
                return None
            else:
                contents.append((known.shape, known.tobytes()))  # the type tells the dtype
        return tuple(contents)

    def _called(self, op: Op, n: Infer) -> list[Type]:
        if op.infer_fn is None:
            raise InferError(f"{op.name} has no shape rule")
        try:
            found = as_types(op.infer_fn(n))
        except DimOverflow:
            found = [Tensor(n.dtype(0), None)] * n.outputs
        found += [None] * (n.outputs - len(found))
        return [t if t is not None else self._unknown(n) for t in found[: n.outputs]]

    @staticmethod
    def _unknown(n: Infer) -> Type:
        first = next((t for t in n.types if isinstance(t, Tensor)), None)
        return Tensor(first.dtype if first else DType.FLOAT32, None)

    def _propagate(self, op: Op, node: Node, call: _Call | None) -> None:
        """Follow what is known of the results."""
        if op.value_fn is None:
            return
        silent = None if call is None else call.silent
        if silent is not None and all(self.known(node.inputs[i]) is None for i in silent):
            return
        n, given = self._asking(node, len(node.outputs))
        symbols = len(self._symbols)
        result: Any = None
        with suppress(DimOverflow, InferError, OverflowError):
            result = op.value_fn(n)
        found = result if isinstance(result, (list, tuple)) else [result]
        for value, array in zip(node.outputs, found, strict=False):
            if array is not None and array.size <= KNOWN_LIMIT:
                self.facts[value] = array
        if call is not None and result is None and not any(given.places.values()) and symbols == len(self._symbols):
            call.silent = tuple(given.places)

    def _fresh(self, node: Node, why: str) -> Dim:
        key = (node.id, why)
        if key not in self._symbols:
            self._symbols[key] = self.graph.fresh_symbol(f"{node.op.rpartition('::')[2]}{node.id}.{why}")
        return self._symbols[key]

    def _infer_body(self, body: Graph, types: Sequence[Type | None], values: Sequence[Array | None]) -> list[Type]:
        inner = self.inner(body)
        for value, type_ in zip(body.inputs, types, strict=True):
            if type_ is not None:
                body.values[value].type = type_
        inner.reinfer({v: a for v, a in zip(body.inputs, values, strict=False) if a is not None})
        return [body.type(v) for v in body.outputs]


def as_constant(array: Array, dtype: DType) -> Constant:
    """A known value as a constant: a Blob when it is concrete, else a DimVec."""
    if array.dtype != object:
        return blob(array.astype(dtype.numpy, copy=False))
    flat: list[Size] = [x if isinstance(x, Dim) else int(x) for x in array.reshape(-1)]
    if all(type(x) is int for x in flat):
        return blob(np.array(flat, dtype.numpy).reshape(array.shape))
    return DimVec(dtype, array.shape, tuple(flat))


def dims_constant(dims: Sequence[Size]) -> Constant:
    """Sizes as an int64 vector: a Blob when all are numbers, else a DimVec."""
    if {*map(type, dims)} <= {int}:
        return Blob(DType.INT64, (len(dims),), memoryview(struct.pack(f"<{len(dims)}q", *dims)))
    return as_constant(as_objects(dims), DType.INT64)
