from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.helpers import FLOAT, MODELS, ROOT, atc, codes, model, problems, save, valid

CNN = MODELS / "small_cnn.onnx"


def test_text_names_stages_figures_and_the_file(tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", tmp_path / "a.om")
    assert result.exit_code == 0, result.output
    for word in (
        "read",
        "optimize",
        "lower",
        "schedule",
        "verify",
        "nodes",
        "tensors",
        "tasks",
        "arena",
        "AI Core",
        "a.om",
    ):
        assert word in result.stdout
    assert (tmp_path / "a.om").stat().st_size > 1000


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
def test_json_is_one_object_of_the_schema(name: str, tmp_path: Path) -> None:
    result = atc("convert", MODELS / f"{name}.onnx", "-o", tmp_path / "a.om", "--json")
    assert result.exit_code == 0, result.output
    figures = valid(result.stdout, "convert")
    assert figures["tasks"] == sum(figures["engines"].values())
    assert figures["file"]["bytes"] == (tmp_path / "a.om").stat().st_size
    assert figures["memory"]["arena"] >= figures["memory"]["lower_bound"]
    assert "optimize" in result.stderr


def test_missing_suffix_is_added_as_atc_adds_it(tmp_path: Path) -> None:
    assert atc("convert", CNN, "--output", tmp_path / "a").exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["a.om"]


def test_atc_command_line_and_both_spellings_write_the_same_bytes(tmp_path: Path) -> None:
    shape = "x:1,3,32,32"
    ours = ["convert", CNN, "-o", tmp_path / "a.om", "--input-shape", shape, "--soc-version", "Ascend310P3"]
    theirs = [f"--model={CNN}", "--framework=5", f"--output={tmp_path / 'b'}", f"--input_shape={shape}"]
    theirs += ["--soc_version", "Ascend310P3", "--input_format=NCHW", "--log=error", "--precision_mode=origin"]
    assert atc(*ours).exit_code == 0
    assert atc(*theirs).exit_code == 0
    assert (tmp_path / "a.om").read_bytes() == (tmp_path / "b.om").read_bytes()


def test_hint_shapes_become_values_of_symbols(tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", tmp_path / "a.om", "--input-hint-shape", "x:4,3,32,32", "--json")
    assert valid(result.stdout, "convert")["hint"] == {"N": 4}


def test_canonical_off_drops_the_graph(tmp_path: Path) -> None:
    for keep in ("on", "off"):
        assert atc("convert", CNN, "-o", tmp_path / f"{keep}.om", "--canonical", keep).exit_code == 0
    assert (tmp_path / "off.om").stat().st_size < (tmp_path / "on.om").stat().st_size
    assert codes(atc("inspect", tmp_path / "off.om", "--graph", "--json")) == ["E30012"]


def test_out_nodes_replace_the_outputs(tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", tmp_path / "a.om", "--out-nodes", "gap;fc:0", "--json")
    assert [o["name"] for o in valid(result.stdout, "convert")["outputs"]] == ["gap", "fc"]


def test_warnings_are_shown(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="keep"), helper.make_node("Neg", ["x"], ["z"], name="dead")]
    path = save(model(nodes, {"x": (FLOAT, [2])}, ["y"]), tmp_path / "m.onnx")
    result = atc("convert", path, "-o", tmp_path / "a.om")
    assert result.exit_code == 0 and "W16203" in result.stdout
    assert valid(atc("convert", path, "-o", tmp_path / "a.om", "--json").stdout, "convert")["warnings"]


def _not_onnx(folder: Path) -> list[object]:
    (folder / "m.onnx").write_text("<html>not found</html>")
    return [folder / "m.onnx"]


def _empty(folder: Path) -> list[object]:
    (folder / "m.onnx").write_bytes(b"")
    return [folder / "m.onnx"]


def _truncated(folder: Path) -> list[object]:
    (folder / "m.onnx").write_bytes(CNN.read_bytes()[:9000])
    return [folder / "m.onnx"]


def _external(folder: Path, location: str) -> list[object]:
    proto = onnx.load(CNN)
    tensor = next(t for t in proto.graph.initializer if t.name == "fc.weight")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return [save(proto, folder / "m.onnx")]


def _unknown_ops(folder: Path) -> list[object]:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], name="first", domain="my.own"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Bar", ["b"], ["y"], name="second", domain="my.own"),
    ]
    return [save(model(nodes, {"x": (FLOAT, [2])}, ["y"]), folder / "m.onnx")]


