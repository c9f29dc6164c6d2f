"""Sequences, optionals and strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import Dim, symbol
from atc_py.ir.types import DType, Optional, Sequence, Tensor, Type
from atc_py.ops import sequence_ops, string_ops  # noqa: F401 - registers the operators
from atc_py.ops.base import REGISTRY, Infer, InferError
from tests.ops import node_models
from tests.ops.test_shape_ops import run

N = symbol("N")
OPS = ("SequenceInsert", "SplitToSequence", "OptionalGetElement", "OptionalHasElement")
STRINGS = ("StringConcat", "StringSplit", "StringNormalizer", "RegexFullMatch")


@pytest.mark.parametrize("test", node_models.node_tests(*OPS, *STRINGS), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node_models.check(test)


def infer(op: str, types: list[Type | None], attrs: dict[str, Any] | None = None, values: tuple[Any, ...] = ()) -> Any:
    fn = REGISTRY[op].infer_fn
    assert fn is not None
    return fn(Infer(tuple(types), REGISTRY[op].attributes(attrs or {}), 1, values, symbol))


def image(*shape: Any) -> Tensor:
    return Tensor(DType.FLOAT32, shape)


def test_sequence_types() -> None:
    assert infer("SequenceConstruct", [image(N, 2), image(N, 2)]) == Sequence(image(N, 2))
    mixed = infer("SequenceConstruct", [image(N, 2), image(3, 2)])
    assert isinstance(mixed.element.shape[0], Dim) and mixed.element.shape[1] == 2
    assert infer("SequenceInsert", [Sequence(Tensor(DType.FLOAT32, None)), image(2)]).element.shape is None
    taken = infer("SequenceAt", [mixed, Tensor(DType.INT64, ())])
    assert isinstance(taken.shape[0], Dim) and taken.shape[1] == 2
    assert infer("SequenceLength", [mixed]) == Tensor(DType.INT64, ())
    stacked = infer("ConcatFromSequence", [Sequence(image(N, 2))], {"axis": 0, "new_axis": 1})
    assert len(stacked.shape) == 3 and stacked.shape[2] == 2
    assert infer("SplitToSequence", [image(5, 2)], {"keepdims": 0}) == Sequence(image(2))
    halves = infer("SplitToSequence", [image(4, 2), Tensor(DType.INT64, ())], {}, (None, np.array(2)))
    assert halves == Sequence(image(2, 2))
    with pytest.raises(InferError):
        infer("SequenceConstruct", [image(2), Tensor(DType.INT8, (2,))])
    with pytest.raises(InferError):
        infer("SequenceAt", [image(2), Tensor(DType.INT64, ())])


def test_sequence_kernels() -> None:
    parts = run("SplitToSequence", {}, np.arange(10).reshape(5, 2), np.array(2))
    assert [p.shape for p in parts] == [(2, 2), (2, 2), (1, 2)]
    assert run("ConcatFromSequence", {"axis": 0}, parts).tolist() == np.arange(10).reshape(5, 2).tolist()
    assert run("SequenceLength", {}, parts) == 3
    assert run("SequenceAt", {}, parts, np.array(-1)).tolist() == [[8, 9]]
    assert [p.shape[0] for p in run("SequenceErase", {}, parts)] == [2, 2]
    assert len(parts) == 3
    assert [p.shape[0] for p in run("SequenceErase", {}, parts, np.array(0))] == [2, 1]
    assert run("SequenceConstruct", {}, 1, 2) == [1, 2] and run("SequenceEmpty", {}) == []
    assert run("SequenceInsert", {}, [1, 2], 3, np.array(-1)) == [1, 3, 2]
    for op, position in (("SequenceAt", 3), ("SequenceErase", -4)):
        with pytest.raises(InferError, match="position"):
            run(op, {}, parts, np.array(position))


def test_optionals() -> None:
    assert infer("Optional", [image(2)]) == Optional(image(2))
    assert infer("Optional", [], {"type": Sequence(image(2))}) == Optional(Sequence(image(2)))
    assert infer("OptionalGetElement", [Optional(image(2))]) == image(2)
    assert run("Optional", {}) is None and run("Optional", {}, 5) == 5
    assert not run("OptionalHasElement", {}) and run("OptionalHasElement", {}, np.ones(1))
    with pytest.raises(InferError):
        run("OptionalGetElement", {}, None)


def test_strings() -> None:
    pieces, counts = run("StringSplit", {"maxsplit": 1}, np.array([[" a b c ", ""]], object), outputs=2)
    assert pieces.tolist() == [[["a", "b c "], ["", ""]]] and counts.tolist() == [[2, 0]]
    assert run("StringSplit", {"delimiter": ","}, np.array([], object), outputs=2)[0].shape == (0, 0)
    got = run("StringNormalizer", {"stopwords": ("MON",)}, np.array([["Mon", "Tue"]], object))
    assert got.tolist() == [["Tue"]]
    assert run("StringNormalizer", {"stopwords": ("a",)}, np.array(["A", "a"], object)).tolist() == [""]
    with pytest.raises(InferError):
        infer("RegexFullMatch", [Tensor(DType.STRING, (1,))], {"pattern": "("})
    with pytest.raises(InferError):
        infer("StringConcat", [image(1), image(1)])
