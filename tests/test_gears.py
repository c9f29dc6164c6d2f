"""Models that are compiled for a list of sizes: each gear as if it were alone, and together no larger than one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

from atc_py import AtcError, Options, Session, compile_model
from atc_py.compiler import recompile
from atc_py.emit import Om, om_bytes
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor
from atc_py.memory import bind
from atc_py.plan.gears import gear_list, gear_values, gears_of, in_gear, wrong_gears
from atc_py.plan.types import Access, If, Operand, Plan, Space, Static, Task
from atc_py.plan.verify import verify
from atc_py.runtime.feeds import random_feeds
from atc_py.runtime.loader import load
from om_format import Partition, pack_inout, parse_inout
from om_format.proto.ge_ir_pb2 import ModelDef
from tests.cli.helpers import atc, codes, problems, valid
from tests.making import BOOL, FLOAT, model, node
from tests.mutations import joined, parts_of
from tests.test_hostile import forged

MODELS = Path(__file__).resolve().parent.parent / "models"

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "batch": ("small_cnn", {"dynamic_batch_size": (1, 2, 5)}),
    "image": ("corpus/unet_bilinear", {"input_shapes": {"input": (1, -1, -1, -1)},
                                       "dynamic_image_size": ((32, 32), (48, 64), (16, 80))}),
    "dims": ("small_transformer", {"dynamic_dims": ((1, 4), (2, 16), (3, 7))}),
    "control flow": ("corpus/loop_while_if", {"dynamic_batch_size": (1, 4)}),
    "data-dependent sizes": ("corpus/moe_nonzero", {"dynamic_dims": ((1, 4), (2, 8))}),
}  # fmt: skip
"""Repository models with lists of sizes of every kind."""


def path_of(name: str) -> Path:
    return MODELS / f"{name}.onnx"


def alone(om: Om, source: Path | ModelProto, gear: Mapping[str, int]) -> Om:
    """The model compiled for the sizes of one gear only."""
    plan = in_gear(om.plan, gear)
    return compile_model(source, Options(input_shapes={p.name: p.type.dims for p in plan.inputs}))  # type: ignore[union-attr]


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Path, Om, bytes]:
    name, options = CASES[request.param]
    om = compile_model(path_of(name), Options(**options))
    return path_of(name), om, om_bytes(om)


def test_each_gear_gives_what_it_gives_alone_and_what_onnxruntime_gives(case: tuple[Path, Om, bytes]) -> None:
    source, om, data = case
    session = Session(data, debug_memory=True, shuffle=3)
    oracle = onnxruntime.InferenceSession(source.read_bytes(), providers=["CPUExecutionProvider"])
    for gear in gear_values(om.plan):
        single = Session(om_bytes(alone(om, source, gear)))
        feeds = random_feeds(single.plan.inputs, {}, seed=1)
        found = session.run(None, feeds)
        for got, same, want in zip(found, single.run(None, feeds), oracle.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, same)
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(want).max(initial=0))))


def test_the_arena_is_that_of_the_gear_that_needs_most_and_weights_are_shared(case: tuple[Path, Om, bytes]) -> None:
    source, om, data = case
    plan, singles = load(data).plan, [alone(om, source, g).plan for g in gear_values(om.plan)]
    assert plan.arena == om.summary["memory"]["arena"] == max(p.arena or 0 for p in singles)
    assert [bind(plan, g).arena for g in gear_values(plan)] == [p.arena for p in singles]
    assert plan.weights_nbytes == max(p.weights_nbytes for p in singles)
    assert plan.streams == max(p.streams for p in singles) and plan.events == max(p.events for p in singles)


def test_figures_of_a_gear_are_those_that_it_has_alone(case: tuple[Path, Om, bytes]) -> None:
    source, om, _ = case
    for gear, told in zip(gear_values(om.plan), om.summary["gears"], strict=True):
        single = alone(om, source, gear).summary
        assert told["tasks"] == single["tasks"]
        assert told["predicted_latency_us"] == single["predicted_latency_us"]["after"]


def test_the_same_bytes_again(case: tuple[Path, Om, bytes], request: pytest.FixtureRequest) -> None:
    name, options = CASES[request.node.callspec.params["case"]]
    assert om_bytes(compile_model(path_of(name), Options(**options))) == case[2]


def test_atc_verify_proves_every_gear(case: tuple[Path, Om, bytes], tmp_path: Path) -> None:
    (tmp_path / "m.om").write_bytes(case[2])
    found = valid(atc("verify", tmp_path / "m.om", "--json").stdout, "verify")
    assert found["passed"], found
    [detail] = [c["detail"] for c in found["checks"] if c["name"] == "plan"]
    assert f"at {len(gear_values(case[1].plan))} sets of sizes" in detail


# -- what is not among the gears -------------------------------------------------------------------------------


def batches(**options: Any) -> Om:
    return compile_model(path_of("small_cnn"), Options(dynamic_batch_size=(1, 4), **options))


def test_sizes_that_are_no_gear_are_refused_with_the_list() -> None:
    session = Session(om_bytes(batches()))
    [x] = session.get_inputs()
    with pytest.raises(AtcError) as raised:
        session.run(None, {x.name: np.zeros((3, 3, 32, 32), np.float32)})
    [problem] = raised.value.problems
    assert problem.code == "E30009"
    assert f"{x.name}:3,3,32,32 is none of them" in problem.cause
    assert f'"{x.name}:1,3,32,32", "{x.name}:4,3,32,32"' in problem.hint


def test_atc_run_compiles_again_for_sizes_that_are_no_gear(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    assert atc("convert", path_of("small_cnn"), "-o", path, "--dynamic_batch_size=1,4").exit_code == 0
    [x] = Session(path).get_inputs()
    result = atc("run", path, "--json", "--input-shape", f"{x.name}:4,3,32,32")
    assert valid(result.stdout, "run")["recompiled"] is False
    result = atc("run", path, "--json", "--input-shape", f"{x.name}:3,3,32,32")
    facts = valid(result.stdout, "run")
    assert facts["recompiled"] is True and facts["outputs"][0]["shape"][0] == 3
    assert "W30009" in result.stderr and f'"{x.name}:4,3,32,32"' in result.stderr.replace("\n", "")


def test_without_a_graph_atc_run_names_the_gears(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    made = atc("convert", path_of("small_cnn"), "-o", path, "--dynamic-batch-size", "1,4", "--canonical", "off")
    assert made.exit_code == 0
    [x] = Session(path).get_inputs()
    [problem] = problems(atc("run", path, "--json", "--input-shape", f"{x.name}:3,3,32,32"))
    assert problem["code"] == "E30009" and f'"{x.name}:1,3,32,32"' in problem["hint"]


def test_without_shapes_the_largest_gear_runs(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(om_bytes(batches()))
    assert valid(atc("run", path, "--json").stdout, "run")["inputs"][0]["shape"] == [4, 3, 32, 32]
    assert valid(atc("profile", path, "--json").stdout, "profile")["hint"] == gear_values(load(path).plan)[1]


def test_the_canonical_graph_is_for_any_size() -> None:
    loaded = load(om_bytes(batches()))
    again = load(om_bytes(recompile(loaded.canonical(), Options(), recorded=loaded.info)))
    assert gears_of(again.plan) is None
    feeds = random_feeds(again.plan.inputs, dict.fromkeys(again.plan.symbols, 4), seed=2)
    for a, b in zip(Session(again).run(None, feeds), Session(loaded).run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# -- what is wrong with the gears ------------------------------------------------------------------------------

NET = model([node("Add", ["a", "b"], ["y"])], {"a": (FLOAT, ["n", 3, "h", "w"]), "b": (FLOAT, ["m", 3, 1, 1])}, ["y"])
FREE = {"a": (-1, 3, 8, 8), "b": (-1, 3, 1, 1)}
IMAGE = {"a": (1, 3, -1, -1), "b": (1, 3, 1, 1)}


@pytest.mark.parametrize(
    ("shapes", "options", "wanted"),
    [
        (FREE, {"dynamic_batch_size": (1,)}, ["E10035"]),
        (FREE, {"dynamic_batch_size": tuple(range(1, 102))}, ["E10036"]),
        (IMAGE, {"dynamic_image_size": ((8, 8), (8,))}, ["E10037"]),
        (FREE, {"dynamic_batch_size": (0, 2)}, ["E10038"]),
        (FREE, {"dynamic_batch_size": (2, 2)}, ["E10039"]),
        (FREE, {"dynamic_batch_size": (0, 2, 2, 0)}, ["E10038", "E10039"]),
        ({**FREE, "a": ("1~8", 3, 8, 8)}, {"dynamic_batch_size": (1, 2)}, ["E10040"]),
        ({"a": (1, 3, 8, 8), "b": (1, 3, 1, 1)}, {"dynamic_batch_size": (1, 2)}, ["E10031"]),
        ({}, {"dynamic_batch_size": (1, 2)}, ["E10018"]),
        ({}, {"dynamic_image_size": ((8, 8), (9, 9))}, ["E10019"]),
        (IMAGE, {"dynamic_image_size": ((8, 8, 8), (9, 9, 9))}, ["E10045"]),
        (FREE, {"dynamic_dims": ((1,), (2,))}, ["E10045"]),
        (FREE, {"dynamic_batch_size": (1, 2), "dynamic_dims": ((1, 1), (2, 2))}, ["E10009"]),
        ({"c": (1,)}, {"dynamic_batch_size": (2, 2)}, ["E10018", "E10002", "E10039"]),
        ({"a": ("k", 3, 8, 8), "b": ("k", 3, 1, 1)}, {"dynamic_dims": ((1, 1), (1, 2))}, ["E10045"]),
    ],
)
def test_everything_that_is_wrong_with_a_list_is_told(
    shapes: Mapping[str, Sequence[Any]], options: Mapping[str, Any], wanted: list[str]
) -> None:
    with pytest.raises(AtcError) as raised:
        compile_model(NET, Options(input_shapes=shapes, **options))
    assert {p.code for p in raised.value.problems} == set(wanted)
    assert all(p.place and p.cause and p.hint for p in raised.value.problems)


def test_words_that_are_no_sizes(tmp_path: Path) -> None:
    result = atc("convert", path_of("small_cnn"), "-o", tmp_path / "m", "--dynamic-dims", "1,x;-1,2", "--json")
    assert codes(result) == ["E10001"] and len(problems(result)) == 2
    assert not (tmp_path / "m.om").exists()


def test_values_follow_the_order_of_input_shape() -> None:
    om = compile_model(NET, Options(input_shapes=dict(reversed(FREE.items())), dynamic_dims=((1, 4), (1, 2))))
    assert [g["inputs"] for g in om.summary["gears"]] == [
        {"a": [4, 3, 8, 8], "b": [1, 3, 1, 1]},
        {"a": [2, 3, 8, 8], "b": [1, 3, 1, 1]},
    ]


def test_problems_of_all_gears_are_told_with_their_names() -> None:
    whole = model([node("Reshape", ["x", "s"], ["y"])], {"x": (FLOAT, ["n", 6])}, ["y"], {"s": np.array([4, 3])})
    with pytest.raises(AtcError) as raised:
        compile_model(whole, Options(dynamic_batch_size=(1, 2, 3)))
    assert [p.place.partition(":")[0] for p in raised.value.problems] == ["gear 1", "gear 3"]


# -- outputs and views -----------------------------------------------------------------------------------------


def ran(proto: ModelProto, om: Om, **feeds: Any) -> None:
    """Assert that the gears' OM agrees with onnxruntime."""
    oracle = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(Session(om_bytes(om)).run(None, feeds), oracle.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_outputs_that_are_views_copies_and_constants() -> None:
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Flatten", ["r"], ["flat"]),
            node("Identity", ["x"], ["same"]),
            node("Identity", ["c"], ["fixed"]),
            node("Shape", ["x"], ["shape"]),
        ],
        {"x": (FLOAT, ["n", 3, 4])},
        ["flat", "same", "fixed", "shape"],
        {"c": np.array([1, 2], np.float32)},
        opset=18,
    )
    om = compile_model(proto, Options(dynamic_batch_size=(2, 3)))
    for batch in (2, 3):
        ran(proto, om, x=np.random.default_rng(0).standard_normal((batch, 3, 4)).astype(np.float32))


