"""The clock: jobs from graphs and plans, the formats that it assumes, and what a model takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from atc_py import Options, compile_model, frontend
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.passes import lower, optimize
from atc_py.schedule import ScheduleOptions, graph_timeline, plan_handing, plan_timeline, schedule
from atc_py.schedule.clock import job_traffic, run_clock, serial_cycles
from atc_py.schedule.formats import with_formats
from atc_py.schedule.graph_jobs import graph_program
from atc_py.schedule.jobs import HALF, Form, Job, Program, Touch, sizes_of
from atc_py.schedule.plan_jobs import plan_program
from atc_py.target import load
from atc_py.target.cache import Cache
from atc_py.target.cost import Work

from .branching import towers

P3, GENERIC = load("Ascend310P3"), load("Generic")


def model(nodes: list[onnx.NodeProto], shape: list[int | str], weights: dict[str, list[int]]) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    stored = [numpy_helper.from_array(generator.random(s, np.float32), n) for n, s in weights.items()]
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def cnn(batch: int | str = 1) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"]),
    ]
    return model(nodes, [batch, 3, 8, 8], {"w": [20, 3, 3, 3], "v": [1280, 10]})


def read(proto: onnx.ModelProto) -> Graph:
    return frontend.read(proto)


def program(proto: onnx.ModelProto, half: bool = True) -> Program:
    graph = read(proto)
    return graph_program(graph, sizes_of(graph.symbols, {}, HALF if half else None))


def test_jobs_have_the_operators_work_and_their_bytes() -> None:
    jobs = program(cnn(), half=False).jobs
    assert [j.kernel for j in jobs] == ["Conv", "Relu", "Gemm"], "Flatten moves nothing"
    conv, relu, gemm = jobs
    assert conv.work.macs == 64 * 3 * 20 * 9
    assert [t.nbytes for t in conv.reads] == [4 * 192, 4 * 540] and [t.form.constant for t in conv.reads] == [
        False,
        True,
    ]
    assert conv.writes[0].nbytes == relu.reads[0].nbytes == 4 * 1280
    assert gemm.reads[0].key == relu.writes[0].key, "a view is its source"
    assert [t.nbytes for t in program(cnn()).jobs[0].reads] == [2 * 192, 2 * 540]


def test_formats_are_assumed_where_none_are_given() -> None:
    plain = program(cnn())
    blocked = with_formats(plain, P3)
    assert [j.kernel for j in blocked.jobs] == ["TransData", "Conv", "Relu", "TransData", "Gemm", "TransData"]
    convert, conv, relu, back, _, last = blocked.jobs
    assert convert.reads[0].nbytes == 4 * 192, "the caller's float32"
    assert convert.writes[0].nbytes == conv.reads[0].nbytes == 2 * 16 * 64, "3 channels take a block of 16"
    assert conv.writes[0].nbytes == relu.writes[0].nbytes == 2 * 32 * 64, "20 channels take two"
    assert back.writes[0].nbytes == 2 * 1280
    assert last.writes[0].nbytes == 4 * 10 and blocked.outputs[0].key == last.writes[0].key
    assert [j.kernel for j in with_formats(plain, GENERIC).jobs].count("TransData") == 2, "casts only"
    whole = program(cnn(), half=False)
    assert with_formats(whole, GENERIC).jobs == whole.jobs


def test_volumes_lie_in_blocks_of_channels_too() -> None:
    """Also beside maps to which a plan has given formats."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["h", "w"], ["c"], pads=[1] * 6),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    proto = model(nodes, [2, 3, 4, 8, 8], {})
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((20, 3, 3, 3, 3), np.float16), "w"))
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    cast, conv, relu, pool, last = with_formats(program(proto, half=False), P3).jobs
    assert cast.reads[0].nbytes == 4 * 2 * 3 * 256, "the caller's float32, as it lies"
    assert cast.writes[0].nbytes == conv.reads[0].nbytes == 2 * 2 * 16 * 256 and cast.work.run == 16
    assert conv.work.gemms[0].left == conv.reads[0].nbytes and not conv.work.gemms[0].packs
    assert relu.writes[0].nbytes == pool.reads[0].nbytes == 2 * 2 * 32 * 256
    assert last.kernel == "TransData" and last.writes[0].nbytes == 2 * 2 * 20


def test_a_plan_takes_as_long_as_its_graph() -> None:
    graph = read(cnn())
    optimize(graph)
    lower(graph, P3)
    before = graph_timeline(graph, P3)
    plan = schedule(graph, ScheduleOptions(soc=P3))
    timeline = plan_timeline(plan, P3)
    assert timeline.microseconds == pytest.approx(before.microseconds)
    costs = sum(t.cost for t in plan.tasks())
    launch = P3.rates.model_us * P3.frequency_mhz
    assert costs + launch == pytest.approx(timeline.cycles, abs=len(list(plan.tasks())))


