"""A profile as a table of tasks in CSV: the columns of msprof's op_summary, and what the clock knows besides.

Times are predicted microseconds. `Task Wait Time` is the time between the end of the stream's last task and the
beginning of this one's work; ratios are shares of the task's duration. Formats and shapes are those of storage.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from atc_py.schedule.profile import Profile, Row, View

COLUMNS = (
    "Model Name", "Task ID", "Stream ID", "Op Name", "OP Type", "Task Type", "Task Start Time(us)",
    "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Input Shapes", "Input Data Types", "Input Formats",
    "Output Shapes", "Output Data Types", "Output Formats", "aicore_time(us)", "total_cycles", "mac_time(us)",
    "mac_ratio", "vec_time(us)", "vec_ratio", "mte_time(us)", "mte_ratio", "Bound By", "Read(bytes)", "Written(bytes)",
    "Executions",
)  # fmt: skip
_TYPES = {"aicore": "AI_CORE", "aicpu": "AI_CPU", "host": "HOST"}


def op_summary(profile: Profile) -> str:
    """The table's text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in profile.rows:
        writer.writerow(_cells(row, profile))
    return out.getvalue()


def _cells(row: Row, profile: Profile) -> list[object]:
    target = profile.target
    on_core = row.engine == "aicore"
    duration = row.duration or 1.0
    cores = max(1, round(row.cores * target.aicores)) if on_core else 1
    return [
        target.name, row.task if row.task >= 0 else "", row.stream, row.name, row.kernel,
        _TYPES.get(row.engine, row.engine), f"{row.start:.3f}", f"{row.duration:.3f}", f"{row.wait:.3f}", cores,
        *_views(row.inputs), *_views(row.outputs),
        f"{row.duration - row.wait:.3f}" if on_core else "0", round(row.duration * target.frequency_mhz),
        f"{row.cube:.3f}", f"{row.cube / duration:.4f}", f"{row.vector:.3f}", f"{row.vector / duration:.4f}",
        f"{row.memory:.3f}", f"{row.memory / duration:.4f}", row.bound_by, row.read, row.written, row.times,
    ]  # fmt: skip


def _views(views: Iterable[View]) -> tuple[str, str, str]:
    found = list(views)
    shapes = ";".join(",".join(map(str, v.shape)) for v in found)
    return shapes, ";".join(v.dtype.upper() for v in found), ";".join(v.format for v in found)