@pytest.mark.parametrize("outputs", [["flat"], ["flat", "y"], ["y"]], ids=",".join)
def test_formulas_of_what_the_gear_and_what_the_run_time_knows(outputs: list[str]) -> None:
    chain = [
        node("ReduceMax", ["x", "axes"], ["top"], keepdims=0),
        node("Greater", ["top", "limit"], ["kept"]),
        node("Compress", ["x", "kept"], ["some"], axis=1),
        node("Flatten", ["some"], ["flat"], axis=0),
        node("Neg", ["flat"], ["y"]),
    ]
    constants = {"axes": np.array([0, 2]), "limit": np.float32(2.0)}
    proto = model(chain, {"x": (FLOAT, ["n", 6, 4])}, outputs, constants, opset=18)
    om = compile_model(proto, Options(dynamic_batch_size=(2, 3)))
    [port, *_] = om.plan.outputs
    assert isinstance(port.type, Tensor) and str(port.type.dims[1]).startswith("4*") and "n" in str(port.type.dims[1])
    for batch in (2, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 6, 4)).astype(np.float32)
        assert 0 < (x.max((0, 2)) > 2).sum() < 6
        ran(proto, om, x=x)


def relative_bias() -> ModelProto:
    """A model that only fixed sizes can be compiled for: the lengths of a relative position bias must be known."""
    bias = helper.make_node(
        "RelativePositionBias", ["table", "n", "n"], ["y"], domain="com.microsoft", max_distance=8, is_bidirectional=1
    )
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"], axis=0), bias]
    constants = {"one": np.array([1]), "table": np.arange(16, dtype=np.float32).reshape(8, 2)}
    return model(nodes, {"x": (FLOAT, [1, "len"])}, ["y"], constants)


