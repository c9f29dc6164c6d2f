"""`atc profile`: predictions without running, traces, tables, advice."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import atc_py
from atc_py.schedule.op_summary import COLUMNS
from tests.cli.helpers import MODELS, atc, codes, model, problems, valid


@pytest.fixture(scope="module")
def om(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("oms") / "yolo.om"
    assert atc("convert", MODELS / "corpus/yolo_raw.onnx", "-o", path).exit_code == 0
    return path


def test_an_om_and_its_model_have_one_latency_that_convert_says_too(om: Path) -> None:
    facts = valid(atc("profile", om, "--json").stdout, "profile")
    again = valid(atc("profile", MODELS / "corpus/yolo_raw.onnx", "--plan", "own", "--json").stdout, "profile")
    recorded = json.loads(atc("inspect", om, "--json").stdout)["predicted_latency_us"]["after"]
    assert facts["predicted_latency_us"] == again["predicted_latency_us"] == pytest.approx(recorded, abs=0.06)
    assert facts["launches"] == 1 and facts["tasks"] and facts["plan"] == again["plan"] == "own"
    ends = [t["start_us"] + t["duration_us"] for t in facts["tasks"]]
    assert max(ends) == pytest.approx(facts["predicted_latency_us"], abs=0.1)
    assert all(0 <= share <= 1.001 for share in facts["utilisation"].values())


def test_an_om_takes_sizes_and_no_options_of_compiling(om: Path) -> None:
    hint = valid(atc("profile", om, "--json").stdout, "profile")
    larger = valid(atc("profile", om, "--input-shape", "input:2,3,64,96", "--json").stdout, "profile")
    assert larger["hint"] == {"batch": 2, "h": 64, "w": 96} != hint["hint"]
    assert larger["predicted_latency_us"] > hint["predicted_latency_us"]
    assert codes(atc("profile", om, "--input-shape", "input:2,3,65,96", "--json")) == ["E30030"]
    for name, value in (("--soc-version", "Ascend910B1"), ("--precision-mode", "nonsense"), ("--plan", "own")):
        (problem,) = problems(atc("profile", om, name, value, "--json"))
        assert (problem["code"], problem["place"]) == ("E10001", name)


def test_by_default_a_model_has_the_plan_of_the_chips_toolkit(tmp_path: Path) -> None:
    path = MODELS / "corpus/yolo_raw.onnx"
    own = valid(atc("profile", path, "--plan", "own", "--json").stdout, "profile")
    facts = valid(atc("profile", path, "--json").stdout, "profile")
    assert facts["plan"] == "toolkit" and facts["streams"] == 1
    assert facts["predicted_latency_us"] > own["predicted_latency_us"]
    assert not [t for t in facts["tasks"] if t["kernel"].split("+").count("Conv") > 1]
    unknown = tmp_path / "mine.toml"
    target = (Path(atc_py.__file__).parent / "target/data/Ascend310P3.toml").read_text()
    unknown.write_text(target.partition("[toolkit]")[0])
    without = valid(atc("profile", path, "--soc-version", unknown, "--stream-num", 4, "--json").stdout, "profile")
    assert without["predicted_latency_us"] == own["predicted_latency_us"], "of which nothing is known"
    assert without["plan"] == "own"


def test_the_text_says_whose_plan_it_is(om: Path) -> None:
    path = MODELS / "small_cnn.onnx"
    assert "chip's own toolkit" in atc("profile", path).stdout
    assert "ours" in atc("profile", path, "--plan", "own").stdout
    assert "ours" in atc("profile", om).stdout


def test_streams_that_the_toolkits_plan_has_not_are_refused() -> None:
    path = MODELS / "corpus/yolo_raw.onnx"
    result = atc("profile", path, "--stream-num", 8, "--json")
    assert result.exit_code == 2
    (problem,) = problems(result)
    assert (problem["code"], problem["place"]) == ("E10001", "--stream-num") and "--plan own" in problem["hint"]
    assert valid(atc("profile", path, "--stream-num", 1, "--json").stdout, "profile")["streams"] == 1
    own = valid(atc("profile", path, "--stream-num", 2, "--plan", "own", "--json").stdout, "profile")
    assert own["streams"] == 2


def test_tasks_of_a_stream_do_not_overlap_and_order_is_kept(om: Path) -> None:
    facts = valid(atc("profile", om, "--json").stdout, "profile")
    ends: dict[int, float] = {}
    for task in facts["tasks"]:
        assert task["start_us"] >= ends.get(task["stream"], 0.0) - 1e-3
        ends[task["stream"]] = task["start_us"] + task["duration_us"]


def test_the_trace_is_a_chrome_trace(om: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    facts = valid(atc("profile", om, "--trace", path, "--json").stdout, "profile")
    assert facts["files"] == [str(path)]
    trace = json.loads(path.read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert [e["name"] for e in spans] == [t["name"] for t in facts["tasks"]]
    assert {e["tid"] for e in spans} == {t["stream"] for t in facts["tasks"]}
    begins = {e["id"] for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"] for e in trace["traceEvents"] if e["ph"] == "f"}
    assert begins == ends and (len(begins) > 0) == (facts["streams"] > 1)
    for event in trace["traceEvents"]:
        assert event["ph"] in "XMsf" and (event["ph"] == "M" or event["ts"] >= 0)


def test_the_table_has_the_columns_of_op_summary(om: Path, tmp_path: Path) -> None:
    path = tmp_path / "op_summary.csv"
    facts = valid(atc("profile", om, "--csv", path, "--json").stdout, "profile")
    rows = table(path)
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(facts["tasks"])
    assert {row["Model Name"] for row in rows} == {json.loads(atc("inspect", om, "--json").stdout)["name"]}
    for row, task in zip(rows, facts["tasks"], strict=True):
        assert row["Op Name"] == task["name"] and float(row["Task Duration(us)"]) == task["duration_us"]
        assert all(float(row[r]) >= 0 for r in ("mac_ratio", "vec_ratio", "mte_ratio"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_other_engines_say_nothing_of_ai_core(tmp_path: Path) -> None:
    """As msprof has it: N/A in the columns of AI Core, of an OM and of its model alike."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["z"])]
    proto = model(nodes, {"x": (TensorProto.FLOAT, [64, 512])}, ["z"])
    proto.graph.name = "where it counts"
    onnx.save(proto, tmp_path / "m.onnx")
    assert atc("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.om").exit_code == 0
    for source in ("m.om", "m.onnx"):
        assert atc("profile", tmp_path / source, "--csv", tmp_path / "t.csv").exit_code == 0
        rows = table(tmp_path / "t.csv")
        assert {row["Model Name"] for row in rows} == {"where it counts"}
        assert {row["Task Type"] for row in rows} == {"AI_CORE", "AI_CPU"}
        for row in rows:
            of_core = [row[c] for c in COLUMNS if c.endswith(("_ratio", "total_cycles")) or c[:4] in ("aico", "mac_",
                       "vec_", "mte_")]  # fmt: skip
            assert len(of_core) == 8
            assert ({*of_core} == {"N/A"}) == (row["Task Type"] == "AI_CPU")
            assert float(row["Task Duration(us)"]) > 0 and row["Bound By"]


