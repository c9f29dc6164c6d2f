"""`--precision-mode`, `--modify-mixlist` and `--keep-dtype` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from atc_py.cli.atc_options import PRECISION_MODES
from tests.cli.helpers import MODELS, atc, codes, model, problems, valid

TRANSFORMER = MODELS / "small_transformer.onnx"


def converted(folder: Path, *args: object) -> dict[str, Any]:
    result = atc("convert", TRANSFORMER, "-o", folder / "a.om", *args, "--json")
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = valid(result.stdout, "convert")
    return figures


def test_origin_is_the_default_and_lowers_nothing(tmp_path: Path) -> None:
    figures = converted(tmp_path)
    assert figures["precision_mode"] == "origin"
    precision = figures["precision"]
    assert set(precision["dtypes"]) <= {"float32", "emulated"} and precision["casts"] == 0
    assert precision["lists"] is None


@pytest.mark.parametrize("old", list(PRECISION_MODES))
def test_atcs_older_names(old: str, tmp_path: Path) -> None:
    assert converted(tmp_path, f"--precision_mode={old}")["precision_mode"] == PRECISION_MODES[old]


def test_the_second_spelling(tmp_path: Path) -> None:
    assert converted(tmp_path, "--precision_mode_v2=mixed_bfloat16")["precision_mode"] == "mixed_bfloat16"


def test_the_figures_count_every_node_once(tmp_path: Path) -> None:
    figures = converted(tmp_path, "--precision-mode", "mixed_float16")
    precision = figures["precision"]
    assert precision["operators"]["MatMul"] == {"float16": 6} and precision["casts"] == 4
    assert precision["operators"]["LayerNormalization"] == {"float32": 2}
    by_operator: dict[str, int] = {}
    for found in precision["operators"].values():
        for dtype, count in found.items():
            by_operator[dtype] = by_operator.get(dtype, 0) + count
    assert by_operator == precision["dtypes"]


def test_the_summary_says_what_computes_in_what(tmp_path: Path) -> None:
    said = atc("convert", TRANSFORMER, "-o", tmp_path / "a.om", "--precision-mode", "fp16").stdout
    assert "computes in" in said and "2 Casts put in" in said and "operator" not in said
    said = atc("convert", TRANSFORMER, "-o", tmp_path / "a.om", "--precision-mode", "fp16", "--verbose").stdout
    rows = [line.split() for line in said.splitlines()]
    assert ["operator", "float16"] in rows and ["MatMul", "6"] in rows


def test_lists_are_applied_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text(json.dumps({"black-list": {"to-add": ["Gelu"]}}))
    (tmp_path / "keep.cfg").write_text("q.matmul\nOpType::Add\n")
    files = ("--modify_mixlist", tmp_path / "mix.json", "--keep_dtype", tmp_path / "keep.cfg")
    figures = converted(tmp_path, "--precision-mode=mixed_float16", *files)
    operators = figures["precision"]["operators"]
    assert "float32" in operators["Gelu"] and operators["Add"] == {"float32": 8}
    assert sum(count for dtype, count in operators["MatMul"].items() if dtype != "float16") == 1
    inspected = valid(atc("inspect", tmp_path / "a.om", "--json").stdout, "inspect")
    lists = {"kinds": {"Gelu": "black"}, "keep_nodes": ["q.matmul"], "keep_types": ["Add"]}
    assert inspected["precision"] == figures["precision"] and inspected["precision"]["lists"] == lists
    assert inspected["precision_mode"] == "mixed_float16"
    again = atc("run", tmp_path / "a.om", "--recompile", "--json")
    other = atc("run", tmp_path / "a.om", "--recompile", "--precision-mode", "force_fp16", "--json")
    assert again.exit_code == other.exit_code == 0
    assert again.stdout != other.stdout


def test_what_is_wrong_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text(json.dumps({"black-list": {"to-add": ["Gleu"]}, "wihte-list": {}}))
    (tmp_path / "keep.cfg").write_text("OpType::Sofmax\n")
    files = ("--modify-mixlist", tmp_path / "mix.json", "--keep-dtype", tmp_path / "keep.cfg")
    result = atc("convert", TRANSFORMER, "-o", tmp_path / "a.om", *files, "--precision-mode", "fp16", "--json")
    assert [p["code"] for p in problems(result)] == ["E20041", "E20041", "E20042"]
    (tmp_path / "keep.cfg").write_text("k.matmull\nnothing like it at all\n")
    keep = ("--keep-dtype", tmp_path / "keep.cfg")
    result = atc("convert", TRANSFORMER, "-o", tmp_path / "a.om", *keep, "--precision-mode", "fp16", "--json")
    found = problems(result)
    assert [p["code"] for p in found] == ["E20042"] * 2 and "k.matmul" in found[0]["hint"]
    (tmp_path / "mix.json").write_text("{}")
    assert not (tmp_path / "a.om").exists()


def test_lists_in_a_mode_that_has_none(tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text(json.dumps({"black-list": {"to-add": ["Gelu"]}}))
    (tmp_path / "keep.cfg").write_text("q.matmul\n")
    given = ("convert", TRANSFORMER, "-o", tmp_path / "a.om", "--json")
    assert codes(atc(*given, "--modify-mixlist", tmp_path / "mix.json", "--precision-mode", "fp16")) == ["E20003"]
    assert codes(atc(*given, "--keep-dtype", tmp_path / "keep.cfg")) == ["E20003"]


def test_overflow_of_weights_is_a_warning(tmp_path: Path) -> None:
    weights = np.ones((4, 4), np.float32)
    weights[1, 2] = 1e5
    proto = model(
        [helper.make_node("MatMul", ["x", "decoder.w"], ["y"], "decoder/MatMul")],
        {"x": (TensorProto.FLOAT, [2, 4])},
        ["y"],
        {"decoder.w": weights},
    )
    save(proto, tmp_path / "m.onnx")
    result = atc("convert", tmp_path / "m.onnx", "-o", tmp_path / "a.om", "--precision-mode", "fp16")
    assert result.exit_code == 0 and "W20041" in result.stdout and "decoder.w" in result.stdout
    assert "1 of 16 values become infinite" in " ".join(result.stdout.split())


def test_check_uses_the_tolerance_of_the_mode(tmp_path: Path) -> None:
    om = tmp_path / "a.om"
    assert atc("convert", TRANSFORMER, "-o", om, "--precision-mode", "mixed_bfloat16").exit_code == 0
    assert atc("check", TRANSFORMER, om).exit_code == 0
    assert atc("check", TRANSFORMER, om, "--rtol", "1e-3", "--atol", "1e-4").exit_code == 1