def test_sizes_of_outputs_that_are_no_formula_are_those_of_the_gear() -> None:
    om = compile_model(relative_bias(), Options(dynamic_dims=((4,), (6,))))
    assert [w.code for w in om.warnings] == ["W20003"]
    data = om_bytes(om)
    assert Partition.CANONICAL_GRAPH not in load(data).om
    session = Session(data)
    for length in (4, 6):
        [y] = session.run(None, {"x": np.zeros((1, length), np.float32)})
        assert y.shape == (1, 2, length, length)


def test_an_output_of_which_no_formula_is_known_is_refused() -> None:
    proto = relative_bias()
    proto.graph.node.append(node("Compress", ["y", "kept"], ["some"], axis=1))
    proto.graph.node.append(node("Flatten", ["some"], ["flat"], axis=0))
    proto.graph.input.append(helper.make_tensor_value_info("kept", BOOL, [2]))
    proto.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("flat"))
    with pytest.raises(AtcError) as caught:
        compile_model(proto, Options(dynamic_dims=((4,), (6,))))
    [problem] = caught.value.problems
    assert problem.code == "E10041" and "'flat'" in problem.place and "16*" in problem.cause and "36*" in problem.cause


def test_other_readers_are_told_the_gears() -> None:
    loaded = load(om_bytes(compile_model(NET, Options(input_shapes=IMAGE, dynamic_image_size=((8, 8), (9, 10))))))
    part = loaded.om[Partition.MODEL_INOUT_INFO]
    assert parse_inout(part.data, part.offset).dynamic_hw == ((8, 8), (9, 10))
    [root, *bodies] = loaded.om.model_def().graph
    [case] = [op for op in root.op if op.type == "Case"]
    assert case.attr["_batch_num"].i == 2 and list(case.attr["_pred_value_1"].list.i) == [9, 10]
    assert list(case.subgraph_name) == [body.name for body in bodies]
    numbers = [op.attr["_task_id"].i for body in bodies for op in body.op if "_task_id" in op.attr]
    assert numbers == [t.id for t in loaded.plan.tasks()]


