"""The clock over streams and units: what may overlap, and what may not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.schedule.lanes import UNITS, Demand, simulate


def demand(launch: float, work: float, cores: float, ddr: float = 0.0) -> Demand:
    return Demand(launch, work, (cores, 0.0, ddr, 0.0, 0.0))


def end(demands: list[Demand], streams: list[int], waits: list[list[int]] | None = None, event: float = 0.0) -> float:
    return max(s.end for s in simulate(demands, streams, waits or [[] for _ in demands], event))


FULL, HALF = demand(10, 100, 1.0), demand(10, 100, 0.5)


def test_one_stream_is_one_task_after_the_other() -> None:
    assert end([FULL, HALF, FULL], [0, 0, 0]) == 330


def test_two_streams_hide_launches_only_when_all_cores_are_used() -> None:
    assert end([FULL, FULL], [0, 1]) == 10 + 100 + 100


def test_tasks_that_use_half_of_the_cores_run_side_by_side() -> None:
    assert end([HALF, HALF], [0, 1]) == 110
    assert end([HALF, HALF, HALF], [0, 1, 2]) == 210


def test_running_tasks_ask_for_no_more_bandwidth_than_there_is() -> None:
    some = demand(10, 100, 0.5, 0.5)
    most = demand(10, 100, 0.5, 0.7)
    assert end([some, some], [0, 1]) == 110
    assert end([some, most], [0, 1]) == 210


def test_first_come_first_served() -> None:
    spans = simulate([FULL, demand(20, 100, 1.0), demand(30, 5, 0.5)], [0, 1, 2], [[], [], []], 0)
    assert [s.begin for s in spans] == [10, 110, 210], "a small task does not overtake a large one"


def test_units_apart_run_side_by_side() -> None:
    cube, vector = Demand(0, 100, (1.0, 0.0, 0.0, 0.0, 0.0)), Demand(0, 100, (0.0, 1.0, 0.0, 0.0, 0.0))
    assert end([cube, vector], [0, 1]) == 100


def test_a_wait_costs_what_an_event_costs() -> None:
    spans = simulate([FULL, FULL], [0, 1], [[], [0]], 7)
    assert spans[1].start == 110 and spans[1].begin == 127


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Demand], list[int], list[list[int]]]:
    n = draw(st.integers(1, 10))
    share = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    demands = [
        Demand(draw(st.integers(0, 5)), draw(st.integers(1, 20)), tuple(draw(share) for _ in UNITS)) for _ in range(n)
    ]
    streams = [draw(st.integers(0, 3)) for _ in range(n)]
    waits = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else [] for i in range(n)]
    waits = [[p for p in before if streams[p] != streams[i]] for i, before in enumerate(waits)]
    return demands, streams, waits


@settings(max_examples=300, derandomize=True, deadline=None)
@given(case=cases())
def test_no_unit_is_used_twice_and_nothing_runs_early(
    case: tuple[list[Demand], list[int], list[list[int]]],
) -> None:
    demands, streams, waits = case
    spans = simulate(demands, streams, waits, 3)
    for i, (span, d) in enumerate(zip(spans, demands, strict=True)):
        assert span.begin >= span.start + d.launch + 3 * len(waits[i]) and span.end == pytest.approx(
            span.begin + d.work
        )
        assert all(span.start >= spans[p].end for p in waits[i])
        assert all(span.start >= spans[k].end for k in range(i) if streams[k] == streams[i])
    for at in {s.begin for s in spans}:
        running = [d for s, d in zip(spans, demands, strict=True) if s.begin <= at < s.end]
        assert all(sum(d.units[k] for d in running) <= 1 + 1e-6 for k in range(len(UNITS)))
    serial = sum(d.total for d in demands) + 3 * sum(map(len, waits))
    assert max(s.end for s in spans) <= serial + 1e-6, "the device is never idle while somebody could run"
