"""The fallback to onnx's reference implementation."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from atc_py.ir.constants import blob
from atc_py.ir.dims import Dim, symbol
from atc_py.ir.types import DType, Sequence, Tensor
from atc_py.ops import reference
from atc_py.ops.base import Call, Engine, Infer, InferError, Op
from tests.ops import node_models
from tests.ops.harness import attributes

N = symbol("N")
FLOAT = DType.FLOAT32


def find(domain: str, op_type: str, opset: int | None = None) -> Op:
    op = reference.reference_op(domain, op_type, opset)
    assert op is not None
    return op


def infer(op: Op, types: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 1, **rest: Any) -> Any:
    assert op.infer_fn is not None
    return op.infer_fn(Infer(tuple(types), attrs or {}, outputs, new_symbol=symbol, **rest))


def run(op: Op, inputs: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 1) -> Any:
    types = tuple(Tensor(DType.of(x.dtype), x.shape) if isinstance(x, np.ndarray) else None for x in inputs)
    call = Call(attrs or {}, (None,) * outputs, [None] * outputs, {}, types)
    assert op.prepare_fn is not None and op.kernel_fn is not None
    call.state = op.prepare_fn(call)
    return op.kernel_fn(call, *inputs)


CASES = node_models.node_tests(
    "Det", "LabelEncoder", "ArrayFeatureExtractor", "TfIdfVectorizer", "MaxUnpool", "Adagrad", "SequenceLength",
    "MeanVarianceNormalization", "CumSum", "LayerNormalization", "QuantizeLinear", "SplitToSequence",
)  # fmt: skip


@pytest.mark.parametrize("test", CASES, ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node = test.model.graph.node[0]
    version = next(i.version for i in test.model.opset_import if i.domain == node.domain)
    op = find(node.domain, node.op_type, version)
    assert op.reference and op.engine is Engine.AICPU
    for known in (True, False):
        for t, want in zip(node_models.infer(test, op, known), test.outputs):
            assert node_models.fits(t, want)
    named = dict(zip((v.name for v in test.model.graph.input), test.inputs))
    got = run(op, [named.get(i) for i in node.input], attributes(op, node), len(node.output))
    for g, w in zip(got if isinstance(got, tuple) else (got,), test.outputs):
        node_models.same(g, w)


def test_types_keep_symbols() -> None:
    assert infer(find("", "Softmax"), [Tensor(FLOAT, (N, 2 * N + 1))]) == [Tensor(FLOAT, (N, 2 * N + 1))]
    assert infer(find("", "Softmax"), [Tensor(FLOAT, None)]) == [Tensor(FLOAT, None)]
    [t] = infer(find("", "Det"), [Tensor(FLOAT, (N, 4, 4))])
    assert t.shape is not None and t.shape[0] == N and len(t.shape) == 1
    [t] = infer(find("", "NonZero"), [Tensor(FLOAT, (3, 4))])
    assert t.dtype is DType.INT64 and t.shape[0] == 2 and isinstance(t.shape[1], Dim)
    [t] = infer(find("", "SplitToSequence"), [Tensor(FLOAT, (4, 3))])
    assert isinstance(t, Sequence)


def test_known_values_give_sizes() -> None:
    values = (None, np.array([2, 1]))
    [t] = infer(find("", "Tile"), [Tensor(FLOAT, (3, N)), Tensor(DType.INT64, (2,))], values=values)
    assert t.shape[0] == 6 and len(t.shape) == 2


def test_wrong_types_are_refused() -> None:
    with pytest.raises(InferError, match="MatMul"):
        infer(find("", "MatMul"), [Tensor(FLOAT, (2, 3)), Tensor(FLOAT, (4, 2))])


def test_what_onnx_cannot_run_is_none() -> None:
    for domain, op_type in (("", "NoSuchOp"), ("com.example", "Softmax"), ("", "If"), ("", "SequenceMap")):
        assert reference.reference_op(domain, op_type) is None
    assert reference.reference_op("", "Scatter", 9) is None


def test_lookup_by_name_and_attributes() -> None:
    op = reference.lookup("Det", {"_domain": "", "_op_type": "Det", "_opset": 11})
    assert op is not None and op.name == "Det" and op.inputs == ("X",)
    op = reference.lookup("ai.onnx.ml::Scaler", {})
    assert op is not None and op.name == "ai.onnx.ml::Scaler"
    old = reference.lookup("Squeeze", {"_domain": "", "_op_type": "Squeeze", "_opset": 11})
    new = reference.lookup("Squeeze", {})
    assert old is not None and new is not None and len(old.inputs) == 1 and len(new.inputs) == 2
    assert run(old, [np.ones((1, 2, 1))], {"axes": (0,)}).shape == (2, 1)


def test_attributes_and_absent_inputs() -> None:
    # (absent axes and a tensor attribute)
    assert run(find("", "ReduceSum"), [np.ones((2, 3), np.float32)], {"keepdims": 0}) == 6
    filled = run(find("", "ConstantOfShape"), [np.array([2])], {"value": blob(np.array([7], np.int8))})
    assert filled.dtype == np.int8 and filled.tolist() == [7, 7]
    clipped = run(find("", "Clip"), [np.array([-1.0, 9.0], np.float32), None, np.array(5, np.float32)])
    assert clipped.tolist() == [-1, 5]
    listed = run(find("", "SequenceConstruct"), [np.ones(1), np.zeros(2)])
    assert isinstance(listed, list) and len(listed) == 2
    assert run(find("", "SequenceLength"), [listed]) == 2


def test_onnx_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, atc_py.ops.reference; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_prepares_at_the_first_run_where_bind_did_not() -> None:
    """An input of unknown rank is no reason not to run."""
    op = find("ai.onnx.ml", "ArrayFeatureExtractor", 1)
    call = Call({}, (None,), [None], {}, (Tensor(FLOAT, None), None))
    assert op.kernel_fn is not None
    got = op.kernel_fn(call, np.arange(6, dtype=np.float32).reshape(2, 3), np.array([2, 0]))
    np.testing.assert_array_equal(got, [[2, 0], [5, 3]])
