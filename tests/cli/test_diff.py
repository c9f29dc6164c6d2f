"""`atc diff` and dumps: what differs between two OMs, and between two stages of one conversion."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format

from om_format.proto.ge_ir_pb2 import ModelDef
from tests.cli.helpers import MODELS, atc, codes, valid


@pytest.fixture(scope="module")
def oms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("oms")
    made = {}
    for level in ("O0", "O2"):
        made[level] = folder / f"{level}.om"
        model = MODELS / "small_transformer.onnx"
        assert atc("convert", model, "-o", made[level], "--opt-level", level).exit_code == 0
    return made


def test_an_om_is_the_same_as_itself(oms: dict[str, Path]) -> None:
    result = atc("diff", oms["O2"], oms["O2"], "--json")
    facts = valid(result.stdout, "diff")
    assert result.exit_code == 0 and facts["same"] and not facts["differences"] and not facts["figures"]


def test_levels_differ_in_operators_tasks_and_figures(oms: dict[str, Path]) -> None:
    result = atc("diff", oms["O0"], oms["O2"], "--json")
    facts = valid(result.stdout, "diff")
    assert result.exit_code == 1 and not facts["same"]
    assert {"figure": "opt_level", "a": "O0", "b": "O2"} in facts["figures"]
    assert {"operator": "Softmax", "a": 1, "b": 0} in facts["operators"]
    gone = {d["label"] for d in facts["differences"] if d["kind"] == "only in a"}
    assert "scores.scaled" in gone
    assert "scores.scaled" in atc("diff", oms["O0"], oms["O2"]).stdout
    assert atc("diff", oms["O0"], oms["O2"], "--memory").exit_code == 1


def test_canonical_graphs_are_compared_by_content(oms: dict[str, Path], tmp_path: Path) -> None:
    proto = onnx.load(MODELS / "small_transformer.onnx")
    weight = next(t for t in proto.graph.initializer if t.name == "ffn.up.weight")
    data = bytearray(weight.raw_data)
    data[5] ^= 1
    weight.raw_data = bytes(data)
    onnx.save(proto, tmp_path / "m.onnx")
    assert atc("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.om").exit_code == 0
    facts = valid(atc("diff", oms["O2"], tmp_path / "m.om", "--graph", "--json").stdout, "diff")
    assert [(d["label"], [c["fact"] for c in d["changes"]]) for d in facts["differences"]] == [
        ("ffn.up.weight", ["operands"])
    ]


def test_what_is_no_graph_is_an_error(tmp_path: Path, oms: dict[str, Path]) -> None:
    (tmp_path / "a.txt").write_text("nothing of the kind\n")
    (tmp_path / "b.bin").write_bytes(bytes(range(128, 256)))
    assert codes(atc("diff", tmp_path / "a.txt", oms["O2"], "--json")) == ["EI101"]
    assert codes(atc("diff", tmp_path / "b.bin", oms["O2"], "--json")) == ["E13000"]
    assert codes(atc("diff", tmp_path / "none.om", oms["O2"], "--json")) == ["E13000"]


def test_dumps_of_every_stage_are_read_by_others(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    model = MODELS / "small_transformer.onnx"
    assert atc("convert", model, "-o", tmp_path / "m.om", "--dump-graph", dumps).exit_code == 0
    onnx_files = sorted(dumps.glob("ge_onnx_*.pbtxt"))
    stages = [p.stem.split("graph_1_")[1] for p in onnx_files]
    assert stages[0] == "PreRunBegin" and stages[-1] == "Build" and "optimize_attention" in stages
    for path in onnx_files:
        text_format.Parse(path.read_text(), onnx.ModelProto())
    for path in dumps.glob("ge_proto_*.txt"):
        text_format.Parse(path.read_text(), ModelDef())
    texts = sorted(dumps.glob("ge_readable_*.txt"))
    facts = valid(atc("diff", texts[0], texts[-1], "--json").stdout, "diff")
    assert {"operator": "Softmax", "a": 1, "b": 0} in facts["operators"]
    assert atc("diff", texts[0], texts[0]).exit_code == 0


@pytest.mark.parametrize(
    "level, stages",
    [
        ("2", ["PreRunBegin", "PreRunAfterOptimizeOriginalGraph", "PreRunAfterOptimizeSubgraph", "Build"]),
        ("3", ["Build"]),
        ("4", ["PreRunBegin"]),
        ("PreRunBegin|Build", ["PreRunBegin", "Build"]),
    ],
)
def test_the_environment_asks_for_dumps_as_in_ge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, stages: list[str]
) -> None:
    monkeypatch.setenv("DUMP_GE_GRAPH", "3")
    monkeypatch.setenv("DUMP_GRAPH_LEVEL", level)
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(tmp_path / "dumps"))
    assert atc("convert", MODELS / "small_cnn.onnx", "-o", tmp_path / "m.om").exit_code == 0
    found = sorted((tmp_path / "dumps").glob("ge_onnx_*"))
    assert [p.stem.split("graph_1_")[1] for p in found] == stages
    assert all("raw_data" not in p.read_text() for p in found)


def test_full_dumps_hold_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_GE_GRAPH", "1")
    monkeypatch.setenv("DUMP_GRAPH_LEVEL", "4")
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(tmp_path))
    source = MODELS / "small_cnn.onnx"
    assert atc("convert", source, "-o", tmp_path / "m.om").exit_code == 0
    [path] = tmp_path.glob("ge_onnx_*")
    dumped = text_format.Parse(path.read_text(), onnx.ModelProto())
    held = {t.raw_data for t in dumped.graph.initializer}
    assert all(t.raw_data in held for t in onnx.load(source).graph.initializer if len(t.dims) > 1)
