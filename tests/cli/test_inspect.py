from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from atc_py.ops.base import REGISTRY
from atc_py.ops.index import INDEX
from atc_py.report.numbers import seconds
from tests.cli.helpers import FLOAT, MODELS, atc, codes, model, save, valid

K = {"k": np.array([2])}
FLAGS = ["--graph", "--memory", "--tasks", "--weights"]


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
def test_json_has_the_figures_of_convert_and_fits_the_schema(name: str, convert: Callable[..., Path]) -> None:
    path = convert(name)
    facts = valid(atc("inspect", path, "--json").stdout, "inspect")
    again = path.with_name("again.om")
    figures = valid(atc("convert", MODELS / f"{name}.onnx", "-o", again, "--json").stdout, "convert")
    again.unlink()
    shared = {k: v for k, v in figures.items() if k not in ("file", "stages", "warnings")}
    assert {k: facts[k] for k in shared} == shared


def test_everything_at_once_fits_the_schema(om: Path, template: Path) -> None:
    for path in (om, template):
        facts = valid(atc("inspect", path, *FLAGS, "--json").stdout, "inspect")
        assert len(facts["task_list"]) == facts["tasks"]
        assert all(t["origin"] for t in facts["task_list"])
        assert sum(facts["op_histogram"].values()) == facts["tasks"]
        assert facts["graph"].startswith('graph "small_cnn"')
        assert {c["name"] for c in facts["constants"]} >= {"stem.weight", "fc.bias"}


@pytest.mark.parametrize("length", [6, "n"])
def test_workspaces_fit_the_schema(tmp_path: Path, length: int | str) -> None:
    made = model([helper.make_node("TopK", ["x", "k"], ["v", "i"])], {"x": (FLOAT, [4, length])}, ["v", "i"], K)
    path = tmp_path / "m.om"
    assert atc("convert", save(made, tmp_path / "m.onnx"), "-o", path).exit_code == 0
    facts = valid(atc("inspect", path, "--json", *FLAGS).stdout, "inspect")
    [workspace] = [t["workspace"] for t in facts["task_list"] if t["workspace"]]
    assert workspace["space"] == "arena" and workspace["bytes"] > 0


def test_the_memory_map_agrees_with_the_tasks(om: Path) -> None:
    facts = valid(atc("inspect", om, *FLAGS, "--json").stdout, "inspect")
    arena = [b for b in facts["memory_map"]["buffers"] if b["space"] == "arena"]
    assert (
        max(b["offset"] + b["bytes"] for b in arena)
        <= facts["memory_map"]["spaces"]["arena"]
        == facts["memory"]["arena"]
    )
    for position, task in enumerate(facts["task_list"]):
        for operand in [*task["inputs"], *task["outputs"]]:
            if operand is not None and operand["space"] == "arena":
                [home] = [
                    b
                    for b in arena
                    if b["first"] <= position <= b["last"]
                    and b["offset"] <= operand["address"] < b["offset"] + max(b["bytes"], 1)
                ]
                assert operand["address"] + operand["bytes"] <= home["offset"] + home["bytes"]


def test_text_of_each_part(om: Path) -> None:
    overview = atc("inspect", om).stdout
    for word in (
        "small_cnn",
        "Ascend310P3",
        "probabilities",
        "AI Core",
        "PLAN_TABLE",
        "Conv+Relu",
        "at the lower bound",
    ):
        assert word in overview
    told = json.loads(atc("inspect", om, "--json").stdout)["predicted_latency_us"]
    line = next(line for line in overview.splitlines() if line.strip().startswith("predicted time"))
    assert line.split(None, 2)[2] == (
        f"{seconds(told['before'] / 1e6)} node by node → {seconds(told['after'] / 1e6)} as planned"
    )
    assert "arena" in atc("inspect", om, "--memory").stdout and "│" in atc("inspect", om, "--memory").stdout
    assert "stem.conv" in atc("inspect", om, "--tasks").stdout
    assert "fc.weight" in atc("inspect", om, "--weights").stdout
    assert atc("inspect", om, "--graph").stdout.startswith("graph ")


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
def test_onnx_files_too(name: str) -> None:
    facts = valid(atc("inspect", MODELS / f"{name}.onnx", "--json").stdout, "inspect")
    assert facts["supported"] and facts["inputs"] and facts["outputs"] and facts["op_histogram"]
    assert name in atc("inspect", MODELS / f"{name}.onnx").stdout


