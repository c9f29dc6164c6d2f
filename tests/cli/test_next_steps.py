"""Wrong names, shapes and options: each is refused, said once, and has a next step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

import atc_py
from atc_py.runtime import golden
from tests.cli.helpers import FLOAT, MODELS, atc, model, problems, save


def narrow(size: int, pads: int) -> ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], pads=[pads, 0], name="pool")
    return model([node], {"x": (FLOAT, [1, 1, size])}, ["y"])


@pytest.mark.parametrize(
    ("size", "pads", "fits"), [(1, 0, False), (1, 1, False), (2, 0, False), (2, 1, True), (3, 0, True)]
)
def test_a_window_wider_than_its_padded_input_is_refused(size: int, pads: int, fits: bool, tmp_path: Path) -> None:
    result = atc("convert", save(narrow(size, pads), tmp_path / "m.onnx"), "-o", tmp_path / "m.om", "--json")
    if fits:
        assert result.exit_code == 0
        return
    (problem,) = problems(result)
    assert problem["code"] == "E16113" and f"padded size is {size + pads}" in problem["cause"]


def test_only_windows_that_one_element_is_too_little_for_are_required(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[3], pads=[1, 1], name="padded"),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[1], name="one"),
        helper.make_node("MaxPool", ["b"], ["y"], kernel_shape=[4], pads=[1, 1], name="wide"),
    ]
    path = save(model(nodes, {"x": (FLOAT, [1, 1, "h"])}, ["y"]), tmp_path / "m.onnx")
    assert atc("convert", path, "-o", tmp_path / "m.om").exit_code == 0
    text = atc("inspect", tmp_path / "m.om").stdout
    assert "the window of 4 to fit into h + 2" in text and text.count("to fit into") == 1


def test_the_same_operator_of_onnx_is_the_nearest_of_another_domains(tmp_path: Path) -> None:
    node = helper.make_node("grid_sampler", ["x"], ["y"], domain="mmcv", name="sample")
    proto = model([node], {"x": (FLOAT, [1, 1, 4, 4])}, ["y"])
    proto.opset_import.append(helper.make_opsetid("mmcv", 1))
    (problem,) = problems(atc("convert", save(proto, tmp_path / "m.onnx"), "-o", tmp_path / "m.om", "--json"))
    assert "nearest supported: GridSample;" in problem["hint"]


def test_a_shape_given_twice_is_refused_by_run_as_by_convert(om: Path) -> None:
    for verb in (("run", om), ("convert", MODELS / "corpus/yolo_raw.onnx", "-o", om.with_name("none.om"))):
        (problem,) = problems(atc(*verb, "--input-shape", "input:1,3,32,32;input:1,3,64,64", "--json"))
        assert (problem["code"], problem["cause"]) == ("E10002", "its shape is given twice")


def test_verify_finds_what_record_wrote(om: Path, tmp_path: Path) -> None:
    assert atc("golden", "record", om, "-o", tmp_path / "g").exit_code == 0
    assert (tmp_path / "g.npz").exists() and golden.read(tmp_path / "g.npz").outputs
    assert atc("golden", "verify", om, tmp_path / "g").exit_code == 0


def test_similar_names_are_said_once(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["stem.bn"], name="stem.bn")
    path = save(model([node], {"x": (FLOAT, [4])}, ["stem.bn"]), tmp_path / "m.onnx")
    (problem,) = problems(atc("convert", path, "-o", tmp_path / "m.om", "--out-nodes", "stem.b:7", "--json"))
    assert problem["code"] == "E10016" and problem["hint"].count("stem.bn") == 1


def test_a_node_that_keeps_its_dtype_is_named_by_its_line(tmp_path: Path) -> None:
    keep = tmp_path / "keep.txt"
    keep.write_text("act\nakt\n")
    path = save(model([helper.make_node("Relu", ["x"], ["y"], name="act")], {"x": (FLOAT, [4])}, ["y"]), tmp_path / "m")
    args = ("--precision-mode", "mixed_float16", "--keep-dtype", keep, "--json")
    (problem,) = problems(atc("convert", path, "-o", tmp_path / "m.om", *args))
    assert problem["place"] == f"{keep}, line 2" and "'act'" in problem["hint"]


def test_levels_are_listed_as_they_are_written(tmp_path: Path) -> None:
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [4])}, ["y"]), tmp_path / "m.onnx")
    (problem,) = problems(atc("convert", path, "--opt-level", "O7", "--json"))
    assert "O0, O1, O2, O3" in problem["cause"]
    assert atc("convert", path, "-o", tmp_path / "m.om", "--opt-level", "o1").exit_code == 0


def test_a_number_outside_its_range_has_a_next_step(tmp_path: Path) -> None:
    text = (Path(atc_py.__file__).parent / "target/data/Ascend310P3.toml").read_text()
    (tmp_path / "t.toml").write_text(re.sub(r"(?m)^(cube|aicore) = .*$", rf"\1 = {10**9}", text))
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [4])}, ["y"]), tmp_path / "m.onnx")
    found = problems(atc("convert", path, "-o", tmp_path / "m.om", "--soc-version", tmp_path / "t.toml", "--json"))
    assert [p["code"] for p in found] == ["E20011"] and "range" in found[0]["hint"]


def test_a_few_of_the_nodes_that_do_not_fit_are_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("CumSum", [f"t{k}", "axis"], [f"t{k + 1}"], name=f"n{k}") for k in range(9)]
    proto = model(nodes, {"t0": (FLOAT, [99_999_999_999])}, ["t9"], {"axis": np.asarray(0)})
    found = problems(atc("convert", save(proto, tmp_path / "m.onnx"), "-o", tmp_path / "m.om", "--json"))
    assert [p["code"] for p in found] == ["E20040"] * 5
    assert found[-1]["cause"] == "n4 and 4 more do not fit either"


def test_verify_takes_sizes_that_the_model_allows(tmp_path: Path) -> None:
    for name in ("yolo_raw", "unet_convt"):
        om = tmp_path / f"{name}.om"
        assert atc("convert", MODELS / f"corpus/{name}.onnx", "-o", om).exit_code == 0
        result = atc("verify", om)
        assert result.exit_code == 0 and "at 2 sets of sizes" in result.stdout
