"""Write an OM: in one pass, deterministically, all or nothing."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO, Final, TypeAlias

from .digest import OWNER_MARK, BlockCrc, covered, integrity_bytes, pack_integrity
from .errors import invalid
from .header import HEADER_BYTES, VERSION_2, OmHeader
from .partitions import ModelLayout, Partition, Section, all_sections, lay_out, own_name, pack_table
from .stream import Payload, Stream, as_bytes_view, as_stream

Target: TypeAlias = "str | os.PathLike[str] | BinaryIO"
Model: TypeAlias = Mapping[Partition, Payload]

WRITE_ORDER: Final = (
    Partition.WEIGHTS_DATA,  # first, so that its padding can align the constants whatever the other sizes are
    Partition.MODEL_INOUT_INFO,
    Partition.MODEL_DEF,
    Partition.TBE_KERNELS,
    Partition.CUST_AICPU_KERNELS,
    Partition.TASK_INFO,
    Partition.PLAN_TABLE,
    Partition.CANONICAL_GRAPH,
    Partition.INFO,
)
"""The order of partitions in the file; other types follow by number, INTEGRITY is last."""

MAX_WRITTEN: Final = 8
"""GE refuses tables with more entries."""

_UNREADABLE: Final = (Partition.SO_BINS, Partition.BUNDLE_MODEL_VAR_INFO, Partition.CUSTOM_OPS)
_LARGE: Final = (Partition.WEIGHTS_DATA, Partition.TBE_KERNELS, Partition.CUST_AICPU_KERNELS)
_MESSAGES: Final = (Partition.MODEL_DEF, Partition.TASK_INFO)
_MAX_SIZE: Final = (1 << 32) - 1
_MAX_MESSAGE: Final = (1 << 31) - 1


def write_om(target: Target, header: OmHeader, *models: Model, integrity: bool = True) -> int:
    """Write a file of one or more models and return its size in bytes.

    `target` is a path or a binary file open for writing; a path is replaced only after everything was
    written, and nothing is left beside it on failure. Each model maps partition types to their content,
    bytes or a `Stream`; their order in the file is `WRITE_ORDER`, whatever the mapping's. The header's
    sizes, version, `model_num` and, with `integrity`, `userdefineinfo` are set here. `integrity` adds
    digests (see `digest`); without it the file is like a foreign one.

    Equal content gives equal bytes. Raises `OmError` (INVALID) for what the format, GE or Netron cannot
    hold, OSError for what the file system refuses.
    """
    streams = [_ordered(model) for model in models]
    layouts = _lay_out(streams, integrity)
    body = layouts[-1].end - HEADER_BYTES
    packed = _finished(header, len(models), body, integrity).pack()
    with _opened(target) as sink:
        _write_all(sink, packed, layouts, [stream for model in streams for _, stream in model], integrity)
    return HEADER_BYTES + body


def _ordered(model: Model) -> list[tuple[int, Stream]]:
    """A model's partitions in file order, checked against the format's limits."""
    known = frozenset(Partition)
    for kind in model:
        if kind not in known or kind in _UNREADABLE:
            raise invalid(f"{own_name(kind)} cannot be written: Netron refuses files that have it")
    if Partition.MODEL_DEF not in model:
        raise invalid("a model needs a MODEL_DEF partition")
    rank = {kind: index for index, kind in enumerate(WRITE_ORDER)}
    kinds = sorted(model, key=lambda kind: (rank.get(Partition(kind), len(rank)), kind))
    streams = [(int(kind), as_stream(model[kind])) for kind in kinds]
    for number, stream in streams:
        _check_size(number, stream.size)
    return streams


def _check_size(kind: int, size: int) -> None:
    if size <= 0:
        raise invalid(f"{own_name(kind)} is empty", hint="leave the partition out")
    limit = _MAX_MESSAGE if kind in _MESSAGES else _MAX_SIZE
    if size > limit and kind not in _LARGE:
        raise invalid(f"{own_name(kind)} has {size} bytes, at most {limit} are allowed")


def _lay_out(models: Sequence[Sequence[tuple[int, Stream]]], integrity: bool) -> list[ModelLayout]:
    if not models:
        raise invalid("a file needs at least one model")
    sizes = [[(kind, stream.size) for kind, stream in model] for model in models]
    if integrity:
        if any(kind == Partition.INTEGRITY for model in sizes for kind, _ in model):
            raise invalid("INTEGRITY is written by the writer itself")
        weights = [size for model in sizes for kind, size in model if kind == Partition.WEIGHTS_DATA]
        digests = 1 + sum(1 + len(model) for model in sizes) - len(weights)
        sizes[-1].append((Partition.INTEGRITY, integrity_bytes(digests, weights)))
    layouts = []
    position = HEADER_BYTES
    for model in sizes:
        if not 2 <= len(model) <= MAX_WRITTEN:
            # Netron takes a 64-bit table of one entry for a 32-bit one and shows nothing.
            raise invalid(f"a model of {len(model)} partitions, 2 to {MAX_WRITTEN} can be written")
        layouts.append(lay_out(position, model))
        position = layouts[-1].end
    _check_places(models, layouts)
    return layouts


def _check_places(models: Sequence[Sequence[tuple[int, Stream]]], layouts: Sequence[ModelLayout]) -> None:
    for model, layout in zip(models, layouts):
        for (kind, stream), section in zip(model, layout.partitions):
            if stream.at is not None and stream.at != section.offset:
                raise invalid(
                    f"{own_name(kind)} was laid out for byte {stream.at}, not byte {section.offset}",
                    hint="count the table's entries with INTEGRITY when making the layout",
                )


def _finished(header: OmHeader, models: int, body: int, integrity: bool) -> OmHeader:
    if header.is_encrypt:
        raise invalid("encrypted models cannot be written")
    if integrity and header.userdefineinfo not in (b"", OWNER_MARK):
        raise invalid("the header's userdefineinfo is taken by the mark of files with digests")
    mark = OWNER_MARK if integrity else header.userdefineinfo
    return replace(header, version=VERSION_2, length=0, model_length=body, model_num=models, userdefineinfo=mark)


def _write_all(
    sink: BinaryIO, header: bytes, layouts: Sequence[ModelLayout], streams: Iterable[Stream], integrity: bool
) -> None:
    """Write every section in file order; the digests of what went by are the last."""
    sections = all_sections(layouts)
    contents = iter(streams)
    framing = iter([header, *map(pack_table, layouts)])
    hashed = frozenset(section.offset for section in covered(sections)) if integrity else frozenset()
    digests: list[bytes] = []
    crcs: list[int] = []
    for section in sections[:-1] if integrity else sections:
        stream = as_stream(next(framing)) if section.kind is None else next(contents)
        if section.offset in hashed:
            sha = hashlib.sha256()
            _copy(sink, section, stream, sha.update)
            digests.append(sha.digest())
        else:
            crc = BlockCrc()
            _copy(sink, section, stream, crc.update)
            crcs.extend(crc.finish())
    if integrity:
        _put(sink, memoryview(pack_integrity(digests, crcs)))


def _copy(sink: BinaryIO, section: Section, stream: Stream, update: Callable[[memoryview], None]) -> None:
    """Write a section's chunks and show them to a digest; INVALID when their sum is not its size."""
    written = 0
    for chunk in stream.chunks:
        view = as_bytes_view(chunk)
        written += len(view)
        if written > section.size:
            break
        _put(sink, view)
        update(view)
    if written != section.size:
        found = f"{written}" if written < section.size else "more"
        name = section.name if section.kind is None else own_name(section.kind)
        raise invalid(f"{name} was announced as {section.size} bytes, its chunks have {found}")


def _put(sink: BinaryIO, view: memoryview) -> None:
    """Write all of a view, also to raw files, which may take a part at a time."""
    while len(view):
        taken = sink.write(view)
        if taken is None or taken >= len(view):
            return
        view = view[taken:]


@contextmanager
def _opened(target: Target) -> Iterator[BinaryIO]:
    """The place to write to; a path only changes when the block ends well."""
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    # The file behind a link is replaced, not the link.
    path = os.path.realpath(os.fspath(target))
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        # A device or pipe (or a directory, which open refuses) must not be replaced by a file.
        with open(path, "wb") as sink:
            yield sink
        return
    descriptor, beside = _create_beside(path)
    try:
        with open(descriptor, "wb") as sink:
            yield sink
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _create_beside(path: str) -> tuple[int, str]:
    """A new file in the same directory, with the permissions of the user's umask (mkstemp's are stricter)."""
    folder, name = os.path.split(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    attempt = 0
    while True:
        beside = os.path.join(folder, f".{name[:100]}.{os.getpid()}-{attempt}.tmp")
        try:
            return os.open(beside, flags, 0o666), beside
        except FileExistsError:
            attempt += 1
