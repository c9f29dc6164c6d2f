"""The largest error of each operator over onnx's node tests that are one node, in units in the last place (ULP).

    expected 1.0, got 1.0 + 2**-23 in float32: 1 ULP

Two measures of each output: by element, |got - expected| over the spacing of floats at the expected element; and by
scale, over the spacing at the output's largest element, which a sum whose terms cancel is to be judged by.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from atc_py import backend
from atc_py.ir.types import DType
from tests.backend.onnx_tests import Loaded, cases, included

Errors = dict[str, dict[str, float]]


def measure() -> Errors:
    """Operator → `tests`, and where any output is of floats `element` and `scale`."""
    found: Errors = {}
    for name in included("node"):
        loaded = cases()[name].load()
        operator = _operator(loaded)
        if operator is None:
            continue
        entry = found.setdefault(operator, {"tests": 0})
        entry["tests"] += 1
        for kind, error in _errors(loaded).items():
            entry[kind] = float(f"{max(error, entry.get(kind, 0.0)):.2g}")
    return found


def _operator(loaded: Loaded) -> str | None:
    """The test's operator if it is only one."""
    graph = loaded.model.graph
    if len(graph.node) != 1 or loaded.model.functions or graph.initializer:
        return None
    node = graph.node[0]
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def _errors(loaded: Loaded) -> dict[str, float]:
    prepared = backend.prepare(loaded.model)
    worst: dict[str, float] = {}
    for inputs, expected in loaded.data_sets:
        pairs = list(zip(prepared.run(list(inputs)), expected, strict=True))
        while pairs:
            have, want = pairs.pop()
            if isinstance(want, list):
                pairs += zip(have, want, strict=True)
            elif want is not None:
                for kind, error in _of_array(np.asarray(have), np.asarray(want)).items():
                    worst[kind] = max(error, worst.get(kind, 0.0))
    return worst


def _of_array(have: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> dict[str, float]:
    if want.dtype.kind == "c":
        have, want = (x.view(x.real.dtype) for x in (np.ascontiguousarray(have), np.ascontiguousarray(want)))
    if want.dtype.kind not in "fV" or not want.size or DType.of(want.dtype).is_int:
        return {}
    exact, got = want.astype(np.float64), have.astype(np.float64)
    finite = np.isfinite(exact) & np.isfinite(got)
    exact, got = exact[finite], got[finite]
    if not exact.size:
        return {"element": 0.0, "scale": 0.0}
    apart, unit = np.abs(got - exact), spacing(np.abs(exact), want.dtype)
    return {"element": float((apart / unit).max()), "scale": float(apart.max() / unit.max())}


def spacing(magnitudes: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The distance of neighbouring floats of the dtype at each magnitude (a value in float64)."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    _, exponent = np.frexp(np.maximum(magnitudes, float(info.smallest_normal)))
    found: np.ndarray[Any, Any] = np.ldexp(1.0, exponent - 1 - info.nmant)
    return found
