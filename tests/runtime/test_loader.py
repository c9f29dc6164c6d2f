"""The loader: what it maps, what it checks, and when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atc_py import AtcError, Session
from atc_py.runtime.loader import load, open_om
from om_format import Partition
from tests.making import FLOAT, compiled, model, node, om_of
from tests.mutations import joined, parts_of


@pytest.fixture(scope="module")
def data() -> bytes:
    w = np.arange(64, dtype=np.float32)
    return om_of(model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, ["N", 64])}, ["y"], {"w": w}, name="adder"))


def test_weights_are_views_of_the_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(data)
    loaded = load(path)
    mapped = loaded.weights.mapped
    assert not mapped.flags.owndata and not mapped.flags.writeable
    assert mapped[:256].view(np.float32).tolist() == list(range(64))
    assert loaded.om.header.name == "adder"


def test_a_file_that_is_deleted_or_replaced_after_loading_still_runs(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(data)
    session = Session(path)
    path.unlink()
    assert session.run(None, {"x": np.zeros((1, 64), np.float32)})[0][0, 5] == 5


def test_weights_are_checked_on_demand(data: bytes) -> None:
    loaded = load(data)
    at = next(p.offset for p in loaded.om.models[0].partitions if p.kind == Partition.WEIGHTS_DATA)
    damaged = bytearray(data)
    damaged[at + 3] ^= 1
    Session(bytes(damaged))  # loading reads no weights
    with pytest.raises(AtcError) as caught:
        Session(bytes(damaged), check="full")
    assert caught.value.code == "E30022"


def test_files_that_are_not_there_or_no_om(tmp_path: Path) -> None:
    for path in (tmp_path / "none.om", tmp_path):
        with pytest.raises(AtcError) as caught:
            load(path)
        assert caught.value.code == "E13000" and str(tmp_path) in caught.value.problems[0].place
    (tmp_path / "x.om").write_bytes(b"\x08\x07onnx" * 100)
    with pytest.raises(AtcError) as caught:
        open_om(tmp_path / "x.om")
    assert caught.value.code == "E30020" and caught.value.problems[0].hint


def test_partitions_that_are_missing(data: bytes) -> None:
    parts, header = parts_of(data)
    for kind, codes in (
        (Partition.PLAN_TABLE, {"E30022"}),
        (Partition.WEIGHTS_DATA, {"E30010", "E30026"}),
    ):
        with pytest.raises(AtcError) as caught:
            load(joined({k: v for k, v in parts.items() if k != kind}, header))
        assert caught.value.code in codes
    without = load(joined({k: v for k, v in parts.items() if k != Partition.CANONICAL_GRAPH}, header))
    with pytest.raises(AtcError) as caught:
        without.canonical()
    assert caught.value.code == "E30012"


def test_a_plan_that_needs_more_weights_than_there_are(data: bytes) -> None:
    parts, header = parts_of(data)
    parts[Partition.WEIGHTS_DATA] = parts[Partition.WEIGHTS_DATA][:100]
    with pytest.raises(AtcError) as caught:
        load(joined(parts, header))
    assert caught.value.code == "E30010"


def test_info_that_is_no_json(data: bytes) -> None:
    parts, header = parts_of(data)
    for raw in (b"{", b"\xff\xfe", b"[" * 100_000, b"[1]"):
        loaded = load(joined({**parts, Partition.INFO: raw}, header))
        if raw == b"[1]":
            assert loaded.info == {}
        else:
            with pytest.raises(AtcError):
                _ = loaded.info


def test_constants_are_stored_once() -> None:
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [node("MatMul", ["x", "a"], ["m"]), node("MatMul", ["m", "b"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [1, 64])}, ["y"], {"a": w, "b": w.copy()})
    loaded = load(om_of(proto))
    part = loaded.om[Partition.WEIGHTS_DATA]
    assert part.data.nbytes < 2 * w.nbytes
    assert bytes(part.data).count(w.tobytes()[:64]) == 1
    assert len({c.digest for c in compiled(proto).plan.constants}) == len(loaded.plan.constants)
