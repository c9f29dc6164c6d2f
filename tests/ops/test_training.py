"""Optimizer steps: what onnx's node tests, which are float32 and well-formed, do not ask for."""

from __future__ import annotations

import numpy as np
import pytest

from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Infer, InferError
from tests.ops.harness import run

ATTRS = {"alpha": 0.5, "beta": 0.25, "mode": "standard", "norm_coefficient": 0.0}


def test_beta_counts_from_the_second_iteration_on_and_tensors_come_by_kind() -> None:
    op = get("ai.onnx.preview.training::Momentum")
    assert op is not None
    x = [np.full((2,), i, np.float64) for i in (1, 2)]
    g = [np.full((2,), i, np.float64) for i in (10, 20)]
    v = [np.full((2,), i, np.float64) for i in (100, 200)]
    for count, beta in ((0, 1.0), (1, 0.25)):
        inputs = (np.array(0.1), np.array(count), *x, *g, *v)
        types, got = run(op, ATTRS, inputs, outputs=4)
        assert [t.dtype for t in types] == [DType.FLOAT64] * 4
        new = [0.5 * v[i] + beta * g[i] for i in range(2)]
        for have, want in zip(got, [x[0] - 0.1 * new[0], x[1] - 0.1 * new[1], *new], strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-12)


def test_inputs_that_do_not_come_in_groups_are_refused() -> None:
    op = get("ai.onnx.preview.training::Adam")
    assert op is not None and op.infer_fn is not None
    types = (Tensor(DType.FLOAT32, ()), Tensor(DType.INT64, ()), *[Tensor(DType.FLOAT32, (2,))] * 3)
    with pytest.raises(InferError, match="takes R, T and 4 tensors"):
        op.infer_fn(Infer(types, op.attributes({})))
