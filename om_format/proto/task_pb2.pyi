from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelTaskDef(_message.Message):
    __slots__ = ("version", "attr", "task", "memory_size", "stream_num", "event_num", "weight_size", "op", "base_addr", "weight_addr", "batch_num")
    class AttrEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SIZE_FIELD_NUMBER: _ClassVar[int]
    STREAM_NUM_FIELD_NUMBER: _ClassVar[int]
    EVENT_NUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SIZE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    BASE_ADDR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ADDR_FIELD_NUMBER: _ClassVar[int]
    BATCH_NUM_FIELD_NUMBER: _ClassVar[int]
    version: str
    attr: _containers.ScalarMap[str, str]
    task: _containers.RepeatedCompositeFieldContainer[TaskDef]
    memory_size: int
    stream_num: int
    event_num: int
    weight_size: int
    op: _containers.RepeatedScalarFieldContainer[bytes]
    base_addr: int
    weight_addr: int
    batch_num: int
    def __init__(self, version: _Optional[str] = ..., attr: _Optional[_Mapping[str, str]] = ..., task: _Optional[_Iterable[_Union[TaskDef, _Mapping]]] = ..., memory_size: _Optional[int] = ..., stream_num: _Optional[int] = ..., event_num: _Optional[int] = ..., weight_size: _Optional[int] = ..., op: _Optional[_Iterable[bytes]] = ..., base_addr: _Optional[int] = ..., weight_addr: _Optional[int] = ..., batch_num: _Optional[int] = ...) -> None: ...

class TaskDef(_message.Message):
    __slots__ = ("id", "type", "stream_id", "event_id", "notify_id", "sqe_num", "kernel", "kernel_ex", "kernel_hccl", "event_ex", "label_id", "memcpy_async", "stream_switch", "stream_active", "private_def", "ops_kernel_store_ptr", "stream_switch_n", "label_set", "label_goto_ex", "label_switch_by_index", "kernel_with_handle")
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_ID_FIELD_NUMBER: _ClassVar[int]
    SQE_NUM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    KERNEL_EX_FIELD_NUMBER: _ClassVar[int]
    KERNEL_HCCL_FIELD_NUMBER: _ClassVar[int]
    EVENT_EX_FIELD_NUMBER: _ClassVar[int]
    LABEL_ID_FIELD_NUMBER: _ClassVar[int]
    MEMCPY_ASYNC_FIELD_NUMBER: _ClassVar[int]
    STREAM_SWITCH_FIELD_NUMBER: _ClassVar[int]
    STREAM_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_DEF_FIELD_NUMBER: _ClassVar[int]
    OPS_KERNEL_STORE_PTR_FIELD_NUMBER: _ClassVar[int]
    STREAM_SWITCH_N_FIELD_NUMBER: _ClassVar[int]
    LABEL_SET_FIELD_NUMBER: _ClassVar[int]
    LABEL_GOTO_EX_FIELD_NUMBER: _ClassVar[int]
    LABEL_SWITCH_BY_INDEX_FIELD_NUMBER: _ClassVar[int]
    KERNEL_WITH_HANDLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    type: int
    stream_id: int
    event_id: int
    notify_id: int
    sqe_num: int
    kernel: KernelDef
    kernel_ex: KernelExDef
    kernel_hccl: KernelHcclDef
    event_ex: EventExDef
    label_id: int
    memcpy_async: MemcpyAsyncDef
    stream_switch: StreamSwitchDef
    stream_active: StreamActiveDef
    private_def: bytes
    ops_kernel_store_ptr: int
    stream_switch_n: StreamSwitchNDef
    label_set: LabelSetDef
    label_goto_ex: LabelGotoExDef
    label_switch_by_index: LabelSwitchByIndexDef
    kernel_with_handle: KernelDefWithHandle
    def __init__(self, id: _Optional[int] = ..., type: _Optional[int] = ..., stream_id: _Optional[int] = ..., event_id: _Optional[int] = ..., notify_id: _Optional[int] = ..., sqe_num: _Optional[int] = ..., kernel: _Optional[_Union[KernelDef, _Mapping]] = ..., kernel_ex: _Optional[_Union[KernelExDef, _Mapping]] = ..., kernel_hccl: _Optional[_Union[KernelHcclDef, _Mapping]] = ..., event_ex: _Optional[_Union[EventExDef, _Mapping]] = ..., label_id: _Optional[int] = ..., memcpy_async: _Optional[_Union[MemcpyAsyncDef, _Mapping]] = ..., stream_switch: _Optional[_Union[StreamSwitchDef, _Mapping]] = ..., stream_active: _Optional[_Union[StreamActiveDef, _Mapping]] = ..., private_def: _Optional[bytes] = ..., ops_kernel_store_ptr: _Optional[int] = ..., stream_switch_n: _Optional[_Union[StreamSwitchNDef, _Mapping]] = ..., label_set: _Optional[_Union[LabelSetDef, _Mapping]] = ..., label_goto_ex: _Optional[_Union[LabelGotoExDef, _Mapping]] = ..., label_switch_by_index: _Optional[_Union[LabelSwitchByIndexDef, _Mapping]] = ..., kernel_with_handle: _Optional[_Union[KernelDefWithHandle, _Mapping]] = ...) -> None: ...

