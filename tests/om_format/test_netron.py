"""Netron's own reader opens what we write, and sees the graph, the types and every constant's values."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from om_format import OmFile, OmHeader, Partition, Payload, WeightsLayout, serialize, table_bytes, write_om
from om_format.dtypes import DTYPES, dtype_from_ge, dtype_from_proto, ge_dtype, wire_dtype
from om_format.proto.ge_ir_pb2 import GraphDef, ModelDef
from tests.netron.reader import NetronError, needs_netron, read_many_with_netron, read_with_netron

from .sample import BIAS, KERNEL, const, conv_om, desc, node

SHOWN = {"bool": "boolean", "complex64": "complex<float32>", "complex128": "complex<float64>"}
STORED = [entry for entry in DTYPES if entry.bits]


@needs_netron
def test_a_complete_model(tmp_path: Path) -> None:
    path = tmp_path / "conv.om"
    path.write_bytes(conv_om())
    model = read_with_netron(path)
    assert model["format"] == "DaVinci OM"
    (graph,) = model["graphs"]
    assert [(item["name"], item["type"]) for item in graph["nodes"]] == [
        ("data", "Data"),
        ("conv", "Conv2D"),
        ("output", "NetOutput"),
    ]
    conv = graph["nodes"][1]
    x, w, b = (argument["values"][0] for argument in conv["inputs"])
    assert x["name"] == "data:0" and x["initializer"] is None
    assert x["type"] == {"dtype": "float32", "shape": [1, 3, 8, 8], "layout": "NCHW"}
    assert conv["outputs"][0]["values"][0]["type"]["shape"] == [1, 2, 7, 7]
    assert w["initializer"]["nbytes"] == len(KERNEL) and w["initializer"]["shape"] == [2, 3, 2, 2]
    assert w["initializer"]["values"][1][2] == [[20, 21], [22, 23]]
    assert b["initializer"]["values"] == list(struct.unpack("<2f", BIAS))
    assert conv["attributes"]["strides"] == [1, 1]


def dtype_model(name: str, data: bytes, count: int) -> bytes:
    layout = WeightsLayout(table_bytes(3))
    tensor = desc(name, [count])
    place = layout.add(len(data))
    ops = [
        const("c", tensor, place, len(data)),
        node("id", "Identity", ["c:0"], [tensor], [tensor]),
        node("out", "NetOutput", ["id:0"], [tensor], []),
    ]
    file = io.BytesIO()
    model = serialize(ModelDef(name=name, graph=[GraphDef(name="g", op=ops)]))
    write_om(file, OmHeader(name=name), {Partition.MODEL_DEF: model, Partition.WEIGHTS_DATA: layout.stream([data])})
    return file.getvalue()


@needs_netron
def test_every_dtype(tmp_path: Path) -> None:
    count = 8
    paths = []
    for entry in STORED:
        # What Netron is told is UINT8 has one element a byte, whatever the real dtype's width.
        bits = 8 if wire_dtype(entry.name).atc_dtype else entry.bits
        path = tmp_path / f"{entry.name}.om"
        path.write_bytes(dtype_model(entry.name, bytes(count * bits // 8), count))
        paths.append(path)
    for entry, model in zip(STORED, read_many_with_netron(paths)):
        assert "error" not in model, (entry.name, model)
        value = model["graphs"][0]["nodes"][0]["inputs"][0]["values"][0]
        shown = "uint8" if wire_dtype(entry.name).atc_dtype else SHOWN.get(entry.name, entry.name)
        assert value["type"]["dtype"] == shown
        assert len(value["initializer"]["values"]) == count
    for entry, path in zip(STORED, paths):
        with OmFile.open(path) as om:
            seen = om.model_def().graph[0].op[0].attr["value"].t.desc
            kept = seen.attr["_atc_dtype"].s.decode() if "_atc_dtype" in seen.attr else None
            assert dtype_from_proto(seen.dtype, kept) == entry.name


@needs_netron
def test_the_judge_notices_what_is_wrong(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.om" for index in range(3)]
    paths[0].write_bytes(dtype_model("float32", bytes(31), 8))  # a byte short
    paths[1].write_bytes(conv_om()[:-200])
    paths[2].write_bytes(b"something else" * 50)
    messages = [str(model.get("error")) for model in read_many_with_netron(paths)]
    assert "31 bytes, not 32" in messages[0]
    assert "more bytes" in messages[1]
    assert "does not take" in messages[2]
    with pytest.raises(NetronError):
        read_with_netron(paths[0])


@needs_netron
def test_the_first_of_several_models_is_shown(tmp_path: Path) -> None:
    models: list[dict[Partition, Payload]] = [
        {
            Partition.MODEL_DEF: serialize(ModelDef(name=name, graph=[GraphDef(name=name)])),
            Partition.PLAN_TABLE: b"p",
        }
        for name in ("first", "second")
    ]
    path = tmp_path / "two.om"
    write_om(path, OmHeader(), *models)
    assert [graph["name"] for graph in read_with_netron(path)["graphs"]] == ["first"]


@needs_netron
def test_every_partition_that_can_be_written_is_skipped_or_read(tmp_path: Path) -> None:
    graph = serialize(ModelDef(name="m", graph=[GraphDef(name="g", op=[node("d", "Data", [], [], [])])]))
    paths = []
    for kind in sorted(set(Partition) - {0, 5, 23, 25, 26}):
        paths.append(tmp_path / f"{kind.value}.om")
        write_om(paths[-1], OmHeader(), {Partition.MODEL_DEF: graph, kind: b"content"})
    for path, model in zip(paths, read_many_with_netron(paths)):
        assert model.get("graphs"), (path.name, model)


def test_both_numberings() -> None:
    assert (wire_dtype("float32").proto, ge_dtype("float32")) == (1, 0)
    assert (wire_dtype("int64").proto, ge_dtype("int64")) == (8, 9)
    assert (wire_dtype("bool").proto, ge_dtype("bool")) == (11, 12)
    assert ge_dtype("uint4") == ge_dtype("uint8")
    for entry in DTYPES:
        if entry.ge is not None:
            assert dtype_from_ge(entry.ge) == entry.name
        if entry.proto is not None:
            assert dtype_from_proto(entry.proto) == entry.name
    assert dtype_from_proto(4, "float8_e4m3fn") == "float8_e4m3fn"
    assert dtype_from_proto(4, "no such dtype") == "uint8"
    assert dtype_from_ge(5) is None
