"""Files that are damaged, cut off, or lie: an `AtcError` or a right end, never a crash, a hang or a huge allocation."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from atc_py import AtcError, Options, Session, compile_model
from atc_py.emit import om_bytes
from atc_py.runtime.loader import load
from om_format import OmFile, Partition
from tests import mutations, onnx_mutations
from tests.making import FLOAT, STRING, model, node, om_of
from tests.mutations import joined, parts_of

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"


@pytest.fixture(scope="module")
def tiny() -> bytes:
    """One task, one weight."""
    w = np.arange(80, dtype=np.float32).reshape(2, 40)
    return om_of(model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, [2, 40])}, ["y"], {"w": w}))


# -- damage --------------------------------------------------------------------------------------------------------


def test_every_byte_is_watched(tiny: bytes) -> None:
    """A flipped byte anywhere outside the weights stops the load; in the weights, what reads them all."""
    with OmFile.from_bytes(tiny) as om:
        weights = om[Partition.WEIGHTS_DATA]
        inside = range(weights.offset, weights.offset + weights.data.nbytes)
    damaged = bytearray(tiny)
    for at in range(len(tiny)):
        damaged[at] ^= 1 << at % 8
        if at in inside:
            with pytest.raises(AtcError) as caught:
                load(bytes(damaged)).check_weights()
            assert caught.value.code == "E30022" and "0x" in caught.value.problems[0].place
        else:
            with pytest.raises(AtcError) as caught:
                load(bytes(damaged))
            assert caught.value.code.startswith("E3002"), at
        damaged[at] = tiny[at]


def test_every_truncation_is_noticed(tiny: bytes) -> None:
    for size in [*range(0, 600), *range(600, len(tiny), 7)]:
        with pytest.raises(AtcError) as caught:
            load(tiny[:size])
        assert caught.value.code in ("E30020", "E30021", "E30022"), size
    with pytest.raises(AtcError):
        load(tiny + b"\0")


@given(data=st.binary(max_size=400), prefix=st.booleans())
def test_files_of_noise(tiny: bytes, data: bytes, prefix: bool) -> None:
    with pytest.raises(AtcError):
        load(tiny[:256] + data if prefix else data)


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_bytes_moved_about(tiny: bytes, seed: int) -> None:
    rng = random.Random(seed)
    damaged = bytearray(tiny)
    start, size, to = (rng.randrange(len(tiny) - 64) for _ in range(3))
    size = 1 + size % 64
    damaged[to : to + size] = tiny[start : start + size]
    if bytes(damaged) != tiny:
        with pytest.raises(AtcError):
            load(bytes(damaged)).check_weights()


# -- lies: the digests are right -----------------------------------------------------------------------------------


def host_om() -> bytes:
    """Sequences, strings, a late size, a packed constant."""
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=1),
        node("SequenceInsert", ["s", "x"], ["t"]),
        node("SequenceAt", ["t", "last"], ["b"]),
        node("StringNormalizer", ["q"], ["u"], case_change_action="UPPER"),
        node("DequantizeLinear", ["w4", "scale"], ["w"]),
        node("Add", ["b", "w"], ["z"]),
    ]
    w4 = helper.make_tensor("w4", TensorProto.INT4, [3, 4], [1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5])
    constants = {"last": np.array(-1), "w4": w4, "scale": np.float32(0.5)}
    return om_of(model(nodes, {"x": (FLOAT, ["N", 4]), "q": (STRING, [2])}, ["z", "u"], constants))


def files(folder: Path) -> None:
    (folder / "host.om").write_bytes(host_om())
    shapes = {"small_cnn": {"x": (1, 3, 32, 32)}}
    for name in ("small_cnn", "small_transformer", "corpus/scan_rnn", "corpus/loop_while_if", "corpus/moe_nonzero"):
        om = compile_model(MODELS / f"{name}.onnx", Options(input_shapes=shapes.get(name, {})))
        (folder / f"{Path(name).name}.om").write_bytes(om_bytes(om))


def tried(module: str, folder: Path, count: int) -> None:
    """Run mutations in a process of its own; the first hole, or the case that has killed it, fails the test."""
    environment = {**os.environ, "MALLOC_CHECK_": "3", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), "0", str(count)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines: list[list[Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    case = next((line for line in reversed(lines) if len(line) == 2), None)
    assert done.returncode == 0, f"killed at or after {case}: {done.returncode} {done.stderr[-800:]}"
    for before, line in pairwise(lines):
        assert line[0] != "hole", f"{before}: {line[1]}: {line[2]}\n{line[3]}"
    assert sum(line[0] == "ok" for line in lines) == count * len(list(folder.iterdir()))


def test_lying_om_files(tmp_path: Path) -> None:
    files(tmp_path)
    tried("tests.mutations", tmp_path, 40)


@pytest.mark.slow
def test_many_lying_om_files(tmp_path: Path) -> None:
    files(tmp_path)
    tried("tests.mutations", tmp_path, 1000)


def onnx_files(folder: Path) -> None:
    for name in ("small_cnn", "small_transformer", "corpus/scan_rnn", "corpus/loop_while_if", "corpus/moe_nonzero"):
        (folder / f"{Path(name).name}.onnx").write_bytes((MODELS / f"{name}.onnx").read_bytes())


def test_lying_onnx_files(tmp_path: Path) -> None:
    onnx_files(tmp_path)
    tried("tests.onnx_mutations", tmp_path, 40)


@pytest.mark.slow
def test_many_lying_onnx_files(tmp_path: Path) -> None:
    onnx_files(tmp_path)
    tried("tests.onnx_mutations", tmp_path, 500)


def test_mutations_are_repeatable_and_reach_every_stage(tiny: bytes) -> None:
    assert mutations.mutated(tiny, 3) == mutations.mutated(tiny, 3)
    outcomes = [mutations.everything(mutations.mutated(tiny, seed)[1]) for seed in range(60)]
    for stage in ("load: E30010", "verify: E31", "recompile, write", "graph: E"):
        assert any(stage in o for o in outcomes), (stage, outcomes)
    data = (MODELS / "corpus/scan_rnn.onnx").read_bytes()
    assert onnx_mutations.mutated(data, 5) == onnx_mutations.mutated(data, 5)


# -- lies that one would tell on purpose ---------------------------------------------------------------------------


def forged(data: bytes, change: Any) -> bytes:
    """The OM with a plan that `change` has made of its plan."""
    from atc_py.ir.text import BlobTable
    from atc_py.plan import partition
    from atc_py.plan.packed import encode

    parts, header = parts_of(data)
    loaded = load(data)
    blobs = BlobTable()
    packed = encode(change(loaded.plan), blobs)
    raw = parts[Partition.PLAN_TABLE]
    found = partition.unpack(memoryview(raw), len(parts[Partition.WEIGHTS_DATA]))
    assert [b.nbytes for b in blobs.blobs] == [n for _, n in found.blobs][: len(blobs.blobs)]
    parts[Partition.PLAN_TABLE] = partition.pack(found.base, found.blobs, [packed])
    return joined(parts, header)


def _tasks(plan: Any, **fields: Any) -> Any:
    from dataclasses import replace

    from atc_py.plan.types import Static

    [region] = plan.regions
    return replace(plan, regions=(Static(tuple(replace(t, **fields) for t in region.tasks)),))


def _buffers(plan: Any, space: str, **fields: Any) -> Any:
    from dataclasses import replace

    return replace(plan, buffers=tuple(replace(b, **fields) if b.space.value == space else b for b in plan.buffers))


def _outputs(plan: Any, **fields: Any) -> Any:
    from dataclasses import replace

    [region] = plan.regions
    operands = tuple(replace(o, **fields) for o in region.tasks[0].outputs)
    return _tasks(plan, outputs=operands)


def _first(plan: Any, space: str) -> int:
    found: int = next(b.id for b in plan.buffers if b.space.value == space)
    return found


def _without_inputs(plan: Any) -> Any:
    return _tasks(plan, inputs=())


LIES: dict[str, Any] = {
    "an output before its buffer": lambda p: _outputs(p, delta=-64),
    "an output behind its buffer": lambda p: _outputs(p, delta=64),
    "an output before its space": lambda p: _buffers(p, "output", offset=None),
    "negative strides": lambda p: _outputs(p, strides=(-160, -4)),
    "strides beyond the buffer": lambda p: _outputs(p, strides=(1 << 20, 4)),
    "huge strides": lambda p: _outputs(p, strides=(1 << 61, 4)),
    "a result in an input": lambda p: _outputs(p, buffer=_first(p, "input")),
    "a result among the weights": lambda p: _outputs(p, buffer=_first(p, "weights")),
    "an output port's buffer elsewhere": lambda p: _buffers(p, "output", offset=1 << 40),
    "another operator": lambda p: _tasks(p, kernel="MatMul"),
    "an operator with more inputs": lambda p: _tasks(p, kernel="LSTM"),
    "no such operator": lambda p: _tasks(p, kernel="Nope"),
    "a fused task without a body": lambda p: _tasks(p, kernel="Fused"),
    "no inputs": _without_inputs,
    "a constant where the operator takes none": lambda p: _tasks(p, host_values={0: 0, 7: 0}),
    "weights far behind the file": lambda p: _buffers(p, "weights", offset=1 << 40),
    "weights that are longer": lambda p: _buffers(p, "weights", nbytes=1 << 30),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_plan_is_refused(tiny: bytes, lie: str) -> None:
    x = np.ones((2, 40), np.float32)
    with pytest.raises(AtcError):
        Session(forged(tiny, LIES[lie])).run(None, {"x": x})
    assert (x == 1).all()


def test_forging_works(tiny: bytes) -> None:
    session = Session(forged(tiny, lambda plan: plan))
    assert session.run(None, {"x": np.ones((2, 40), np.float32)})[0][1].tolist() == list(range(41, 81))


def test_a_forged_plan_that_reads_elsewhere_is_seen_by_the_verifier(tiny: bytes) -> None:
    from atc_py.compiler import prove

    plan = load(forged(tiny, lambda p: _outputs(p, value=0))).plan
    with pytest.raises(AtcError) as caught:
        prove(plan)
    assert caught.value.code.startswith("E310")


def test_a_graph_that_says_it_is_small_and_is_not(tiny: bytes) -> None:
    """A stream of a few bytes that unpacks to many."""
    import struct
    import zlib

    parts, header = parts_of(tiny)
    bomb = zlib.compress(bytes(1 << 26), 9)
    for size in (10, 1 << 26, 1 << 40):
        parts[Partition.CANONICAL_GRAPH] = b"ATCGRPH1" + struct.pack("<Q", size) + bomb
        with pytest.raises(AtcError):
            load(joined(parts, header)).canonical()


# -- sizes that make no sense, in operators ------------------------------------------------------------------------

HUGE = 1 << 33
WINDOWS: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [HUGE], "pads": [HUGE // 2, HUGE // 2], "strides": [HUGE]},
    "AveragePool": {"kernel_shape": [HUGE], "pads": [HUGE // 2, HUGE // 2], "strides": [HUGE]},
    "LpPool": {"kernel_shape": [HUGE], "pads": [HUGE // 2, HUGE // 2], "strides": [HUGE]},
    "LRN": {"size": 1 << 40},
}


@pytest.mark.parametrize("op", WINDOWS)
def test_windows_larger_than_everything(op: str) -> None:
    x = np.array([[[1, 2, 3, 4]]], np.float32)
    session = Session(om_of(model([node(op, ["x"], ["y"], **WINDOWS[op])], {"x": (FLOAT, [1, 1, 4])}, ["y"])))
    [y] = session.run(None, {"x": x})
    whole: dict[str, Any] = {"MaxPool": [[[4]]], "AveragePool": [[[2.5]]], "LpPool": [[[30**0.5]]], "LRN": x}
    np.testing.assert_allclose(y, whole[op], rtol=1e-5)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_strides_larger_than_everything(op: str) -> None:
    conv = node(op, ["x", "w"], ["y"], strides=[1 << 40])
    width = 4 if op == "Conv" else 1
    proto = model([conv], {"x": (FLOAT, [1, 1, width])}, ["y"], {"w": np.array([[[1, 2, 3]]], np.float32)})
    [y] = Session(om_of(proto)).run(None, {"x": np.ones((1, 1, width), np.float32)})
    assert y.tolist() == ([[[6]]] if op == "Conv" else [[[1, 2, 3]]])
