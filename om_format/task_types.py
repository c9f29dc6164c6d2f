"""The kinds of task, kernel and copy in TASK_INFO."""

from __future__ import annotations

from enum import IntEnum


class TaskType(IntEnum):
    """TaskDef.type, under the runtime's names without their ACL_RT_MODEL_TASK_ prefix."""

    KERNEL = 0
    EVENT_RECORD = 1
    EVENT_WAIT = 2
    FUSION_START = 3
    FUSION_END = 4
    KERNEL_EX = 5
    HCCL = 6
    STREAM_SWITCH = 7
    STREAM_ACTIVE = 8
    LABEL_SET = 9
    LABEL_SWITCH = 10
    LABEL_GOTO = 11
    PROFILER_TRACE = 12
    MEMCPY_ASYNC = 13
    NOTIFY_RECORD = 14
    NOTIFY_WAIT = 15
    REDUCE_ASYNC = 16
    RDMA_SEND = 17
    EVENT_RESET = 18
    END_GRAPH = 19
    STREAM_SWITCH_N = 20
    RDMA_DB_SEND = 21
    MEMCPY_ADDR_ASYNC = 22
    STREAM_LABEL_SWITCH_BY_INDEX = 23
    STREAM_LABEL_GOTO = 24
    MODEL_EXIT = 25
    ALL_KERNEL = 26
    PROFILER_TRACE_EX = 27
    FFTS = 28
    FFTS_PLUS = 29
    DSA = 30
    CMO = 31
    BARRIER = 32
    GET_FLOAT_STATUS = 33
    CLEAR_FLOAT_STATUS = 34
    DVPP = 35
    CMO_ADDR = 38
    VECTOR_KERNEL = 39
    VECTOR_ALL_KERNEL = 40
    UPDATE = 41
    NOP = 42
    PREPROCESS_KERNEL = 43
    SUPER_KERNEL = 44
    MEM_EVENT_RECORD = 45
    MEM_EVENT_WAIT = 46


class KernelType(IntEnum):
    """KernelContext.kernel_type: which processor a kernel is for (GE's ccKernelType)."""

    CCE_AI_CORE = 0
    CCE_AI_CPU = 1
    TE = 2
    CUSTOMIZED = 3
    TE_AI_CORE = 4
    TE_AI_CPU = 5
    AI_CPU = 6
    CUST_AI_CPU = 7
    HOST_CPU = 8


class MemcpyKind(IntEnum):
    """MemcpyAsyncDef.kind, under the runtime's names without their RT_MEMCPY_ prefix (rtMemcpyKind_t)."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
