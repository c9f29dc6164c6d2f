"""Writing and reading back: content, layout in the file, determinism, all or nothing."""

from __future__ import annotations

import doctest
import io
import os
import pickle
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_format import (
    OmError,
    OmErrorCode,
    OmFile,
    OmHeader,
    Partition,
    Stream,
    WeightsLayout,
    dtypes,
    serialize,
    table_bytes,
    weights,
    write_om,
)
from om_format.header import HEADER_BYTES
from om_format.proto.ge_ir_pb2 import ModelDef
from om_format.weights import JOINED
from om_format.writer import Model

from .sample import BIAS, KERNEL, conv_model, conv_om, tiny_om

GRAPH = serialize(ModelDef(name="m"))


def written(
    model: Model,
    *more: Model,
    header: OmHeader | None = None,
    **options: bool,
) -> bytes:
    file = io.BytesIO()
    size = write_om(file, header or OmHeader(), model, *more, **options)
    assert size == len(file.getvalue())
    return file.getvalue()


def refused(
    model: Model,
    *more: Model,
    header: OmHeader | None = None,
    **options: bool,
) -> OmError:
    file = io.BytesIO()
    with pytest.raises(OmError) as caught:
        write_om(file, header or OmHeader(), model, *more, **options)
    assert caught.value.code is OmErrorCode.INVALID
    return caught.value


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "conv.om"
    path.write_bytes(conv_om())
    with OmFile.open(path) as om:
        assert om.is_atc and om.require_atc() is om
        assert om.size == path.stat().st_size
        assert om.header.name == "conv" and om.header.platform_version == "Ascend310P3"
        assert om.header.model_length == om.size - HEADER_BYTES and om.header.length == 0
        graph = om.model_def().graph[0]
        assert [op.type for op in graph.op] == ["Data", "Const", "Const", "Conv2D", "NetOutput"]
        for op, payload in zip(graph.op[1:3], (KERNEL, BIAS)):
            place = op.attr["value"].t.desc
            weights = om[Partition.WEIGHTS_DATA].data
            assert bytes(weights[place.data_offset : place.data_offset + place.weight_size]) == payload
        assert om.task_info().version == "1"
        assert bytes(om[Partition.PLAN_TABLE].data) == b"plan" * 30
        assert om.get(Partition.INFO) is None and Partition.INFO not in om
        om.check_weights()
        plan = om[Partition.PLAN_TABLE].data
    assert bytes(plan[:4]) == b"plan", "a view outlives the file object"
    assert plan.readonly


def test_first_partition_is_the_weights_and_constants_are_aligned() -> None:
    om = OmFile.from_bytes(conv_om())
    partitions = om.models[0].partitions
    assert partitions[0].kind == Partition.WEIGHTS_DATA
    assert partitions[-1].kind == Partition.INTEGRITY
    places = [op.attr["value"].t.desc.data_offset for op in om.model_def().graph[0].op if op.type == "Const"]
    files = [partitions[0].offset + place for place in places]
    assert files[0] % 4096 == 0 and files[1] % 64 == 0


def test_sections_are_every_byte() -> None:
    om = OmFile.from_bytes(conv_om())
    position = 0
    for section in om.sections:
        assert section.offset == position
        position = section.end
    assert position == om.size


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(2, 8))
@settings(max_examples=50)
def test_weights_layout(sizes: list[int], count: int) -> None:
    layout = WeightsLayout(table_bytes(count))
    offsets = [layout.add(size) for size in sizes]
    start = HEADER_BYTES + table_bytes(count)
    assert (start + offsets[0]) % 4096 == 0
    assert all((start + offset) % 64 == 0 for offset in offsets)
    ends = [offset + size for offset, size in zip(offsets, sizes)]
    assert all(0 <= after - end < 64 for end, after in zip(ends, offsets[1:]))
    content = b"".join(layout.chunks([bytes([index + 1]) * size for index, size in enumerate(sizes)]))
    assert len(content) == layout.total == ends[-1]
    for index, (offset, size) in enumerate(zip(offsets, sizes)):
        assert content[offset : offset + size] == bytes([index + 1]) * size


