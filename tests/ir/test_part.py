"""Parts of graphs: what is copied, what is shared, and that the graph itself stays as it is."""

from __future__ import annotations

import numpy as np

from atc_py.ir.graph import ABSENT
from atc_py.ir.part import part_of
from atc_py.ir.text import print_graph
from atc_py.ir.validate import validate
from tests.passes.interp import Builder, interpret


def test_a_part_computes_what_its_nodes_do() -> None:
    b = Builder()
    x, w = b.input("x", (2, 6)), b.const(np.arange(12, dtype=np.float32).reshape(6, 2))
    shape = b.const([4], np.int64)
    product = b.op("MatMul", x, w)
    flat = b.op("Reshape", product, shape)
    end = b.op("Clip", flat, ABSENT, b.const(np.float32(9)))
    graph = b.done(end, product)
    for node in graph.nodes.values():
        node.engine, node.precision = "aicore", "float32"
    nodes = [graph.producer(v) for v in (product, flat, end)]
    before = print_graph(graph)
    part = part_of(graph, nodes, [x, w, nodes[2].inputs[2]], [shape], [product, end])
    validate(part)
    assert print_graph(graph) == before
    assert [n.op for n in part.nodes.values()] == ["Data"] * 3 + ["Const", "MatMul", "Reshape", "Clip", "NetOutput"]
    copies = list(part.nodes.values())[4:7]
    for node, copy in zip(nodes, copies, strict=True):
        assert (copy.name, copy.origin, copy.engine, copy.precision) == (node.name, node.origin, "aicore", "float32")
        assert copy.attrs == node.attrs and copy.attrs is not node.attrs
    assert part.output_names == ["Y0", "Y1"] and copies[2].inputs[1] == ABSENT
    given = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    weight = np.arange(12, dtype=np.float32).reshape(6, 2)
    wanted, made = interpret(graph, [given]), interpret(part, [given, weight, np.float32(9)])
    assert np.array_equal(made[0], wanted[1]) and np.array_equal(made[1], wanted[0])
    assert part_of(graph, nodes[:1], [x, w], [], [product]).output_names == ["Y"]