class KernelContext(_message.Message):
    __slots__ = ("kernel_type", "op_id", "kernel_func_id", "op_index", "is_flowtable", "args_offset", "args_count", "origin_op_index", "args_format")
    KERNEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FUNC_ID_FIELD_NUMBER: _ClassVar[int]
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_FLOWTABLE_FIELD_NUMBER: _ClassVar[int]
    ARGS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ARGS_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    ARGS_FORMAT_FIELD_NUMBER: _ClassVar[int]
    kernel_type: int
    op_id: int
    kernel_func_id: int
    op_index: int
    is_flowtable: bool
    args_offset: bytes
    args_count: int
    origin_op_index: _containers.RepeatedScalarFieldContainer[int]
    args_format: str
    def __init__(self, kernel_type: _Optional[int] = ..., op_id: _Optional[int] = ..., kernel_func_id: _Optional[int] = ..., op_index: _Optional[int] = ..., is_flowtable: bool = ..., args_offset: _Optional[bytes] = ..., args_count: _Optional[int] = ..., origin_op_index: _Optional[_Iterable[int]] = ..., args_format: _Optional[str] = ...) -> None: ...

class KernelDef(_message.Message):
    __slots__ = ("context", "is_block_task_prefetch", "stub_func", "block_dim", "args_size", "args", "sm_desc", "flowtable", "so_name", "kernel_name", "kernel_ext_info", "kernel_ext_info_size", "schedule_mode", "block_dim_offset")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IS_BLOCK_TASK_PREFETCH_FIELD_NUMBER: _ClassVar[int]
    STUB_FUNC_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DIM_FIELD_NUMBER: _ClassVar[int]
    ARGS_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    SM_DESC_FIELD_NUMBER: _ClassVar[int]
    FLOWTABLE_FIELD_NUMBER: _ClassVar[int]
    SO_NAME_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    KERNEL_EXT_INFO_FIELD_NUMBER: _ClassVar[int]
    KERNEL_EXT_INFO_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_MODE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DIM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    context: KernelContext
    is_block_task_prefetch: bool
    stub_func: str
    block_dim: int
    args_size: int
    args: bytes
    sm_desc: bytes
    flowtable: bytes
    so_name: str
    kernel_name: str
    kernel_ext_info: bytes
    kernel_ext_info_size: int
    schedule_mode: int
    block_dim_offset: int
    def __init__(self, context: _Optional[_Union[KernelContext, _Mapping]] = ..., is_block_task_prefetch: bool = ..., stub_func: _Optional[str] = ..., block_dim: _Optional[int] = ..., args_size: _Optional[int] = ..., args: _Optional[bytes] = ..., sm_desc: _Optional[bytes] = ..., flowtable: _Optional[bytes] = ..., so_name: _Optional[str] = ..., kernel_name: _Optional[str] = ..., kernel_ext_info: _Optional[bytes] = ..., kernel_ext_info_size: _Optional[int] = ..., schedule_mode: _Optional[int] = ..., block_dim_offset: _Optional[int] = ...) -> None: ...

class KernelDefWithHandle(_message.Message):
    __slots__ = ("context", "is_block_task_prefetch", "handle", "dev_func", "block_dim", "args_size", "args", "sm_desc", "original_kernel_key", "node_info", "schedule_mode", "block_dim_offset")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IS_BLOCK_TASK_PREFETCH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEV_FUNC_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DIM_FIELD_NUMBER: _ClassVar[int]
    ARGS_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    SM_DESC_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_KERNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    NODE_INFO_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_MODE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DIM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    context: KernelContext
    is_block_task_prefetch: bool
    handle: int
    dev_func: str
    block_dim: int
    args_size: int
    args: bytes
    sm_desc: bytes
    original_kernel_key: str
    node_info: str
    schedule_mode: int
    block_dim_offset: int
    def __init__(self, context: _Optional[_Union[KernelContext, _Mapping]] = ..., is_block_task_prefetch: bool = ..., handle: _Optional[int] = ..., dev_func: _Optional[str] = ..., block_dim: _Optional[int] = ..., args_size: _Optional[int] = ..., args: _Optional[bytes] = ..., sm_desc: _Optional[bytes] = ..., original_kernel_key: _Optional[str] = ..., node_info: _Optional[str] = ..., schedule_mode: _Optional[int] = ..., block_dim_offset: _Optional[int] = ...) -> None: ...