def test_weights_layout_refuses_other_constants_than_announced() -> None:
    for constants in ([b"abc"], [b"abc", b"de", b"f"], [b"abc", b"d"]):
        layout = WeightsLayout(table_bytes(3))
        layout.add(3)
        layout.add(2)
        error = refused({Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: layout.stream(constants)})
        assert "constant" in error.cause


def test_a_layout_for_another_table_is_refused() -> None:
    layout = WeightsLayout(table_bytes(2))
    layout.add(4)
    error = refused({Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: layout.stream([b"abcd"])})
    assert "laid out" in error.cause


def test_same_content_same_bytes() -> None:
    assert conv_om() == conv_om()
    parts: Model = {
        Partition.MODEL_DEF: GRAPH,
        Partition.INFO: b"i",
        Partition.PLAN_TABLE: b"p",
    }
    assert written(parts) == written(dict(reversed(list(parts.items()))))
    chunked = dict(parts)
    chunked[Partition.PLAN_TABLE] = Stream(1, [b"", memoryview(b"p")])
    assert written(chunked) == written(parts)


def test_chunking_does_not_change_the_checksums() -> None:
    weights = bytes(range(256)) * 10_000  # 2.4 MiB: three CRC blocks
    whole = written({Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: weights})
    pieces = [weights[at : at + 700_001] for at in range(0, len(weights), 700_001)]
    stream = Stream(len(weights), iter(pieces))
    assert written({Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: stream}) == whole
    OmFile.from_bytes(whole).check_weights()


def test_weights_are_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    block = bytes(1 << 20)
    total = 48 << 20

    def chunks() -> Iterator[bytes]:
        for _ in range(48):
            yield block

    tracemalloc.start()
    try:
        write_om(
            tmp_path / "big.om",
            OmHeader(),
            {Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: Stream(total, chunks())},
        )
        with OmFile.open(tmp_path / "big.om") as om:
            om.check_weights()
            assert len(om[Partition.WEIGHTS_DATA].data) == total
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_several_models() -> None:
    second = serialize(ModelDef(name="second"))
    data = written(
        {Partition.MODEL_DEF: GRAPH, Partition.WEIGHTS_DATA: b"w" * 9},
        {Partition.MODEL_DEF: second, Partition.WEIGHTS_DATA: b"v" * 5, Partition.PLAN_TABLE: b"p"},
        header=OmHeader(is_unknow_model=1),
    )
    om = OmFile.from_bytes(data)
    om.check_weights()
    assert om.header.model_num == len(om.models) == 2
    assert [om.model_def(index).name for index in range(2)] == ["m", "second"]
    assert bytes(om.models[1][Partition.WEIGHTS_DATA].data) == b"v" * 5
    assert Partition.INTEGRITY in om.models[1] and Partition.INTEGRITY not in om.models[0]


def legacy(partitions: list[tuple[int, bytes]], **fields: object) -> bytes:
    """A file with a 32-bit table, as older tools wrote them."""
    table = struct.pack("<I", len(partitions))
    position = 0
    for kind, data in partitions:
        table += struct.pack("<III", kind, position, len(data))
        position += len(data)
    body = table + b"".join(data for _, data in partitions)
    return OmHeader(length=len(body), **fields).pack() + body  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0x10000000, 0x20000000])
def test_legacy_files_are_read(version: int) -> None:
    # Version 1 has no model_num: what stands there must not matter.
    number = 7 if version == 0x10000000 else 1
    data = legacy([(1, b"weights"), (0, GRAPH), (5, b"libs")], version=version, model_num=number)
    om = OmFile.from_bytes(data)
    assert not om.is_atc and len(om.models) == 1
    assert om.model_def().name == "m" and bytes(om[Partition.SO_BINS].data) == b"libs"


def test_foreign_files_are_readable_but_not_ours() -> None:
    om = OmFile.from_bytes(conv_om(integrity=False))
    assert om.model_def().name == "conv" and not om.is_atc
    for action in (om.require_atc, om.check_weights):
        with pytest.raises(OmError) as caught:
            action()
        assert caught.value.code is OmErrorCode.FOREIGN and caught.value.hint


