"""Instances that are known to fit: our own packings without a gap, and MiniMalloc's benchmark where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atc_py.memory import plan_memory
from atc_py.memory.table import read_table
from tests.memory.checker import check, most_live
from tests.memory.packings import DATA, INSTANCES, packing
from tests.timing import cpu_seconds

FOLDER = Path(os.environ.get("ATC_MINIMALLOC", Path(__file__).resolve().parents[3] / "shared/minimalloc"))
OWN = [DATA / f"{name}.{capacity}.csv" for name, _, capacity, *_ in INSTANCES]
MINIMALLOC: list[Path | None] = [*sorted(FOLDER.glob("[A-K].*.csv"))] or [None]


def place(path: Path, effort: str) -> float:
    """The peak that is found relative to the capacity, checked."""
    table, capacity = read_table(path), int(path.name.split(".")[-2])
    with cpu_seconds(60):
        found = plan_memory(table.blocks, capacity=capacity, effort=effort)  # type: ignore[arg-type]
    buffers = [(b.lower, b.upper, b.size) for b in table.blocks]
    check(buffers, found.offsets, found.peak)
    assert found.lower_bound == most_live(buffers)
    return found.peak / capacity


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_our_packings_fit(path: Path) -> None:
    assert place(path, "default") <= 1


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i[0])
def test_the_files_are_what_the_generator_makes(instance: tuple[str, int, int, int, int, float, float]) -> None:
    name, seed, capacity, length, count, pinwheels, out = instance
    made = packing(seed, capacity, length, count, pinwheels, out)
    table = read_table(DATA / f"{name}.{capacity}.csv")
    assert [(b.lower, b.upper, b.size) for b in table.blocks] == made
    assert most_live(made) <= capacity


@pytest.mark.parametrize("path", MINIMALLOC, ids=lambda p: p.name[0] if p else "absent")
@pytest.mark.parametrize(("effort", "most"), [("default", 1.1), ("max", 1.0)])
def test_minimallocs_benchmark(path: Path | None, effort: str, most: float) -> None:
    if path is None:
        pytest.skip(f"MiniMalloc's instances are not in {FOLDER} (ATC_MINIMALLOC names another folder)")
    assert place(path, effort) <= most