BAD: dict[str, tuple[Callable[[Path], list[object]], str]] = {
    "absent": (lambda d: [d / "m.onnx"], "E13000"),
    "folder": (lambda d: [d], "E13000"),
    "not onnx": (_not_onnx, "E16101"),
    "empty": (_empty, "E16101"),
    "truncated": (_truncated, "E16102"),
    "external data missing": (lambda d: _external(d, "weights.bin"), "E16106"),
    "external data outside": (lambda d: _external(d, "../weights.bin"), "E16107"),
    "unknown operators": (_unknown_ops, "E16002"),
    "input name": (lambda d: [CNN, "--input-shape", "image:1,3,32,32"], "E10002"),
    "input rank": (lambda d: [CNN, "--input-shape", "x:1,32,32"], "E10049"),
    "input shape contradicts": (lambda d: [CNN, "--input-shape", "x:1,4,32,32"], "E10002"),
    "input shape is no shape": (lambda d: [CNN, "--input-shape", "1,3,32,32"], "E10002"),
    "hint name": (lambda d: [CNN, "--input-hint-shape", "image:1,3,32,32"], "E10002"),
    "hint shape": (lambda d: [CNN, "--input-hint-shape", "x:1,4,32,32"], "E30001"),
    "out nodes": (lambda d: [CNN, "--out-nodes", "gapp"], "E10016"),
    "target": (lambda d: [CNN, "--soc-version", "Ascend999"], "E20010"),
    "precision": (lambda d: [CNN, "--precision-mode", "best"], "E20003"),
    "pass": (lambda d: [CNN, "--disable-pass", "nothing"], "E20002"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_an_error_block_and_leaves_no_file(case: str, tmp_path: Path) -> None:
    make, code = BAD[case]
    out = tmp_path / "out"
    out.mkdir()
    args = ["convert", *make(tmp_path), "-o", out / "a.om"]
    result = atc(*args, "--json")
    assert codes(result) == [code]
    assert result.exit_code == 1
    text = atc(*args)
    assert text.exit_code == 1
    assert code in text.stderr and "cause" in text.stderr and "Traceback" not in text.output
    assert list(out.iterdir()) == []


def test_all_unknown_operators_are_named_at_once(tmp_path: Path) -> None:
    found = str(problems(atc("convert", *_unknown_ops(tmp_path), "-o", tmp_path / "a.om", "--json")))
    assert "Foo" in found and "Bar" in found and "first" in found and "second" in found


def test_a_failed_conversion_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.om"
    assert atc("convert", CNN, "-o", target).exit_code == 0
    before = target.read_bytes()
    assert atc("convert", *_unknown_ops(tmp_path), "-o", target).exit_code == 1
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([CNN], "E10054"),
        (["-o", "a.om"], "E10054"),
        ([CNN, "-o", "a.om", "--framework", "3"], "E10001"),
        ([CNN, "-o", "a.om", "--frame-work", "5"], "E10001"),
        ([CNN, "-o", "a.om", "--opt-level", "O9"], "E10001"),
        ([CNN, "-o", "a.om", "--model", CNN], "E10001"),
    ],
)
def test_wrong_command_lines_exit_with_2(args: list[object], code: str) -> None:
    result = atc("convert", *args, "--json")
    assert codes(result) == [code]
    assert result.exit_code == 2


def test_frameworks_other_than_onnx_are_refused_by_name() -> None:
    result = atc("convert", CNN, "-o", "a.om", "--framework=3")
    assert result.exit_code == 2 and "ONNX" in result.stderr


def test_near_names_are_suggested() -> None:
    assert "--soc-version" in atc("convert", CNN, "-o", "a.om", "--soc-versio", "x").stderr
    assert "convert" in atc("comvert").stderr