def test_a_foreign_partition_of_our_type_is_not_ours() -> None:
    om = OmFile.from_bytes(legacy([(0, GRAPH), (Partition.PRE_MODEL_DESC_EXTEND, b"something else")]))
    assert not om.is_atc


@pytest.mark.parametrize("start", [b"PICO", b"PK\x03\x04", b"\x08\x07\x12", b"", b"IMOE"])
def test_what_is_not_an_om(start: bytes) -> None:
    with pytest.raises(OmError) as caught:
        OmFile.from_bytes(start + bytes(300) if start else b"")
    assert caught.value.code is OmErrorCode.NOT_OM


def test_newer_and_encrypted_files() -> None:
    data = bytearray(tiny_om())
    data[11] = 0x30
    with pytest.raises(OmError) as caught:
        OmFile.from_bytes(data)
    assert caught.value.code is OmErrorCode.NEWER and caught.value.offset == 8
    data = bytearray(conv_om(integrity=False))
    data[80] = 1
    with pytest.raises(OmError) as caught:
        OmFile.from_bytes(data)
    assert caught.value.code is OmErrorCode.UNSUPPORTED


def test_what_cannot_be_written() -> None:
    graph: Model = {Partition.MODEL_DEF: GRAPH}
    assert "MODEL_DEF" in refused({Partition.PLAN_TABLE: b"p"}).cause
    assert "empty" in refused({**graph, Partition.PLAN_TABLE: b""}).cause
    assert "INTEGRITY" in refused({**graph, Partition.INTEGRITY: b"x"}).cause
    for kind in (5, 13, 25, 26, 31):
        assert "Netron" in refused({**graph, kind: b"x"}).cause  # type: ignore[dict-item]
    assert "1 partitions" in refused(graph, integrity=False).cause
    many = dict.fromkeys(map(Partition, (1, 2, 3, 4, 8, 9, 10, 11)), b"x")
    assert "10 partitions" in refused({**graph, **many}).cause
    assert "userdefineinfo" in refused(graph, header=OmHeader(userdefineinfo=b"mine")).cause
    assert "userdefineinfo" in refused(graph, header=OmHeader(userdefineinfo=bytes(33)), integrity=True).cause
    assert "encrypted" in refused(graph, header=OmHeader(is_encrypt=1)).cause
    assert "ops" in refused(graph, header=OmHeader(ops=1 << 32)).cause
    huge = Stream(1 << 31, [])
    assert "TASK_INFO" in refused({**graph, Partition.TASK_INFO: huge}).cause
    assert "PLAN_TABLE" in refused({**graph, Partition.PLAN_TABLE: Stream(1 << 32, [])}).cause
    assert "contiguous" in refused({**graph, Partition.PLAN_TABLE: memoryview(b"abcdef")[::2]}).cause
    for chunks in ([b"abc"], [b"abcde"], [b"ab", b"cd", b"e"]):
        assert "announced" in refused({**graph, Partition.PLAN_TABLE: Stream(4, chunks)}).cause


class Interrupted(Exception):
    """A failure in the middle of writing."""


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "m.om"
    if existing:
        path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield bytes(1000)
        assert list(tmp_path.glob(".m.om.*.tmp")), "written beside"
        raise Interrupted

    with pytest.raises(Interrupted):
        write_om(path, OmHeader(), {Partition.MODEL_DEF: GRAPH, Partition.PLAN_TABLE: Stream(2000, chunks())})
    assert [item.name for item in tmp_path.iterdir()] == (["m.om"] if existing else [])
    if existing:
        assert path.read_bytes() == b"old"