def test_run_writes_the_trace_of_the_shapes_that_ran(tmp_path: Path) -> None:
    om = tmp_path / "m.om"
    assert atc("convert", MODELS / "small_transformer.onnx", "-o", om).exit_code == 0
    sizes = []
    for n in (1, 64):
        path = tmp_path / f"{n}.json"
        assert atc("run", om, "--input-shape", f"x:{n},16,32", "--profile", path).exit_code == 0
        sizes.append(json.loads(path.read_text())["otherData"]["predicted_us"])
    assert sizes[1] > sizes[0]


def test_external_weights_need_not_be_there_and_change_nothing(tmp_path: Path) -> None:
    weights = {f"w{i}": np.random.default_rng(i).normal(size=(256, 256)).astype(np.float32) for i in range(3)}
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(3)]
    proto = model(nodes, {"x": (TensorProto.FLOAT, [64, 256])}, ["y"], weights)
    onnx.save(proto, tmp_path / "whole.onnx")
    onnx.save(proto, tmp_path / "ext.onnx", save_as_external_data=True, location="gone.bin", size_threshold=0)
    (tmp_path / "gone.bin").unlink()
    whole, without = (
        valid(atc("profile", tmp_path / f"{n}.onnx", "--json").stdout, "profile") for n in ("whole", "ext")
    )
    assert len(without["tasks"]) == 3
    assert without["predicted_latency_us"] == whole["predicted_latency_us"]


def test_a_batch_that_the_file_does_not_have(tmp_path: Path) -> None:
    found = [
        valid(atc("profile", MODELS / "corpus/yolo_raw.onnx", "--input-shape", f"{name}:{n},3,64,64", "--json").stdout,
              "profile")["predicted_latency_us"]
        for name in [onnx.load(MODELS / "corpus/yolo_raw.onnx").graph.input[0].name] for n in (1, 8)
    ]  # fmt: skip
    assert found[1] > found[0]


def test_advice_names_tasks_with_their_share(om: Path) -> None:
    facts = valid(atc("profile", om, "--json").stdout, "profile")
    names = {t["name"] for t in facts["tasks"]}
    assert facts["advice"], "a small model is launch-bound at the least"
    assert [a["us"] for a in facts["advice"]] == sorted((a["us"] for a in facts["advice"]), reverse=True)
    for item in facts["advice"]:
        assert set(item["tasks"]) <= names and item["why"] and item["what"]
        assert item["share"] == pytest.approx(item["us"] / facts["predicted_latency_us"], abs=0.002)
    assert "what to look at" in atc("profile", om).stdout


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    assert codes(atc("profile", tmp_path / "none.onnx", "--json")) == ["E13000"]
    assert atc("profile", tmp_path / "none.om", "--json").exit_code == 1
    result = atc("profile", MODELS / "small_cnn.onnx", "--trace", tmp_path / "no" / "t.json", "--json")
    assert codes(result) == ["E13001"]


@pytest.mark.parametrize("option", ["--trace", "--csv"])
def test_a_folder_that_is_missing_is_named_before_any_work(tmp_path: Path, option: str) -> None:
    (problem,) = problems(atc("profile", tmp_path / "none.onnx", option, tmp_path / "no" / "file", "--json"))
    assert (
        problem["code"] == "E13001" and "there is no folder" in problem["cause"] and problem["hint"] == "make it first"
    )


def test_run_names_the_missing_folder_of_its_trace(om: Path, tmp_path: Path) -> None:
    (problem,) = problems(atc("run", om, "--profile", tmp_path / "no" / "t.json", "--json"))
    assert problem["code"] == "E13001" and "there is no folder" in problem["cause"]


def test_a_file_that_is_not_there_is_said_to_be_so() -> None:
    [p] = problems(atc("profile", "no.onnx", "--soc-version", "Ascend310P3", "--json"))
    assert (p["code"], p["place"]) == ("E13000", "no.onnx")
