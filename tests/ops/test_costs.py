"""What operators say of their work: `Op.work` of typical nodes, evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Cost, Infer, Product
from atc_py.ops.build import Scope
from atc_py.ops.index import INDEX


def work(op_name: str, *shapes: tuple[Any, ...] | None, values: dict[int, Any] | None = None, **attrs: Any) -> Cost:
    op = get(op_name)
    assert op is not None
    types = tuple(None if s is None else Tensor(DType.FLOAT32, s) for s in shapes)
    known = tuple(None if values is None or i not in values else np.array(values[i]) for i in range(len(types)))
    n = Infer(types, op.attributes(attrs), 1, known)
    result = op.infer_fn(n) if op.infer_fn is not None else None
    return op.work(n, list(result) if isinstance(result, Sequence) else [result])


def test_convolutions_are_products() -> None:
    plain = work("Conv", (2, 64, 56, 56), (128, 64, 3, 3), pads=(1, 1, 1, 1))
    assert plain.products == (Product(2 * 56 * 56, 64, 128, 1, 9),)
    assert plain.macs == 2 * 56 * 56 * 64 * 128 * 9
    depthwise = work("Conv", (1, 32, 28, 28), (32, 1, 3, 3), (32,), pads=(1, 1, 1, 1), group=32)
    assert depthwise.products == (Product(784, 1, 1, 32, 9, grouped=True),)
    assert depthwise.vector == 32 * 784, "the bias"
    volume = work("Conv", (1, 3, 8, 16, 16), (64, 3, 3, 3, 3), pads=(1,) * 6)
    assert volume.products == (Product(8 * 256, 3, 64, 1, 27, packs=False),)


def test_matrix_products_say_what_they_share() -> None:
    assert work("MatMul", (8, 128, 768), (768, 3072)).products == (Product(8 * 128, 768, 3072),)
    assert work("MatMul", (8, 12, 128, 64), (8, 12, 64, 128)).products == (Product(128, 64, 128, 96),)
    assert work("MatMul", (5,), (5,)).macs == 5
    assert work("Gemm", (4, 8), (16, 8), transB=1).products == (Product(4, 8, 16),)
    einsum = work("Einsum", (2, 3, 4), (2, 4, 5), equation="bij,bjk->bik")
    assert einsum.products == (Product(3, 4, 5, 2),)
    n = symbol("N")
    assert work("MatMul", (n, 16), (16, 4)).macs == n * 64


def test_attention_has_two_products_and_a_softmax() -> None:
    cost = work("Attention", (1, 12, 128, 64), (1, 12, 128, 64), (1, 12, 128, 64))
    assert cost.products == (Product(128, 64, 128, 12), Product(128, 128, 64, 12))
    assert cost.wide >= 12 * 128 * 128 * 5


def test_elementwise_work_follows_the_result() -> None:
    assert work("Add", (4, 1), (1, 8)).vector == 32
    assert work("Relu", (4, 8)).vector == 32
    assert work("Sigmoid", (4, 8)).vector > work("HardSigmoid", (4, 8)).vector > 0
    square, general = work("Pow", (100,), (), values={1: 2.0}), work("Pow", (100,), ())
    assert square.vector == 100 < general.vector


def test_statistics_are_float32_and_see_a_row() -> None:
    norm = work("LayerNormalization", (8, 128, 768), (768,))
    assert norm.wide >= 5 * 8 * 128 * 768 and norm.row == 768 and not norm.vector
    assert work("Softmax", (8, 100), axis=-1).row == 100
    assert work("InstanceNormalization", (1, 32, 16, 16), (32,), (32,)).row == 16 * 16 * 16
    assert work("ReduceMean", (8, 100), (1,), values={1: [1]}).wide == 800
    assert work("GlobalAveragePool", (1, 8, 7, 7)).wide == 8 * 49


@pytest.mark.parametrize("name", ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"])
def test_what_only_renames_bytes_costs_nothing(name: str) -> None:
    op = get(name)
    assert op is not None and op.flags.alias and op.cost_fn is None
    assert op.work(Infer((Tensor(DType.FLOAT32, (4, 4)),), {}), [Tensor(DType.FLOAT32, (16,))]) == Cost()


def test_moves_say_how_long_their_pieces_are() -> None:
    assert work("Transpose", (8, 128, 12, 64), perm=(0, 2, 1, 3)) == Cost(run=64)
    assert work("Transpose", (128, 768), perm=(1, 0)) == Cost(run=1)
    assert work("Transpose", (1, 128, 1, 64), perm=(0, 2, 1, 3)) == Cost(), "only axes of one element change places"
    assert work("Concat", (2, 32, 7, 7), (2, 16, 7, 7), axis=1) == Cost(run=16 * 49)
    assert work("Concat", (32, 7), (16, 7), axis=0) == Cost()
    part = work("Slice", (4, 128, 768), (1,), (1,), (1,), values={1: [0], 2: [1], 3: [1]})
    assert part.reads == {0: 4 * 768} and part.run == 768 and not part.vector
    rows = work("Gather", (30522, 768), (1, 128), axis=0)
    assert rows.reads == {0: 128 * 768} and rows.run == 768


def test_a_fused_task_is_the_sum_of_its_body() -> None:
    graph = Graph("outer")
    x = graph.add_input("x", Tensor(DType.FLOAT32, (1, 8, 4, 4)))
    w = graph.add_input("w", Tensor(DType.FLOAT32, (16, 8, 1, 1)))
    body = Graph("body")
    inner = Scope(body)
    bx = body.add_input("x", graph.type(x))
    bw = body.add_input("w", graph.type(w))
    [conv] = inner.emit("Conv", [bx, bw])
    [act] = inner.emit("Sigmoid", [conv])
    body.set_outputs([act], ["y"])
    op = get("Fused")
    assert op is not None
    n = Infer((graph.type(x), graph.type(w)), op.attributes({}), 1, bodies={"body": body})
    cost = op.work(n, [body.type(act)])
    sigmoid = work("Sigmoid", (1, 16, 4, 4))
    assert cost.products == (Product(16, 8, 16),) and cost.vector == sigmoid.vector


def test_every_operator_of_the_ai_core_has_work_or_moves_data() -> None:
    """Whatever has no cost of its own does one vector operation an element, unless it moves nothing."""
    result = Tensor(DType.FLOAT32, (2, 3))
    for name in INDEX:
        op = get(name)
        assert op is not None
        if op.engine.value == "aicore" and op.cost_fn is None and not op.flags.alias:
            assert op.work(Infer((result,), {}), [result]) == Cost(vector=6), name