# -- the proof -------------------------------------------------------------------------------------------------


def aliased(task: Task, below: Operand) -> Task:
    """The task with its result on other bytes."""
    return replace(task, outputs=(replace(task.outputs[0], buffer=below.buffer), *task.outputs[1:]))


def test_an_alias_planted_in_one_gear_is_found_there_only() -> None:
    plan = batches(single_stream=True, disabled_passes=frozenset({"fusion"})).plan
    region = gears_of(plan)
    assert region is not None
    [static] = [r for r in region.bodies[1] if isinstance(r, Static)]
    arena = [o for t in static.tasks for o in t.outputs if plan.buffers[o.buffer].space is Space.ARENA]
    k = next(
        k
        for k, t in enumerate(static.tasks)
        if k and t.outputs[0] in arena and any(o in arena for o in static.tasks[k - 1].outputs)
    )
    tasks = list(static.tasks)
    tasks[k] = aliased(tasks[k], tasks[k - 1].outputs[0])
    wrong = replace(plan, regions=(replace(region, bodies=(region.bodies[0], (Static(tuple(tasks)),))),))
    good, bad = gear_values(wrong)
    binding = bind(wrong, good)
    verify(wrong, binding.offsets, binding.sizes, binding.env)
    binding = bind(wrong, bad)
    with pytest.raises(AtcError):
        verify(wrong, binding.offsets, binding.sizes, binding.env)


