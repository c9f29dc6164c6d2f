"""Every model at hand: optimized and lowered, it computes what it did before, and both are at rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atc_py import frontend
from atc_py.ir.clone import clone
from atc_py.ir.validate import validate
from atc_py.passes import LowerOptions, OptimizeOptions, lower, optimize
from atc_py.target import load
from models import catalog
from tests.passes.interp import assert_same, interpret, work

TARGET = load("Ascend310P3")
SLOW_BYTES = 2 << 20


def cases() -> list[Any]:
    found = []
    for name, entry in catalog.load_manifest().items():
        marks = [] if entry.kind == "repo" else [pytest.mark.needs_models]
        found.append(pytest.param(name, marks=[*marks, pytest.mark.slow] if entry.bytes > SLOW_BYTES else marks))
    return found


@pytest.mark.parametrize("name", cases())
def test_models_compute_the_same(name: str, corpus_model: Callable[[str], Any]) -> None:
    model = corpus_model(name)
    graph = frontend.read(model.path)
    feeds = model.inputs()
    given = [np.asarray(feeds[graph.values[v].name]) for v in graph.inputs]
    given = [a.astype(object) if a.dtype.kind in "US" else a for a in given]
    want = interpret(graph, given)
    before = len(work(graph))

    report = optimize(graph, OptimizeOptions(debug=True))
    assert report.settled and optimize(clone(graph)).changed == 0
    validate(graph, "optimize")
    canonical = len(work(graph))

    report = lower(graph, TARGET, LowerOptions(debug=True))
    assert report.settled and lower(clone(graph), TARGET).changed == 0
    validate(graph, "lower")
    assert len(work(graph)) <= canonical <= before

    got = interpret(graph, given)
    arrays = [i for i, v in enumerate(want) if isinstance(v, np.ndarray) and v.dtype != object]
    spread = 3 * (catalog.get(name).opt_rel_diff or 0.0)  # how far an optimizer's results may lie apart: requantization
    assert_same([got[i] for i in arrays], [want[i] for i in arrays], 1e-3, max(1e-4, spread))
    assert [repr(got[i]) for i in range(len(want)) if i not in arrays] == [
        repr(want[i]) for i in range(len(want)) if i not in arrays
    ]
