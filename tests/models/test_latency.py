"""The clock is held against latencies measured on Ascend 310P3 chips: the rows whose graphs are in the repository."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from models import published
from tests.cli.helpers import atc

ROWS = [r for r in published.rows() if published.graph(r) is not None and r.batch in (1, 8, 32)]
"""Three batches of each network are enough to guard the clock."""


@cache
def predicted(row: published.Row) -> float:
    """Milliseconds, as `atc profile` and `scripts/latency` predict them."""
    return published.predict(row, "Ascend310P3").latency / 1000


def test_the_command_predicts_what_is_guarded() -> None:
    row = min((r for r in ROWS if r.batch == 8), key=predicted)
    shapes = ";".join(f"{name}:{','.join(map(str, shape))}" for name, shape in row.shapes)
    given = ("--soc-version", "Ascend310P3", "--precision-mode", "fp16", "--input-shape", shapes, "--json")
    facts = json.loads(atc("profile", published.graph(row), *given).stdout)
    assert facts["predicted_latency_us"] == pytest.approx(1000 * predicted(row), abs=0.01)
    assert facts["plan"] == "toolkit"


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
    assert np.median(error) <= 0.15 and np.percentile(error, 75) <= 0.30 and np.percentile(error, 90) <= 0.45
    places = [np.argsort(np.argsort(x)).astype(float) for x in (guess, measured)]
    assert np.asarray(np.corrcoef(places[0], places[1]))[0, 1] >= 0.97


@pytest.mark.parametrize("model", sorted({r.model for r in ROWS}))
def test_larger_batches_take_longer(model: str) -> None:
    rows = sorted((r for r in ROWS if r.model == model), key=lambda r: r.batch)
    times = [predicted(r) for r in rows]
    assert times == sorted(times)
