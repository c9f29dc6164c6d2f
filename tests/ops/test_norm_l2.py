"""L2Normalize, which ONNX does not have: against its formula."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Infer, InferError
from tests.ops.harness import run


def normalized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    op = get("L2Normalize")
    assert op is not None
    _, [got] = run(op, {"axis": axes, "eps": eps}, (x,))
    return got


@pytest.mark.parametrize("axes", [(-1,), (0,), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_formula(axes: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(dtype)
    x[0, 0, 0] = 0
    wide = x.astype(np.float64)
    want = wide / np.maximum(np.sqrt((wide**2).sum(axis=axes, keepdims=True)), 1.5)
    got = normalized(x, axes, 1.5)
    close = {np.float32: 1e-6, np.float64: 1e-12, np.float16: 2e-3}.get(dtype, 2e-2)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float64), want, close, close)


def test_vectors_of_zeros() -> None:
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(normalized(x, (-1,), 1e-12), x)
    assert np.isnan(normalized(x, (-1,), 0.0)).all()


def test_types() -> None:
    op = get("L2Normalize")
    assert op is not None and op.infer_fn is not None
    attrs = op.attributes({"axis": (1,)})
    x = Tensor(DType.FLOAT32, (2, 3))
    assert op.infer_fn(Infer((x,), attrs)) == x
    with pytest.raises(InferError):
        op.infer_fn(Infer((Tensor(DType.INT32, (2, 3)),), attrs))
    with pytest.raises(InferError):
        op.infer_fn(Infer((Tensor(DType.FLOAT32, (2,)),), attrs))
