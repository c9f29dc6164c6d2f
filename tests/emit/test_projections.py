"""MODEL_DEF, TASK_INFO and MODEL_INOUT_INFO say what the plan says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.emit.task_info import UNBOUND, copied
from atc_py.ir.constants import Blob, blob_array
from atc_py.ir.dims import Dim
from atc_py.ir.types import Tensor
from atc_py.plan.types import Host, If, Loop, Operand, Plan, Space, Static, Task, walk
from atc_py.runtime.loader import Loaded, load
from om_format import Partition, TaskType, parse_inout
from om_format.dtypes import dtype_from_ge, dtype_from_proto

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "static cnn": ("small_cnn", {"input_shapes": {"x": (1, 3, 32, 32)}}),
    "symbolic cnn": ("small_cnn", {}),
    "plain cnn": ("small_cnn", {"opt_level": 0, "input_shapes": {"x": (1, 3, 32, 32)}}),
    "static transformer": ("small_transformer", {"input_shapes": {"x": (2, 5, 32)}}),
    "symbolic transformer": ("small_transformer", {}),
    "recurrent": ("corpus/bilstm_text", {}),
    "loop": ("corpus/loop_while_if", {}),
    "run-time sizes": ("corpus/moe_nonzero", {}),
    "scan": ("corpus/scan_rnn", {}),
    "unet": ("corpus/unet_convt", {}),
}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> tuple[Any, Loaded]:
    name, options = CASES[request.param]
    om = compile_model(ROOT / f"models/{name}.onnx", Options(**options))
    return om, load(om_bytes(om))


def address(plan: Plan, operand: Operand | None) -> int | None:
    """Where an operand lies in its space; None where the plan does not say."""
    if operand is None:
        return None
    base = plan.buffers[operand.buffer].offset
    return None if base is None or isinstance(operand.delta, Dim) else base + operand.delta


def test_the_plan_comes_back_as_it_was_written(case: tuple[Any, Loaded]) -> None:
    from atc_py.plan.text import print_plan

    om, loaded = case
    assert print_plan(loaded.plan) == print_plan(om.plan)


def test_model_def_has_every_task_at_its_addresses(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    plan = loaded.plan
    tasks: dict[int, Task] = {t.id: t for t in plan.tasks()}
    model = loaded.om.model_def()
    found: dict[int, Any] = {}
    for op in (op for graph in model.graph for op in graph.op):
        if "_task_id" in op.attr:
            assert "_no_task" not in op.attr
            assert op.attr["_task_id"].i not in found
            found[op.attr["_task_id"].i] = op
    assert found.keys() == tasks.keys(), "each task is a node of MODEL_DEF"
    for number, op in found.items():
        task = tasks[number]
        assert (op.id, op.stream_id) == (task.id, task.stream)
        assert list(op.output_i) == [_or_minus(address(plan, o)) for o in task.outputs]
        for i, at in enumerate(op.input_i):
            operand = task.inputs[i] if i < len(task.inputs) else None
            assert at == _or_minus(address(plan, operand)), (op.name, i)
        assert len(op.input) == len(op.input_i) == len(op.input_desc) == len(op.is_input_const)


def _or_minus(at: int | None) -> int:
    return -1 if at is None else at


def test_model_def_has_the_plan_s_figures(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    plan, attr = loaded.plan, loaded.om.model_def().attr
    assert attr["memory_size"].i == (plan.arena or 0)
    weights = [b for b in plan.buffers if b.space is Space.WEIGHTS]
    assert attr["weight_size"].i == max(((b.offset or 0) + b.nbytes for b in weights), default=0)
    assert [s.decode() for s in attr["attr_model_out_nodes_name"].list.s] == [p.name for p in plan.outputs]


def test_what_is_counted_is_the_same_everywhere(case: tuple[Any, Loaded]) -> None:
    """MODEL_DEF, TASK_INFO and INFO agree about streams, events, labels and sizes."""
    om, loaded = case
    attr, info, figures = loaded.om.model_def().attr, loaded.om.task_info(), loaded.info
    for name in ("stream_num", "event_num", "memory_size", "weight_size", "batch_num"):
        assert attr[name].i == getattr(info, name), name
    labels = {e.label_set.label_id for e in info.task if e.type == TaskType.LABEL_SET}
    events = {e.event_id for e in info.task if e.type in (TaskType.EVENT_RECORD, TaskType.EVENT_WAIT)}
    assert (figures["streams"], figures["events"]) == (info.stream_num, info.event_num)
    assert attr["label_num"].i == figures["labels"] == len(labels)
    assert max(events, default=-1) < info.event_num
    assert om.summary == figures


def test_every_entry_names_its_op(case: tuple[Any, Loaded]) -> None:
    """`op_index` is the id of an OpDef, whose ids are unique; that of a switch says what is read and jumped to."""
    _, loaded = case
    ops = [op for graph in loaded.om.model_def().graph for op in graph.op]
    by_id = {op.id: op for op in ops}
    assert len(by_id) == len(ops)
    switches = set()
    for e in loaded.om.task_info().task:
        if e.type == TaskType.KERNEL:
            assert by_id[e.kernel.context.op_index].attr["_task_id"].i == e.kernel.context.op_index
        elif e.type == TaskType.MEMCPY_ASYNC:
            assert e.memcpy_async.op_index in by_id
        elif e.type == TaskType.STREAM_LABEL_SWITCH_BY_INDEX:
            op, count = by_id[e.label_switch_by_index.op_index], e.label_switch_by_index.label_max
            assert list(op.attr["_label_switch_list"].list.i) == [*range(e.label_id, e.label_id + count)]
            assert op.subgraph_name and "_no_task" not in op.attr
            switches.add(op.id)
    walked = [r for plan in loaded.plans for r in walk(plan.regions) if not isinstance(r, (Static, Host))]
    assert len(switches) == len(walked)
    said = {s.decode().split()[0] for number in switches for s in by_id[number].attr["_switched_by"].list.s}
    wanted = {"condition"} if any(isinstance(r, If) for r in walked) else set()
    wanted |= {"counter", "next_condition"} if any(isinstance(r, Loop) for r in walked) else set()
    assert wanted <= said


def test_gears_are_a_switch_over_all_their_tasks() -> None:
    options = Options(input_shapes={"x": (-1, 3, 32, 32)}, dynamic_batch_size=(1, 2, 4))
    om = compile_model(ROOT / "models/small_cnn.onnx", options)
    case = om, load(om_bytes(om))
    test_model_def_has_every_task_at_its_addresses(case)
    test_what_is_counted_is_the_same_everywhere(case)
    test_every_entry_names_its_op(case)
    info = case[1].om.task_info()
    kernels = [e.kernel.context.op_index for e in info.task if e.type == TaskType.KERNEL]
    assert kernels == [t.id for t in om.plan.tasks()]


def test_every_edge_of_model_def_leads_somewhere(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    model = loaded.om.model_def()
    graphs = {g.name for g in model.graph}
    names = [op.name for g in model.graph for op in g.op]
    assert len(set(names)) == len(names)
    for graph in model.graph:
        outputs = {f"{op.name}:{i}" for op in graph.op for i in range(max(1, len(op.output_desc)))}
        for op in graph.op:
            assert all(source == "" or source in outputs for source in op.input), op.name
            assert all(name in graphs for name in op.subgraph_name)
        assert all(name in outputs for name in [*graph.input, *graph.output])


def test_constants_of_model_def_are_the_plan_s(case: tuple[Any, Loaded]) -> None:
    """The bytes at each Const's offset are those of a constant of the plan, or of the canonical graph."""
    _, loaded = case
    part = loaded.om.get(Partition.WEIGHTS_DATA)
    known = {bytes(c.data) for c in loaded.plan.constants if isinstance(c, Blob)}
    for inner in loaded.canonical().walk():
        known |= {bytes(n.const.data) for n in inner.nodes.values() if isinstance(n.const, Blob)}
    for graph in loaded.om.model_def().graph:
        for op in graph.op:
            if op.type != "Const":
                continue
            tensor = op.attr["value"].t
            raw = tensor.data
            if not raw and tensor.desc.weight_size:
                assert part is not None
                start = tensor.desc.data_offset
                raw = bytes(part.data[start : start + tensor.desc.weight_size])
            assert len(raw) == tensor.desc.weight_size
            if len(raw) > 8:  # a Splat's element is no constant of its own
                assert raw in known, op.name


