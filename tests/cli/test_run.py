from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from atc_py import Session
from tests.cli.helpers import FLOAT, INT64, MODELS, STRING, atc, codes, model, problems, save, valid

RNG = np.random.default_rng(7)


def image(batch: int = 1) -> np.ndarray:
    return RNG.standard_normal((batch, 3, 32, 32)).astype(np.float32)


def outputs(folder: Path) -> np.ndarray:
    found: np.ndarray = np.load(folder / "probabilities.npy")
    return found


def test_without_inputs_seeded_random_ones_are_drawn(om: Path) -> None:
    a, b, c = (valid(atc("run", om, "--seed", s, "--json").stdout, "run") for s in (1, 1, 2))
    assert a["outputs"] == b["outputs"] != c["outputs"]
    assert a["outputs"][0]["shape"] == [1, 10] and a["outputs"][0]["nan"] == 0


def test_text_shows_shapes_statistics_and_whose_time_it_is(om: Path) -> None:
    text = atc("run", om, "--loop", 3, "--warmup", 1).stdout
    for word in (
        "probabilities",
        "[1, 10]",
        "min",
        "mean",
        "simulation time",
        "median",
        "p90",
        "3 runs",
        "not of an NPU",
    ):
        assert word in text


@pytest.mark.parametrize("form", ["npy", "name=npy", "npz", "unnamed npz", "bin", "folder", "comma"])
def test_every_form_of_input_gives_the_same_result(form: str, om: Path, tmp_path: Path) -> None:
    x = image()
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "x.npy", x)
    np.savez(tmp_path / "named.npz", x=x)
    np.savez(tmp_path / "unnamed.npz", x)
    x.tofile(tmp_path / "any.bin")
    np.save(tmp_path / "other.npy", x)
    spec = {
        "npy": tmp_path / "other.npy",
        "name=npy": f"x={tmp_path / 'other.npy'}",
        "npz": tmp_path / "named.npz",
        "unnamed npz": tmp_path / "unnamed.npz",
        "bin": tmp_path / "any.bin",
        "folder": folder,
        "comma": f"{tmp_path / 'other.npy'},",
    }[form]
    result = atc("run", om, "--input", spec, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    [want] = Session(str(om)).run(None, {"x": x})
    np.testing.assert_array_equal(outputs(tmp_path / "out"), want)


def test_symbolic_sizes_come_from_input_shape_or_the_files(template: Path, tmp_path: Path) -> None:
    shape = valid(atc("run", template, "--input-shape", "x:3,3,32,32", "--json").stdout, "run")["outputs"][0]["shape"]
    assert shape == [3, 10]
    image(2).tofile(tmp_path / "x.bin")
    wrong = problems(atc("run", template, "--input", tmp_path / "x.bin", "--json"))
    assert wrong[0]["code"] == "E30014" and str(3 * 32 * 32 * 4) in wrong[0]["cause"]
    right = atc("run", template, "--input", tmp_path / "x.bin", "--input_shape=x:2,3,32,32", "--json")
    assert valid(right.stdout, "run")["outputs"][0]["shape"] == [2, 10]


@pytest.mark.parametrize("form", ["NPY", "BIN", "TXT", "NPZ"])
def test_every_form_of_output_holds_the_result(form: str, om: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", image())
    result = atc("run", om, "--input", tmp_path / "x.npy", "--output", tmp_path / "out", "--outfmt", form, "--json")
    [file] = valid(result.stdout, "run")["files"]
    [want] = Session(str(om)).run(None, {"x": np.load(tmp_path / "x.npy")})
    readers: dict[str, Callable[[], Any]] = {
        "NPY": lambda: np.load(file),
        "BIN": lambda: np.fromfile(file, np.float32).reshape(1, 10),
        "TXT": lambda: np.loadtxt(file, dtype=np.float32).reshape(1, 10),
        "NPZ": lambda: np.load(file)["probabilities"],
    }
    np.testing.assert_array_equal(readers[form](), want)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [Path(file).name]


def test_archives_take_every_name(tmp_path: Path) -> None:
    names = ["file", "allow_pickle", "a/b", "x[0]"]
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in names]
    path = save(model(nodes, {"x": (FLOAT, [2])}, names), tmp_path / "m.onnx")
    assert atc("convert", path, "-o", tmp_path / "m.om").exit_code == 0
    assert atc("run", tmp_path / "m.om", "--output", tmp_path, "--outfmt", "NPZ").exit_code == 0
    with np.load(tmp_path / "outputs.npz") as found:
        assert found.files == names and all(found[n].shape == (2,) for n in names)
    assert atc("golden", "record", tmp_path / "m.om", "-o", tmp_path / "g.npz").exit_code == 0
    assert atc("golden", "verify", tmp_path / "m.om", tmp_path / "g.npz").exit_code == 0


def test_recompiling_for_the_same_target_is_bit_equal(om: Path, tmp_path: Path) -> None:
    for name, extra in {"a": [], "b": ["--recompile"]}.items():
        assert atc("run", om, "--output", tmp_path / name, *extra).exit_code == 0
    np.testing.assert_array_equal(outputs(tmp_path / "a"), outputs(tmp_path / "b"))


def test_another_target_needs_recompile(om: Path) -> None:
    assert codes(atc("run", om, "--soc-version", "Ascend910B1", "--json")) == ["E10001"]


def test_strings_and_names_that_are_no_file_names(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["t"], ["../a/b"]), helper.make_node("Neg", ["v"], ["a\\b"])]
    inputs = {"t": (STRING, [2]), "v": (FLOAT, [2])}
    path = save(model(nodes, inputs, ["../a/b", "a\\b"]), tmp_path / "m.onnx")
    assert atc("convert", path, "-o", tmp_path / "m.om").exit_code == 0
    result = atc("run", tmp_path / "m.om", "--output", tmp_path / "out", "--json")
    files = valid(result.stdout, "run")["files"]
    assert len(set(files)) == 2 and {Path(f).parent for f in files} == {tmp_path / "out"}
    assert codes(atc("run", tmp_path / "m.om", "--output", tmp_path / "o", "--outfmt", "BIN", "--json")) == ["E30013"]


