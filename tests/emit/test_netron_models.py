"""Netron's own reader opens every OM that conversions write, with its real graph, types and constants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from atc_py import compile_model
from atc_py.emit import om_bytes
from atc_py.ir.types import DType
from models import catalog
from tests.making import BOOL, FLOAT, INT64, STRING, body_attribute, graph, model, node, sequence_of
from tests.netron.reader import needs_netron, read_many_with_netron

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs_netron

DTYPES: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
    "complex64": TensorProto.COMPLEX64,
    "complex128": TensorProto.COMPLEX128,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float8_e8m0fnu": TensorProto.FLOAT8E8M0,
    "float6_e2m3fn": TensorProto.FLOAT6E2M3,
    "float6_e3m2fn": TensorProto.FLOAT6E3M2,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": TensorProto.INT2,
    "uint2": TensorProto.UINT2,
}
AS_UINT8 = {name for name in DTYPES if name.startswith(("float8_", "float6_", "float4_")) or name in ("uint4",)}
"""Types that Netron does not know in OM files: shown as uint8, the real one in an attribute."""

Shown = dict[str, Any]


def shown(tmp_path: Path, **protos: ModelProto) -> dict[str, Shown]:
    """What Netron shows of each model's OM."""
    return {name: _opened(name, found) for name, found in raw(tmp_path, **protos).items()}


def raw(tmp_path: Path, **protos: ModelProto) -> dict[str, Shown]:
    for name, proto in protos.items():
        (tmp_path / f"{name}.om").write_bytes(om_bytes(compile_model(proto)))
    return dict(zip(protos, read_many_with_netron([tmp_path / f"{name}.om" for name in protos]), strict=True))


def _opened(name: str, found: Shown) -> Shown:
    assert "error" not in found, f"{name}: {found['error']}"
    return found


def nodes(found: Shown, kind: str | None = None) -> list[Shown]:
    return [n for g in found["graphs"] for n in g["nodes"] if kind in (None, n["type"])]


def values(found: Shown) -> Iterator[Shown]:
    for n in nodes(found):
        for argument in [*n["inputs"], *n["outputs"]]:
            yield from argument["values"]


def initializers(found: Shown) -> list[Shown]:
    return [v["initializer"] for v in values(found) if v["initializer"]]


def test_the_table_has_every_dtype() -> None:
    assert set(DTYPES) == {d.value for d in DType}


def numpy_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def test_one_model_for_each_dtype(tmp_path: Path) -> None:
    protos = {}
    for name, dtype in DTYPES.items():
        content: Any = ["a", "b", "ü"] if name == "string" else np.array([0, 1, 1]).astype(numpy_of(name))
        constant = np.array(content, object) if name == "string" else content
        # Few operators take every dtype, and of 6 bits none but Cast; a constant may be an output.
        copy = node("Cast", ["x"], ["y"], to=1) if name.startswith("float6_") else node("Identity", ["x"], ["y"])
        protos[name] = model([copy], {"x": (dtype, [3])}, ["y", "c"], {"c": constant})
    for name, found in shown(tmp_path, **protos).items():
        [x] = nodes(found, "Data")
        type_ = x["outputs"][0]["values"][0]["type"]
        expected = {"bool": "boolean", "complex64": "complex<float32>", "complex128": "complex<float64>"}.get(
            name, name
        )
        assert type_["dtype"] == ("uint8" if name in AS_UINT8 else expected), name
        assert type_["shape"] == [3]
        assert initializers(found), f"{name}: the constant's bytes are shown"
        if name in ("float32", "int8", "uint64", "float16", "bfloat16", "float64", "int4"):
            assert [float(v) for v in initializers(found)[0]["values"]] == [0, 1, 1], name


