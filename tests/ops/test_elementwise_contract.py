"""What every elementwise, activation, binary and reducing kernel keeps, whatever it computes.

Results do not depend on where they go or how inputs lie: a planned view, the input's own buffer where the flags allow
it, an array that is not contiguous, scalars, empty tensors, inputs of stride 0; inputs are never written; no numpy
warning leaks; the dtype and shape are those that `infer` says.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import REGISTRY, Call, Infer, Op

MODULES = ("elementwise", "activations", "binary", "softmax", "reduce", "cast")
for module in MODULES:
    importlib.import_module(f"atc_py.ops.{module}")

NAMES = sorted(
    name for name, op in REGISTRY.items()
    if getattr(op.infer_fn, "__module__", "").split(".")[-1] in (*MODULES, "elementwise_base")
)  # fmt: skip
GIVEN: dict[str, dict[str, Any]] = {
    "Cast": {"to": DType.FLOAT16},
    "BitCast": {"to": DType.FLOAT32},
    "BitShift": {"direction": "LEFT"},
    "Gelu": {"approximate": "none"},
}
KINDS = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int32,
    np.int64,
    np.int8,
    np.uint8,
    np.uint64,
    np.bool_,
]
HOST = {"CumSum", "CumProd"}


def data(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).integers(-12, 12, shape) / 8
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(values > 0)
    if dtype.kind in "iu":
        return np.asarray(np.abs(values * 8) if dtype.kind == "u" else values * 8).astype(dtype)
    return np.asarray(values).astype(dtype)


def arguments(op: Op, x: Any, dtype: Any) -> list[Any] | None:
    """Inputs for the operator with `x` first; None when it does not take the dtype."""
    if op.name in HOST:
        return [x, np.array(0, np.int64)] if x.ndim else None
    if op.name.startswith("Reduce"):
        return [x, np.arange(min(x.ndim, 1), dtype=np.int64)]
    if op.name == "Where":
        return [data(x.shape, np.bool_, 2), x, data(x.shape, dtype, 3)]
    if op.name in ("Clip", "Dropout"):
        return [x]
    if op.name == "CastLike":
        return [x, np.zeros(1, np.float64)]
    return [x, data(x.shape, dtype, 1)] if len(op.inputs) > 1 or op.variadic else [x]


def types_of(op: Op, inputs: list[Any], attrs: dict[str, Any]) -> tuple[Infer, Tensor] | None:
    types = tuple(Tensor(DType.of(v.dtype), v.shape) for v in inputs)
    values = tuple(v if i in op.host_inputs else None for i, v in enumerate(inputs))
    n = Infer(types, attrs, 1, values)
    assert op.infer_fn is not None
    try:
        result = op.infer_fn(n)
    except Exception as e:
        if "must be one of" in str(e) or "bits" in str(e):
            return None  # not a dtype of this operator
        raise
    first = result[0] if isinstance(result, Sequence) else result
    assert isinstance(first, Tensor)
    return n, first


def run(op: Op, attrs: dict[str, Any], inputs: list[Any], out: Any = None) -> Any:
    assert op.kernel_fn is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="ignore"):  # as every caller of kernels has it
            result = op.kernel_fn(Call(attrs, (), (out,)), *inputs)
    return result[0] if isinstance(result, tuple) else result


def same(a: Any, b: Any) -> None:
    assert isinstance(a, np.ndarray), type(a)
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


def combinations() -> Iterator[Any]:
    for name in NAMES:
        for kind in KINDS:
            yield pytest.param(name, kind, id=f"{name}-{np.dtype(kind).name}")


@pytest.mark.parametrize(("name", "kind"), list(combinations()))
def test_layouts_and_destinations(name: str, kind: Any) -> None:
    op = REGISTRY[name]
    attrs = op.attributes(GIVEN.get(name, {}))
    x = data((4, 6, 5), kind)
    inputs = arguments(op, x, kind)
    assert inputs is not None
    found = types_of(op, inputs, attrs)
    if found is None:
        return
    _, t = found
    before = [v.copy() for v in inputs]
    plain = run(op, attrs, inputs)
    assert isinstance(plain, np.ndarray)
    assert DType.of(plain.dtype) is t.dtype and plain.shape == t.shape

    view = np.empty(plain.shape, plain.dtype)
    same(run(op, attrs, inputs, view), plain)
    holes = np.empty((*plain.shape, 2), plain.dtype)[..., 0]
    same(run(op, attrs, inputs, holes), plain)
    strided = [
        np.moveaxis(np.ascontiguousarray(np.moveaxis(v, 0, -1)), -1, 0) if v.shape == x.shape else v for v in inputs
    ]
    same(run(op, attrs, strided), plain)
    for v, old in zip(inputs, before, strict=True):
        same(v, old)
    for i in op.flags.inplace:
        if i < len(inputs) and inputs[i].shape == plain.shape and inputs[i].dtype == plain.dtype:
            copies = [v.copy() for v in inputs]
            same(run(op, attrs, copies, copies[i]), plain)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_scalars_and_empty_tensors(name: str, shape: tuple[int, ...]) -> None:
    op = REGISTRY[name]
    attrs = op.attributes(GIVEN.get(name, {}))
    for kind in KINDS:
        inputs = arguments(op, data(shape, kind), kind)
        if inputs is None or (name.startswith("Arg") and shape and not shape[0]):
            continue
        found = types_of(op, inputs, attrs)
        if found is not None:
            got = run(op, attrs, inputs)
            assert isinstance(got, np.ndarray)
            assert (DType.of(got.dtype), got.shape) == (found[1].dtype, found[1].shape)


@pytest.mark.parametrize("name", NAMES)
def test_stride_0_inputs(name: str) -> None:
    op = REGISTRY[name]
    attrs = op.attributes(GIVEN.get(name, {}))
    for kind in (np.float32, np.int32, np.bool_):
        x = np.broadcast_to(data((1, 6, 1), kind), (4, 6, 5))
        inputs = arguments(op, x, kind)
        assert inputs is not None
        if types_of(op, inputs, attrs) is not None:
            same(run(op, attrs, inputs), run(op, attrs, [np.array(v) for v in inputs]))


@pytest.mark.parametrize("name", NAMES)
def test_keeps_zero_means_what_it_says(name: str) -> None:
    op = REGISTRY[name]
    attrs = op.attributes({**GIVEN.get(name, {}), "to": DType.FLOAT32} if name == "Cast" else GIVEN.get(name, {}))
    if not op.flags.keeps_zero:
        return
    for kind in (np.float32, np.int32, np.bool_):
        zeros = np.zeros((2, 3), kind)
        inputs = [zeros if v.shape == (2, 3) else v for v in arguments(op, zeros, kind) or []]
        if types_of(op, inputs, attrs) is not None:
            assert not run(op, attrs, inputs).astype(np.float64).any()
