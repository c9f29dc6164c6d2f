"""Damaged, foreign and dishonest OM files, as each verb meets them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from om_format import OmFile, OmHeader, Partition, serialize, write_om
from om_format.proto.ge_ir_pb2 import ModelDef
from om_format.proto.task_pb2 import ModelTaskDef
from tests.cli.helpers import MODELS, atc, codes, problems, valid
from tests.om_format.sample import conv_model

CNN = MODELS / "small_cnn.onnx"
READERS: dict[str, list[object]] = {
    "inspect": ["inspect"],
    "run": ["run"],
    "verify": ["verify"],
    "check": ["check", CNN],
    "golden": ["golden", "record", "-o", "{out}/g.npz"],
}


def call(verb: str, path: Path, out: Path) -> list[object]:
    return [*(str(a).format(out=out) for a in READERS[verb]), path, "--json"]


def flipped(source: Path, target: Path, at: int) -> Path:
    data = bytearray(source.read_bytes())
    data[at] ^= 0x10
    target.write_bytes(data)
    return target


def places(om: Path) -> dict[str, int]:
    """A byte in the middle of each section."""
    with OmFile.open(om) as file:
        names = {p.offset: p.name for m in file.models for p in m.partitions}
        return {names.get(s.offset, s.name): s.offset + s.size // 2 for s in file.sections}


@pytest.mark.parametrize("verb", READERS)
def test_a_flipped_byte_outside_the_weights_stops_every_verb(verb: str, om: Path, tmp_path: Path) -> None:
    found = places(om)
    assert {"header", "partition table", "MODEL_DEF"} < set(found)
    out = tmp_path / "out"
    out.mkdir()
    for name, at in found.items():
        if name == "WEIGHTS_DATA":
            continue
        result = atc(*call(verb, flipped(om, tmp_path / "bad.om", at), out))
        assert result.exit_code == 1, (name, result.output)
        assert problems(result)[0]["code"].startswith("E3002"), name
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("verb", ["run", "check", "golden"])
def test_a_flipped_byte_in_the_weights_stops_what_reads_them(verb: str, om: Path, tmp_path: Path) -> None:
    bad = flipped(om, tmp_path / "bad.om", places(om)["WEIGHTS_DATA"])
    [problem] = problems(atc(*call(verb, bad, tmp_path)))
    assert problem["code"] == "E30022" and "0x" in problem["place"]
    assert atc("inspect", bad).exit_code == 0


def test_verify_says_which_step_fails(om: Path, tmp_path: Path) -> None:
    bad = flipped(om, tmp_path / "bad.om", places(om)["WEIGHTS_DATA"])
    result = atc("verify", bad, "--json")
    facts = valid(result.stdout, "verify")
    assert result.exit_code == 1
    assert {c["name"]: c["passed"] for c in facts["checks"]}["weights"] is False
    assert [p["code"] for p in facts["problems"]] == ["E30022"]
    assert "FAIL" in atc("verify", bad).stdout


def test_verify_passes_what_convert_writes(om: Path, template: Path) -> None:
    for path in (om, template):
        facts = valid(atc("verify", path, "--json").stdout, "verify")
        assert facts["passed"] and all(c["passed"] for c in facts["checks"])


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("size", [0, 3, 100, 300, 5000])
def test_truncated_files(verb: str, size: int, om: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.om").write_bytes(om.read_bytes()[:size])
    assert codes(atc(*call(verb, tmp_path / "bad.om", tmp_path)))[0] in ("E30020", "E30021", "E30022")


@pytest.mark.parametrize("verb", READERS)
def test_what_is_no_om(verb: str, tmp_path: Path) -> None:
    (tmp_path / "bad.om").write_bytes(b"PK\x03\x04" + bytes(400))
    assert codes(atc(*call(verb, tmp_path / "bad.om", tmp_path))) == ["E30020"]
    assert codes(atc(*call(verb, tmp_path / "none.om", tmp_path))) == ["E13000"]


def rewritten(om: Path, target: Path, kind: int, change: Callable[[Any], None]) -> Path:
    """The file with one message changed and all digests made anew: damage that only `verify` can see."""
    with OmFile.open(om) as file:
        parts: dict[int, bytes] = {p.kind: bytes(p.data) for p in file.models[0].partitions}
        header = OmHeader(name=file.header.name)
        message = file.task_info() if kind == Partition.TASK_INFO else file.model_def()
    del parts[Partition.INTEGRITY]
    change(message)
    parts[kind] = serialize(message)
    sink = io.BytesIO()
    write_om(sink, header, parts)  # type: ignore[arg-type]
    target.write_bytes(sink.getvalue())
    return target


def test_projections_that_disagree_with_the_plan_are_found(om: Path, tmp_path: Path) -> None:
    def move(model: ModelDef) -> None:
        op = next(o for o in model.graph[0].op if "_task_id" in o.attr)
        op.output_i[0] += 512

    def restream(info: ModelTaskDef) -> None:
        info.task[0].stream_id += 1

    for kind, change in ((Partition.MODEL_DEF, move), (Partition.TASK_INFO, restream)):
        bad = rewritten(om, tmp_path / "bad.om", kind, change)
        facts = valid(atc("verify", bad, "--json").stdout, "verify")
        assert [p["code"] for p in facts["problems"]] == ["E30027"]
        assert [c["name"] for c in facts["checks"] if not c["passed"]] == [kind.name]


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OM with switches, labels and tasks inside of bodies."""
    path = tmp_path_factory.mktemp("oms") / "branched.om"
    assert atc("convert", MODELS / "corpus/loop_while_if.onnx", "-o", path).exit_code == 0
    return path


