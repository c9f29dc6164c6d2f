"""The law of work in place: what a task writes lies apart from all else that it takes, or lies on it by permission.

task 0 Relu: %1 at arena [0, 512) → %2 at arena [0, 512)         fine: Relu works element by element
task 1 MatMul: %1 at arena [0, 512) → %2 at arena [0, 512)       it would overwrite what it still has to read
"""

from __future__ import annotations

from collections.abc import Iterator

from atc_py.errors import AtcError
from atc_py.ops.build import lookup
from atc_py.plan.accesses import Placement, Row
from atc_py.plan.extents import Layout
from atc_py.plan.show import show_value
from atc_py.plan.types import Access, Task


def own_overlaps(row: Row, layout: Layout) -> Iterator[str]:
    """What is wrong with where a task's own operands lie to each other."""
    task, inputs, outputs, workspace, plain = row
    if not plain:
        yield from _updated_inputs(row, layout)
    written = outputs if workspace is None else (*outputs, workspace)
    for k, p in enumerate(written):
        area, low, high = p.area, p.low, p.high
        for n, q in enumerate(inputs):
            if q.area != area or q.low >= high or low >= q.high:
                continue
            run, i = p.extent.overlap(q.extent), _numbers(task)[n]
            if run is not None and not _in_place(task, k, p, i, q):
                over = f"input {i} ({show_value(q.operand.value)}) at {layout.where(area, run)}"
                yield f"writes {_name(task, k)} over {over}, which {task.kernel} may not do"
        for j, q in enumerate(written[:k]):
            run = p.extent.overlap(q.extent)
            if run is not None:
                yield f"writes {_name(task, k)} over {_name(task, j)} at {layout.where(area, run)}"


def _updated_inputs(row: Row, layout: Layout) -> Iterator[str]:
    numbers = _numbers(row.task)
    for i, p in zip(numbers, row.inputs, strict=True):
        updated = row.task.inputs[i]
        if updated is None or updated.access is not Access.UPDATE:
            continue
        for j, q in zip(numbers, row.inputs, strict=True):
            run = None if i == j else p.extent.overlap(q.extent)
            if run is not None:
                yield f"updates input {i} over input {j} at {layout.where(p.area, run)}"


def _numbers(task: Task) -> list[int]:
    """The positions of the inputs that are there."""
    return [i for i, o in enumerate(task.inputs) if o is not None]


def _in_place(task: Task, k: int, written: Placement, i: int, read: Placement) -> bool:
    """Whether output `k` may overwrite input `i`: the very same bytes, and the operator says so."""
    a, b = read.extent, written.extent
    same = a.first == b.first and a.runs == b.runs and a.strides == b.strides and a.form == b.form
    one, other = read.operand, written.operand
    if not same or getattr(one.type, "dtype", None) is not getattr(other.type, "dtype", None):
        return False
    accesses = [o.access for o in (task.inputs[i], *task.outputs[k : k + 1]) if o is not None]
    if accesses == [Access.UPDATE, Access.UPDATE]:
        return one.value == other.value
    return k == 0 and i in inplace_inputs(task)


def inplace_inputs(task: Task) -> tuple[int, ...]:
    """The inputs whose bytes output 0 of the task may take over, as its operator declares."""
    try:
        return lookup(task.kernel, task.attrs).flags.inplace
    except AtcError:
        return ()


def _name(task: Task, k: int) -> str:
    return f"output {k}" if k < len(task.outputs) else "the workspace"
