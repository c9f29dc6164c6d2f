"""What tests of fusion share: lowering without layouts, a proof that the same is computed, and what became tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc_py.ir.clone import clone
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ir.validate import validate
from atc_py.ops.base import Call
from atc_py.ops.build import lookup
from atc_py.passes import LowerOptions, lower
from atc_py.target import Target, load
from tests.passes.interp import assert_same, interpret, origins, random_inputs, work

RNG = np.random.default_rng(2)
TARGET = load("Ascend310P3")
PLAIN = frozenset({"layouts", "borders", "quantized"})
"""Passes that these tests leave out: they look at fusion alone."""


def rand(*shape: int, dtype: Any = np.float32) -> Any:
    return (RNG.standard_normal(shape) * 0.5).astype(dtype)


def fused(graph: Graph, target: Target = TARGET, **options: Any) -> Graph:
    """A copy with tasks fused."""
    copy = clone(graph)
    disabled = PLAIN | options.pop("disabled", frozenset())
    lower(copy, target, LowerOptions(debug=True, disabled=disabled, **options))
    validate(copy, "lower")
    return copy


def proved(graph: Graph, env: Mapping[str, int] | None = None, target: Target = TARGET, **options: Any) -> Graph:
    """`fused`, and a proof: it computes the same, also tile by tile, loses no origin, and is at rest."""
    inputs = random_inputs(graph, env)
    want = interpret(graph, inputs, env)
    copy = fused(graph, target, **options)
    assert origins(copy) == origins(graph)
    again = clone(copy)
    disabled = PLAIN | options.pop("disabled", frozenset())
    report = lower(again, target, LowerOptions(disabled=disabled, **options))
    assert report.changed == 0 and work(again) == work(copy)
    same(interpret(copy, inputs, env, seen=in_tiles), want)
    return copy


def same(got: list[Any], want: list[Any]) -> None:
    """Equal up to the rounding of the dtype: tiles add up in another order."""
    for g, w in zip(got, want, strict=True):
        rounding = {np.dtype(np.float32): (2e-5, 2e-5), np.dtype(np.float16): (4e-3, 4e-3)}.get(w.dtype, (0, 0))
        assert_same([g], [w], *rounding)


def in_tiles(graph: Graph, node: Node, given: list[Any], made: list[Any]) -> None:
    """A task gives tile by tile, in buffers of its tiles' sizes, what its default implementation gives."""
    if node.op != "Fused":
        return
    assert node.attrs["inner"] and len(node.attrs["tile"]) == len(graph.tensor(node.outputs[0]).dims)
    op = lookup(node.op, node.attrs)
    types = tuple(Tensor(DType.of(v.dtype), v.shape) for v in given)
    outs = tuple(Tensor(DType.of(v.dtype), v.shape) for v in made)
    views = [np.empty(v.shape, v.dtype) for v in made]
    consts = {i: v for i, v in enumerate(given) if graph.const(node.inputs[i]) is not None}
    call = Call(op.attributes(node.attrs), outs, views, consts, types, body=node.subgraphs["body"], tiles=True)
    assert op.prepare_fn is not None and op.kernel_fn is not None
    call.state = op.prepare_fn(call)
    result = op.kernel_fn(call, *given)
    same(list(result) if isinstance(result, tuple) else [result], made)


def bodies(graph: Graph) -> list[list[str]]:
    """The operators of each fused task, in order."""
    return [[n.op for n in t.subgraphs["body"].order() if n.op not in STRUCTURAL] for t in tasks(graph)]


def tasks(graph: Graph) -> list[Node]:
    return [n for n in graph.order() if n.op == "Fused"]


def notes(graph: Graph) -> list[str]:
    return [note for n in graph.order() for note in n.notes]