@pytest.mark.parametrize("target", ["missing/a.om", "."])
def test_an_unwritable_output_is_said_before_any_work(target: str, tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", f"{tmp_path}/{target}", "--json")
    if target == ".":
        result = atc("convert", CNN, "-o", _folder(tmp_path / "b.om"), "--json")
    assert codes(result) == ["E13001"]
    assert "optimize" not in result.stderr


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_what_nobody_foresaw_is_one_block_and_exit_code_70(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from atc_py import compiler

    def fail(*args: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(compiler, "compile_model", fail)
    result = atc("convert", CNN, "-o", tmp_path / "a.om")
    assert result.exit_code == 70
    assert "E19999" in result.stderr and "by design" in result.stderr and "--debug" in result.stderr
    assert "Traceback" not in result.output
    assert "Traceback" in atc("convert", CNN, "-o", tmp_path / "a.om", "--debug").stderr
    as_json = atc("convert", CNN, "-o", tmp_path / "a.om", "--json")
    assert valid(as_json.stdout, "error")["error"]["problems"][0]["code"] == "E19999"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from atc_py import compiler

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "compile_model", stop)
    result = atc("convert", CNN, "-o", tmp_path / "a.om")
    assert result.exit_code == 130 and list(tmp_path.iterdir()) == []


def test_no_half_file_when_writing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert codes(atc("convert", CNN, "-o", tmp_path / "a.om", "--json")) == ["E13001"]
    assert list(tmp_path.iterdir()) == []


def test_help_imports_no_verb_and_the_light_verbs_neither_onnx_nor_the_compiler(om: Path, tmp_path: Path) -> None:
    heavy = "onnx onnxruntime atc_py.frontend atc_py.passes atc_py.schedule atc_py.compiler"
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 32, 32), np.float32))
    calls = [
        ["--help"],
        ["run", str(om), "--input", str(tmp_path / "x.npy")],
        ["inspect", str(om), "--tasks", "--memory"],
    ]
    calls += [["verify", str(om)], ["golden", "record", str(om), "-o", str(tmp_path / "g.npz")]]
    for call in calls:
        code = (
            "import sys\nfrom atc_py.cli import main\n"
            f"sys.argv = ['atc', *{call!r}]\n"
            "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
            f"found = [m for m in {heavy!r}.split() if m in sys.modules]\nassert not found, found\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (call, done.stdout, done.stderr)


@pytest.mark.parametrize("output", [".", "..", "made/"])
def test_a_folder_is_no_output(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    assert codes(atc("convert", CNN, "-o", output, "--json")) == ["E13001"]
    assert [p.name for p in tmp_path.rglob("*")] == ["made"]


def test_a_file_may_stand_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    assert atc("convert", CNN, "-o", tmp_path / "net").exit_code == 0
    assert (tmp_path / "net.om").is_file()


@pytest.mark.parametrize(
    ("option", "instead"),
    [("--input_shape_range=x:[1~2]", "--input-shape"), ("--insert_op_conf=a.cfg", "AIPP"), ("--mode=1", "inspect")],
)
def test_options_of_atc_that_are_not_here_are_answered(option: str, instead: str, tmp_path: Path) -> None:
    result = atc(f"--model={CNN}", f"--output={tmp_path / 'a'}", option, "--json")
    [problem] = problems(result)
    assert result.exit_code == 2 and option.partition("=")[0] in problem["cause"] and instead in problem["hint"]


def test_the_log_tells_what_each_pass_did_and_left_alone(tmp_path: Path) -> None:
    quiet = atc("convert", CNN, "-o", tmp_path / "a.om", "--json")
    assert "fold_affine" not in quiet.stderr
    told = atc("convert", CNN, "-o", tmp_path / "a.om", "--json", "--log", "info")
    assert "fold_affine" in told.stderr and "left alone" not in told.stderr
    path = MODELS / "corpus/mobilenetv3.onnx"  # its squeeze-and-excite blocks keep some chains apart
    told = atc("convert", path, "-o", tmp_path / "a.om", "--json", "--log", "debug")
    assert "left alone because" in told.stderr and "HardSwish '" in told.stderr and "is not fused" in told.stderr
    valid(told.stdout, "convert")


def test_ranges_and_requirements_are_told_by_conversion_and_file(tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", tmp_path / "a.om", "--input-shape", "x:1~16,3,32,32", "--json")
    assert valid(result.stdout, "convert")["symbols"] == {"N": {"low": 1, "high": 16}}
    assert "N in 1–16" in atc("inspect", tmp_path / "a.om").stdout
    weight = np.ones((2, 2, 7), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    path = save(model([node], {"x": (FLOAT, [1, 2, "L"])}, ["y"], {"w": weight}), tmp_path / "m.onnx")
    figures = valid(atc("convert", path, "-o", tmp_path / "b.om", "--json").stdout, "convert")
    assert figures["requirements"] == ["the window of 7 to fit into L"] and figures["hint"]["L"] >= 7
    assert "the window of 7 to fit into L" in atc("inspect", tmp_path / "b.om").stdout


@pytest.mark.parametrize(
    ("start", "what"),
    [(b"<!DOCTYPE html>", "web page"), (b"version https://git-lfs.github.com/spec/v1", "LFS"), (b"PK\x03\x04", "ZIP")],
)
def test_what_lies_in_the_place_of_a_model_is_told(start: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(start + bytes(100))
    [problem] = problems(atc("convert", tmp_path / "m.onnx", "-o", tmp_path / "a.om", "--json"))
    assert problem["code"] == "E16101" and what in problem["cause"]


def test_the_precision_mode_that_keeps_dtypes_has_atcs_name_too(tmp_path: Path) -> None:
    result = atc("convert", CNN, "-o", tmp_path / "a.om", "--precision_mode=must_keep_origin_dtype", "--json")
    assert valid(result.stdout, "convert")["precision_mode"] == "origin"
