"""The generated modules are current, and usable with every protobuf that the package allows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from om_format import serialize
from om_format.dtypes import DTYPES
from om_format.proto import ge_ir_pb2, task_pb2
from om_format.proto.ge_ir_pb2 import AttrDef, DataType, OpDef, TensorDescriptor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="needs grpcio-tools")
def test_generated_modules_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "protos"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="needs grpcio-tools")
def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    for folder in ("proto", "om_format/proto", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("proto/ge_ir.proto", "proto/task.proto", "scripts/protos"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in ("ge_ir_pb2.py", "task_pb2.py", "__init__.py"):
        (tmp_path / "om_format/proto" / name).write_text((ROOT / "om_format/proto" / name).read_text())
    (tmp_path / "om_format/__init__.py").touch()
    source = tmp_path / "proto/task.proto"
    source.write_text(source.read_text().replace("event_num = 13", "event_num = 19"))
    command = [sys.executable, str(tmp_path / "scripts/protos"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "stale: task.proto" in done.stderr


def test_modules_are_not_tied_to_one_runtime() -> None:
    for module in (ge_ir_pb2, task_pb2):
        assert module.__file__ is not None
        assert "ValidateProtobufRuntimeVersion" not in Path(module.__file__).read_text()


def test_wire_bytes() -> None:
    # Written out by hand from field numbers, to hold the numbers themselves.
    op = OpDef(name="n", type="T", input=["a:0", ""], input_i=[512], stream_id=3)
    op.attr["k"].CopyFrom(AttrDef(i=7))
    op.output_desc.append(TensorDescriptor(dtype=DataType.DT_BF16, data_offset=64, weight_size=6))
    attr = b"\x52\x07" + b"\x0a\x01k" + b"\x12\x02" + b"\x18\x07"
    desc = b"\x92\x02\x07" + b"\x10\x1b" + b"\x58\x06" + b"\x90\x01\x40"
    expected = b"\x0a\x01n" + b"\x12\x01T" + b"\x2a\x03a:0" + b"\x2a\x00" + attr
    expected += b"\xb0\x01\x03" + b"\xe2\x01\x02\x80\x04" + desc
    assert serialize(op) == expected
    task = task_pb2.TaskDef(type=1, event_id=2, kernel=task_pb2.KernelDef(kernel_name="k", block_dim=4))
    assert serialize(task) == b"\x10\x01" + b"\x58\x02" + b"\xa2\x01\x06" + b"\x58\x04" + b"\x8a\x01\x01k"


def test_serialization_does_not_depend_on_insertion_order() -> None:
    names = [f"attr{index}" for index in range(50)]
    one, other = OpDef(), OpDef()
    for name in names:
        one.attr[name].s = name.encode()
    for name in reversed(names):
        other.attr[name].s = name.encode()
    assert serialize(one) == serialize(other)


def test_fields_that_are_not_modelled_survive() -> None:
    unknown = b"\x5a\x03abc"  # OpDef.attr_groups
    assert OpDef.FromString(unknown + b"\x0a\x01n").SerializeToString() == b"\x0a\x01n" + unknown


def test_enum_and_dtype_table_agree() -> None:
    names = {value.number: value.name for value in ge_ir_pb2.DataType.DESCRIPTOR.values}
    assert sorted(names) == list(range(42))
    spelled = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BF16", "float8_e8m0fnu": "FLOAT8_E8M0"}
    for entry in DTYPES:
        if entry.proto is not None:
            assert names[entry.proto] == "DT_" + spelled.get(entry.name, entry.name.upper()).removesuffix(
                "FN" * (entry.name.startswith(("float4", "float6")))
            )
