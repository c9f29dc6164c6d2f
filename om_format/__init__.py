"""The OM container: read, write and check the files that Ascend's tools and Netron read too.

Knows bytes, partitions and messages, nothing of compilers. Writing:

    weights = WeightsLayout(table_bytes(3))          # WEIGHTS_DATA, MODEL_DEF, INTEGRITY
    offset = weights.add(len(kernel))
    model = ModelDef(...)                            # om_format.proto.ge_ir_pb2
    write_om("m.om", OmHeader(name="m"), {Partition.MODEL_DEF: serialize(model),
                                          Partition.WEIGHTS_DATA: weights.stream([kernel])})

Reading:

    with OmFile.open("m.om") as om:
        om.require_atc().check_weights()
        graph = om.model_def().graph[0]
        kernel = om[Partition.WEIGHTS_DATA].data[offset:]
"""

from __future__ import annotations

from .errors import OmError, OmErrorCode
from .header import OmHeader
from .inout import ModelInOut, TensorInfo, pack_inout, parse_inout
from .messages import limited, serialize
from .partitions import Partition, Section, own_name, partition_name, table_bytes
from .reader import OmFile, OmModel, PartitionView
from .stream import BytesLike, Payload, Stream
from .task_types import KernelType, MemcpyKind, TaskType
from .weights import WeightsLayout
from .writer import write_om

__all__ = [
    "BytesLike",
    "KernelType",
    "MemcpyKind",
    "ModelInOut",
    "OmError",
    "OmErrorCode",
    "OmFile",
    "OmHeader",
    "OmModel",
    "Partition",
    "PartitionView",
    "Payload",
    "Section",
    "Stream",
    "TaskType",
    "TensorInfo",
    "WeightsLayout",
    "limited",
    "own_name",
    "pack_inout",
    "parse_inout",
    "partition_name",
    "serialize",
    "table_bytes",
    "write_om",
]
