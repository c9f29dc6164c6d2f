"""What an OM file tells, as JSON-able facts: the shapes of `atc inspect --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from atc_py.emit.attrs import type_text
from atc_py.emit.summary import gears_json, requirements_json, symbols_json
from atc_py.errors import error
from atc_py.ir.constants import Blob, Constant, DimVec, Splat
from atc_py.ir.dims import UnboundSymbol, evaluate
from atc_py.ir.graph import STRUCTURAL
from atc_py.ir.types import Tensor, on_host
from atc_py.memory import bind
from atc_py.memory.bind import Binding
from atc_py.ops import MARK, get
from atc_py.ops.tile_program import BUFFERS
from atc_py.plan.gears import gears_of, in_gear, positions_before
from atc_py.plan.operations import custom_modules
from atc_py.plan.subgraphs import subgraphs
from atc_py.plan.types import Buffer, Operand, Plan, Space, Task, own_operands, walk
from atc_py.runtime.loader import Loaded, as_atc_error
from om_format import OmError, OmFile, Partition, own_name, parse_inout, partition_name

if TYPE_CHECKING:
    from atc_py.passes.mixlist import PrecisionLists

_KINDS: Mapping[str, Any] = {
    "format_version": int,
    "soc_version": str,
    "opt_level": str,
    "precision_mode": str,
    "nodes": ("before", "after"),
    "tensors": ("before", "after"),
    "tasks": int,
    "streams": int,
    "events": int,
    "engines": ("aicore", "aicpu", "host"),
    "memory": ("arena", "lower_bound", "sum_before", "sum_after", "weights", "workspace"),
    "inputs": list,
    "outputs": list,
}
"""The figures that every INFO partition has: their type, or the keys of the integers in them."""


def recorded(loaded: Loaded) -> dict[str, Any]:
    """The figures and options that the conversion recorded. Raises `AtcError` E30022 when some are missing."""
    figures = loaded.info
    for key, kind in _KINDS.items():
        value = figures.get(key)
        if isinstance(kind, tuple):
            right = isinstance(value, dict) and all(isinstance(value.get(k), int) for k in kind)
        else:
            right = isinstance(value, kind)
        if not right or (key == "opt_level" and value not in ("O0", "O1", "O2", "O3")):
            raise error("E30022", "INFO partition", f"its '{key}' is missing or wrong", "convert the model again")
    hint = figures.get("hint")
    if hint is not None and not (isinstance(hint, dict) and all(isinstance(v, int) for v in hint.values())):
        raise error("E30022", "INFO partition", "its 'hint' is wrong", "convert the model again")
    plan = loaded.plan
    said = {"symbols": symbols_json(plan), "requirements": requirements_json(plan), "custom_ops": custom_modules(plan)}
    optional = dict.fromkeys(("hint", "labels", "predicted_latency_us", "precision", "sink", "trans_data"))
    return {**optional, **figures, **said, **({"gears": _gears(plan, figures.get("gears"))} if gears_of(plan) else {})}


def _gears(plan: Plan, told: Any) -> list[dict[str, Any]]:
    """The plan's gears, with the predicted times that the conversion recorded, where it did."""
    found = gears_json(plan, None)
    if isinstance(told, list) and len(told) == len(found):
        for gear, other in zip(found, told):
            time = other.get("predicted_latency_us") if isinstance(other, dict) else None
            gear["predicted_latency_us"] = time if isinstance(time, (int, float)) and time >= 0 else None
    return found


def recorded_lists(figures: Mapping[str, Any]) -> PrecisionLists:
    """What the conversion was told of operators and nodes for its precision mode. Raises `AtcError` E30022."""
    from atc_py.passes.mixlist import NO_LISTS, PrecisionLists

    said = (figures["precision"] or {}).get("lists")
    try:
        return NO_LISTS if said is None else PrecisionLists.from_json(said)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise error("E30022", "INFO partition", "its 'precision' is wrong", "convert the model again") from e