def test_counts_that_disagree_are_found(branched: Path, tmp_path: Path) -> None:
    """MODEL_DEF and INFO count streams, events and labels as TASK_INFO has them, or the file is refused."""
    assert atc("verify", branched).exit_code == 0

    def counting(name: str) -> Callable[[ModelDef], None]:
        def change(model: ModelDef) -> None:
            model.attr[name].i += 1

        return change

    def elsewhere(model: ModelDef) -> None:
        op = next(o for o in model.graph[0].op if "_label_switch_list" in o.attr)
        op.attr["_label_switch_list"].list.i[0] += 1

    def renumbered(model: ModelDef) -> None:
        next(o for g in model.graph[1:] for o in g.op if "_task_id" in o.attr).id += 1000

    names = ("stream_num", "event_num", "label_num", "memory_size", "weight_size", "batch_num")
    for place, change in [(f"MODEL_DEF {n}", counting(n)) for n in names] + [("op", elsewhere), ("op", renumbered)]:
        bad = rewritten(branched, tmp_path / "bad.om", Partition.MODEL_DEF, change)
        facts = valid(atc("verify", bad, "--json").stdout, "verify")
        assert [p["code"] for p in facts["problems"]] == ["E30027"] and place in facts["problems"][0]["place"]
        assert [c["name"] for c in facts["checks"] if not c["passed"]] == ["MODEL_DEF"]


@pytest.mark.parametrize("name", ["streams", "events", "labels"])
def test_recorded_counts_that_disagree_are_found(name: str, branched: Path, tmp_path: Path) -> None:
    with OmFile.open(branched) as file:
        parts: dict[int, bytes] = {p.kind: bytes(p.data) for p in file.models[0].partitions}
        header = OmHeader(name=file.header.name)
    del parts[Partition.INTEGRITY]
    info = json.loads(parts[Partition.INFO])
    info[name] += 1
    parts[Partition.INFO] = json.dumps(info).encode()
    sink = io.BytesIO()
    write_om(sink, header, parts)  # type: ignore[arg-type]
    (tmp_path / "bad.om").write_bytes(sink.getvalue())
    facts = valid(atc("verify", tmp_path / "bad.om", "--json").stdout, "verify")
    assert [(p["code"], p["place"]) for p in facts["problems"]] == [("E30027", f"INFO {name}")]


def test_foreign_files_are_shown_but_not_run(tmp_path: Path) -> None:
    parts = {
        Partition.MODEL_DEF: serialize(conv_model(0, 96)),
        Partition.TASK_INFO: serialize(ModelTaskDef(stream_num=1)),
    }
    sink = io.BytesIO()
    write_om(sink, OmHeader(name="theirs"), parts)
    foreign = _without_digests(sink.getvalue())
    path = tmp_path / "foreign.om"
    path.write_bytes(foreign)
    facts = valid(atc("inspect", path, "--json").stdout, "inspect")
    assert facts["foreign"] and facts["op_histogram"]["Conv2D"] == 1
    text = atc("inspect", path)
    assert text.exit_code == 0 and "another compiler" in text.stdout and "Conv2D" in text.stdout
    for verb in ("run", "verify", "check", "golden"):
        assert codes(atc(*call(verb, path, tmp_path))) == ["E30025"]


def _without_digests(data: bytes) -> bytes:
    """The file without its INTEGRITY partition and our mark in the header, as another compiler would write it."""
    import dataclasses

    from om_format.partitions import lay_out, pack_table

    with OmFile.from_bytes(data) as file:
        parts = [(p.kind, bytes(p.data)) for p in file.models[0].partitions if p.kind != Partition.INTEGRITY]
        layout = lay_out(256, [(kind, len(raw)) for kind, raw in parts])
        body = pack_table(layout) + b"".join(raw for _, raw in parts)
        header = dataclasses.replace(file.header, userdefineinfo=b"", length=len(body), model_length=len(body))
    return header.pack() + body
