"""One node as a model: onnxruntime's answer, and ours through the whole path (convert, bytes of an OM, load, run).

agree("com.microsoft::QuickGelu", [x], alpha=1.5)      # same outputs, same types, within tolerances
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import onnx
from onnx import helper

from atc_py import Options, Session, compile_model
from atc_py.emit import om_bytes
from atc_py.runtime.arrays import leaves

OPSETS = {"": 21, "ai.onnx.ml": 3, "com.microsoft": 1}


class Limits(TypedDict):
    """Tolerances that several calls of `agree` or `same` share."""

    rtol: float
    atol: float


def type_proto(value: Any, symbolic: bool = False) -> onnx.TypeProto:
    """The ONNX type of an array or a dict; `symbolic`: dims above 1 get names."""
    if isinstance(value, dict):
        key, item = next(iter(value.items()))
        number = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
        inner = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
        assert isinstance(item, float)
        return helper.make_map_type_proto(number, inner)
    number = onnx.TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    dims = [f"d{i}_{d}" if symbolic and d > 1 else d for i, d in enumerate(value.shape)]
    return helper.make_tensor_type_proto(number, dims)


def model(
    op: str, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int | Sequence[str] = 1, version: int = 0,
    consts: Sequence[int] = (), symbolic: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """The model; inputs whose places are in `consts` become initializers, None is an absent input."""
    domain, _, name = op.rpartition("::")
    names = ["" if v is None else f"x{i}" for i, v in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(name, names, made, domain=domain, **attrs)
    infos = [
        helper.make_value_info(names[i], type_proto(v, symbolic))
        for i, v in enumerate(inputs)
        if v is not None and i not in consts
    ]
    fixed = [onnx.numpy_helper.from_array(inputs[i], names[i]) for i in consts]
    graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=n) for n in made if n], fixed)
    imports = [helper.make_opsetid(domain, version or OPSETS[domain])]
    if domain:
        imports.append(helper.make_opsetid("", OPSETS[""]))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(inputs: Sequence[Any], consts: Sequence[int] = ()) -> dict[str, Any]:
    """The inputs by name."""
    return {f"x{i}": v for i, v in enumerate(inputs) if v is not None and i not in consts}


def expected(proto: onnx.ModelProto, given: dict[str, Any]) -> list[Any]:
    """onnxruntime's outputs, unoptimized."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Some of its kernels cut the batch by threads, and quantise each part over its own range.
    options.intra_op_num_threads = 1
    return list(ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, given))


def ours(proto: onnx.ModelProto, given: dict[str, Any], **options: Any) -> list[Any]:
    """Our outputs, through the whole path."""
    return list(Session(om_bytes(compile_model(proto, Options(**options)))).run(None, given))


def same(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6, steps: int = 0) -> None:
    """Same structure, shapes, dtypes and values; integers may differ by `steps` (another order of rounding)."""
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(got, want)):
        mine, others = leaves("", a), leaves("", b)
        assert [n for n, _ in mine] == [n for n, _ in others], f"output {k}: {a} and {b}"
        for (name, x), (_, y) in zip(mine, others):
            where = f"output {k}{name}"
            assert x.shape == y.shape, f"{where}: shape {x.shape}, expected {y.shape}"
            assert x.dtype == y.dtype, f"{where}: {x.dtype}, expected {y.dtype}"
            if y.dtype == object:
                assert x.tolist() == y.tolist(), where
            elif y.dtype.kind in "iub" and steps:
                np.testing.assert_allclose(x.astype(np.int64), y.astype(np.int64), 0, steps, err_msg=where)
            elif y.dtype.kind in "iub":
                np.testing.assert_array_equal(x, y, err_msg=where)
            else:
                np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol, atol, err_msg=where)


def agree(
    op: str, inputs: Sequence[Any], outputs: int | Sequence[str] = 1, *, version: int = 0, consts: Sequence[int] = (),
    rtol: float = 1e-5, atol: float = 1e-6, steps: int = 0, symbolic: bool = False, **attrs: Any,
) -> None:  # fmt: skip
    """Our outputs are onnxruntime's. `symbolic`: also with named dims."""
    given = feeds(inputs, consts)
    proto = model(op, inputs, attrs, outputs, version, consts)
    want = expected(proto, given)
    same(ours(proto, given), want, rtol, atol, steps)
    if symbolic:
        same(ours(model(op, inputs, attrs, outputs, version, consts, True), given), want, rtol, atol, steps)