def _gears(plan: Plan, **fields: Any) -> Plan:
    region = gears_of(plan)
    assert region is not None
    return replace(plan, regions=(replace(region, **fields),))


def _nested(plan: Plan) -> Plan:
    """The gears in a branch, where who looks at one gear would not see them."""
    region, [port] = gears_of(plan), plan.inputs
    assert region is not None
    return replace(plan, regions=(If(Operand(port.value, Access.READ, port.buffer, port.type), (region,), ()),))


LAWLESS: Mapping[str, Callable[[Plan], Plan]] = {
    "nested": _nested,
    "beside": lambda p: replace(p, regions=(*p.regions, Static(()))),
    "twice": lambda p: replace(p, regions=p.regions * 2),
    "none": lambda p: _gears(p, gears=(), bodies=()),
    "a size of 0": lambda p: _gears(p, gears=((0,), (4,))),
    "equal": lambda p: _gears(p, gears=((4,), (4,))),
    "an unknown symbol": lambda p: _gears(p, symbols=("zzz",)),
    "a symbol twice": lambda p: replace(_gears(p, symbols=("N", "N"), gears=((1, 1), (4, 4)))),
    "a symbol of the run time": lambda p: replace(p, symbols={"N": Range(runtime=True)}),
    "a hint beside the gears": lambda p: replace(p, hint={"N": 3}),
    "a hint with more": lambda p: replace(p, hint={**(p.hint or {}), "zzz": 4}),
    "no hint": lambda p: replace(p, hint=None),
}


@pytest.mark.parametrize("change", LAWLESS.values(), ids=LAWLESS)
def test_what_breaks_the_law_of_gears_is_no_file_and_no_proof(change: Callable[[Plan], Plan]) -> None:
    data = om_bytes(batches())
    plan = load(data).plan
    assert not list(wrong_gears(plan))
    with pytest.raises(AtcError, match="E30010"):
        load(forged(data, change))
    binding = bind(plan, plan.hint)
    with pytest.raises(AtcError) as raised:
        verify(change(plan), binding.offsets, binding.sizes, binding.env)
    assert "E31012" in {p.code for p in raised.value.problems}


def test_a_hint_of_symbols_that_a_plan_lacks_is_refused() -> None:
    data = om_bytes(compile_model(path_of("small_cnn")))
    with pytest.raises(AtcError, match="E30010"):
        load(forged(data, lambda p: replace(p, hint={**p.hint, "zzz": 4})))


def unproved(path: Path) -> set[str]:
    """The codes of what `atc verify` says of a file."""
    return {p["code"] for p in valid(atc("verify", path, "--json").stdout, "verify")["problems"]}


