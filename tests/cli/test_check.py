from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from atc_py.ops import get
from tests.cli.helpers import FLOAT, INT64, MODELS, atc, codes, model, save, valid

CNN = MODELS / "small_cnn.onnx"


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
@pytest.mark.parametrize("oracle", ["onnxruntime", "reference"])
def test_our_models_agree_with_both_oracles(name: str, oracle: str) -> None:
    result = atc("check", MODELS / f"{name}.onnx", "--oracle", oracle, "--json")
    assert result.exit_code == 0, result.output
    facts = valid(result.stdout, "check")
    assert facts["passed"] and facts["first_divergence"] is None
    assert all(o["mismatches"] == 0 and o["cosine"] > 0.9999 for o in facts["outputs"])


def test_either_order_of_files(om: Path) -> None:
    for files in ((CNN, om), (om, CNN)):
        result = atc("check", *files)
        assert result.exit_code == 0 and "agrees with onnxruntime" in result.stdout
    assert codes(atc("check", om, "--json")) == ["E10001"]
    assert codes(atc("check", CNN, CNN, "--json")) == ["E10001"]


def test_shapes_and_inputs_reach_both_sides(template: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3, 32, 32), np.float32))
    for extra in (["--input-shape", "x:2,3,32,32"], ["--input", tmp_path / "x.npy"]):
        for files in ((CNN,), (CNN, template)):
            facts = valid(atc("check", *files, *extra, "--json").stdout, "check")
            assert facts["passed"] and facts["outputs"][0]["shape"] == [2, 10]


