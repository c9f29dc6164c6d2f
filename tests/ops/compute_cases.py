"""Helpers of the tests of heavy operators: node tests with tolerances by dtype, onnxruntime, bound calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from atc_py.ir.dims import evaluate, symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Call, Infer
from tests.ops import node_models

for _family in ("attention", "conv", "deform", "grid", "linear", "norm", "pool", "recurrent", "resize", "roi"):
    import_module(f"atc_py.ops.{_family}")

TOLERANCE = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-3, "bfloat16": 2**-6}
"""Relative tolerance by dtype; two units in the last place for bfloat16, as onnx's own runner takes."""


def check(test: node_models.NodeTest) -> None:
    """Run a node test of one node with the project's kernel; compare values and inferred types."""
    op = get(test.model.graph.node[0].op_type)
    assert op is not None
    runner = node_models.Runner(test.model.opset_import[0].version)
    for got, want in zip(runner.graph(test.model.graph, test.inputs, {}), test.outputs, strict=True):
        node_models.same(got, want, rtol=TOLERANCE.get(np.asarray(want).dtype.name, 1e-3))
    for known in (True, False):
        inferred = node_models.infer(test, op, known)
        asked = [t for t, name in zip(inferred, test.model.graph.node[0].output, strict=True) if name]
        for t, want in zip(asked, test.outputs, strict=True):
            assert node_models.fits(t, want), f"{test.name}: inferred {t}"


def infer(
    name: str, attrs: Mapping[str, Any], shapes: Sequence[Any], values: Mapping[int, Any] | None = None,
    dtype: DType = DType.FLOAT32, outputs: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """The shapes that an operator infers. A shape is None for an absent input, `...` for an unknown rank."""
    op = get(name)
    assert op is not None and op.infer_fn is not None
    known = {i: np.asarray(v) for i, v in (values or {}).items()}
    types = tuple(
        Tensor(DType.of(known[i].dtype) if known[i].dtype != object else DType.INT64, known[i].shape)
        if i in known else None if s is None else Tensor(dtype, None if s is ... else s)
        for i, s in enumerate(shapes)
    )  # fmt: skip
    count = iter(range(100))
    n = Infer(types, op.attributes(attrs), outputs, tuple(known.get(i) for i in range(len(shapes))),
              lambda why: symbol(f"fresh{next(count)}"))  # fmt: skip
    result = op.infer_fn(n)
    found = result if isinstance(result, (list, tuple)) else (result,)
    work = op.work(n, found)
    assert work.macs is not None
    return tuple(t.shape if isinstance(t, Tensor) else None for t in found)


def bound(shape: Any, env: Mapping[str, int]) -> tuple[int, ...]:
    """A symbolic shape under `env`."""
    return tuple(evaluate(d, env) for d in shape)


def run(
    name: str, attrs: Mapping[str, Any], inputs: Sequence[Any], outputs: int = 1, consts: Sequence[int] = (),
    outs: Sequence[Any] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Prepare and run an operator as the runtime does; `consts` are the inputs known at bind."""
    op = get(name)
    assert op is not None and op.kernel_fn is not None
    types = tuple(None if v is None else Tensor(DType.of(v.dtype), v.shape) for v in inputs)
    call = Call(
        op.attributes(attrs), (None,) * outputs, outs or [None] * outputs, {i: inputs[i] for i in consts}, types
    )
    if op.prepare_fn is not None:
        call.state = op.prepare_fn(call)
    frozen = [None if v is None else v.copy() for v in inputs]
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        got = op.kernel_fn(call, *inputs)
    for before, after in zip(frozen, inputs):
        assert before is None or np.array_equal(before, after, equal_nan=before.dtype.kind == "f"), (
            "an input was written"
        )
    return got if isinstance(got, tuple) else (got,)


def onnxruntime_run(
    name: str, attrs: Mapping[str, Any], inputs: Sequence[Any], outputs: int = 1, opset: int = 22
) -> list[Any] | None:
    """onnxruntime's results, None where it refuses the node."""
    given = [(f"i{k}", v) for k, v in enumerate(inputs) if v is not None]
    node = helper.make_node(
        name,
        [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)],
        [f"o{k}" for k in range(outputs)],
        **attrs,
    )
    declared = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given]
    results = [onnx.ValueInfoProto(name=f"o{k}") for k in range(outputs)]
    model = helper.make_model(
        helper.make_graph([node], "g", declared, results), opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, dict(given))
    except Exception:  # onnxruntime has its own exception types for what it refuses
        return None
    return found
