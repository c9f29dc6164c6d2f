"""Damaged and hostile files: always an OmError, never anything else."""

from __future__ import annotations

import hashlib
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_format import OmError, OmErrorCode, OmFile, Partition, parse_inout, write_om
from om_format.digest import CRC_BLOCK
from om_format.header import HEADER_BYTES, OmHeader

from .sample import conv_om, tiny_om

OWN = conv_om()
FOREIGN = conv_om(integrity=False)


def open_error(data: bytes | bytearray) -> OmError:
    with pytest.raises(OmError) as caught:
        OmFile.from_bytes(data)
    return caught.value


def read_all(data: bytes | bytearray) -> None:
    """Everything that a tool would do with a foreign file."""
    om = OmFile.from_bytes(data)
    for index, model in enumerate(om.models):
        if Partition.MODEL_DEF in model:
            om.model_def(index)
        if Partition.TASK_INFO in model:
            om.task_info(index)
        ports = model.get(Partition.MODEL_INOUT_INFO)
        if ports is not None:
            parse_inout(ports.data, ports.offset)


def test_every_bit_matters() -> None:
    original = tiny_om()
    weights = OmFile.from_bytes(original)[Partition.WEIGHTS_DATA]
    inside = range(weights.offset, weights.offset + len(weights.data))
    for position in range(len(original)):
        for bit in range(8):
            data = bytearray(original)
            data[position] ^= 1 << bit
            if position in inside:
                with pytest.raises(OmError) as caught:
                    OmFile.from_bytes(data).check_weights()
                error = caught.value
                assert error.offset == weights.offset
            else:
                error = open_error(data)
            assert error.code is not OmErrorCode.FOREIGN
            assert error.offset is not None and error.offset <= len(data)


