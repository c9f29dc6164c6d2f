"""Runs an operator's own declaration against the expected outputs of a node test.

`check(case)` infers the output types, runs the kernel on the test's inputs and compares. Attributes are taken as the
newest opset spells them; which tests are cases is said by those who call it (`elementwise_cases.cases`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from atc_py.ir.constants import blob
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import REGISTRY, Call, Infer, Op

_KINDS = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64", 3: "int8", 5: "int16", 6: "int32", 7: "int64",
          2: "uint8", 4: "uint16", 12: "uint32", 13: "uint64", 9: "bool", 8: "string", 14: "complex64",
          15: "complex128", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
          24: "float8_e8m0fnu", 23: "float4_e2m1fn", 21: "uint4", 22: "int4", 25: "uint2", 26: "int2",
          27: "float6_e2m3fn", 28: "float6_e3m2fn"}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One data set of a node test with a single node."""

    name: str
    op: str
    node: onnx.NodeProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def attributes(op: Op, node: onnx.NodeProto) -> dict[str, Any]:
    """The node's attributes as the IR holds them."""
    given: dict[str, Any] = {}
    for a in node.attribute:
        value = helper.get_attribute_value(a)
        kind = op.attrs[a.name].kind if a.name in op.attrs else ""
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, onnx.TensorProto):
            value = blob(numpy_helper.to_array(value))
        elif isinstance(value, (list, tuple)):
            value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
        if kind == "dtype":
            value = DType(_KINDS[int(value)])
        given[a.name] = value
    return op.attributes(given)


def type_of(value: Any) -> Tensor | None:
    """The tensor type of an array (sequences and optionals are not the harness's business)."""
    if value is None:
        return None
    array = np.asarray(value)
    return Tensor(DType.of(array.dtype), tuple(array.shape))


def run(op: Op, attrs: dict[str, Any], inputs: tuple[Any, ...], outputs: int = 1, known: bool = True) -> Any:
    """Infer and run; returns (types, arrays). `known`: whether `infer` may look at the inputs' values."""
    inputs = tuple(v.astype(object) if isinstance(v, np.ndarray) and v.dtype.kind in "US" else v for v in inputs)
    types = tuple(type_of(v) for v in inputs)
    values = tuple(v if known and v is not None and np.asarray(v).dtype.kind in "iubf" and np.size(v) <= 1024 else None
                   for v in inputs)  # fmt: skip
    symbols: list[str] = []

    def fresh(why: str) -> Any:
        from atc_py.ir.dims import symbol

        symbols.append(why)
        return symbol(f"s{len(symbols)}")

    n = Infer(types, attrs, outputs, values, fresh)
    assert op.infer_fn is not None, op.name
    result = op.infer_fn(n)
    out_types = tuple(result) if isinstance(result, (list, tuple)) else (result,)
    call = Call(attrs, out_types, [None] * outputs, {}, types)
    if op.prepare_fn is not None:
        call.state = op.prepare_fn(call)
    assert op.kernel_fn is not None, op.name
    with np.errstate(all="ignore"):  # as every caller of kernels has it
        got = op.kernel_fn(call, *inputs)
    return out_types, (tuple(got) if isinstance(got, (tuple, list)) else (got,))


def check(case: Case, rtol: float = 1e-3, atol: float = 1e-7) -> None:
    """Types inferred from the inputs must agree with the expected outputs; so must the values (onnx's tolerances)."""
    op = REGISTRY[case.op]
    types, got = run(op, attributes(op, case.node), case.inputs, len(case.node.output))
    for i, want in enumerate(case.outputs):
        if want is None:
            continue
        want = np.asarray(want)
        have = np.asarray(got[i])
        assert have.shape == want.shape, f"{case.name}: output {i} has shape {have.shape}, expected {want.shape}"
        if want.dtype.kind in "USO":
            assert [str(x) for x in have.reshape(-1)] == [
                x.decode() if isinstance(x, bytes) else str(x) for x in want.reshape(-1)
            ], case.name
            continue
        assert have.dtype == want.dtype, f"{case.name}: output {i} is {have.dtype}, expected {want.dtype}"
        t = types[i]
        assert isinstance(t, Tensor) and t.dtype is DType.of(want.dtype), f"{case.name}: inferred {t}"
        if t.shape is not None:
            assert len(t.shape) == want.ndim, f"{case.name}: inferred {t}"
            assert all(d == w for d, w in zip(t.shape, want.shape, strict=True) if type(d) is int), f"{case.name}: {t}"
        if want.dtype.kind in "fcV":
            np.testing.assert_allclose(
                have.astype(np.complex128 if want.dtype.kind == "c" else np.float64),
                want.astype(np.complex128 if want.dtype.kind == "c" else np.float64), rtol, atol, err_msg=case.name
            )  # fmt: skip
        else:
            np.testing.assert_array_equal(have, want, err_msg=case.name)
