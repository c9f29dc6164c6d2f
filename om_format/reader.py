"""Read an OM: everything is checked before it is used, nothing is copied."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .digest import OWNER_MARK, Integrity, is_integrity
from .errors import OmError, OmErrorCode, corrupt, truncated
from .header import HEADER_BYTES, OmHeader
from .messages import parse
from .partitions import ModelLayout, Partition, Section, all_sections, parse_table, partition_name
from .stream import BytesLike, as_bytes_view

if TYPE_CHECKING:
    from .proto.ge_ir_pb2 import ModelDef
    from .proto.task_pb2 import ModelTaskDef

MAX_MODELS: Final = 1 << 16
"""Far above the models of a dynamic network; a count above it is damage."""


@dataclass(frozen=True)
class PartitionView:
    """One partition: its type, its place in the file in bytes, and its bytes (a read-only view, not a
    copy).
    """

    kind: int
    offset: int
    data: memoryview

    @property
    def name(self) -> str:
        """GE's name of the type."""
        return partition_name(self.kind)


@dataclass(frozen=True)
class OmModel:
    """One model of a file: its partitions in file order."""

    partitions: tuple[PartitionView, ...]
    table_offset: int

    def get(self, kind: int) -> PartitionView | None:
        """The partition of a type, None when there is none."""
        return next((partition for partition in self.partitions if partition.kind == kind), None)

    def __contains__(self, kind: int) -> bool:
        return self.get(kind) is not None

    def __getitem__(self, kind: int) -> PartitionView:
        """The partition of a type; CORRUPT when there is none."""
        found = self.get(kind)
        if found is None:
            raise corrupt(f"the model has no {partition_name(kind)} partition", self.table_offset)
        return found


