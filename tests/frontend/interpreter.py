"""Runs an imported graph node by node with the operators' own kernels: the plainest thing that can judge an import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.graph import ABSENT, Graph
from atc_py.ir.types import Tensor
from atc_py.ops.build import lookup
from atc_py.ops.evaluate import evaluate, run


def bind(graph: Graph, feeds: Sequence[Any]) -> dict[str, int]:
    """Symbols that are dims of inputs, by the arrays that came."""
    env: dict[str, int] = {}
    for value, array in zip(graph.inputs, feeds, strict=True):
        t = graph.type(value)
        if isinstance(t, Tensor) and t.shape is not None and array is not None:
            for d, size in zip(t.shape, np.shape(array), strict=True):
                if type(d) is not int and str(d) in graph.symbols:
                    env[str(d)] = size
    return env


def interpret(graph: Graph, feeds: Sequence[Any], env: Mapping[str, int] | None = None) -> list[Any]:
    """The graph's outputs for inputs in order."""
    env = {**(env or {}), **bind(graph, feeds)}
    values: dict[int, Any] = {ABSENT: None, **dict(zip(graph.inputs, feeds, strict=True))}
    for node in graph.order():
        if node.op == "Data":
            continue
        if node.op == "Const":
            assert node.const is not None
            values[node.outputs[0]] = evaluate(node.const, env)
            continue
        if node.op == "NetOutput":
            break
        inputs = [values[i] for i in node.inputs]
        attrs = {**node.attrs, "_captures": node.captures} if node.subgraphs else node.attrs
        results = run(
            lookup(node.op, node.attrs), attrs, inputs, [graph.type(o) for o in node.outputs],
            {name: _body(body, env) for name, body in node.subgraphs.items()},
        )  # fmt: skip
        for output, result in zip(node.outputs, results):
            values[output] = result
    return [values[o] for o in graph.outputs]


def _body(graph: Graph, env: Mapping[str, int]) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda feeds: interpret(graph, feeds, env)
