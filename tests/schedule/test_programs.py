"""Random programs on the simulated device give what their operators give one after the other; each plan is proved."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from atc_py import Options, Session, compile_model, frontend
from atc_py.compiler import prove
from atc_py.emit import om_bytes
from atc_py.runtime.loader import load
from tests.passes.interp import interpret

from .programs import programs

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def feeds(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: np.float32(rng.standard_normal((rows, 4)).round(1)) for name in ("x", "z")}


def expected(proto: ModelProto, values: dict[str, Any]) -> list[Any]:
    """The outputs by one operator after the other."""
    graph = frontend.import_model(proto, frontend.ReadOptions()).graph
    with np.errstate(all="ignore"):
        return interpret(graph, [values[graph.values[v].name] for v in graph.inputs])


def check(proto: ModelProto, level: int, rows: list[int], shapes: dict[str, Any] | None = None) -> None:
    loaded = load(om_bytes(compile_model(proto, Options(opt_level=level, input_shapes=shapes or {}))))
    session = Session(loaded)
    for seed, count in enumerate(rows):
        prove(loaded.plan, {} if loaded.plan.static else {"N": count})
        values = feeds(count, seed)
        before = {k: v.copy() for k, v in values.items()}
        want = expected(proto, values)
        got = session.run(None, values)
        for name in values:
            np.testing.assert_array_equal(values[name], before[name])
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            if level:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(a, b)


@settings(max_examples=60, suppress_health_check=SLOW)
@given(proto=programs())
def test_as_written(proto: ModelProto) -> None:
    check(proto, 0, [3, 1, 3])


@settings(max_examples=60, suppress_health_check=SLOW)
@given(proto=programs())
def test_optimized(proto: ModelProto) -> None:
    check(proto, 2, [2, 5])


@settings(max_examples=40, suppress_health_check=SLOW)
@given(proto=programs(), rows=st.sampled_from([1, 3]))
def test_with_fixed_shapes(proto: ModelProto, rows: int) -> None:
    check(proto, 2, [rows, rows], {"x": (rows, 4), "z": (rows, 4)})