class OmFile:
    """An open OM. Make one with `open` or `from_bytes`.

    Header, tables and, where the file has digests, every byte outside the weights have been checked when
    one is returned. Indexing (`om[Partition.MODEL_DEF]`, `om.get`, `in`) means the first model; `models`
    has all of them. Use as a context manager, or call `close`; views that outlive it keep the mapping
    alive.
    """

    def __init__(self, data: memoryview, path: str, mapping: mmap.mmap | None) -> None:
        self.path = path
        self._data = data
        self._mapping = mapping
        self.header = OmHeader.parse(data)
        layouts = _layouts(data, self.header)
        self._sections = all_sections(layouts)
        self._integrity = _checked_integrity(data, self.header, self._sections)
        self.models = tuple(_model(data, layout) for layout in layouts)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> OmFile:
        """Map a file and check it. Raises `OmError`, or OSError when the file cannot be opened."""
        name = os.fspath(path)
        with _naming(name), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped; the header's check says what it is.
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
            return cls(memoryview(mapping if mapping is not None else b""), name, mapping)

    @classmethod
    def from_bytes(cls, data: BytesLike, path: str = "") -> OmFile:
        """Check a file in memory, which must not change while it is in use. Raises `OmError`."""
        with _naming(path):
            return cls(as_bytes_view(data).toreadonly(), path, None)

    @property
    def is_atc(self) -> bool:
        """Whether the file has digests, that is, was written by this project."""
        return self._integrity is not None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._sections[-1].end

    @property
    def sections(self) -> tuple[Section, ...]:
        """Header, tables and partitions of all models in file order; together every byte of the file."""
        return tuple(self._sections)

    def get(self, kind: int) -> PartitionView | None:
        """The first model's partition of a type, None when there is none."""
        return self.models[0].get(kind)

    def __contains__(self, kind: int) -> bool:
        return kind in self.models[0]

    def __getitem__(self, kind: int) -> PartitionView:
        """The first model's partition of a type; CORRUPT when there is none."""
        with _naming(self.path):
            return self.models[0][kind]

    def require_atc(self) -> OmFile:
        """This file, when it was written by this project; FOREIGN otherwise."""
        if not self.is_atc:
            raise OmError(
                OmErrorCode.FOREIGN,
                "the file is an OM of another compiler: it has no plan and no graph that could be run here",
                hint="inspect it, or convert the ONNX model it was made from",
                path=self.path,
            )
        return self

    def check_weights(self) -> None:
        """Read all weights, compare their CRC-32. Raises CORRUPT at the MiB that differs, or FOREIGN."""
        self.require_atc()
        if self._integrity is not None:
            with _naming(self.path):
                self._integrity.check_weights(self._data, self._sections)

    def model_def(self, model: int = 0) -> ModelDef:
        """A model's graph, parsed anew at each call. Raises CORRUPT."""
        from .proto.ge_ir_pb2 import ModelDef

        with _naming(self.path):
            partition = self.models[model][Partition.MODEL_DEF]
            return parse(ModelDef, partition.data, partition.offset)

    def task_info(self, model: int = 0) -> ModelTaskDef:
        """A model's task list, parsed anew at each call. Raises CORRUPT."""
        from .proto.task_pb2 import ModelTaskDef

        with _naming(self.path):
            partition = self.models[model][Partition.TASK_INFO]
            return parse(ModelTaskDef, partition.data, partition.offset)

    def close(self) -> None:
        """Give the mapping up; the file cannot be used afterwards, views taken from it can."""
        self.models = ()
        self._integrity = None
        self._data = memoryview(b"")
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                # Somebody still holds a view; the mapping goes with the last of them.
                return

    def __enter__(self) -> OmFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors from inside name the file."""
    try:
        yield
    except OmError as error:
        error.path = error.path or path
        raise


def _layouts(data: memoryview, header: OmHeader) -> list[ModelLayout]:
    """The checked tables of all models."""
    if header.is_encrypt and not header.userdefineinfo.startswith(OWNER_MARK):
        raise OmError(OmErrorCode.UNSUPPORTED, "the model is encrypted", offset=80)
    _check_length(len(data) - HEADER_BYTES, header)
    if not 1 <= header.models <= MAX_MODELS:
        raise corrupt(f"a file of {header.models} models, 1 to {MAX_MODELS} are possible", 156)
    layouts: list[ModelLayout] = []
    position = HEADER_BYTES
    for _ in range(header.models):
        layouts.append(parse_table(data, position, wide=header.model_length != 0))
        position = layouts[-1].end
    if position != len(data):
        raise corrupt(f"{len(data) - position} bytes follow the last partition", position)
    return layouts


def _check_length(present: int, header: OmHeader) -> None:
    declared = header.body_bytes
    if declared > present:
        raise truncated(
            f"the header declares {declared} bytes after itself, the file has {present}",
            HEADER_BYTES + present,
            "fetch or convert it again",
        )
    if declared < present:
        raise corrupt(
            f"the header declares {declared} bytes after itself, the file has {present}",
            HEADER_BYTES + declared,
        )


def _checked_integrity(data: memoryview, header: OmHeader, sections: list[Section]) -> Integrity | None:
    """The digests after comparing them; None for a foreign file, which shows neither of our two marks."""
    last = sections[-1]
    content = data[last.offset : last.end]
    sealed = last.kind == Partition.INTEGRITY and is_integrity(content)
    if not sealed and not header.userdefineinfo.startswith(OWNER_MARK):
        return None
    if last.kind != Partition.INTEGRITY:
        raise corrupt(f"the last partition is {last.name} where INTEGRITY should be", last.offset)
    integrity = Integrity.parse(content, last.offset, sections)
    integrity.check_sections(data, sections)
    return integrity


def _model(data: memoryview, layout: ModelLayout) -> OmModel:
    views = tuple(
        PartitionView(section.kind, section.offset, data[section.offset : section.end])
        for section in layout.partitions
        if section.kind is not None
    )
    return OmModel(views, layout.table.offset)
