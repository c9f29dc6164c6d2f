"""Files: what is no ONNX file, versions, and external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc_py import frontend
from atc_py.errors import AtcError
from tests.frontend.models import const, model, problems, read

RELU = "g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"


def fails(path: Path, code: str) -> str:
    with pytest.raises(AtcError) as caught:
        frontend.read(path)
    assert caught.value.code == code, caught.value
    return str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "does not exist" in fails(tmp_path / "none.onnx", "E13000")
    assert "folder" in fails(tmp_path, "E13000")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n",
        b"<!DOCTYPE html><html></html>",
        b"\x89PNG\r\n",
    ],
)
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert str(path) in fails(path, "E16101")


def test_truncated_file_says_where(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", model(RELU).SerializeToString()
    for length in range(len(data) - 8, 40, -7):
        path.write_bytes(data[:length])
        with pytest.raises(AtcError) as caught:
            frontend.read(path)
        assert caught.value.code in ("E16102", "E16104", "E16004", "E16002", "E16103"), (length, caught.value)
    path.write_bytes(data[: len(data) // 2])
    assert f"ends at byte {len(data) // 2}" in fails(path, "E16102")


def test_reads_path_bytes_and_proto(tmp_path: Path) -> None:
    proto = model(RELU)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source in (path, str(path), proto.SerializeToString(), proto):
        assert frontend.read(source).output_names == ["y"]


def test_versions() -> None:
    newer = model(RELU)
    newer.ir_version = onnx.IR_VERSION + 1
    [p] = problems(newer)
    assert p.code == "E16103" and str(onnx.IR_VERSION + 1) in p.cause and "upgrade" in p.hint
    older = model(RELU)
    older.ir_version = 2
    assert problems(older)[0].code == "E16103"
    top = onnx.defs.onnx_opset_version()
    read(model(RELU, opset=top))
    [p] = problems(model(RELU, opset=top + 1))
    assert p.code == "E16104" and f"opset {top + 1}" in p.cause and str(top) in p.hint
    [p] = problems(model(RELU, extra='"ai.onnx.ml": 99'))
    assert p.code == "E16104" and "ai.onnx.ml" in p.cause
    [p] = problems(model(RELU, extra='"ai.onnx": 13'))
    assert p.code == "E16005"


def test_old_opset_is_a_warning() -> None:
    found = frontend.import_model(model(RELU, opset=6, ir=3))
    assert [w.code for w in found.warnings] == ["W16202"]


def test_no_graph_and_no_outputs() -> None:
    assert problems(onnx.ModelProto(ir_version=8))[0].code == "E16004"
    assert problems(model("g (float[3] x) => () { y = Relu(x) }"))[0].code == "E16001"


def external(path: Path, **entries: str) -> onnx.ModelProto:
    """y = x + w with w of 4 floats in other files."""
    w = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        w.external_data.add(key=key, value=value)
    proto = model("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(w)
    path.write_bytes(proto.SerializeToString())
    return proto


def test_external_data_is_mapped(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(values.tobytes())
    path = tmp_path / "m.onnx"
    proto = external(path, location="weights/w.bin", offset="8", length="16")
    graph = frontend.read(path)
    [w] = [v.id for v in graph.values.values() if v.name == "w"]
    np.testing.assert_array_equal(const(graph, w), values[2:])
    np.testing.assert_array_equal(const(read(proto, folder=tmp_path), w), values[2:])
    assert problems(proto)[0].code == "E16106"


def test_missing_external_files_are_all_named(tmp_path: Path) -> None:
    proto = model("g (float[4] x) => (float[4] y) { a = Add(x, u) b = Add(a, v) y = Add(b, w) }")
    for name, file in (("u", "one.bin"), ("v", "two.bin"), ("w", "one.bin")):
        t = TensorProto(name=name, data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value=file)
        proto.graph.initializer.append(t)
    found = problems(proto, folder=tmp_path)
    assert [(p.code, p.place) for p in found] == [
        ("E16106", "external data 'one.bin'"),
        ("E16106", "external data 'two.bin'"),
    ]


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "a/../../secret", "C:\\w", "..\\secret", "\\\\h\\s"]
)
def test_external_path_stays_inside(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "in" / "a").mkdir(parents=True)
    external(tmp_path / "in" / "m.onnx", location=location)
    fails(tmp_path / "in" / "m.onnx", "E16107")


def test_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "real.bin").write_bytes(bytes(16))
    (inside / "good.bin").symlink_to("real.bin")
    (inside / "bad.bin").symlink_to(tmp_path / "secret")
    external(inside / "m.onnx", location="good.bin")
    frontend.read(inside / "m.onnx")
    external(inside / "m.onnx", location="bad.bin")
    fails(inside / "m.onnx", "E16107")


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "4"},
        {"length": "12"},
        {"offset": "-4"},
        {"offset": "x"},
        {"offset": "99999999999999999999"},
        {"length": "1e1"},
    ],
)
def test_external_bounds(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    external(tmp_path / "m.onnx", location="w.bin", **entries)
    fails(tmp_path / "m.onnx", "E16108")


def test_external_file_of_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"")
    external(tmp_path / "m.onnx", location="w.bin")
    fails(tmp_path / "m.onnx", "E16108")


def test_external_data_in_bodies_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.full(4, 2, np.float32).tobytes())
    w = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value="w.bin")
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(w)
    proto = model("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    proto.graph.node.insert(0, node)
    graph = read(proto, folder=tmp_path)
    [value] = [v.id for v in graph.values.values() if v.name == "w"]
    assert const(graph, value).tolist() == [2, 2, 2, 2]


def test_source_is_left_alone() -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    before = proto.SerializeToString()
    read(proto)
    assert proto.SerializeToString() == before
