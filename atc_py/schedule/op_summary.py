"""A profile as a table of tasks in CSV: the columns of msprof's op_summary, and what the clock knows besides.

Times are predicted microseconds. `Task Wait Time` is the time between the end of the stream's last task and the
beginning of this one's work; ratios are shares of the task's duration. Formats and shapes are those of storage. What
is of AI Core alone, its time, cycles and units, is N/A in the rows of other engines, as msprof has it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from atc_py.schedule.profile import Profile, Row, View
from atc_py.target import Target

COLUMNS = (
    "Model Name", "Task ID", "Stream ID", "Op Name", "OP Type", "Task Type", "Task Start Time(us)",
    "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Input Shapes", "Input Data Types", "Input Formats",
    "Output Shapes", "Output Data Types", "Output Formats", "aicore_time(us)", "total_cycles", "mac_time(us)",
    "mac_ratio", "vec_time(us)", "vec_ratio", "mte_time(us)", "mte_ratio", "Bound By", "Read(bytes)", "Written(bytes)",
    "Executions",
)  # fmt: skip
_TYPES = {"aicore": "AI_CORE", "aicpu": "AI_CPU", "host": "HOST", "hccl": "HCCL"}
_OF_CORE = COLUMNS[COLUMNS.index("aicore_time(us)") : COLUMNS.index("mte_ratio") + 1]
NOT_APPLICABLE = "N/A"


def op_summary(profile: Profile, model: str) -> str:
    """The table's text; `model` is the model's name."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in profile.rows:
        writer.writerow(_cells(row, profile, model))
    return out.getvalue()


def _cells(row: Row, profile: Profile, model: str) -> list[object]:
    on_core = row.engine == "aicore"
    cores = max(1, round(row.cores * profile.target.aicores)) if on_core else 1
    return [
        model, row.task if row.task >= 0 else "", row.stream, row.name, row.kernel,
        _TYPES.get(row.engine, row.engine), f"{row.start:.3f}", f"{row.duration:.3f}", f"{row.wait:.3f}", cores,
        *_views(row.inputs), *_views(row.outputs),
        *(_on_core(row, profile.target) if on_core else [NOT_APPLICABLE] * len(_OF_CORE)),
        row.bound_by, row.read, row.written, row.times,
    ]  # fmt: skip


def _on_core(row: Row, target: Target) -> list[object]:
    """The columns of AI Core."""
    cells: list[object] = [f"{row.duration - row.wait:.3f}", round(row.duration * target.frequency_mhz)]
    for busy in (row.cube, row.vector, row.memory):
        cells += [f"{busy:.3f}", f"{busy / (row.duration or 1.0):.4f}"]
    return cells


def _views(views: Iterable[View]) -> tuple[str, str, str]:
    found = list(views)
    shapes = ";".join(",".join(map(str, v.shape)) for v in found)
    return shapes, ";".join(v.dtype.upper() for v in found), ";".join(v.format for v in found)
