"""onnx's node tests as they come: many nodes, bodies, sequences and optionals, run by the project's kernels.

`node_tests("If", "Loop")` gives the tests in whose graphs one of the operators stands; `Runner` runs a graph
node by node; `infer` and `fits` check types; `same` compares arrays, lists and absent values.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops import get, reference
from atc_py.ops.base import Call, Infer, Op
from tests.ops.harness import attributes


@dataclass(frozen=True)
class NodeTest:
    """One data set of a node test."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@lru_cache(maxsize=1)
def _all() -> tuple[Any, ...]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def plain(value: Any) -> Any:
    """A value of a data set as the runtime holds it."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def node_tests(*ops: str, single: bool = True) -> list[NodeTest]:
    """The tests with one of the operators; `single`: only those that consist of one node."""
    found = []
    for test in _all():
        graph = test.model.graph
        names = {node.op_type for node in graph.node}
        if not names & set(ops) or (single and len(graph.node) != 1):
            continue
        ins, outs = test.data_sets[0]
        found.append(NodeTest(test.name, test.model, tuple(map(plain, ins)), tuple(map(plain, outs))))
    return found


def type_of(value: Any, proto: onnx.TypeProto | None = None) -> Type | None:
    """The type of a value; of an empty one, what the model says."""
    if proto is not None and proto.HasField("optional_type"):
        return Optional(
            _declared(proto.optional_type.elem_type) if value is None else type_of(value) or Tensor(DType.FLOAT32, ())
        )
    if value is None:
        return None
    if isinstance(value, list):
        first = type_of(value[0]) if value else None
        if first is None and proto is not None:
            return _declared(proto)
        same = all(type_of(v) == first for v in value)
        if first is not None and same:
            return SequenceType(first)
        return SequenceType(Tensor(first.dtype if isinstance(first, Tensor) else DType.FLOAT32, None))
    array = np.asarray(value)
    return Tensor(DType.of(array.dtype), tuple(array.shape))


def _declared(proto: onnx.TypeProto) -> Type:
    if proto.HasField("sequence_type"):
        return SequenceType(_declared(proto.sequence_type.elem_type))
    return Tensor(reference.enum_dtype(proto.tensor_type.elem_type), None)


class Runner:
    """Runs graphs of ONNX nodes one by one; captures are what a body reads and does not define."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.count = 0

    def fresh(self, why: str) -> Any:
        self.count += 1
        return symbol(f"{why}_{self.count}")

    def graph(self, graph: onnx.GraphProto, inputs: Sequence[Any], outer: Mapping[str, Any]) -> list[Any]:
        env = dict(outer)
        env.update((i.name, numpy_helper.to_array(i)) for i in graph.initializer)
        env.update((v.name, x) for v, x in zip(graph.input, inputs))
        for node in graph.node:
            for name, value in zip(node.output, self.node(node, env)):
                env[name] = value
        return [env[o.name] for o in graph.output]

    def node(self, node: onnx.NodeProto, env: Mapping[str, Any]) -> Sequence[Any]:
        given = [env[name] if name else None for name in node.input]
        bodies = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        op = self.op(node)
        stripped = onnx.NodeProto()
        stripped.CopyFrom(node)
        del stripped.attribute[:]
        stripped.attribute.extend(a for a in node.attribute if a.name not in bodies)
        attrs = {**attributes(op, stripped), "_captures": 0}
        calls = {k: (lambda values, g=g: self.graph(g, values, env)) for k, g in bodies.items()}
        types = tuple(type_of(v) for v in given)
        call = Call(attrs, (None,) * len(node.output), [None] * len(node.output), {}, types, None, calls)
        if op.prepare_fn is not None:
            call.state = op.prepare_fn(call)
        assert op.kernel_fn is not None
        with np.errstate(all="ignore"):  # as every caller of kernels has it
            got = op.kernel_fn(call, *given)
        return got if isinstance(got, tuple) else (got,)

    def op(self, node: onnx.NodeProto) -> Op:
        op = get(node.op_type) or reference.reference_op(node.domain, node.op_type, self.opset)
        assert op is not None, node.op_type
        return op


def infer(test: NodeTest, op: Op, known: bool = True) -> tuple[Any, ...]:
    """The inferred types of the test's one node."""
    node = test.model.graph.node[0]
    named = {v.name: (x, v.type) for v, x in zip(test.model.graph.input, test.inputs)}
    types = tuple(type_of(*named[name]) if name else None for name in node.input)
    values = tuple(
        named[name][0]
        if known and name and isinstance(named[name][0], np.ndarray) and named[name][0].dtype != object
        else None
        for name in node.input
    )
    runner = Runner(test.model.opset_import[0].version)
    n = Infer(types, attributes(op, node), len(node.output), values, runner.fresh)
    assert op.infer_fn is not None
    result = op.infer_fn(n)
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def fits(t: Type | None, value: Any) -> bool:
    """Whether the value is one of the type: symbolic dims fit every size."""
    if isinstance(t, Optional):
        return value is None or fits(t.element, value)
    if isinstance(t, SequenceType):
        return isinstance(value, list) and all(fits(t.element, v) for v in value)
    if not isinstance(t, Tensor) or value is None:
        return False
    array = np.asarray(value)
    if DType.of(array.dtype) is not t.dtype:
        return False
    return t.shape is None or (
        len(t.shape) == array.ndim and all(type(d) is not int or d == s for d, s in zip(t.shape, array.shape))
    )


def same(got: Any, want: Any, rtol: float = 1e-3, atol: float = 1e-7) -> None:
    """Assert that two values are equal within the tolerances (onnx's for its node tests)."""
    if want is None or isinstance(want, dict):
        assert got == want
        return
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w, rtol, atol)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype, (got.dtype, got.shape, want.dtype, want.shape)
    if want.dtype == object:
        assert [_text(x) for x in got.reshape(-1)] == [_text(x) for x in want.reshape(-1)]
    elif want.dtype.kind in "fcV":
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol, atol)
    else:
        np.testing.assert_array_equal(got, want)


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def check(test: NodeTest) -> None:
    """Run the test's graph with the project's kernels and compare; check types where it is one plain node."""
    graph = test.model.graph
    runner = Runner(max(i.version for i in test.model.opset_import if i.domain in ("", "ai.onnx")))
    got = runner.graph(graph, test.inputs, {})
    for g, w in zip(got, test.outputs, strict=True):
        same(plain(g), w)
    node = graph.node[0]
    if len(graph.node) == 1 and not any(a.HasField("g") for a in node.attribute):
        op = runner.op(node)
        for known in (True, False):
            for t, w in zip(infer(test, op, known), test.outputs):
                assert fits(t, w), f"{test.name}: inferred {t}"