def test_constants_of_every_form(tmp_path: Path) -> None:
    """Plain bytes, one repeated scalar, packed ones, symbolic shapes."""
    chain = [
        node("Add", ["x", "plain"], ["a"]),
        node("ConstantOfShape", ["big"], ["zeros"]),
        node("Add", ["a", "zeros"], ["b"]),
        node("DequantizeLinear", ["packed", "scale"], ["w"]),
        node("MatMul", ["b", "w"], ["c"]),
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
        node("Reshape", ["c", "shape"], ["y"]),
    ]
    constants = {
        "plain": np.arange(64, dtype=np.float32),
        "big": np.array([1, 64]),
        "packed": helper.make_tensor("packed", TensorProto.UINT4, [64, 2], [i % 16 for i in range(128)]),
        "scale": np.float32(0.5),
        "zero": np.array([0]),
        "rest": np.array([2, 1]),
    }
    [found] = shown(tmp_path, m=model(chain, {"x": (FLOAT, ["N", 64])}, ["y"], constants)).values()
    plain = next(i for i in initializers(found) if i["nbytes"] == 256)
    assert plain["values"] == list(range(64))
    assert nodes(found, "Unpack"), "packed types that Netron does not know are unpacked by a node that can be seen"
    packed = next(i for i in initializers(found) if i["nbytes"] == 64)
    assert packed["values"][:3] == [0x10, 0x32, 0x54]


def test_symbolic_reshape_split_and_concat(tmp_path: Path) -> None:
    chain = [
        node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        node("Concat", ["b", "a"], ["c"], axis=1),
        node("Flatten", ["c"], ["f"]),
        node("Shape", ["f"], ["s"]),
        node("Reshape", ["x", "s"], ["y"]),
    ]
    [found] = shown(tmp_path, m=model(chain, {"x": (FLOAT, ["N", 4, "M"])}, ["f", "y"])).values()
    [split] = nodes(found, "Split")
    assert [len(v["values"]) for v in split["outputs"]] == [1, 1] or len(split["outputs"][0]["values"]) == 2
    for value in values(found):
        if value["type"] is not None and value["name"]:
            assert all(d is not None for d in value["type"]["shape"])


def loop() -> ModelProto:
    body = graph(
        [node("Identity", ["c"], ["c1"]), node("Add", ["s", "w"], ["s1"]), node("Relu", ["s1"], ["item"])],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [2])},
        ["c1", "s1", "item"],
    )
    outer = node("Loop", ["n", "", "x"], ["y", "items"], name="the loop")
    outer.attribute.append(body_attribute(body))
    return model([outer], {"x": (FLOAT, [2]), "n": (INT64, [])}, ["y", "items"], {"w": np.ones(2, np.float32)})


def branch() -> ModelProto:
    outer = node("If", ["c"], ["y"], name="the branch")
    then, other = node("Relu", ["x"], ["t"]), node("Neg", ["x"], ["e"])
    outer.attribute.append(body_attribute(graph([then], {}, ["t"]), "then_branch"))
    outer.attribute.append(body_attribute(graph([other], {}, ["e"]), "else_branch"))
    return model([outer], {"x": (FLOAT, [2]), "c": (BOOL, [])}, ["y"])


def scan() -> ModelProto:
    body = graph(
        [node("Add", ["s", "p"], ["t"]), node("Relu", ["t"], ["o"])], {"s": (FLOAT, [2]), "p": (FLOAT, [2])}, ["t", "o"]
    )
    outer = node("Scan", ["z", "x"], ["y", "ys"], num_scan_inputs=1)
    outer.attribute.append(body_attribute(body))
    return model([outer], {"z": (FLOAT, [2]), "x": (FLOAT, [5, 2])}, ["y", "ys"])


def test_control_flow(tmp_path: Path) -> None:
    found = shown(tmp_path, loop=loop(), branch=branch(), scan=scan())
    assert {n["type"] for n in nodes(found["loop"])} >= {"Loop", "Add"}
    assert {n["type"] for n in nodes(found["branch"])} >= {"If", "Relu", "Neg"}
    assert {n["type"] for n in nodes(found["scan"])} >= {"Scan", "Add"}
    for name in ("loop", "scan"):  # the body's two operators are one task, shown as its anchor
        [add] = nodes(found[name], "Add")
        assert "Relu" in add["attributes"]["_fused_ops"]
    assert [len(f["graphs"]) for f in found.values()] == [2, 3, 2]
    for f in found.values():
        names = [g["name"] for g in f["graphs"]]
        assert len(set(names)) == len(names)


