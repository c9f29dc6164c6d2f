"""Small OM files made by hand."""

from __future__ import annotations

import io
import struct

from om_format import (
    OmHeader,
    Partition,
    WeightsLayout,
    pack_inout,
    serialize,
    table_bytes,
    write_om,
)
from om_format.dtypes import ATC_DTYPE_ATTR, Format, ge_dtype, wire_dtype
from om_format.inout import ModelInOut, TensorInfo
from om_format.proto.ge_ir_pb2 import GraphDef, ModelDef, OpDef, TensorDescriptor
from om_format.proto.task_pb2 import ModelTaskDef, TaskDef

KERNEL = struct.pack("<24f", *range(24))
BIAS = struct.pack("<2f", 0.5, -1.5)


def desc(dtype: str, shape: list[int], layout: str = "ND") -> TensorDescriptor:
    """A descriptor as the compiler writes it: codes that Netron refuses become UINT8 with an attribute."""
    wire = wire_dtype(dtype)
    made = TensorDescriptor(layout=layout)
    made.dtype = wire.proto  # type: ignore[assignment]
    made.shape.dim.extend(shape)
    if wire.atc_dtype is not None:
        made.attr[ATC_DTYPE_ATTR].s = wire.atc_dtype.encode()
    return made


def const(name: str, tensor: TensorDescriptor, offset: int, nbytes: int) -> OpDef:
    """A constant whose bytes are in WEIGHTS_DATA."""
    op = OpDef(name=name, type="Const")
    value = op.attr["value"].t.desc
    value.CopyFrom(tensor)
    value.data_offset = offset
    value.weight_size = nbytes
    op.output_desc.append(tensor)
    return op


def node(
    name: str, kind: str, inputs: list[str], types: list[TensorDescriptor], outputs: list[TensorDescriptor]
) -> OpDef:
    return OpDef(name=name, type=kind, input=inputs, input_desc=types, output_desc=outputs)


def conv_model(kernel: int, bias: int) -> ModelDef:
    """Data, Conv2D with two constants at the given offsets, NetOutput."""
    x = desc("float32", [1, 3, 8, 8], "NCHW")
    y = desc("float32", [1, 2, 7, 7], "NCHW")
    w = desc("float32", [2, 3, 2, 2], "NCHW")
    b = desc("float32", [2])
    conv = node("conv", "Conv2D", ["data:0", "w:0", "b:0", ""], [x, w, b], [y])
    conv.attr["strides"].list.i.extend([1, 1])
    conv.attr["groups"].i = 1
    ops = [
        node("data", "Data", [], [], [x]),
        const("w", w, kernel, len(KERNEL)),
        const("b", b, bias, len(BIAS)),
        conv,
        node("output", "NetOutput", ["conv:0"], [y], []),
    ]
    return ModelDef(name="conv", version=1, graph=[GraphDef(name="g", input=["data:0"], output=["conv:0"], op=ops)])


def conv_om(*, plan: bytes = b"plan" * 30, integrity: bool = True) -> bytes:
    """A complete file with all seven partitions that a compiled model has."""
    layout = WeightsLayout(table_bytes(7 if integrity else 6))
    model = conv_model(layout.add(len(KERNEL)), layout.add(len(BIAS)))
    ports = ModelInOut(
        inputs=(TensorInfo("data", 768, Format.NCHW, ge_dtype("float32"), (1, 3, 8, 8)),),
        outputs=(TensorInfo("conv", 392, Format.NCHW, ge_dtype("float32"), (1, 2, 7, 7)),),
    )
    file = io.BytesIO()
    write_om(
        file,
        OmHeader(name="conv", platform_version="Ascend310P3", om_ir_version=1),
        {
            Partition.PLAN_TABLE: plan,
            Partition.TASK_INFO: serialize(ModelTaskDef(version="1", task=[TaskDef(id=0, stream_id=0)])),
            Partition.MODEL_DEF: serialize(model),
            Partition.CANONICAL_GRAPH: b"graph" * 20,
            Partition.MODEL_INOUT_INFO: pack_inout(ports),
            Partition.WEIGHTS_DATA: layout.stream([KERNEL, BIAS]),
        },
        integrity=integrity,
    )
    return file.getvalue()


def tiny_om() -> bytes:
    """The smallest complete file of ours, for tests that go through every byte."""
    file = io.BytesIO()
    write_om(
        file,
        OmHeader(name="t"),
        {Partition.MODEL_DEF: serialize(ModelDef(name="t")), Partition.WEIGHTS_DATA: b"0123456789"},
    )
    return file.getvalue()