def test_unsupported_operators_of_an_onnx_file_are_listed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Foo", ["x"], ["y"], name="foo", domain="my.own")]
    path = save(model(nodes, {"x": (FLOAT, ["N", 2])}, ["y"]), tmp_path / "m.onnx")
    facts = valid(atc("inspect", path, "--json").stdout, "inspect")
    assert not facts["supported"] and "Foo" in facts["unsupported"][0]
    assert facts["inputs"][0] == {"name": "x", "dtype": "float32", "shape": ["N", 2]}
    assert "Foo" in atc("inspect", path).stdout


def test_tasks_that_need_onnx_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator without a declaration, as one of a later onnx would be, runs on onnx's reference implementation."""
    monkeypatch.delitem(INDEX, "ai.onnx.ml::Binarizer")
    monkeypatch.delitem(REGISTRY, "ai.onnx.ml::Binarizer", raising=False)
    node = helper.make_node("Binarizer", ["x"], ["y"], name="borrowed", domain="ai.onnx.ml")
    path = save(model([node], {"x": (FLOAT, [2, 2])}, ["y"]), tmp_path / "m.onnx")
    result = atc("convert", path, "-o", tmp_path / "m.om")
    assert result.exit_code == 0, result.output
    assert "needs onnx" in result.stdout and "borrowed" in result.stdout
    facts = valid(atc("inspect", tmp_path / "m.om", "--json").stdout, "inspect")
    assert [t["kernel"] for t in facts["needs_onnx"]] == ["ai.onnx.ml::Binarizer"] and facts["engines"]["aicpu"] == 1
    assert "needs onnx" in atc("inspect", tmp_path / "m.om").stdout
    assert atc("run", tmp_path / "m.om").exit_code == 0


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["\x1b[31mx"], ["y\x07[bold]"])
    path = save(model([node], {"\x1b[31mx": (FLOAT, [2])}, ["y\x07[bold]"]), tmp_path / "m.onnx")
    for args in (
        ["inspect", path],
        ["convert", path, "-o", tmp_path / "m.om"],
        ["inspect", tmp_path / "m.om", "--tasks"],
    ):
        result = atc(*args)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output and "\x07" not in result.output


def test_damaged_onnx_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    assert codes(atc("inspect", tmp_path / "m.onnx", "--json")) == ["E16101"]
    assert codes(atc("inspect", tmp_path / "none.onnx", "--json")) == ["E13000"]


def test_parts_that_a_file_does_not_have_are_refused(tmp_path: Path) -> None:
    from om_format import OmHeader, Partition, write_om
    from om_format.proto.ge_ir_pb2 import ModelDef

    onnx_file = MODELS / "small_cnn.onnx"
    for part in ("--tasks", "--memory", "--weights"):
        assert codes(atc("inspect", onnx_file, part, "--json")) == ["E10001"]
    other = tmp_path / "other.om"
    content = {Partition.MODEL_DEF: ModelDef(name="other").SerializeToString(), Partition.WEIGHTS_DATA: bytes(64)}
    write_om(other, OmHeader(name="other"), content, integrity=False)
    assert atc("inspect", other).exit_code == 0
    for part in ("--tasks", "--memory", "--weights", "--graph"):
        assert codes(atc("inspect", other, part, "--json")) == ["E30025"]


def test_the_graph_of_a_model_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["nowhere"], ["y"])
    path = save(model([node], {"x": (FLOAT, [2])}, ["y"]), tmp_path / "m.onnx")
    assert "E16109" in atc("inspect", path).stdout
    assert codes(atc("inspect", path, "--graph", "--json")) == ["E16109"]


def test_constant_nodes_count_as_weights(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.ones((3, 4), np.float32))
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    path = save(model(nodes, {"x": (FLOAT, [3, 4])}, ["y"]), tmp_path / "m.onnx")
    facts = valid(atc("inspect", path, "--json").stdout, "inspect")
    assert (facts["initializers"], facts["constants"], facts["weights"]) == (0, 1, 48)
    assert "1 tensor, 48 B" in atc("inspect", path).stdout
