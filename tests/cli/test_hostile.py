"""Bytes changed at random, with digests that are right again: any verb may refuse them, none may fail inside."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from om_format import OmFile, OmHeader, Partition, write_om
from tests.cli.helpers import MODELS, atc

CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)
FEW = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    found = bytearray(data)
    for at, byte in changes:
        found[at % len(found)] = byte
    return bytes(found)


@pytest.mark.parametrize(
    "kind", ["CANONICAL_GRAPH", "INFO", "MODEL_DEF", "TASK_INFO", "MODEL_INOUT_INFO", "PLAN_TABLE"]
)
@FEW
@given(changes=CHANGES)
def test_messages_of_an_om(kind: str, changes: list[tuple[int, int]], om: Path, tmp_path: Path) -> None:
    with OmFile.open(om) as file:
        parts = {p.kind: bytes(p.data) for p in file.models[0].partitions if p.kind != Partition.INTEGRITY}
        header = OmHeader(name=file.header.name)
    parts[Partition[kind]] = changed(parts[Partition[kind]], changes)
    sink = io.BytesIO()
    write_om(sink, header, parts)  # type: ignore[arg-type]
    (tmp_path / "m.om").write_bytes(sink.getvalue())
    for call in (["inspect", "--tasks", "--memory", "--weights"], ["verify"]):
        result = atc(*call, tmp_path / "m.om")
        assert result.exit_code in (0, 1), (call, result.output)


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
@FEW
@given(changes=CHANGES, tail=st.booleans())
def test_onnx_files(name: str, changes: list[tuple[int, int]], tail: bool, tmp_path: Path) -> None:
    data = (MODELS / f"{name}.onnx").read_bytes()
    # Structure is dense at the two ends; weights fill the middle.
    places = [(-1 - at % 2000 if tail else at % 2000, byte) for at, byte in changes]
    (tmp_path / "m.onnx").write_bytes(changed(data, places))
    for call in (["inspect"], ["convert", "-o", tmp_path / "m.om"]):
        result = atc(*call, tmp_path / "m.onnx")
        assert result.exit_code in (0, 1), (call, result.output)