def test_time_runs_forward_on_one_stream() -> None:
    timeline = graph_timeline(read(cnn()), P3)
    ends = [P3.rates.model_us * P3.frequency_mhz] + [t.end for t in timeline.jobs]
    assert [t.start for t in timeline.jobs] == ends[:-1] and timeline.cycles == ends[-1]
    assert all(t.end > t.start for t in timeline.jobs)


def test_the_hint_gives_symbols_their_values() -> None:
    proto = cnn("N")
    small, large = (
        compile_model(proto, Options(input_hint={"N": n})).summary["predicted_latency_us"] for n in (1, 4096)
    )
    assert 0 < small["after"] <= small["before"]
    assert large["after"] > 4 * small["after"]
    graph = read(cnn(4096))
    assert graph_timeline(graph, P3).microseconds == pytest.approx(large["before"], abs=0.1)


def loop(trips: int | None) -> onnx.ModelProto:
    """y = relu(relu(…x)), `trips` times (None: a limit that only the condition ends)."""
    body = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Identity", ["cond"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 64]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 64]),
        ],
    )
    proto = model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], [1, 64], {})
    limit = np.iinfo(np.int64).max if trips is None else trips
    proto.graph.initializer.append(numpy_helper.from_array(np.array(limit, np.int64), "n"))
    return proto


@pytest.mark.parametrize(("trips", "counted"), [(1, 1), (12, 12), (None, 16)])
def test_a_loop_counts_as_often_as_it_runs(trips: int | None, counted: int) -> None:
    graph = read(loop(trips))
    sizes = sizes_of(graph.symbols, {})
    jobs = [j for j in graph_program(graph, sizes).jobs if j.kernel == "Relu"]
    assert [j.times for j in jobs] == [counted]
    lower(graph, P3)
    plan = schedule(graph)
    assert {j.times for j in plan_program(plan, sizes).jobs if j.kernel == "Relu"} == {counted}


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A", "Generic"])
def test_fusion_does_not_make_a_model_slower(soc: str) -> None:
    latency = compile_model(cnn(), Options(soc_version=soc)).summary["predicted_latency_us"]
    assert latency["after"] < latency["before"]
    plain = compile_model(cnn(), Options(soc_version=soc, opt_level=0)).summary["predicted_latency_us"]
    assert plain["after"] == pytest.approx(plain["before"], rel=0.02)


@pytest.mark.parametrize("make", [cnn, lambda: loop(3)])
def test_predictions_are_repeatable(make: Callable[[], onnx.ModelProto]) -> None:
    first, second = (compile_model(make()).summary["predicted_latency_us"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("proto", [cnn(), loop(12)], ids=["cnn", "loop"])
def test_cycles_alone_are_those_of_the_timeline(proto: onnx.ModelProto) -> None:
    timed = with_formats(program(proto), P3)
    assert serial_cycles(timed, P3) == run_clock(timed, P3).cycles


def test_a_model_of_one_region_takes_as_long_as_that() -> None:
    plan = compile_model(towers(3)).plan
    assert plan.streams > 1 and len(plan.regions) == 1
    assert plan_handing(plan, P3).cycles == pytest.approx(plan_timeline(plan, P3).cycles)


_BUFFERS = st.lists(st.integers(0, 4), max_size=2, unique=True)


@given(st.lists(st.tuples(_BUFFERS, _BUFFERS), max_size=8), _BUFFERS, st.sampled_from([0, 30, 100, 140, 150, 200]))
def test_what_fits_into_the_cache_moves_what_the_cache_says(
    tasks: list[tuple[list[int], list[int]]], outputs: list[int], capacity: int
) -> None:
    form = Form(Tensor(DType.FLOAT32, (1,)), 0)
    touches = [Touch(key, 10 * key, form) for key in range(5)]

    def of(keys: list[int]) -> tuple[Touch, ...]:
        return tuple(touches[key] for key in keys)

    jobs = [Job(0, "", "Relu", "aicore", Work(), DType.FLOAT32, of(reads), of(writes)) for reads, writes in tasks]
    timed = Program(tuple(jobs), of(outputs))
    cache, drops = Cache(capacity), timed.last_touches()
    for _ in range(2):  # the model is at rest when it has run once
        moved = [cache.task(job.reads, job.writes, dropped) for job, dropped in zip(jobs, drops, strict=True)]
    if jobs:
        assert [t.ddr for t in job_traffic(timed, replace(P3, l2=capacity))] == moved


def test_what_fits_into_the_cache_needs_no_memory() -> None:
    timed = program(cnn())
    assert timed.stays_in(P3.l2) and not timed.stays_in(1000)
    assert not any(t.ddr for t in job_traffic(timed, P3))