def test_sequences_and_optionals(tmp_path: Path) -> None:
    chain = [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceLength", ["t"], ["n"])]
    sequences = model(chain, {"s": sequence_of(FLOAT), "x": (FLOAT, [2])}, ["t", "n"])
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    optionals = model([node("OptionalHasElement", ["o"], ["y"])], {"o": kind}, ["y", "o"])
    found = shown(tmp_path, sequences=sequences, optionals=optionals)
    assert nodes(found["sequences"], "SequenceInsert") and nodes(found["optionals"], "OptionalHasElement")


def test_names_of_every_kind(tmp_path: Path) -> None:
    duplicate = [
        node("Relu", ["x"], ["a"], name="same"),
        node("Neg", ["a"], ["b"], name="same"),
        node("Abs", ["b"], ["y"], name="same"),
    ]
    unicode = [node("Relu", ["входные данные"], ["出力:0"], name="層/ü x\"'<&>\n")]
    colons = [node("Relu", ["x:0"], ["x:1"], name="x"), node("Neg", ["x:1"], ["x:0:0"], name="x:0")]
    clash = [node("Relu", ["x"], ["y"], name="x"), node("Neg", ["y"], ["z"], name="NetOutput")]
    found = shown(
        tmp_path,
        duplicate=model(duplicate, {"x": (FLOAT, [2])}, ["y"]),
        nameless=model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"], name=""),
        unicode=model(unicode, {"входные данные": (FLOAT, [2])}, ["出力:0"]),
        colons=model(colons, {"x:0": (FLOAT, [2])}, ["x:0:0"]),
        clash=model(clash, {"x": (FLOAT, [2])}, ["z"]),
        long=model([node("Relu", ["x"], ["y"], name="n" * 5000)], {"x": (FLOAT, [2])}, ["y"], name="g" * 300),
    )
    for name, f in found.items():
        labels = [n["name"] for n in nodes(f)]
        assert len(set(labels)) == len(labels), (name, labels)
    for name in ("duplicate", "unicode", "colons", "clash"):
        relu = nodes(found[name], "Relu")[0]
        assert relu["inputs"][0]["values"][0]["type"]["shape"] == [2], name


def test_degenerate_models(tmp_path: Path) -> None:
    found = shown(
        tmp_path,
        passthrough=model([node("Identity", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"]),
        constant=model(
            [node("Add", ["a", "b"], ["y"])],
            {},
            ["y"],
            {"a": np.array([1], np.float32), "b": np.array([2], np.float32)},
        ),
        unused=model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2]), "z": (STRING, ["N"])}, ["y"]),
        empty=model(
            [node("Concat", ["x", "e"], ["y"], axis=0)],
            {"x": (FLOAT, [2, 0])},
            ["y"],
            {"e": np.zeros((3, 0), np.float32)},
        ),
        scalar=model([node("Add", ["x", "c"], ["y"])], {"x": (FLOAT, [])}, ["y"], {"c": np.float32(1)}),
        absent=model([node("Clip", ["x", "", "m"], ["y"])], {"x": (FLOAT, [2])}, ["y"], {"m": np.float32(1)}),
    )
    assert all(nodes(f, "NetOutput") for f in found.values())


def repository_models() -> list[Path]:
    return sorted([*ROOT.glob("models/*.onnx"), *ROOT.glob("models/corpus/*.onnx")])


def test_all_models_of_the_repository(tmp_path: Path) -> None:
    paths = []
    for source in repository_models():
        paths.append(tmp_path / f"{source.stem}.om")
        paths[-1].write_bytes(om_bytes(compile_model(source)))
    for path, found in zip(paths, read_many_with_netron(paths), strict=True):
        _opened(path.name, found)
        assert len(nodes(found)) > 2 and nodes(found, "NetOutput"), path.name
        for value in values(found):
            assert value["initializer"] is None or value["initializer"]["nbytes"] >= 0


@pytest.mark.slow
@pytest.mark.needs_models
@pytest.mark.parametrize("entry", [e for e in catalog.load_manifest() if e.startswith(("ppocr", "mtcnn", "magika"))])
def test_real_models(entry: str, tmp_path: Path, corpus_model: Any) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(om_bytes(compile_model(corpus_model(entry).path)))
    _opened(entry, read_many_with_netron([path])[0])