@pytest.mark.skipif(os.name != "posix", reason="permissions, links and devices of POSIX")
def test_paths(tmp_path: Path) -> None:
    model: Model = {Partition.MODEL_DEF: GRAPH}
    real, link = tmp_path / "real.om", tmp_path / "link.om"
    real.write_bytes(b"old")
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        write_om(link, OmHeader(), model)
        write_om(str(tmp_path / ("n" * 250 + ".om")), OmHeader(), model)
    finally:
        os.umask(before)
    assert link.is_symlink() and real.read_bytes() == written(model)
    assert real.stat().st_mode & 0o777 == 0o640
    write_om(os.devnull, OmHeader(), model)
    assert not os.path.isfile(os.devnull)
    with pytest.raises(IsADirectoryError):
        write_om(tmp_path, OmHeader(), model)
    with pytest.raises(FileNotFoundError):
        write_om(tmp_path / "absent" / "m.om", OmHeader(), model)
    with pytest.raises(FileNotFoundError):
        OmFile.open(tmp_path / "absent.om")


def test_raw_files_that_take_a_part_at_a_time() -> None:
    class Slow(io.BytesIO):
        def write(self, data: object) -> int:
            return super().write(memoryview(data)[:7])  # type: ignore[arg-type]

    slow = Slow()
    write_om(slow, OmHeader(), {Partition.MODEL_DEF: GRAPH})
    assert slow.getvalue() == written({Partition.MODEL_DEF: GRAPH})


@given(
    st.builds(
        OmHeader,
        checksum=st.binary(max_size=64).map(lambda data: data.rstrip(b"\0")),
        modeltype=st.integers(0, 255),
        name=st.text(max_size=40),
        ops=st.integers(0, 2**32 - 1),
        model_num=st.integers(0, 2**32 - 1),
        platform_version=st.text(max_size=20),
        model_length=st.integers(0, 2**64 - 1),
        reserved=st.binary(max_size=62).map(lambda data: data.rstrip(b"\0")),
    )
)
@settings(max_examples=100)
def test_header_round_trip(header: OmHeader) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    again = OmHeader.parse(packed)
    assert again.pack() == packed
    for name in ("checksum", "modeltype", "ops", "model_num", "model_length", "reserved"):
        assert getattr(again, name) == getattr(header, name)
    assert header.name.startswith(again.name) and len(again.name.encode()) <= 31
    if "\0" not in header.name and len(header.name.encode()) <= 31:
        assert again.name == header.name


def test_header_bytes() -> None:
    packed = OmHeader(name="net", model_length=7, model_num=2, om_ir_version=3, is_unknow_model=1).pack()
    assert packed[:12] == b"IMOD" + struct.pack("<II", 256, 0x20000000)
    assert packed[84:88] == b"net\0"
    assert struct.unpack_from("<II", packed, 152) == (3, 2)
    assert struct.unpack_from("<Q", packed, 184) == (7,)
    assert packed[192:194] == b"\0\1"


@pytest.mark.parametrize("module", [dtypes, weights])
def test_examples_in_the_documentation(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_errors_travel_between_processes() -> None:
    with pytest.raises(OmError) as caught:
        OmFile.from_bytes(b"IMOD", path="x.om")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert "x.om" in str(again) and again.offset == 4


def test_model_def_is_parsed_from_the_partition_alone() -> None:
    om = OmFile.from_bytes(written({Partition.MODEL_DEF: b"\xff\xff\xff", Partition.PLAN_TABLE: b"p"}))
    with pytest.raises(OmError) as caught:
        om.model_def()
    assert caught.value.code is OmErrorCode.CORRUPT and caught.value.offset == om[Partition.MODEL_DEF].offset
    with pytest.raises(OmError, match="TASK_INFO"):
        om.task_info()
    assert conv_model(0, 0).name == "conv"


@given(st.lists(st.sampled_from([0, 1, 1000, JOINED - 1, JOINED, 3 * JOINED]), max_size=30))
@settings(max_examples=50)
def test_small_constants_are_written_together(sizes: list[int]) -> None:
    layout = WeightsLayout(table_bytes(4))
    offsets = [layout.add(size) for size in sizes]
    chunks = list(layout.chunks([bytes([index + 1]) * size for index, size in enumerate(sizes)]))
    content = bytearray(layout.total)
    for index, (offset, size) in enumerate(zip(offsets, sizes)):
        content[offset : offset + size] = bytes([index + 1]) * size
    assert b"".join(chunks) == content
    assert len(chunks) <= 2 * sum(size >= JOINED for size in sizes) + layout.total // JOINED + 1
