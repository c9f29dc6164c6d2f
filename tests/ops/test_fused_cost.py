"""The work of a fused task: the sum over its body; what is read in part or moves in pieces, by the task's operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.constants import blob
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Cost, Infer
from atc_py.ops.build import Scope


def work(body: Graph) -> Cost:
    op = get("Fused")
    assert op is not None and op.cost_fn is not None
    types = tuple(body.type(v) for v in body.inputs)
    return op.cost_fn(Infer(types, op.attributes({}), len(body.outputs), bodies={"body": body}))


def plain(name: str, *shapes: Any, **attrs: Any) -> Cost:
    op = get(name)
    assert op is not None and op.infer_fn is not None
    n = Infer(tuple(Tensor(DType.FLOAT32, s) for s in shapes), op.attributes(attrs))
    result: Any = op.infer_fn(n)
    return op.work(n, [result])


def test_a_graph_with_two_results_is_the_sum_of_its_operators() -> None:
    graph = Graph("body")
    scope = Scope(graph)
    x, w = (graph.add_input(n, Tensor(DType.FLOAT32, s)) for n, s in (("x", (8, 16)), ("w", (16, 32))))
    [y] = scope.emit("MatMul", [x, w])
    [e] = scope.emit("Exp", [y])
    [s] = scope.emit("Softmax", [y], {"axis": -1})
    graph.set_outputs([e, s], ["e", "s"])
    parts = [plain("MatMul", (8, 16), (16, 32)), plain("Exp", (8, 32)), plain("Softmax", (8, 32), axis=-1)]
    found = work(graph)
    assert found.vector == sum(p.vector for p in parts) and found.wide == sum(p.wide for p in parts)
    assert found.products == parts[0].products and found.macs == 8 * 16 * 32
    assert found.row == parts[2].row and not found.reads


def gathered(also_whole: bool) -> Graph:
    graph = Graph("body")
    scope = Scope(graph)
    table = graph.add_input("table", Tensor(DType.FLOAT32, (100, 8)))
    indices = graph.add_const(blob(np.array([1, 5], np.int64)))
    results = scope.emit("Gather", [table, indices], {"axis": 0})
    if also_whole:
        results += scope.emit("Neg", [table])
    graph.set_outputs(results, [f"y{i}" for i in range(len(results))])
    return graph


def test_an_operand_that_is_read_in_part_and_in_whole_is_read_in_whole() -> None:
    assert work(gathered(False)).reads == plain_gather().reads != {}
    assert work(gathered(True)).reads == {}


def plain_gather() -> Cost:
    op = get("Gather")
    assert op is not None and op.infer_fn is not None
    types = (Tensor(DType.FLOAT32, (100, 8)), Tensor(DType.INT64, (2,)))
    n = Infer(types, op.attributes({"axis": 0}))
    return op.work(n, [Tensor(DType.FLOAT32, (2, 8))])
