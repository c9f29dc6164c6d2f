"""Adding typed nodes to a graph: one place that calls an operator's `infer` and `value`.

    scope = Scope(graph)
    [y] = scope.emit("Reshape", [x, shape])     # types follow from the declaration; y's value is known when x's is

A scope remembers the values that are known while a graph is built (`facts`): arrays of numbers, or arrays of dtype
object with ints and Dims. Shape arithmetic is thereby computed as the graph grows, on concrete and symbolic dims.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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

KNOWN_LIMIT = 1024
"""Values with more elements than this are not followed."""


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
    """What is known of the inputs of a call, found by `find` when it is asked for; `asked`: whether anybody has."""

    def __init__(self, find: Callable[[Any], Array | None], inputs: Sequence[Any]) -> None:
        self._find, self.inputs = find, inputs
        self.asked = False

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: Any) -> Any:
        self.asked = True
        return [self._find(x) for x in self.inputs[i]] if isinstance(i, slice) else self._find(self.inputs[i])


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


def _call_key(
    op: Op, attrs: Mapping[str, Any], types: Sequence[Type | None], outputs: int
) -> tuple[Hashable, ...] | None:
    """What the types of a call's results follow from, if nobody looks at values; None where it is no key.

    With symbols in the shapes a rule may also take something for granted, and has to say so each time.
    """
    for t in types:
        if t is not None and not (isinstance(t, Tensor) and t.static):
            return None
    key = (op.name, tuple(attrs.items()), types, outputs)
    try:
        hash(key)
    except TypeError:  # an attribute that is no key
        return None
    return key


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
        self._inferred: dict[Hashable, list[Type]] = {}

    def known(self, value: int) -> Array | None:
        """The value's content when it is known."""
        if value == ABSENT:
            return None
        if value not in self.facts:
            found = known_value(self.graph.const(value))
            if found is None:
                return None
            self.facts[value] = found
        return self.facts[value]

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
        op = lookup(op_name, attrs or {})
        filled = op.attributes(attrs or {})
        self.check_arity(op, len(inputs) - captures, outputs)
        for i, (kind, value) in enumerate(zip(op.inputs, inputs)):
            if value == ABSENT and not kind.endswith(("?", "*")):
                raise InferError(f"input {i} ({kind}) of {op.name} is absent")
        node = self.graph.add(
            op_name, inputs, [], filled, name=name, origin=origin, subgraphs=subgraphs, captures=captures
        )
        try:
            n, types = self._infer(op, node, outputs)
        except Exception:
            self.graph.remove(node)
            raise
        for i, type_ in enumerate(types):
            node.outputs.append(self.graph._new_value(type_, names[i] if i < len(names) else "", node.id, i))
        self._propagate(op, n, node)
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
            n, types = self._infer(op, node, len(node.outputs))
            for value, type_ in zip(node.outputs, types, strict=True):
                self.graph.values[value].type = type_
            self._propagate(op, n, node)

    @staticmethod
    def check_arity(op: Op, given: int, outputs: int = 0) -> None:
        """Raise `InferError` when `op` does not take `given` inputs, or has not so many outputs."""
        most = op.max_inputs
        if given < op.min_inputs or (most is not None and given > most and not op.bodies):
            span = f"{op.min_inputs}" if most == op.min_inputs else f"{op.min_inputs} to {most or 'any number of'}"
            raise InferError(f"{op.name} takes {span} inputs, but has {given}")
        if outputs > len(op.outputs) and not (op.outputs and op.outputs[-1].endswith("*")):
            raise InferError(f"{op.name} has {len(op.outputs)} outputs, but {outputs} are asked for")

    def _infer(self, op: Op, node: Node, outputs: int) -> tuple[Infer, list[Type]]:
        values = self.graph.values
        types = tuple([None if v == ABSENT else values[v].type for v in node.inputs])
        given = Values(self.known, node.inputs)
        n = Infer(
            types,
            node.attrs,
            outputs,
            given,
            lambda why: self._fresh(node, why),
            lambda body, types, values: self._infer_body(node.subgraphs[body], types, values),
            node.captures,
        )
        key = None if node.subgraphs else _call_key(op, node.attrs, types, outputs)
        found = None if key is None else self._inferred.get(key)
        if found is None:
            symbols = len(self._symbols)
            found = self._called(op, n)
            # Where values or new symbols have a part in it, the next node of this kind may differ.
            if key is not None and not given.asked and symbols == len(self._symbols):
                self._inferred[key] = found
        return n, found

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

    def _propagate(self, op: Op, n: Infer, node: Node) -> None:
        if op.value_fn is None:
            return
        try:
            result = op.value_fn(n)
        except (DimOverflow, InferError, OverflowError):
            return
        found = result if isinstance(result, (list, tuple)) else [result]
        for value, array in zip(node.outputs, found, strict=False):
            if array is not None and array.size <= KNOWN_LIMIT:
                self.facts[value] = array

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