def test_an_om_of_other_weights_differs_and_the_first_tensor_is_not_the_compilers_fault(tmp_path: Path) -> None:
    proto = onnx.load(CNN)
    weight = next(t for t in proto.graph.initializer if t.name == "fc.weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, "fc.weight"))
    other = save(proto, tmp_path / "other.onnx")
    assert atc("convert", other, "-o", tmp_path / "other.om", "--input-shape", "x:1,3,32,32").exit_code == 0
    result = atc("check", CNN, tmp_path / "other.om", "--json")
    assert result.exit_code == 1
    facts = valid(result.stdout, "check")
    [output] = facts["outputs"]
    assert not output["passed"] and output["worst"]["got"] != output["worst"]["want"]
    # Compiled from this model, every tensor agrees: the OM is of another one.
    assert facts["first_divergence"] is None
    assert "FAIL" in atc("check", CNN, tmp_path / "other.om").stdout


@pytest.fixture
def broken_neg(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the kernel of Neg wrong."""

    def breaks() -> None:
        op = get("Neg")
        assert op is not None
        monkeypatch.setattr(op, "kernel_fn", lambda call, x: np.negative(x) + np.float32(1))

    return breaks


def test_the_first_wrong_tensor_is_found(broken_neg: Callable[[], None], tmp_path: Path) -> None:
    chain = ["Relu", "Exp", "Neg", "Sin", "MatMul"]
    names = ["x", "a", "b", "c", "d", "y"]
    nodes = [
        helper.make_node(op, [names[i], *(["w"] if op == "MatMul" else [])], [names[i + 1]], name=f"n{i}")
        for i, op in enumerate(chain)
    ]
    proto = model(nodes, {"x": (FLOAT, [2, 4])}, ["y"], {"w": np.eye(4, dtype=np.float32)})
    path = save(proto, tmp_path / "m.onnx")
    assert atc("check", path).exit_code == 0
    broken_neg()
    result = atc("check", path, "--json")
    assert result.exit_code == 1
    first = valid(result.stdout, "check")["first_divergence"]
    assert (first["tensor"], first["node"], first["op_type"]) == ("c", "n2", "Neg")
    assert "'c'" in atc("check", path).stdout


def test_a_fault_of_fusion_is_found_where_it_shows_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["y"], name="pool"),
    ]
    weight = np.ones((2, 2, 3, 3), np.float32)
    path = save(model(nodes, {"x": (FLOAT, [1, 2, 8, 8])}, ["y"], {"w": weight}), tmp_path / "m.onnx")
    fused = get("Fused")
    assert fused is not None and fused.kernel_fn is not None
    right = fused.kernel_fn
    monkeypatch.setattr(fused, "kernel_fn", lambda call, *inputs: right(call, *inputs) + np.float32(1))
    first = valid(atc("check", path, "--json").stdout, "check")["first_divergence"]
    assert first["tensor"] == "b" and "fusion" in first["note"]


def test_integers_are_compared_exactly(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    proto = model(nodes, {"x": (INT64, [3])}, ["y"], {"k": np.array(2**40, np.int64)})
    facts = valid(atc("check", save(proto, tmp_path / "m.onnx"), "--json").stdout, "check")
    assert facts["passed"] and facts["outputs"][0]["dtype"] == "int64"


def test_an_oracle_that_cannot_run_the_model_is_said(tmp_path: Path) -> None:
    function = helper.make_function(
        "my.own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="my.own")], {"x": (FLOAT, [2])}, ["y"])
    proto.functions.append(function)
    proto.ir_version = onnx.IR_VERSION
    proto.opset_import[0].version = onnx.defs.onnx_opset_version()
    function.opset_import[0].version = onnx.defs.onnx_opset_version()
    path = save(proto, tmp_path / "m.onnx")
    result = atc("check", path, "--json")
    if result.exit_code:  # an onnxruntime that is older than onnx refuses the IR version
        assert codes(result) == ["E50001"]
    assert atc("check", path, "--oracle", "reference").exit_code == 0


def test_an_oracles_own_spread_is_tolerated_three_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from atc_py.cli.oracle import Oracle

    path = save(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [4])}, ["y"]), tmp_path / "m.onnx")
    right = Oracle.run
    error = {True: 0.0025, False: 0.0035}

    def wavering(self: Oracle, names: list[str], feeds: dict[str, np.ndarray], optimized: bool = True) -> list[object]:
        found = right(self, names, feeds, optimized)
        return [v + np.float32(error[optimized]) * np.abs(v).max() for v in found]

    monkeypatch.setattr(Oracle, "run", wavering)
    facts = valid(atc("check", path, "--json").stdout, "check")
    assert facts["passed"] and 0.0005 < facts["oracle_spread"]["y"] < 0.002
    assert "spread" in atc("check", path).stdout
    assert atc("check", path, "--atol", "1e-4").exit_code == 1
    error[False] = 0.003
    assert atc("check", path).exit_code == 1


def test_an_oracle_that_contradicts_itself_is_no_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from atc_py.cli.oracle import Oracle

    path = save(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [64])}, ["y"]), tmp_path / "m.onnx")
    right = Oracle.run

    def guessing(self: Oracle, names: list[str], feeds: dict[str, np.ndarray], optimized: bool = True) -> list[object]:
        found = right(self, names, feeds, optimized)
        return [v + np.float32(0.5 if optimized else -0.5) * np.abs(v).max() for v in found]

    monkeypatch.setattr(Oracle, "run", guessing)
    result = atc("check", path, "--json")
    facts = valid(result.stdout, "check")
    assert result.exit_code == 1 and not facts["passed"] and facts["oracle_spread"]["y"] > 0.05
    assert "say nothing" in " ".join(atc("check", path).stdout.split())


def test_an_om_of_another_model_is_told_before_anything_runs(convert: Callable[..., Path]) -> None:
    result = atc("check", MODELS / "small_transformer.onnx", convert("small_cnn"), "--json")
    assert codes(result) == ["E30006"]


def test_the_first_difference_says_how_far(broken_neg: Callable[[], None], tmp_path: Path) -> None:
    path = save(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [4])}, ["y"]), tmp_path / "m.onnx")
    broken_neg()
    first = valid(atc("check", path, "--json").stdout, "check")["first_divergence"]
    assert first["reason"].startswith("4 of 4 elements differ") and first["max_abs"] == pytest.approx(1, abs=1e-3)
    assert first["reason"] in " ".join(atc("check", path).stdout.split())


@pytest.mark.parametrize("value", ["-1", "nan"])
def test_tolerances_are_numbers_from_0(value: str) -> None:
    for option in ("--rtol", "--atol"):
        result = atc("check", CNN, option, value, "--json")
        assert result.exit_code == 2 and codes(result) == ["E10001"]


@pytest.mark.parametrize("code", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_types_that_numpy_has_not_reach_onnxruntime(code: str, tmp_path: Path) -> None:
    given = getattr(onnx.TensorProto, code)
    nodes = [helper.make_node("DequantizeLinear", ["x", "s"], ["y"])]
    if code == "BFLOAT16":
        nodes = [helper.make_node("Cast", ["x"], ["w"], to=FLOAT), helper.make_node("Mul", ["w", "s"], ["m"])]
        nodes.append(helper.make_node("Cast", ["m"], ["y"], to=given))
    inputs = {"x": (given, [6]), "s": (FLOAT, [])}
    proto = model(nodes, inputs, ["y"])
    proto.opset_import[0].version, proto.ir_version = 21, 10
    result = atc("check", save(proto, tmp_path / "m.onnx"), "--json")
    assert result.exit_code == 0, result.output
    assert valid(result.stdout, "check")["passed"]
