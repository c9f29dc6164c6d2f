"""Every backend test of onnx through convert, OM bytes, load and run; none fails and none is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.onnx_tests import CATEGORIES, EXCLUDED, GRADIENT, RANDOM, cases, included
from tests.backend.variants import run_variant


@pytest.mark.parametrize("name", included())
def test_plain(name: str, record_property: Any) -> None:
    record_property("reference", run_variant("plain", cases()[name].load()))


def test_what_is_excluded_exists_and_is_random_or_about_training() -> None:
    for name, why in EXCLUDED.items():
        nodes = cases()[name].load().model.graph.node
        operators = {n.op_type for n in nodes}
        assert operators & ({"Bernoulli", "RandomUniformLike"} if why == RANDOM else {"Gradient"}), name
        assert why in (RANDOM, GRADIENT)


def test_every_category_is_there() -> None:
    # onnx 1.23 has 1884, 25, 35 or so, 80 or so and 9; an older release has fewer, but never a category without tests.
    counts = {c: len(included(c)) for c in CATEGORIES}
    assert counts["node"] > 1000 and min(counts.values()) >= 9, counts
