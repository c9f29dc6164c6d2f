"""An OM in memory, and its bytes.

WEIGHTS_DATA      the plan's weights at their planned offsets, then what only the canonical graph needs
MODEL_INOUT_INFO  inputs and outputs
MODEL_DEF         the lowered graph with addresses (a projection)
TASK_INFO         one entry a task, and what orders and chooses them (a projection)
PLAN_TABLE        the plan: the authority
CANONICAL_GRAPH   the graph after `optimize`, for full recompilation
INFO              the figures of the conversion, as JSON
"""

from __future__ import annotations

import io
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from atc_py import collector
from atc_py.emit.attrs import dim, nbytes_of
from atc_py.emit.model_def import model_def
from atc_py.emit.summary import memory_figures, summary
from atc_py.emit.task_info import TaskList, task_list
from atc_py.errors import Problem
from atc_py.ir.constants import Blob
from atc_py.ir.graph import Graph
from atc_py.ir.stored import pack_graph
from atc_py.ir.text import BlobTable
from atc_py.ir.types import Tensor
from atc_py.memory import Binding
from atc_py.plan import partition
from atc_py.plan.gears import BATCH, IMAGE, gear_count, gear_list, gear_shapes
from atc_py.plan.packed import encode
from atc_py.plan.types import Plan, Port, Space
from atc_py.target import Target
from om_format import (
    BytesLike,
    ModelInOut,
    OmHeader,
    Partition,
    Stream,
    TensorInfo,
    WeightsLayout,
    dtypes,
    limited,
    pack_inout,
    table_bytes,
    write_om,
)

if TYPE_CHECKING:
    from atc_py.schedule.clock import Prices

PARTITIONS = 8
"""Partitions of a file of ours that has weights and a canonical graph, INTEGRITY included."""


@dataclass
class Om:
    """What a conversion made: the canonical graph, the lowered graph, a plan for each device, and how it came about.

    `before` is the imported graph (for the figures), `report` the passes' report, `options` what is recorded,
    `warnings` what was noticed on the way (codes W…), `target` the SoC whose clock predicts latencies.
    """

    name: str
    canonical: Graph = field(repr=False)
    lowered: Graph = field(repr=False)
    plans: list[Plan] = field(repr=False)
    before: Graph = field(repr=False)
    report: Any = field(repr=False)
    options: Mapping[str, str]
    embed_canonical: bool = True
    warnings: Sequence[Problem] = ()
    target: Target | None = field(default=None, repr=False)
    binding: Binding | None = field(default=None, repr=False)
    """The plan's places under its hint, where they are known already."""
    prices: Prices | None = field(default=None, repr=False)
    """What its tasks cost, likewise."""
    drawn: Graph | None = field(default=None, repr=False)
    """The graph that MODEL_DEF shows, where it is not `lowered`: that of all gears, of which `lowered` is one."""
    _summary: dict[str, Any] = field(default_factory=dict, repr=False)
    _memory: dict[str, Any] = field(default_factory=dict, repr=False)
    _tasks: TaskList | None = field(default=None, repr=False)

    @property
    def plan(self) -> Plan:
        """The first device's plan."""
        return self.plans[0]

    @property
    def tasks(self) -> TaskList:
        """The first plan's TASK_INFO. `ValueError` for numbers that have no place in it."""
        if self._tasks is None:
            self._tasks = task_list(self.plan)
        return self._tasks

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the conversion (see `atc_py.emit.summary`)."""
        if not self._summary:
            self._summary = summary(
                self.before,
                self.lowered,
                self.plan,
                self.options,
                self.memory,
                self.tasks,
                self.target,
                self.canonical,
                self.prices,
            )
        return self._summary

    @property
    def memory(self) -> dict[str, Any]:
        """What the model needs of the device's memory."""
        if not self._memory:
            self._memory = memory_figures(self.before, self.lowered, self.plan, self.binding)
        return self._memory


@dataclass(frozen=True)
class _Weights:
    """WEIGHTS_DATA: where each blob lies, by content."""

    stream: Stream | None
    base: int
    places: Mapping[Hashable, tuple[int, int]]

    def locate(self, blob: Blob) -> int | None:
        place = self.places.get(blob.key)
        return None if place is None else place[0]


