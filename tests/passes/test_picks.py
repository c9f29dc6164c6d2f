"""Picks come before what computes a table: what remains, and that it gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py import Options, compile_model
from atc_py.frontend import parse_input_shapes
from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.ir.validate import validate
from atc_py.passes import OptimizeOptions
from atc_py.passes.base import PassContext
from atc_py.passes.picks import PASS, pick_first
from models import catalog
from tests.passes.interp import Builder, interpret, origins, work

RNG = np.random.default_rng(0)


def picked(graph: Graph, env: dict[str, int] | None = None, batch: int = 2) -> Graph:
    """The graph with picks first, at rest; it gives the same bits."""
    copy = clone(graph)
    ctx = PassContext(OptimizeOptions(), copy)
    pick_first(copy, ctx)
    for node, decline in ctx.take_declined():
        assert decline.rule == PASS
        node.note(decline.reason)
    validate(copy)
    assert pick_first(clone(copy), PassContext(OptimizeOptions(), copy)) == 0
    assert origins(copy) == origins(graph)
    inputs = [
        RNG.integers(0, 3, [d if isinstance(d, int) else batch for d in graph.tensor(v).dims]) for v in graph.inputs
    ]
    for a, b in zip(interpret(copy, inputs, env), interpret(graph, inputs, env), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    return copy


def ids(b: Builder, *shape: Any) -> int:
    return b.input("ids", shape, DType.INT64)


def table(b: Builder, *shape: int) -> int:
    return b.const(RNG.integers(-128, 128, shape).astype(np.int8))


def dequantized(b: Builder, x: int, scale: Any = 0.02, zero: Any = 3, **attrs: Any) -> int:
    return b.op("DequantizeLinear", x, b.const(scale, np.float32), b.const(zero, np.int8), **attrs)


def floats(b: Builder, *shape: int) -> int:
    return b.const(RNG.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_dequantized_table_is_picked_as_bytes(axis: int, shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.op("Gather", dequantized(b, table(b, 40, 30)), ids(b, *shape), axis=axis)
    assert work(picked(b.done(y))) == ["Gather", "DequantizeLinear"]


def test_one_scale_in_a_row_of_one_stays_one_where_the_rank_falls() -> None:
    b = Builder()
    y = b.op("Gather", dequantized(b, table(b, 40), [0.02], [3], axis=0), ids(b))
    assert work(picked(b.done(y)))[0] == "Gather"


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_along_an_axis_stay(axis: int) -> None:
    b = Builder()
    whole = dequantized(b, table(b, 40, 30), np.arange(1, 41 - 10 * axis), np.zeros(40 - 10 * axis), axis=axis)
    assert work(picked(b.done(b.op("Gather", whole, ids(b, 3))))) == ["DequantizeLinear", "Gather"]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize(
    "factor", [(1,), (30, 1), (40, 1, 1), (20,), (1, 30, 20), (40, 1, 20), (1, 1, 1), (40, 30, 20)]
)
def test_factors_of_rows_are_picked_and_others_are_broadcast(
    factor: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> None:
    b = Builder()
    whole = b.op("Mul", b.op("Cast", table(b, 40, 30, 20), to=DType.FLOAT32), floats(b, *factor))
    made = work(picked(b.done(b.op("Gather", whole, ids(b, *shape), axis=axis))))
    assert made.index("Cast") > made.index("Gather") and made[-1] == "Mul"


def test_tables_of_two_operands_are_picked_on_their_sides() -> None:
    b = Builder()
    whole = b.op("Add", floats(b, 40, 1), b.op("Exp", floats(b, 1, 30)))
    assert work(picked(b.done(b.op("Gather", whole, ids(b, 3))))) == ["Exp", "Gather", "Add"]


@pytest.mark.parametrize("op", ["Slice", "GatherND", "GatherElements"])
def test_other_picks_come_before_what_has_their_shape(op: str) -> None:
    b = Builder()
    whole = b.op("Relu", b.op("Mul", b.op("Cast", table(b, 40, 30), to=DType.FLOAT32), b.const(0.5, np.float32)))
    where = {"Slice": (1,), "GatherND": (3, 2), "GatherElements": (3, 2)}[op]
    inputs = [ids(b, *where)]
    if op == "Slice":
        inputs = [b.const([1]), b.const([5])]
    made = work(picked(b.done(b.op(op, whole, *inputs))))
    assert made == [op, "Cast", "Mul", "Relu"]


def test_a_table_that_is_read_whole_or_picked_often_stays() -> None:
    b = Builder()
    whole = dequantized(b, table(b, 40, 30))
    graph = b.done(b.op("Gather", whole, ids(b, 3)), b.op("Relu", whole))
    assert work(picked(graph)) == work(graph)
    b = Builder()
    graph = b.done(b.op("Gather", dequantized(b, table(b, 4, 30)), ids(b, 2, 3)))
    after = picked(graph)
    assert work(after) == work(graph)
    assert any("180 elements instead of 120" in note for n in after.nodes.values() for note in n.notes)
    b = Builder()
    whole = dequantized(b, table(b, 4, 30))
    rows = ids(b, 3)
    graph = b.done(b.op("Gather", whole, rows), b.op("Gather", whole, b.op("Neg", rows)))
    assert work(picked(graph)) == work(graph)


def test_tables_of_values_stay() -> None:
    b = Builder()
    whole = b.op("Neg", b.input("x", (40, 30), DType.INT64))
    graph = b.done(b.op("Gather", whole, ids(b, 3)))
    assert work(picked(graph)) == work(graph)


def test_sizes_may_be_symbols() -> None:
    b = Builder(N=Range(1))
    y = b.op("Gather", dequantized(b, table(b, 4000, 30)), ids(b, symbol("N"), 3))
    assert work(picked(b.done(y), {"N": 2})) == ["Gather", "DequantizeLinear"]


@pytest.mark.needs_models
def test_an_embedding_in_bytes_is_never_whole_in_floats() -> None:
    """Its table has a scale a row: Cast, Mul, Gather; and one sequence has the tasks of several."""
    path, reason = catalog.find("minilm_int8")
    if path is None:
        pytest.skip(reason)

    def figures(batch: int) -> dict[str, Any]:
        inputs = ("input_ids", "attention_mask", "token_type_ids")
        shapes = parse_input_shapes(";".join(f"{name}:{batch},16" for name in inputs))
        return compile_model(path, Options(input_shapes=shapes)).summary

    one, two = figures(1), figures(2)
    assert one["memory"]["arena"] < 1 << 20
    assert one["tasks"] == two["tasks"]
