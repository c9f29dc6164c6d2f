from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc_py.error_catalogue import OWN, catalogue
from tests.cli.helpers import MODELS, ROOT, atc, codes, valid

CODE = re.compile(r"""["'](E[A-Z]?\d{3,5}|W\d{5})["']""")


def used() -> dict[str, Path]:
    """Every code that stands in the sources, but for the catalogue's own table."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "atc_py").rglob("*.py")):
        if path.name != "error_catalogue.py":
            found |= dict.fromkeys(CODE.findall(path.read_text()), path)
    return found


def branching(folder: Path) -> Path:
    """Two convolutions; what is between them is read once more."""
    w = numpy_helper.from_array(np.full((8, 8, 1, 1), 0.25, np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first"),
        helper.make_node("Relu", ["c"], ["r"], name="act"),
        helper.make_node("Conv", ["r", "w"], ["d"], name="second"),
        helper.make_node("Tanh", ["d"], ["y"], name="last"),
        helper.make_node("CumSum", ["r", "axis"], ["s"], name="sums"),
        helper.make_node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], name="pool"),
    ]
    x, *ys = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None if n != "x" else [1, 8, 20, 20]) for n in "xyp")
    axis = numpy_helper.from_array(np.array(1), "axis")
    graph = helper.make_graph(nodes, "g", [x], ys, [w, axis])
    path = folder / "branching.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def left_alone(model: Path, *more: str) -> list[list[str]]:
    """What is told of a node, for each task that stands for it and does more than convert a format."""
    facts = valid(atc("explain", model, "--node", *more, "--json").stdout, "explain")
    assert not [t for t in facts["node"]["tasks"] if t["operators"] == "TransData" and t["left_alone"]]
    return [t["left_alone"] for t in facts["node"]["tasks"] if t["operators"] != "TransData"]


def test_every_code_in_the_sources_is_in_the_catalogue_and_no_others() -> None:
    known, found = catalogue(), used()
    assert not {c: str(p) for c, p in found.items() if c not in known}
    assert not [c for c in known if c not in found]


def test_no_code_has_two_homes() -> None:
    from atc_py.frontend.codes import CODES

    assert not set(OWN) & (set(CODES) - {"E19999"})


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_each_is_explained(code: str) -> None:
    entry = catalogue()[code]
    assert entry.meaning and entry.explanation
    result = atc("explain", code.lower())
    assert result.exit_code == 0 and entry.meaning in result.stdout
    assert valid(atc("explain", code, "--json").stdout, "explain")["code"] == code


def test_the_list_and_unknown_codes() -> None:
    assert "E16002" in atc("explain").stdout
    assert len(valid(atc("explain", "--json").stdout, "explain")["codes"]) == len(catalogue())
    assert codes(atc("explain", "E1600", "--json")) == ["E10001"]
    assert "E16002" in atc("explain", "E1600").stderr


def test_a_model_is_explained_pass_by_pass() -> None:
    facts = valid(atc("explain", MODELS / "small_transformer.onnx", "--json").stdout, "explain")
    stages = facts["stages"]
    assert stages[0]["stage"] == "import" and stages[0]["nodes"] == 33
    assert any(s["stage"] == "optimize/attention" for s in stages)
    assert stages[-1]["nodes"] < stages[0]["nodes"] and stages[-1]["predicted_us"] < stages[0]["predicted_us"]
    assert stages[-1]["bytes_moved"] < stages[0]["bytes_moved"]
    assert "import" in atc("explain", MODELS / "small_transformer.onnx").stdout


@pytest.mark.parametrize("more", [(), ("--sink", "op"), ("--precision-mode", "fp16"), ("--single-stream",)])
def test_the_last_row_is_the_plan_as_convert_predicts_it(more: tuple[str, ...], tmp_path: Path) -> None:
    model = MODELS / "corpus/yolo_raw.onnx"
    facts = valid(atc("explain", model, *more, "--json").stdout, "explain")
    converted = valid(atc("convert", model, "-o", tmp_path / "a.om", *more, "--json").stdout, "convert")
    predicted = converted["predicted_latency_us"]
    first, last = facts["stages"][0], facts["stages"][-1]
    assert (first["stage"], last["stage"]) == ("import", "schedule")
    assert {"before": first["predicted_us"], "after": last["predicted_us"]} == predicted


def test_a_refusal_names_the_value_and_its_readers(tmp_path: Path) -> None:
    """The second product could take the Relu, which the Sigmoid reads too; another rule fuses each with its own."""
    facts = valid(atc("explain", branching(tmp_path), "--rule", "conv_chain", "--json").stdout, "explain")
    want = "readers: Relu 'act' is not fused: its result 'r' is read by 1 more: CumSum 'sums'"
    assert want in [d["reason"] for d in facts["left_alone"]]
    [told] = left_alone(branching(tmp_path), "act")
    assert any(want in reason for reason in told)


def test_a_node_that_no_rule_considers(tmp_path: Path) -> None:
    def told(*more: str) -> list[str]:
        [found] = left_alone(branching(tmp_path), *more)
        return found

    assert "pooling (takes it as anchor: " in told("pool")[0] and told("pool")[0].startswith("no fusion rule considers")
    assert told("sums") == ["no fusion rule considers CumSum here: none knows the operator"]
    assert told("pool", "--opt-level", "O1") == ["fusion does not run at O1"]
    assert told("pool", "--disable-pass", "fusion") == ["fusion is turned off"]
    without = ("--disable-pass", "pooling", "--disable-pass", "conv_pool")
    assert "none knows the operator" in told("pool", *without)[0]


def test_a_node_is_followed_to_its_task() -> None:
    model = MODELS / "small_transformer.onnx"
    facts = valid(atc("explain", model, "--node", "scores.scaled", "--json").stdout, "explain")["node"]
    assert facts["steps"][0] == {"stage": "import", "as": ["Div"]}
    assert any(s["as"] == ["Attention"] for s in facts["steps"])
    task = facts["tasks"][-1]
    assert "FlashAttentionScore" in task["operators"]
    assert task["engine"] == "aicore" and task["task"] is not None and "scores.scaled" in task["stands_for"]
    assert "Attention" in atc("explain", model, "--node", "scores.scaled").stdout


def test_what_explain_cannot_tell() -> None:
    model = MODELS / "small_transformer.onnx"
    result = atc("explain", model, "--node", "score.scaled", "--json")
    assert codes(result) == ["E20031"] and "scores.scaled" in result.stdout
    assert codes(atc("explain", model, "--rule", "cses", "--json")) == ["E10001"]
    assert codes(atc("explain", "E16002", "--node", "x", "--json")) == ["E10001"]
