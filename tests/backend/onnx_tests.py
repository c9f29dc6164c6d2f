"""onnx's backend tests as plain functions: find them, run one through the whole path, say what came of it."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from atc_py import backend


@cache
def node_tests() -> dict[str, Any]:
    """onnx's node tests by name; each holds its model and its data sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {t.name: t for t in sorted(load_model_tests(kind="node"), key=lambda t: t.name)}


def plain(value: Any) -> Any:
    """A value of a data set as the runtime takes it."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return value


def run(test: Any) -> None:
    """Convert, write, load and run the test's model on every data set; raises when anything differs."""
    prepared = backend.prepare(test.model)
    assert test.data_sets, "the test has no data"
    for inputs, expected in test.data_sets:
        got = list(prepared.run([plain(v) for v in inputs]))
        want = [plain(v) for v in expected]
        Runner.assert_similar_outputs(want, [_as_expected(g) for g in got], rtol=test.rtol, atol=test.atol)


def _as_expected(value: Any) -> Any:
    """Scalars as arrays: onnx's comparison asks outputs for their dtype."""
    return value if value is None or isinstance(value, (list, dict, np.ndarray)) else np.asarray(value)
