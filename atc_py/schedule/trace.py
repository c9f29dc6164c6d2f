"""A profile as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    process "host"        a row: each launch, each wait for the device, each task of the host's
    process "streams"     a row a stream: tasks, from when the stream turns to them to when they are done
    process "units"       a row a unit (cube, vector, memory, AI CPU, ...): when it is busy, inside the time of its task
    arrows                from the task that records an event to the one that waits for it

A loop shows its first iteration, and then one bar for all others, on the stream and, where the host runs it, on the
host's row too. Times are microseconds of the simulated device since the call; the last bar ends with the predicted
latency. The form is Google's "Trace Event Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from atc_py.schedule.lanes import UNITS as UNIT_NAMES
from atc_py.schedule.profile import Profile, Row
from atc_py.schedule.sink import ON_HOST
from atc_py.target.cost import microseconds_of

HOST, STREAMS, UNITS = 0, 1, 2
_PROCESSES = ((HOST, "host"), (STREAMS, "streams"), (UNITS, "units"))
REST = 0.01
"""Microseconds by which sums of rounded costs are off."""
_UNIT_ROWS = ("cube", "vector", "memory", *UNIT_NAMES[3:])  # an engine beside AI Core is a unit of its own


def chrome_trace(profile: Profile, title: str = "") -> dict[str, Any]:
    """The trace as a JSON object."""
    events = [*_metadata(profile), *_bars(profile)]
    for row in profile.rows:
        events += _task(row)
    _part(events)
    events += _flows(profile)
    handed = profile.handing
    meta = {
        "model": title,
        "target": profile.target.name,
        "predicted_us": round(profile.latency, 3),
        "launches": handed.launches,
        "synchronisations": handed.synchronisations,
    }
    return {"displayTimeUnit": "ns", "otherData": meta, "traceEvents": events}


def _metadata(profile: Profile) -> Iterator[dict[str, Any]]:
    for number, name in _PROCESSES:
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    yield _thread(HOST, 0, "launches and waits")
    bars = {bar.stream for bar in profile.handing.bars if bar.stream != ON_HOST}
    for stream in sorted({r.stream for r in profile.rows} | bars):
        yield _thread(STREAMS, stream, f"stream {stream}")
    for number, name in enumerate(_UNIT_ROWS):
        yield _thread(UNITS, number, name)


def _thread(process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _bars(profile: Profile) -> Iterator[dict[str, Any]]:
    """What the host does, and the iterations of loops that are not shown one by one."""
    for bar in profile.handing.bars:
        start, end = (microseconds_of(cycles, profile.target) for cycles in (bar.start, bar.end))
        process, thread = (HOST, 0) if bar.stream == ON_HOST else (STREAMS, bar.stream)
        yield _span(process, thread, bar.name, start, end - start, {"kind": bar.kind})


def _span(process: int, thread: int, name: str, start: float, length: float, args: dict[str, Any]) -> dict[str, Any]:
    ts, end = round(start, 3), round(start + length, 3)
    return {
        "ph": "X", "pid": process, "tid": thread, "name": name, "ts": ts, "dur": round(end - ts, 3), "args": args,
    }  # fmt: skip


def _part(events: list[dict[str, Any]]) -> None:
    """Bars of one row that follow each other do not overlap by what rounding leaves.

    A task is placed by what the tasks before it cost, in whole cycles, and is drawn as long as it takes.
    """
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for row in rows.values():
        for one, other in pairwise(sorted(row, key=lambda e: (e["ts"], e["dur"]))):
            over = one["ts"] + one["dur"] - other["ts"]
            if 0 < over < REST:
                one["dur"] = round(max(other["ts"] - one["ts"], 0.0), 3)


def _task(row: Row) -> Iterator[dict[str, Any]]:
    args = {
        "task": row.task,
        "kernel": row.kernel,
        "engine": row.engine,
        "bound by": row.bound_by,
        "wait_us": round(row.wait, 3),
        "times": row.times,
        "inputs": [f"{v.dtype}{list(v.shape)} {v.format}" for v in row.inputs],
        "outputs": [f"{v.dtype}{list(v.shape)} {v.format}" for v in row.outputs],
        "stands for": list(row.origin),
    }
    yield _span(STREAMS, row.stream, row.name, row.start, row.duration, args)
    unit = {"task": row.task}
    if row.engine != "aicore":  # its unit is its own from the hand-over on
        yield _span(UNITS, _UNIT_ROWS.index(row.engine), row.name, row.start + row.wait, row.duration - row.wait, unit)
        return
    begin = min(row.start + row.wait + row.launch, row.end)
    for number, busy in enumerate((row.cube, row.vector, row.memory)):
        if length := min(busy, row.end - begin):
            yield _span(UNITS, number, row.name, begin, length, unit)


def _flows(profile: Profile) -> Iterator[dict[str, Any]]:
    """Arrows from recording to waiting tasks."""
    place = {r.task: r for r in profile.rows if r.task >= 0}
    number = 0
    for row in profile.rows:
        for other in row.after:
            if other not in place:
                continue
            source = place[other]
            common = {"cat": "event", "name": "event", "id": number}
            yield {"ph": "s", "pid": STREAMS, "tid": source.stream, "ts": round(source.end, 3), **common}
            yield {"ph": "f", "bp": "e", "pid": STREAMS, "tid": row.stream, "ts": round(row.start, 3), **common}
            number += 1
