"""The clock is held against latencies measured on Ascend 310P3 chips: the rows whose graphs are in the repository."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

from atc_py import frontend
from atc_py.frontend.skeleton import skeleton
from atc_py.passes import LowerOptions, lower, optimize
from atc_py.schedule.clock import run_clock
from atc_py.schedule.formats import with_formats
from atc_py.schedule.jobs import HALF, graph_program, sizes_of
from atc_py.target import load
from models import published

TARGET = load("Ascend310P3")
ROWS = [r for r in published.rows() if published.graph(r) is not None and r.batch in (1, 8, 32)]
"""Three batches of each network are enough to guard the clock."""


@cache
def predicted(row: published.Row) -> float:
    """Milliseconds, as `scripts/latency` predicts them."""
    path = published.graph(row)
    assert path is not None
    graph = frontend.read(skeleton(onnx.load(path), dict(row.shapes)))
    optimize(graph)
    lower(graph, TARGET, LowerOptions(disabled=published.NOT_THERE | {"layouts", "borders"}))
    program = with_formats(graph_program(graph, sizes_of(graph.symbols, None, HALF)), TARGET)
    return run_clock(program, TARGET).microseconds / 1000


def test_all_rows_are_there() -> None:
    rows = published.rows()
    assert len(rows) == 207 and len({r.model for r in rows}) == 50
    assert len({r.model for r in ROWS}) == 10
    assert all(r.milliseconds > 0 and r.source.startswith("Ascend/ModelZoo-PyTorch ") for r in rows)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.model}-{r.batch}")
def test_no_prediction_is_far_off(row: published.Row) -> None:
    assert 0.5 < predicted(row) / row.milliseconds < 2


def test_the_errors_are_those_of_the_whole_table() -> None:
    measured = np.array([r.milliseconds for r in ROWS])
    guess = np.array([predicted(r) for r in ROWS])
    error = np.abs(guess / measured - 1)
    assert np.median(error) <= 0.18 and np.percentile(error, 75) <= 0.30 and np.percentile(error, 90) <= 0.45
    places = [np.argsort(np.argsort(x)) for x in (guess, measured)]
    assert np.corrcoef(*places)[0, 1] >= 0.97


@pytest.mark.parametrize("model", sorted({r.model for r in ROWS}))
def test_larger_batches_take_longer(model: str) -> None:
    rows = sorted((r for r in ROWS if r.model == model), key=lambda r: r.batch)
    times = [predicted(r) for r in rows]
    assert times == sorted(times)
