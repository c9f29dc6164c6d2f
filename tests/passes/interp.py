"""Graphs by hand, and a small interpreter that runs them: what passes must not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.clone import clone
from atc_py.ir.constants import Constant, blob
from atc_py.ir.dims import Size, symbols_of
from atc_py.ir.dims import evaluate as evaluate_dim
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node, Range
from atc_py.ir.types import DType, Tensor
from atc_py.ir.validate import validate
from atc_py.ops.base import Call
from atc_py.ops.build import Scope, lookup
from atc_py.ops.evaluate import evaluate, run
from atc_py.ops.formats import meant
from atc_py.passes import OptimizeOptions, optimize


class Builder:
    """Builds a graph whose nodes have names and origins n0, n1, …"""

    def __init__(self, **symbols: Range) -> None:
        self.graph = Graph("test", dict(symbols))
        self.scope = Scope(self.graph)
        self.count = 0

    def input(self, name: str, shape: Any, dtype: DType = DType.FLOAT32) -> int:
        return self.graph.add_input(name, Tensor(dtype, shape))

    def const(self, array: Any, dtype: Any = None) -> int:
        return self.graph.add_const(blob(np.array(array, dtype, order="C")))

    def constant(self, constant: Constant) -> int:
        return self.graph.add_const(constant)

    def ops(self, op: str, *inputs: int, outputs: int = 1, **attrs: Any) -> list[int]:
        name = f"n{self.count}"
        self.count += 1
        return self.scope.emit(op, inputs, attrs, outputs=outputs, name=name, origin=(name,))

    def op(self, op: str, *inputs: int, **attrs: Any) -> int:
        return self.ops(op, *inputs, **attrs)[0]

    def done(self, *outputs: int) -> Graph:
        self.graph.set_outputs(outputs, [f"y{i}" for i in range(len(outputs))])
        validate(self.graph)
        return self.graph


Seen = Callable[[Graph, Node, "list[Any]", "list[Any]"], None]
"""Called for each node that has run, with what it read and made."""


def interpret(
    graph: Graph, inputs: Sequence[Any], env: Mapping[str, int] | None = None, seen: Seen | None = None
) -> list[Any]:
    """The graph's outputs; symbols of inputs are bound from their shapes, others when their producer has run."""
    env = dict(env or {})
    values: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    values[ABSENT] = None
    for value, array in zip(graph.inputs, inputs, strict=True):
        _bind(graph, value, array, env)
    for node in graph.order():
        if node.op in ("Data", "NetOutput"):
            continue
        if node.const is not None:
            values[node.outputs[0]] = None  # evaluated when read: its symbols may be bound late
            continue
        given = [_value(graph, v, values, env) for v in node.inputs]
        made = _run(graph, node, given, env, seen)
        if seen is not None:
            seen(graph, node, given, made)
        for value, array in zip(node.outputs, made, strict=False):
            values[value] = array
            _bind(graph, value, array, env)
    return [_value(graph, v, values, env) for v in graph.outputs]


def _value(graph: Graph, value: int, values: dict[int, Any], env: dict[str, int]) -> Any:
    constant = graph.const(value)
    return evaluate(meant(constant), env) if constant is not None else values[value]


def _bind(graph: Graph, value: int, array: Any, env: dict[str, int]) -> None:
    type_ = graph.type(value)
    if not isinstance(type_, Tensor) or type_.shape is None or not isinstance(array, np.ndarray):
        return
    assert array.dtype == type_.dtype.numpy, f"%{value} is {array.dtype}, typed {type_}"
    assert len(type_.shape) == array.ndim, f"%{value} has shape {array.shape}, typed {type_}"
    for dim, size in zip(type_.shape, array.shape, strict=True):
        names = symbols_of(dim)
        if len(names) == 1 and str(dim).strip('"') == names[0]:
            env.setdefault(names[0], size)
        if all(n in env for n in names):
            assert evaluate_dim(dim, env) == size, f"%{value} has shape {array.shape}, typed {type_}, {env}"


def _run(graph: Graph, node: Node, given: list[Any], env: dict[str, int], seen: Seen | None = None) -> list[Any]:
    op = lookup(node.op, node.attrs)
    attrs = op.attributes(node.attrs)
    if node.op == "Fused":
        types = tuple(None if v is None else Tensor(DType.of(v.dtype), v.shape) for v in given)
        made = [graph.tensor(v) for v in node.outputs]
        shapes = [tuple(evaluate_dim(d, env) for d in t.dims) for t in made]
        outs = tuple(Tensor(t.dtype, shape) for t, shape in zip(made, shapes))
        views = [np.empty(shape, t.dtype.numpy) for t, shape in zip(made, shapes)]
        consts = {i: v for i, v in enumerate(given) if graph.const(node.inputs[i]) is not None}
        call = Call(attrs, outs, views, consts, types, body=node.subgraphs["body"])
        assert op.prepare_fn is not None and op.kernel_fn is not None
        call.state = op.prepare_fn(call)
        result = op.kernel_fn(call, *given)
        return [np.array(r) for r in (result if isinstance(result, tuple) else (result,))]
    bodies = {n: (lambda args, g=g: interpret(g, args, env, seen)) for n, g in node.subgraphs.items()}
    if bodies:
        attrs["_captures"] = node.captures
    known = [_typed(graph.type(v), env) if bodies else None for v in node.outputs]
    return run(op, attrs, given, known, bodies)


def _typed(type_: Any, env: Mapping[str, int]) -> Any:
    """A type with the dims that are known: what a loop gives that never runs follows from it."""
    if not isinstance(type_, Tensor) or type_.shape is None:
        return type_
    known = [evaluate_dim(d, env) if all(s in env for s in symbols_of(d)) else d for d in type_.shape]
    return type_.with_shape(tuple(known))


def random_inputs(graph: Graph, env: Mapping[str, int] | None = None, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrays: list[Any] = []
    for value in graph.inputs:
        type_ = graph.tensor(value)
        shape = tuple(evaluate_dim(d, env or {}) for d in type_.dims)
        if type_.dtype.is_float:
            arrays.append(rng.standard_normal(shape).astype(type_.dtype.numpy))
        elif type_.dtype is DType.BOOL:
            arrays.append(rng.integers(0, 2, shape).astype(bool))
        else:
            arrays.append(rng.integers(0, 3, shape).astype(type_.dtype.numpy))
    return arrays


def whole(size: Size) -> int:
    """A size without symbols."""
    assert isinstance(size, int)
    return size


def work(graph: Graph) -> list[str]:
    """The operators of the graph in order, structural ones left out."""
    return [n.op for n in graph.order() if n.op not in STRUCTURAL]


def origins(graph: Graph) -> set[str]:
    return {o for g in graph.walk() for n in g.nodes.values() for o in n.origin}


def assert_same(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape, f"{a.dtype} {a.shape}, expected {b.dtype} {b.shape}"
        if a.dtype.kind == "f":
            scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol, atol * scale)
        else:
            np.testing.assert_array_equal(a, b)


def optimized(graph: Graph, env: Mapping[str, int] | None = None, *, seed: int = 0, **options: Any) -> Graph:
    """Optimize a copy; prove that it computes the same, is valid, keeps origins of what it does, and is at rest."""
    inputs = random_inputs(graph, env, seed)
    want = interpret(graph, inputs, env)
    copy = clone(graph)
    chosen = OptimizeOptions(debug=True, **options)
    report = optimize(copy, chosen)
    assert report.settled
    validate(copy, "optimize")
    assert_same(interpret(copy, inputs, env), want)
    again = clone(copy)
    assert optimize(again, chosen).changed == 0
    return copy