def _lay_out(plan: Plan, blobs: BlobTable, partitions: int) -> _Weights:
    """The plan's mapped weights first, at their planned distances; then the other blobs of the table."""
    mapped = [
        (b.offset or 0, c)
        for b in plan.buffers
        if b.space is Space.WEIGHTS
        and isinstance(c := plan.constants[b.index], Blob)
        and c.nbytes
        and (b.offset or 0) < plan.weights_nbytes
    ]
    mapped.sort(key=lambda m: m[0])
    layout = WeightsLayout(table_bytes(partitions))
    places: dict[Hashable, tuple[int, int]] = {}
    chosen: list[Blob] = []

    def place(blob: Blob) -> int:
        found = places.get(blob.key)
        if found is None:
            found = places[blob.key] = (layout.add(blob.nbytes), blob.nbytes)
            chosen.append(blob)
        return found[0]

    offsets = [place(constant) for _, constant in mapped]
    offsets += [place(blob) for blob in blobs.blobs if blob.nbytes]
    if not chosen:
        return _Weights(None, 0, {})
    base = offsets[0]  # of the first that was placed
    planned = all(at == base + offset for at, (offset, _) in zip(offsets, mapped, strict=False))
    assert planned, "weights must lie in the file as they are planned"
    return _Weights(layout.stream([b.data for b in chosen]), base, places)


def inout(plan: Plan) -> ModelInOut:
    """What MODEL_INOUT_INFO tells about a plan."""
    ends = tuple(_info(p) for p in plan.inputs), tuple(_info(p) for p in plan.outputs)
    return ModelInOut(*ends, **gear_lists(plan))


def gear_lists(plan: Plan) -> dict[str, Any]:
    """The gears as MODEL_INOUT_INFO lists them, by its fields' names; nothing where the plan has none.

    Batch sizes, heights and widths, or all dims that vary; the last with the inputs' names in the order of their dims.
    """
    listed = gear_list(plan)
    if listed is None:
        return {}
    name, values = listed
    if name == BATCH:
        return {"dynamic_batch": tuple([v for (v,) in values])}
    if name == IMAGE:
        return {"dynamic_hw": values}
    return {"dynamic_dims": values, "designate_shape_order": tuple(gear_shapes(plan, plan.hint or {}))}


def _info(port: Port) -> TensorInfo:
    t = port.type
    if not isinstance(t, Tensor):
        return TensorInfo(port.name, 0, dtypes.Format.ND, dtypes.ge_dtype("undefined"), ())
    shape = (-1,) if t.shape is None else tuple(dim(d) for d in t.shape)
    return TensorInfo(port.name, nbytes_of(t), dtypes.Format[t.format.value], dtypes.ge_dtype(t.dtype.value), shape)


@collector.paused()
def write_file(om: Om, target: str | Path | BinaryIO) -> int:
    """Write the OM and return its size in bytes; a path appears only when everything was written."""
    plan = om.plan
    blobs = BlobTable()
    packed = [encode(p, blobs) for p in om.plans]
    canonical = pack_graph(om.canonical, blobs) if om.embed_canonical else None
    weights = _lay_out(plan, blobs, PARTITIONS - (canonical is None))
    table = [weights.places.get(b.key, (0, 0)) for b in blobs.blobs]
    info = json.dumps(om.summary, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    model = model_def(om.name, om.drawn or om.lowered, plan, weights.locate, _model_attrs(om), om.tasks.switches)
    partitions: dict[Partition, BytesLike | Stream] = {
        Partition.MODEL_INOUT_INFO: pack_inout(inout(plan)),
        Partition.MODEL_DEF: limited(model, "ModelDef"),
        Partition.TASK_INFO: limited(om.tasks.content, "ModelTaskDef"),
        Partition.PLAN_TABLE: partition.pack(weights.base, table, packed),
        Partition.INFO: info,
    }
    if canonical is not None:
        partitions[Partition.CANONICAL_GRAPH] = canonical
    if weights.stream is not None:
        partitions[Partition.WEIGHTS_DATA] = weights.stream
    header = OmHeader(name=om.name[:31], is_unknow_model=0 if plan.arena is not None else 1)
    return write_om(target, header, partitions)


def om_bytes(om: Om) -> bytes:
    """The OM's bytes."""
    sink = io.BytesIO()
    write_file(om, sink)
    return sink.getvalue()


def counted(plan: Plan, tasks: TaskList) -> dict[str, int]:
    """The attributes of MODEL_DEF that TASK_INFO has too, or that count what is in it."""
    return {
        "memory_size": plan.arena or 0,
        "weight_size": tasks.weights,
        "stream_num": tasks.streams,
        "event_num": tasks.events,
        "label_num": tasks.labels,
        "batch_num": gear_count(plan),
    }


def _model_attrs(om: Om) -> dict[str, Any]:
    return {
        **counted(om.plan, om.tasks),
        "zero_copy_memory_size": 0,
        "task_gen_base_addr": 0,
        "task_gen_weight_addr": 0,
        "soc_version": om.options["soc_version"],
        "atc_version": "atc-py",
        "attr_model_out_nodes_name": [p.name for p in om.plan.outputs],
        "precision_mode": om.options["precision_mode"],
        "opt_level": om.options["opt_level"],
    }