def test_weights_lie_where_the_plan_says(case: tuple[Any, Loaded]) -> None:
    om, loaded = case
    for buffer in om.plan.buffers:
        constant = om.plan.constants[buffer.index] if buffer.space is Space.WEIGHTS else None
        if isinstance(constant, Blob) and constant.nbytes and (buffer.offset or 0) < om.plan.weights_nbytes:
            at = buffer.offset or 0
            mapped = loaded.weights.mapped[at : at + constant.nbytes]
            np.testing.assert_array_equal(mapped.view(constant.dtype.numpy), blob_array(constant).reshape(-1))


def test_weights_are_aligned_in_the_file(tmp_path: Path) -> None:
    from atc_py.emit import write_file

    write_file(compile_model(ROOT / "models/small_cnn.onnx"), tmp_path / "m.om")
    loaded = load(tmp_path / "m.om")
    assert loaded.weights.mapped.ctypes.data % 64 == 0
    assert not loaded.weights.mapped.flags.writeable


def test_task_info_is_the_plan_s_list_of_tasks(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    plan, info = loaded.plan, loaded.om.task_info()
    assert (info.stream_num, info.memory_size) == (plan.streams, plan.arena or 0)
    events = [e.event_id for e in info.task if e.type in (TaskType.EVENT_RECORD, TaskType.EVENT_WAIT)]
    assert info.event_num == max([plan.events, *(e + 1 for e in events)])
    assert info.weight_size >= max([(b.offset or 0) + 1 for b in plan.buffers if b.space is Space.WEIGHTS], default=0)
    assert [entry.id for entry in info.task] == list(range(len(info.task)))
    kernels = [entry for entry in info.task if entry.type == TaskType.KERNEL]
    tasks = [t for t in plan.tasks() if copied(plan, t) is None]
    copies = {e.memcpy_async.op_index: e.memcpy_async for e in info.task if e.type == TaskType.MEMCPY_ASYNC}
    for task in plan.tasks():
        if pair := copied(plan, task):
            found = (copies[task.id].src, copies[task.id].dst)
            assert found == tuple(UNBOUND if (a := address(plan, o)) is None else a for o in pair)
    assert len(kernels) == len(tasks)
    for entry, task in zip(kernels, tasks, strict=True):
        kernel = entry.kernel
        operands = [*task.inputs, *task.outputs, *([task.workspace] if task.workspace else [])]
        assert (kernel.kernel_name, kernel.stub_func, entry.stream_id) == (task.kernel, task.name, task.stream)
        assert kernel.context.op_index == task.id
        addresses = list(struct.unpack(f"<{len(kernel.args) // 8}Q", kernel.args))
        expected = [UNBOUND if (a := address(plan, o)) is None else a for o in operands]
        assert addresses == expected and kernel.args_size == 8 * len(operands)
        spaces = kernel.context.args_format.split(",") if operands else []
        for space, operand in zip(spaces, operands, strict=True):
            assert space.rstrip("0123456789") == (
                "none" if operand is None else plan.buffers[operand.buffer].space.value
            )


def test_inout_info_has_the_ports(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    part = loaded.om[Partition.MODEL_INOUT_INFO]
    found = parse_inout(part.data, part.offset)
    for infos, ports in ((found.inputs, loaded.plan.inputs), (found.outputs, loaded.plan.outputs)):
        assert [i.name for i in infos] == [p.name for p in ports]
        for info, port in zip(infos, ports, strict=True):
            assert isinstance(port.type, Tensor)
            assert dtype_from_ge(info.dtype) == port.type.dtype.value
            assert list(info.dims) == [-1 if isinstance(d, Dim) else d for d in port.type.dims]


def test_types_of_model_def_are_those_of_the_operands(case: tuple[Any, Loaded]) -> None:
    _, loaded = case
    tasks = {t.id: t for t in loaded.plan.tasks()}
    for op in (op for graph in loaded.om.model_def().graph for op in graph.op):
        if "_task_id" not in op.attr:
            continue
        for desc, operand in zip(op.output_desc, tasks[op.attr["_task_id"].i].outputs, strict=True):
            if not isinstance(operand.type, Tensor) or operand.type.shape is None:
                continue
            kept = desc.attr["_atc_dtype"].s.decode() if "_atc_dtype" in desc.attr else None
            assert dtype_from_proto(desc.dtype, kept) == operand.type.dtype.value
            assert list(desc.shape.dim) == [-1 if isinstance(d, Dim) else d for d in operand.type.storage_shape]
            assert desc.layout == operand.type.storage_format.value
            assert desc.attr["origin_format"].s.decode() == operand.type.format.value
            if operand.type.storage_format is not operand.type.format:
                meant = [-1 if isinstance(d, Dim) else d for d in operand.type.dims]
                assert list(desc.attr["origin_shape"].list.i) == meant


def test_the_info_partition_is_the_summary(case: tuple[Any, Loaded]) -> None:
    import json

    om, loaded = case
    assert loaded.info == json.loads(json.dumps(om.summary))
    assert loaded.info["tasks"] == len(list(loaded.plan.tasks()))