@pytest.mark.parametrize("text", ["7,8", "abc", "1" * 5000, ";,;", "1,4,5", None])
def test_options_that_list_other_gears_are_found(tmp_path: Path, text: str | None) -> None:
    def change(plan: Plan) -> Plan:
        others = {k: v for k, v in plan.options.items() if k != "dynamic_batch_size"}
        return replace(plan, options=others if text is None else {**others, "dynamic_batch_size": text})

    (tmp_path / "m.om").write_bytes(forged(om_bytes(batches()), change))
    assert unproved(tmp_path / "m.om") == {"E30027"}


def _other_inout(parts: dict[int, bytes]) -> None:
    told = parse_inout(memoryview(parts[Partition.MODEL_INOUT_INFO]))
    parts[Partition.MODEL_INOUT_INFO] = pack_inout(replace(told, dynamic_batch=(7, 8)))


def _other_case(change: Callable[[Any], None]) -> Callable[[dict[int, bytes]], None]:
    def changed(parts: dict[int, bytes]) -> None:
        drawn = ModelDef.FromString(parts[Partition.MODEL_DEF])
        change(next(op for op in drawn.graph[0].op if op.type == "Case"))
        parts[Partition.MODEL_DEF] = drawn.SerializeToString()

    return changed


OTHERS: Mapping[str, Callable[[dict[int, bytes]], None]] = {
    "ports": _other_inout,
    "a value": _other_case(lambda op: op.attr["_pred_value_1"].list.i.__setitem__(0, 7)),
    "a value more": _other_case(lambda op: op.attr["_pred_value_2"].list.i.append(7)),
    "a count": _other_case(lambda op: setattr(op.attr["_batch_num"], "i", 3)),
    "an offset": _other_case(lambda op: op.input_i.__setitem__(0, 512)),
    "another node": _other_case(lambda op: setattr(op, "id", 99)),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_others_read_of_the_gears_is_compared(tmp_path: Path, change: Callable[[dict[int, bytes]], None]) -> None:
    parts, header = parts_of(om_bytes(batches()))
    change(parts)
    (tmp_path / "m.om").write_bytes(joined(parts, header))
    assert unproved(tmp_path / "m.om") == {"E30027"}


def test_lists_are_in_the_order_of_the_inputs() -> None:
    om = compile_model(NET, Options(input_shapes=dict(reversed(FREE.items())), dynamic_dims=((1, 4), (1, 2))))
    plan = om.plan
    assert gear_list(plan) == ("dynamic_dims", ((4, 1), (2, 1))) and plan.options["dynamic_dims"] == "4,1;2,1"
    part = load(om_bytes(om)).om[Partition.MODEL_INOUT_INFO]
    told = parse_inout(part.data, part.offset)
    assert told.dynamic_dims == ((4, 1), (2, 1)) and told.designate_shape_order == ("a", "b")


# -- what is given ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [(np.int64(1), 2), np.array([1, 2]), [1, 2], range(1, 3)], ids=str)
def test_whatever_counts_is_a_size(batches: Any) -> None:
    om = compile_model(path_of("small_cnn"), Options(dynamic_batch_size=batches))
    assert gear_values(om.plan) == [{"N": 1}, {"N": 2}]
    om = compile_model(path_of("small_cnn"), Options(input_shapes={"x": (batches[1], 3, 32, 32)}))
    [port] = om.plan.inputs
    assert isinstance(port.type, Tensor) and all(type(d) is int for d in port.type.dims)


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic_batch_size": given} for given in ((1.5, 2), "12", "1,2", (True, 2), 5, None, (1, 1 << 63))
    ] + [
        {"dynamic_image_size": [(1, 2), 3]}, {"dynamic_dims": [(1,), ("2",)]},
        {"dynamic_batch_size": (1, 2), "input_hint": {"N": 2}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_list_of_gears_is_told(options: Mapping[str, Any]) -> None:
    with pytest.raises(AtcError) as raised:
        compile_model(path_of("small_cnn"), Options(**options))
    assert all(p.code == "E10001" and p.place and p.cause and p.hint for p in raised.value.problems)


@pytest.mark.parametrize("shapes", [{"x": (1.0, 3, 32, 32)}, {"x": (True, 3, 32, 32)}, {"x": 5}, {"x": "1,3,32,32"},
                                    {"x": (1 << 70, 3, 32, 32)}, {"x": ("9" * 5000, 3, 32, 32)}, "x:1,3,32,32",
                                    {"x": ("--5", 3, 32, 32)}, {"x": ("1~" + "9" * 5000, 3, 32, 32)}])  # fmt: skip
def test_what_is_no_shape_is_told(shapes: Any) -> None:
    with pytest.raises(AtcError, match="E10002"):
        compile_model(path_of("small_cnn"), Options(input_shapes=shapes))


@pytest.mark.parametrize("level", ["O2", 1.0, True, None])
def test_a_level_is_an_integer(level: Any) -> None:
    with pytest.raises(AtcError, match="is no integer"):
        compile_model(path_of("small_cnn"), Options(opt_level=level))


@pytest.mark.parametrize("option", ["batch-size=1;2", "batch-size=" + "9" * 5000 + ",1", "batch-size=", "dims= ",
                                    "image-size=", "dims=" + "9" * 20 + ";1"])  # fmt: skip
def test_what_is_no_list_on_the_command_line(tmp_path: Path, option: str) -> None:
    result = atc("convert", path_of("small_cnn"), "-o", tmp_path / "m", "--dynamic-" + option, "--json")
    assert codes(result) == ["E10001"] and len(result.stderr + result.stdout) < 1000


def test_a_hint_has_no_use_with_gears(tmp_path: Path) -> None:
    given = ("--dynamic-batch-size", "1,2", "--input-hint-shape", "x:2,3,32,32", "--json")
    assert codes(atc("convert", path_of("small_cnn"), "-o", tmp_path / "m", *given)) == ["E10001"]


def test_sizes_that_do_not_go_through_a_node_are_said_to_be_at_fault() -> None:
    fixed = {"input": (1, 3, -1, -1)}
    for gears, wrong in ((((64, 64), (72, 72)), 1), (((40, 40), (72, 72)), 2)):
        with pytest.raises(AtcError) as raised:
            compile_model(path_of("corpus/yolo_raw"), Options(input_shapes=fixed, dynamic_image_size=gears))
        assert len(raised.value.problems) == wrong
        assert all("sizes of this gear" in p.hint and "needs 2*((h" in p.hint for p in raised.value.problems)


def test_random_numbers_are_those_of_the_sizes_alone() -> None:
    nodes = [node("RandomUniformLike", ["x"], ["r"], seed=3.0), node("Add", ["x", "r"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, ["n", 2])}, ["y"])
    om = compile_model(proto, Options(dynamic_batch_size=(1, 2, 3)))
    for gear in (1, 2, 3):
        x = np.zeros((gear, 2), np.float32)
        single = compile_model(proto, Options(input_shapes={"x": (gear, 2)}))
        both = [Session(om_bytes(made)) for made in (om, single)]
        for _ in range(3):
            np.testing.assert_array_equal(*(session.run(None, {"x": x})[0] for session in both))


def test_the_memory_map_is_that_of_the_gear(case: tuple[Path, Om, bytes], tmp_path: Path) -> None:
    source, om, data = case
    found = []
    for name, content in (("g", data), ("s", om_bytes(alone(om, source, om.plan.hint or {})))):
        (tmp_path / name).write_bytes(content)
        facts = valid(atc("inspect", tmp_path / name, "--json", "--memory").stdout, "inspect")["memory_map"]
        arena = [b for b in facts["buffers"] if b["space"] == "arena"]
        found.append((facts["positions"], [{k: v for k, v in b.items() if k not in ("id", "values")} for b in arena]))
    assert found[0] == found[1]


def test_inspect_lists_the_gears(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(om_bytes(batches()))
    facts = valid(atc("inspect", path, "--json", "--memory", "--tasks", "--weights").stdout, "inspect")
    assert [list(g["symbols"].values()) for g in facts["gears"]] == [[1], [4]]
    assert all(g["predicted_latency_us"] > 0 for g in facts["gears"])
    assert "4,3,32,32" in atc("inspect", path).stdout