def _npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "dtype": (lambda d: _npy(d / "x.npy", np.zeros((1, 3, 32, 32))), "E30008"),
    "shape": (lambda d: _npy(d / "x.npy", np.zeros((1, 3, 16, 32), np.float32)), "E30001"),
    "rank": (lambda d: _npy(d / "x.npy", np.zeros((3, 32, 32), np.float32)), "E30001"),
    "pickle": (lambda d: _npy(d / "x.npy", np.array([{}], object)), "E30013"),
    "absent": (lambda d: d / "none.npy", "E13000"),
    "name": (lambda d: f"image={_npy(d / 'y.npy', np.zeros(1))}", "E30005"),
    "suffix": (lambda d: _npy_as(d / "x.jpg"), "E30013"),
    "no array": (lambda d: _bytes(d / "x.npy", b"\x93NUMPY\x01\x00\xff"), "E30013"),
    "broken archive": (lambda d: _bytes(d / "x.npz", b"PK\x03\x04 nothing"), "E30013"),
    "bin size": (lambda d: _bytes(d / "x.bin", bytes(12)), "E30014"),
    "two files": (lambda d: f"{_npy(d / 'a.npy', np.zeros(1))},{_npy(d / 'b.npy', np.zeros(1))}", "E30015"),
    "empty folder": (lambda d: _folder(d / "in"), "E30013"),
}


def _npy_as(path: Path) -> Path:
    return _bytes(path, b"jpeg")


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs_are_said_with_what_was_expected(case: str, om: Path, tmp_path: Path) -> None:
    make, code = BAD[case]
    out = tmp_path / "out"
    result = atc("run", om, "--input", make(tmp_path), "--output", out, "--json")
    assert codes(result) == [code]
    assert result.exit_code == 1 and not out.exists()


def test_wrong_shapes_say_both(om: Path, tmp_path: Path) -> None:
    path = _npy(tmp_path / "x.npy", np.zeros((1, 3, 16, 32), np.float32))
    [problem] = problems(atc("run", om, "--input", path, "--json"))
    assert "16" in problem["cause"] and "32" in problem["cause"] and "'x'" in problem["place"]


def test_contradicting_or_unknown_input_shapes(om: Path) -> None:
    assert codes(atc("run", om, "--input-shape", "x:2,3,32,32", "--json")) == ["E30001"]
    assert codes(atc("run", om, "--input-shape", "y:2", "--json")) == ["E30005"]
    assert codes(atc("run", om, "--input-shape", "x:a", "--json")) == ["E10002"]


def test_a_failure_on_drawn_inputs_says_that_they_were_drawn(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="product")
    proto = model([node], {"a": (FLOAT, ["N", "K"]), "b": (FLOAT, ["J", "M"])}, ["y"])
    save(proto, tmp_path / "m.onnx")
    assert atc("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.om").exit_code == 0
    wrong = atc("run", tmp_path / "m.om", "--input-shape", "a:2,3;b:4,5", "--json")
    [problem] = problems(wrong)
    assert "drawn" in problem["hint"] and "a: [2, 3]" in problem["hint"] and "a:N,K;b:J,M" in problem["hint"]
    np.savez(tmp_path / "in.npz", a=np.ones((2, 3), np.float32), b=np.ones((4, 5), np.float32))
    [problem] = problems(atc("run", tmp_path / "m.om", "--input", tmp_path / "in.npz", "--json"))
    assert "drawn" not in problem["hint"]


def test_an_onnx_model_in_the_place_of_an_om_is_to_be_converted() -> None:
    for verb in ("run", "verify"):
        [problem] = problems(atc(verb, MODELS / "small_cnn.onnx", "--json"))
        assert problem["code"] == "E30020" and "atc convert" in problem["hint"]


def test_a_file_and_an_input_shape_that_contradict_are_told(template: Path, tmp_path: Path) -> None:
    path = _npy(tmp_path / "x.npy", np.zeros((4, 3, 32, 32), np.float32))
    assert codes(atc("run", template, "--input", path, "--input-shape", "x:1,3,32,32", "--json")) == ["E30001"]
    assert atc("run", template, "--input", path, "--input-shape", "x:4,3,32,32").exit_code == 0


@pytest.mark.parametrize("through", [None, "Cast"])
def test_drawn_indices_stay_inside_of_the_table(through: str | None, tmp_path: Path) -> None:
    """Integers are 0 to 3 where nothing says more; here the table has two rows."""
    nodes = [helper.make_node("Cast", ["ids"], ["wide"], to=INT64)] if through else []
    nodes.append(helper.make_node("Gather", ["table", "wide" if through else "ids"], ["y"]))
    ids = {"ids": (TensorProto.INT32 if through else INT64, [64])}
    proto = model(nodes, ids, ["y"], {"table": np.zeros((2, 3), np.float32)})
    path = save(proto, tmp_path / "m.onnx")
    assert atc("convert", path, "-o", tmp_path / "m.om").exit_code == 0
    result = atc("run", tmp_path / "m.om", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
