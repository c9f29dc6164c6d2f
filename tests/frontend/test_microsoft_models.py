"""Models that onnxruntime has optimized or quantized: what it writes is what we read, and both compute the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.ops.one_node import expected, ours, same

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = ["small_cnn", "small_transformer"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The quantizer logs advice."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    fixed = {i.name for i in model.graph.initializer}
    given: dict[str, Any] = {}
    for i in model.graph.input:
        if i.name in fixed:
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        shape = [d.dim_value or 2 for d in i.type.tensor_type.shape.dim]
        given[i.name] = (rng.normal(size=shape) if dtype.kind == "f" else rng.integers(0, 4, shape)).astype(dtype)
    return given


def own_operators(model: onnx.ModelProto) -> set[str]:
    return {n.op_type for n in model.graph.node if n.domain == "com.microsoft"}


@pytest.mark.parametrize("name", NAMES)
def test_optimized(name: str, tmp_path: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(MODELS / f"{name}.onnx"), options, ["CPUExecutionProvider"])
    model = onnx.load(tmp_path / "optimized.onnx")
    assert own_operators(model)
    given = inputs(model, 1)
    same(ours(model, given), expected(model, given), 1e-3, 1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["QOperator", "QDQ", "dynamic"])
def test_quantized(name: str, form: str, tmp_path: Path) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    source, target = str(MODELS / f"{name}.onnx"), str(tmp_path / "quantized.onnx")
    samples = iter([inputs(onnx.load(source), s) for s in range(2)])

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(samples, None)

    if form == "dynamic":
        q.quantize_dynamic(source, target, weight_type=q.QuantType.QInt8)
    else:
        q.quantize_static(source, target, Samples(), quant_format=q.QuantFormat[form], per_channel=True)
    model = onnx.load(target)
    given = inputs(model, 3)
    want, got = expected(model, given), ours(model, given)
    for a, b in zip(got, want, strict=True):
        # A sum on the border between two bytes may fall to either side, and what follows with it.
        scale = float(np.max(np.abs(b))) or 1.0
        np.testing.assert_allclose(a, b, 0, 0.02 * scale)
        assert np.mean(np.abs(a - b)) <= 0.005 * scale
