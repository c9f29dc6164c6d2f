"""A profile as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    process "streams"     a row a stream: tasks, from when the stream turns to them to when they are done
    process "units"       cube, vector, memory: when each is busy, as counters; AI CPU and host as rows
    process "host"        the launch
    arrows                from the task that records an event to the one that waits for it

Times are microseconds of the simulated device. The form is Google's "Trace Event Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atc_py.schedule.profile import Profile, Row

HOST, STREAMS, UNITS = 0, 1, 2
_PROCESSES = ((HOST, "host"), (STREAMS, "streams"), (UNITS, "units"))
_UNIT_ROWS = ("cube", "vector", "memory", "aicpu", "host")


def chrome_trace(profile: Profile, title: str = "") -> dict[str, Any]:
    """The trace as a JSON object."""
    events = [*_metadata(profile), *_host(profile)]
    for row in profile.rows:
        events += _task(row)
    events += _flows(profile)
    meta = {"model": title, "target": profile.target.name, "predicted_us": round(profile.latency, 3)}
    return {"displayTimeUnit": "ns", "otherData": meta, "traceEvents": events}


def _metadata(profile: Profile) -> Iterator[dict[str, Any]]:
    for number, name in _PROCESSES:
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    yield _thread(HOST, 0, "launch")
    for stream in sorted({r.stream for r in profile.rows}):
        yield _thread(STREAMS, stream, f"stream {stream}")
    for number, name in enumerate(_UNIT_ROWS):
        yield _thread(UNITS, number, name)


def _thread(process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _host(profile: Profile) -> Iterator[dict[str, Any]]:
    first = min((r.start for r in profile.rows), default=profile.latency)
    yield _span(HOST, 0, "launch of the model", 0.0, first, {"launches": profile.handing.launches})


def _span(process: int, thread: int, name: str, start: float, length: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "pid": process, "tid": thread, "name": name, "ts": round(start, 3), "dur": round(length, 3),
        "args": args,
    }  # fmt: skip


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
    begin = row.end - max(row.duration - row.wait - row.launch, 0.0)
    busy = {"cube": row.cube, "vector": row.vector, "memory": row.memory}
    if row.engine != "aicore":
        busy = {row.engine: row.duration}
    for number, unit in enumerate(_UNIT_ROWS):
        length = min(busy.get(unit, 0.0), row.end - begin) if row.engine == "aicore" else busy.get(unit, 0.0)
        if length > 0:
            yield _span(UNITS, number, row.name, begin, length, {"task": row.task})


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