@given(st.integers(0, len(OWN) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_a_changed_byte_is_found_and_its_section_named(position: int, change: int) -> None:
    om = OmFile.from_bytes(OWN)
    section = next(section for section in om.sections if section.offset <= position < section.end)
    data = bytearray(OWN)
    data[position] ^= change
    if section.kind == Partition.WEIGHTS_DATA:
        with pytest.raises(OmError) as caught:
            OmFile.from_bytes(data).check_weights()
        assert caught.value.offset == section.offset
        return
    error = open_error(data)
    if section.kind is not None:
        assert error.code is OmErrorCode.CORRUPT and error.offset == section.offset


def test_own_names_in_messages() -> None:
    om = OmFile.from_bytes(OWN)
    for kind, name in ((Partition.PLAN_TABLE, "PLAN_TABLE"), (Partition.CANONICAL_GRAPH, "CANONICAL_GRAPH")):
        data = bytearray(OWN)
        data[om[kind].offset] ^= 1
        assert name in open_error(data).cause


def test_weights_name_the_mib(tmp_path: Path) -> None:
    path = tmp_path / "w.om"
    weights = bytes(3 * CRC_BLOCK + 5)
    write_om(path, OmHeader(), {Partition.MODEL_DEF: b"\x0a\x01m", Partition.WEIGHTS_DATA: weights})
    data = bytearray(path.read_bytes())
    start = OmFile.from_bytes(data)[Partition.WEIGHTS_DATA].offset
    for block, inside in ((0, 0), (1, CRC_BLOCK - 1), (2, 77), (3, 4)):
        data[start + block * CRC_BLOCK + inside] ^= 0x10
        with pytest.raises(OmError) as caught:
            OmFile.from_bytes(data).check_weights()
        assert caught.value.offset == start + block * CRC_BLOCK
        data[start + block * CRC_BLOCK + inside] ^= 0x10
    OmFile.from_bytes(data).check_weights()


@pytest.mark.parametrize("original", [tiny_om(), FOREIGN], ids=["own", "foreign"])
def test_every_truncation_is_noticed(original: bytes) -> None:
    for length in range(len(original)):
        error = open_error(original[:length])
        assert error.code is (OmErrorCode.TRUNCATED if length else OmErrorCode.NOT_OM)
        assert error.offset is not None and error.offset <= length


def test_bytes_after_the_end_are_noticed() -> None:
    error = open_error(OWN + b"\0")
    assert error.code is OmErrorCode.CORRUPT and error.offset == len(OWN)


EDITS = st.lists(st.tuples(st.integers(0, len(FOREIGN) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)
HEAVY = st.one_of(st.integers(0, HEADER_BYTES + 160), st.integers(0, len(FOREIGN) - 1))


@given(EDITS, st.booleans(), HEAVY)
@settings(max_examples=400)
def test_edits_of_a_foreign_file_give_nothing_but_om_errors(
    edits: list[tuple[int, bytes]], resize: bool, aim: int
) -> None:
    data = bytearray(FOREIGN)
    for index, (position, content) in enumerate(edits):
        place = aim if index == 0 else position
        data[place : place + (0 if resize else len(content))] = content
    with suppress(OmError):
        read_all(data)


@given(st.binary(max_size=600))
@settings(max_examples=200)
def test_noise_after_a_header_gives_nothing_but_om_errors(noise: bytes) -> None:
    for header in (OmHeader(model_length=len(noise)), OmHeader(length=len(noise))):
        with suppress(OmError):
            read_all(header.pack() + noise)


def with_table(entries: list[tuple[int, int, int]], body: bytes, count: int | None = None) -> bytes:
    table = struct.pack("<I4x", len(entries) if count is None else count)
    table += b"".join(struct.pack("<I4xQQ", *entry) for entry in entries)
    return OmHeader(model_length=len(table) + len(body)).pack() + table + body


@pytest.mark.parametrize(
    ("entries", "count", "cause"),
    [
        ([(0, 0, 4), (1, 3, 5)], None, "overlaps"),
        ([(0, 0, 3), (1, 4, 4)], None, "gap"),
        ([(0, 0, 4), (1, 4, 5)], None, "takes 5 bytes"),
        ([(0, 0, 4), (1, 4, 2**64 - 1)], None, "takes"),
        ([(0, 2**64 - 1, 4), (1, 4, 4)], None, "gap"),
        ([(0, 0, 4), (0, 4, 4)], None, "twice"),
        ([(0, 0, 4), (1, 4, 3)], None, "follow the last"),
        ([(0, 0, 4), (1, 4, 4)], 0, "0 entries"),
        ([(0, 0, 4), (1, 4, 4)], 0xFFFFFFFF, "entries"),
        ([(0, 0, 4), (1, 4, 4)], 9, "inside a partition table"),
    ],
)
def test_tables_that_contradict_the_file(entries: list[tuple[int, int, int]], count: int | None, cause: str) -> None:
    error = open_error(with_table(entries, b"\x0a\x01mxabcd"[:8], count))
    assert cause in error.cause and error.offset is not None


@pytest.mark.slow
def test_forged_counts_cost_nothing() -> None:
    data = bytearray(FOREIGN)
    struct.pack_into("<I", data, 156, 0xFFFFFFFF)
    start = time.perf_counter()
    assert open_error(data).offset == 156
    struct.pack_into("<I", data, 156, 60_000)
    open_error(data)
    assert time.perf_counter() - start < 1


def test_a_lost_mark_is_noticed() -> None:
    """Header and partition each announce the digests: a file that lost one of the marks is not foreign."""
    om = OmFile.from_bytes(OWN)
    without_partition = bytearray(OWN)
    start = om[Partition.INTEGRITY].offset
    without_partition[start : start + 8] = bytes(8)
    assert open_error(without_partition).code is OmErrorCode.CORRUPT
    without_mark = bytearray(OWN)
    without_mark[120:152] = bytes(32)
    assert open_error(without_mark).code is OmErrorCode.CORRUPT
    other_type = bytearray(OWN)
    place = HEADER_BYTES + 8 + 24 * (len(om.models[0].partitions) - 1)
    assert other_type[place] == Partition.INTEGRITY
    other_type[place] = Partition.INFO
    assert open_error(other_type).code is OmErrorCode.CORRUPT


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        (8, 2, OmErrorCode.NEWER),
        (8, 0, OmErrorCode.CORRUPT),
        (12, 4096, OmErrorCode.CORRUPT),
        (16, 0xFFFFFFFF, OmErrorCode.CORRUPT),
        (20, 0xFFFFFFFF, OmErrorCode.CORRUPT),
    ],
)
def test_integrity_with_a_forged_seal(field: int, value: int, code: OmErrorCode) -> None:
    start = OmFile.from_bytes(OWN)[Partition.INTEGRITY].offset
    data = bytearray(OWN)
    struct.pack_into("<I", data, start + field, value)
    data[-32:] = hashlib.sha256(data[start:-32]).digest()
    assert open_error(data).code is code