class KernelExDef(_message.Message):
    __slots__ = ("flags", "op_index", "args_size", "args", "task_info", "task_info_size", "kernel_ext_info", "kernel_ext_info_size")
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    ARGS_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TASK_INFO_FIELD_NUMBER: _ClassVar[int]
    TASK_INFO_SIZE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_EXT_INFO_FIELD_NUMBER: _ClassVar[int]
    KERNEL_EXT_INFO_SIZE_FIELD_NUMBER: _ClassVar[int]
    flags: int
    op_index: int
    args_size: int
    args: bytes
    task_info: bytes
    task_info_size: int
    kernel_ext_info: bytes
    kernel_ext_info_size: int
    def __init__(self, flags: _Optional[int] = ..., op_index: _Optional[int] = ..., args_size: _Optional[int] = ..., args: _Optional[bytes] = ..., task_info: _Optional[bytes] = ..., task_info_size: _Optional[int] = ..., kernel_ext_info: _Optional[bytes] = ..., kernel_ext_info_size: _Optional[int] = ...) -> None: ...

class KernelHcclDef(_message.Message):
    __slots__ = ("op_index", "hccl_type", "input_zero_copy_flag", "output_zero_copy_flag", "aiv_block_dim")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    HCCL_TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_ZERO_COPY_FLAG_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ZERO_COPY_FLAG_FIELD_NUMBER: _ClassVar[int]
    AIV_BLOCK_DIM_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    hccl_type: str
    input_zero_copy_flag: _containers.RepeatedScalarFieldContainer[int]
    output_zero_copy_flag: _containers.RepeatedScalarFieldContainer[int]
    aiv_block_dim: int
    def __init__(self, op_index: _Optional[int] = ..., hccl_type: _Optional[str] = ..., input_zero_copy_flag: _Optional[_Iterable[int]] = ..., output_zero_copy_flag: _Optional[_Iterable[int]] = ..., aiv_block_dim: _Optional[int] = ...) -> None: ...

class EventExDef(_message.Message):
    __slots__ = ("op_index", "event_type")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    event_type: int
    def __init__(self, op_index: _Optional[int] = ..., event_type: _Optional[int] = ...) -> None: ...

class MemcpyAsyncDef(_message.Message):
    __slots__ = ("dst", "dst_max", "src", "count", "kind", "op_index", "args_format")
    DST_FIELD_NUMBER: _ClassVar[int]
    DST_MAX_FIELD_NUMBER: _ClassVar[int]
    SRC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    ARGS_FORMAT_FIELD_NUMBER: _ClassVar[int]
    dst: int
    dst_max: int
    src: int
    count: int
    kind: int
    op_index: int
    args_format: str
    def __init__(self, dst: _Optional[int] = ..., dst_max: _Optional[int] = ..., src: _Optional[int] = ..., count: _Optional[int] = ..., kind: _Optional[int] = ..., op_index: _Optional[int] = ..., args_format: _Optional[str] = ...) -> None: ...

class StreamSwitchDef(_message.Message):
    __slots__ = ("op_index", "true_stream_id", "value", "value_ptr", "data_type")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRUE_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VALUE_PTR_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    true_stream_id: int
    value: int
    value_ptr: int
    data_type: int
    def __init__(self, op_index: _Optional[int] = ..., true_stream_id: _Optional[int] = ..., value: _Optional[int] = ..., value_ptr: _Optional[int] = ..., data_type: _Optional[int] = ...) -> None: ...

class StreamActiveDef(_message.Message):
    __slots__ = ("op_index", "active_stream_id")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    active_stream_id: int
    def __init__(self, op_index: _Optional[int] = ..., active_stream_id: _Optional[int] = ...) -> None: ...

class StreamSwitchNDef(_message.Message):
    __slots__ = ("op_index", "size", "target_value", "true_stream_id", "element_size", "data_type")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_VALUE_FIELD_NUMBER: _ClassVar[int]
    TRUE_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    size: int
    target_value: _containers.RepeatedScalarFieldContainer[int]
    true_stream_id: _containers.RepeatedScalarFieldContainer[int]
    element_size: int
    data_type: int
    def __init__(self, op_index: _Optional[int] = ..., size: _Optional[int] = ..., target_value: _Optional[_Iterable[int]] = ..., true_stream_id: _Optional[_Iterable[int]] = ..., element_size: _Optional[int] = ..., data_type: _Optional[int] = ...) -> None: ...

class LabelSetDef(_message.Message):
    __slots__ = ("op_index", "label_id", "model_id")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    LABEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    label_id: int
    model_id: int
    def __init__(self, op_index: _Optional[int] = ..., label_id: _Optional[int] = ..., model_id: _Optional[int] = ...) -> None: ...

class LabelGotoExDef(_message.Message):
    __slots__ = ("op_index", "label_id", "model_id")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    LABEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    label_id: int
    model_id: int
    def __init__(self, op_index: _Optional[int] = ..., label_id: _Optional[int] = ..., model_id: _Optional[int] = ...) -> None: ...

class LabelSwitchByIndexDef(_message.Message):
    __slots__ = ("op_index", "label_max")
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    LABEL_MAX_FIELD_NUMBER: _ClassVar[int]
    op_index: int
    label_max: int
    def __init__(self, op_index: _Optional[int] = ..., label_max: _Optional[int] = ...) -> None: ...
