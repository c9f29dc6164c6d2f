"""The tests whose outputs are random: dtype, shape and distribution, through the whole path.

Each model gets symbolic sizes and is fed more elements than onnx's test has, all of one probability.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from atc_py import backend
from tests.backend.onnx_tests import EXCLUDED, RANDOM, cases
from tests.backend.variants import VARIANTS

COUNT = 40_000


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("name", [n for n, why in EXCLUDED.items() if why == RANDOM])
def test_bernoulli(name: str, probability: float) -> None:
    loaded = cases()[name].load()
    [([x], [expected])] = loaded.data_sets
    [(form, options)] = VARIANTS["symbolic"](loaded)
    prepared = backend.prepare(form.model, options=options)
    [small] = prepared.run([x])
    assert small.dtype == expected.dtype and small.shape == expected.shape
    [drawn] = prepared.run([np.full(COUNT, probability, x.dtype)])
    assert drawn.dtype == expected.dtype and set(np.unique(drawn)) <= {0, 1}
    # The function body that onnx gives Bernoulli draws ones with 1 - p: see docs/oracles.md.
    wanted = 1 - probability if name.endswith("_expanded") else probability
    deviation = (probability * (1 - probability) / COUNT) ** 0.5
    assert abs(float(drawn.mean()) - wanted) <= 5 * deviation
    # Draws do not depend on their neighbours: of adjacent pairs, p² are both one.
    both = float((drawn[:-1] * drawn[1:]).mean())
    assert abs(both - wanted**2) <= 10 * deviation


def test_iterations_of_a_loop_draw_other_numbers() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 16]>
        draws (int64 n) => (float[k, 50] y) {
            y = Loop (n, ) <body = b (int64 i, bool go) => (bool go_on, float[50] drawn) {
                go_on = Identity (go)
                drawn = RandomUniform <shape = [50], seed = 3.5> ()
            }>
        }""")
    [y] = backend.prepare(model).run([np.array(3, np.int64)])
    assert y.shape == (3, 50) and len(np.unique(y)) > 140


def test_two_runs_differ_and_two_sessions_agree() -> None:
    [(form, options)] = VARIANTS["symbolic"](cases()["node/test_bernoulli"].load())
    first, second = (backend.prepare(form.model, options=options) for _ in range(2))
    x = np.full(64, 0.5, np.float64)
    a, b = first.run([x])[0], first.run([x])[0]
    assert (a != b).any()
    np.testing.assert_array_equal(a, second.run([x])[0])