def overview(loaded: Loaded) -> dict[str, Any]:
    """The figures that the conversion recorded, and what the file itself tells."""
    figures = recorded(loaded)
    return {
        **figures,
        "name": loaded.om.header.name,
        "foreign": False,
        "file": {"path": loaded.om.path, "bytes": loaded.om.size},
        "canonical": Partition.CANONICAL_GRAPH in loaded.om,
        "partitions": partitions(loaded.om, own_name),
        "op_histogram": histogram(kernel(t) for t in in_gear(loaded.plan, loaded.plan.hint).tasks()),
        "needs_onnx": needs_onnx(loaded.plan),
    }


def partitions(om: OmFile, name: Any) -> list[dict[str, Any]]:
    """The partitions of all models, in file order."""
    return [{"name": name(p.kind), "offset": p.offset, "bytes": p.data.nbytes} for m in om.models for p in m.partitions]


def histogram(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def kernel(task: Task) -> str:
    """A task's operator; a fused one is shown as `Conv+Add+Relu`."""
    if task.body is None:
        return task.kernel
    return "+".join(n.op for n in task.body.order() if n.op not in STRUCTURAL)


def tile(task: Task) -> dict[str, Any] | None:
    """A fused task's tile program: its tile's lengths (0: the whole dim), and bytes of inner values and of buffers."""
    lengths = task.attrs.get("tile")
    if task.body is None or not lengths:
        return None
    inner, places = task.attrs.get("inner", ()), task.attrs.get("inner_in", ())
    return {
        "lengths": list(lengths),
        "inner": [{"buffer": place, "bytes": nbytes} for nbytes, place in zip(inner, places)],
        "buffers": dict(zip(BUFFERS, task.attrs.get("buffers", ()))),
    }


def needs_onnx(plan: Plan) -> list[dict[str, Any]]:
    """The tasks whose kernel is onnx's reference implementation: running them imports onnx."""
    return [
        {"id": t.id, "kernel": t.kernel, "name": t.name, "origin": list(t.origin)}
        for t in plan.tasks()
        if is_reference(t)
    ]


def is_reference(task: Task) -> bool:
    """Whether a task, or a node of its body, runs with onnx's reference implementation."""
    found = [(task.kernel, task.attrs)]
    if task.body is not None:
        found = [(n.op, n.attrs) for n in task.body.order() if n.op not in STRUCTURAL]
    return any(get(name) is None and MARK not in attrs for name, attrs in found)


class PlanFacts:
    """A plan's tasks and buffers as facts; sizes of a template are those at its hint, of gears it is the largest."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.env = dict(loaded.plan.hint or {})
        self.plan = in_gear(loaded.plan, self.env)
        self.binding: Binding = bind(loaded.plan, self.env)
        self._before = positions_before(loaded.plan, self.env)

    def memory(self) -> dict[str, Any]:
        """Spaces in bytes, and every buffer with its place and lifetime (positions of tasks); of gears one's."""
        holds, own = self._holds(), self._own_buffers()
        buffers = [
            {
                "id": b.id,
                "space": b.space.value,
                "offset": self._offset(b),
                "bytes": self._bytes(b),
                "first": b.first,
                "last": b.last,
                "values": holds.get(b.id, []),
            }
            for b in own
        ]
        sizes: Counter[str] = Counter()
        for b in own:
            if b.space not in (Space.ARENA, Space.HOST):
                sizes[b.space.value] += max(self.binding.sizes[b.id], 0)
        spaces = {"arena": self.binding.arena, **dict(sorted(sizes.items()))}
        positions = max([sum(1 for _ in self.plan.tasks()), *(b.last + 1 for b in own if b.space is Space.ARENA)])
        return {"spaces": spaces, "positions": positions, "buffers": buffers}

    def _own_buffers(self) -> list[Buffer]:
        """The buffers; of a plan with gears those of this one, their lives counted from its first task."""
        if self.plan is self.loaded.plan:
            return list(self.plan.buffers)
        used = {o.buffer for t in self.plan.tasks() for o in t.operands()}
        used |= {o.buffer for r in walk(self.plan.regions) for o in own_operands(r)}
        used |= {p.buffer for p in (*self.plan.inputs, *self.plan.outputs)}
        shift = self._before
        return [
            replace(b, first=b.first - shift, last=b.last - shift) if b.space is Space.ARENA and b.first >= 0 else b
            for b in self.plan.buffers
            if b.id in used
        ]

    def _offset(self, b: Buffer) -> int | None:
        offset = self.binding.offsets[b.id]
        return None if offset < 0 or b.space is Space.DYNAMIC else offset

    def _bytes(self, b: Buffer) -> int | None:
        size = self.binding.sizes[b.id]
        return None if size < 0 else size

    def _holds(self) -> dict[int, list[str]]:
        """Buffer → what it holds: inputs, constants and the tasks that write it."""
        found: dict[int, list[str]] = {}
        for port in self.plan.inputs:
            found.setdefault(port.buffer, []).append(port.name)
        names = self.constant_names()
        for b in self.plan.buffers:
            if b.space is Space.WEIGHTS and names.get(b.id):
                found.setdefault(b.id, []).append(names[b.id])
        for task in self.plan.tasks():
            for operand in task.outputs:
                held = found.setdefault(operand.buffer, [])
                if task.name not in held:
                    held.append(task.name)
        return found

    def constant_names(self) -> dict[int, str]:
        """Weight buffer → the constant's name in MODEL_DEF, as the tasks that read it call it there."""
        tasks = {t.id: t for t in self.plan.tasks()}
        found: dict[int, str] = {}
        for graph in model_def(self.loaded.om).graph:
            for op in graph.op:
                task = tasks.get(op.attr["_task_id"].i) if "_task_id" in op.attr else None
                for name, operand in zip(op.input, task.inputs if task is not None else ()):
                    if operand is not None and self.plan.buffers[operand.buffer].space is Space.WEIGHTS:
                        found.setdefault(operand.buffer, name.rpartition(":")[0])
        return found

    def weights(self) -> list[dict[str, Any]]:
        """The constants of the weights space; `offset` is in the space, `file_offset` None for what is derived."""
        part = self.loaded.om.get(Partition.WEIGHTS_DATA)
        names = self.constant_names()
        found = []
        for b in self.plan.buffers:
            if b.space is not Space.WEIGHTS:
                continue
            constant = self.plan.constants[b.index]
            mapped = part is not None and (b.offset or 0) < self.plan.weights_nbytes
            found.append(
                {
                    "name": names.get(b.id) or None,
                    "kind": type(constant).__name__.lower(),
                    "dtype": constant.dtype.value,
                    "shape": [d if isinstance(d, int) else str(d) for d in constant.shape],
                    "bytes": self._bytes(b),
                    "offset": b.offset,
                    "file_offset": part.offset + self.loaded.base + (b.offset or 0) if part and mapped else None,
                }
            )
        return found

    def subgraphs(self) -> list[dict[str, Any]]:
        """The tasks of each engine between borders, and the bytes that cross."""
        return [asdict(found) for found in subgraphs(self.plan, self._operand_bytes)]

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks in order, with the addresses of their operands."""
        return [self._task(t) for t in self.plan.tasks()]

    def _task(self, task: Task) -> dict[str, Any]:
        inputs: list[dict[str, Any] | None] = [None if o is None else self._operand(o) for o in task.inputs]
        for i, number in sorted(task.host_values.items()):
            inputs += [None] * (i + 1 - len(inputs))
            inputs[i] = _host_value(self.plan.constants[number])
        operands = list(task.operands())
        return {
            "id": task.id,
            "kernel": kernel(task),
            "name": task.name,
            "engine": task.engine,
            "stream": task.stream,
            "waits": list(task.waits),
            "records": list(task.records),
            "inputs": inputs,
            "outputs": [self._operand(o) for o in task.outputs],
            "workspace": None if task.workspace is None else self._operand(task.workspace),
            "bytes": sum(self._operand_bytes(o) for o in operands),
            "tile": tile(task),
            "origin": list(task.origin),
        }

    def _operand(self, operand: Operand) -> dict[str, Any]:
        buffer = self.plan.buffers[operand.buffer]
        base = self._offset(buffer)
        delta = self._evaluate(operand.delta)
        return {
            "value": operand.value,
            "space": buffer.space.value,
            "port": buffer.index if buffer.space in (Space.INPUT, Space.OUTPUT) else None,
            "address": None if base is None or delta is None else base + delta,
            "text": type_text(operand.type),
            "format": operand.type.storage_format.value if isinstance(operand.type, Tensor) else None,
            "bytes": self._operand_bytes(operand),
        }

    def _operand_bytes(self, operand: Operand) -> int:
        type_ = operand.type
        if not isinstance(type_, Tensor) or on_host(type_) or type_.shape is None:
            return 0
        return self._evaluate(type_.nbytes) or 0

    def _evaluate(self, size: Any) -> int | None:
        try:
            return evaluate(size, self.env)
        except UnboundSymbol:
            return None


def _host_value(constant: Constant) -> dict[str, Any]:
    """A value that the host reads to launch the task, written out when it is short."""
    text = f"{constant.dtype.value}{[d if isinstance(d, int) else str(d) for d in constant.shape]}"
    if isinstance(constant, DimVec) and len(constant.elements) <= 8:
        text = "(" + ", ".join(str(e) for e in constant.elements) + ")"
    elif isinstance(constant, Splat):
        text += f" of {constant.value}"
    elif isinstance(constant, Blob) and constant.nbytes <= 64:
        from atc_py.ir.constants import blob_array

        text = str(tuple(blob_array(constant).reshape(-1).tolist())).replace(",)", ")")
    return {"space": "host value", "text": text}


def model_def(om: OmFile) -> Any:
    """The MODEL_DEF message. Raises `AtcError`."""
    try:
        return om.model_def()
    except OmError as e:
        raise as_atc_error(e) from e


_ATTRIBUTES = (
    "soc_version", "atc_version", "memory_size", "weight_size", "stream_num", "event_num", "label_num", "batch_num",
)  # fmt: skip


def foreign(om: OmFile) -> dict[str, Any]:
    """What the container and MODEL_DEF of another compiler's OM tell."""
    facts: dict[str, Any] = {
        "name": om.header.name,
        "foreign": True,
        "file": {"path": om.path, "bytes": om.size},
        "partitions": partitions(om, partition_name),
        "op_histogram": {},
        "attributes": {},
        "inputs": [],
        "outputs": [],
    }
    if Partition.MODEL_DEF in om:
        model = model_def(om)
        facts["name"] = model.name or om.header.name
        facts["op_histogram"] = histogram(op.type for graph in model.graph for op in graph.op)
        facts["attributes"] = {k: _attribute(model.attr[k]) for k in _ATTRIBUTES if k in model.attr}
    part = om.get(Partition.MODEL_INOUT_INFO)
    if part is not None:
        try:
            ports = parse_inout(part.data, part.offset)
        except OmError as e:
            raise as_atc_error(e) from e
        facts["inputs"] = [_foreign_port(t) for t in ports.inputs]
        facts["outputs"] = [_foreign_port(t) for t in ports.outputs]
    return facts


def _attribute(attr: Any) -> Any:
    kind = attr.WhichOneof("value")
    if kind == "s":
        return attr.s.decode("utf-8", "replace")
    return getattr(attr, kind) if kind in ("i", "f", "b") else None


def _foreign_port(info: Any) -> dict[str, Any]:
    from om_format.dtypes import dtype_from_ge

    return {"name": info.name, "dtype": dtype_from_ge(info.dtype) or f"type {info.dtype}", "shape": list(info.dims)}
