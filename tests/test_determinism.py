"""The same model, options and version give the same bytes, wherever and whenever."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from atc_py import Options, compile_model
from atc_py.emit import om_bytes
from tests.making import BOOL, FLOAT, INT64, body_attribute, graph, model, node, om_of

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "models/corpus"
CONVERT = """
import hashlib, sys
from atc_py import Options, compile_model
from atc_py.emit import om_bytes
for level in (0, 2, 3):
    for path in sys.argv[1:]:
        print(hashlib.sha256(om_bytes(compile_model(path, Options(opt_level=level)))).hexdigest())
"""
SOURCES = ["small_cnn", "small_transformer", "corpus/loop_while_if", "corpus/scan_rnn", "corpus/moe_nonzero"]


def digests(paths: list[Path], seed: str, cwd: Path) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, *map(str, paths)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_hash_seed_folder_and_file_name_change_nothing(tmp_path: Path) -> None:
    here = [ROOT / f"models/{name}.onnx" for name in SOURCES]
    moved = []
    for i, path in enumerate(here):
        target = tmp_path / f"folder {i}" / f"other_{i}.onnx"
        target.parent.mkdir()
        moved.append(Path(shutil.copy(path, target)))
    first = digests(here, "0", ROOT)
    assert len(set(first)) == len(first)
    assert digests(here, "1", tmp_path) == first
    assert digests([p.relative_to(tmp_path) for p in moved], "random", tmp_path) == first


def test_a_second_conversion_in_the_same_process_gives_the_same_bytes() -> None:
    source = ROOT / "models/small_transformer.onnx"
    first = om_bytes(compile_model(source))
    om_bytes(compile_model(ROOT / "models/small_cnn.onnx"))  # what happened before must not matter
    time.sleep(1.1)  # nor the time
    assert om_bytes(compile_model(source)) == first
    assert om_bytes(compile_model(onnx.load(source))) == first


def test_the_same_om_has_the_same_bytes_when_it_is_written_twice() -> None:
    om = compile_model(ROOT / "models/small_cnn.onnx")
    assert om_bytes(om) == om_bytes(om)


@pytest.mark.parametrize("name", ["small_cnn", "corpus/resnet18_ext"])
def test_nothing_of_the_machine_is_in_the_bytes(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "peculiar-folder-name"
    folder.mkdir()
    for file in (ROOT / f"models/{name}.onnx").parent.glob(f"{Path(name).name}*"):
        shutil.copy(file, folder / file.name)
    data = om_bytes(compile_model(folder / f"{Path(name).name}.onnx"))
    words = ["peculiar-folder-name", str(tmp_path), str(ROOT), socket.gethostname(), os.uname().release]
    words += [str(Path.home()), time.strftime("%Y-%m-%d")]
    words += [user for user in (getpass.getuser(),) if len(user) > 4]
    for word in words:
        if len(word) > 2:
            assert word.encode() not in data, word


def test_the_order_of_what_has_none_changes_nothing() -> None:
    """Initializers, independent nodes and value_info in another order: the same plan and the same bytes."""
    one = onnx.load(ROOT / "models/small_transformer.onnx")
    two = onnx.ModelProto()
    two.CopyFrom(one)
    weights = list(two.graph.initializer)
    del two.graph.initializer[:]
    two.graph.initializer.extend(reversed(weights))
    assert om_of(one) == om_of(two)


def test_the_order_of_nodes_changes_nothing() -> None:
    def build(order: list[int]) -> bytes:
        nodes = [
            node("Relu", ["x"], ["a"], name="a"),
            node("Exp", ["x"], ["b"], name="b"),
            node("Add", ["a", "b"], ["c"], name="c"),
            node("Tanh", ["x"], ["d"], name="d"),
            node("Mul", ["c", "d"], ["y"], name="y"),
        ]
        return om_of(model([nodes[i] for i in order], {"x": (FLOAT, [2, 3])}, ["y"]))

    first = build([0, 1, 2, 3, 4])
    assert build([3, 1, 0, 2, 4]) == first
    assert build([1, 0, 3, 2, 4]) == first


def test_random_operators_draw_the_same_each_time() -> None:
    proto = model([node("RandomNormalLike", ["x"], ["r"]), node("Add", ["r", "x"], ["y"])], {"x": (FLOAT, [8])}, ["y"])
    from atc_py import Session

    data = om_of(proto)
    assert data == om_of(proto)
    x = np.zeros(8, np.float32)
    [a], [b] = Session(data).run(None, {"x": x}), Session(data).run(None, {"x": x})
    np.testing.assert_array_equal(a, b)
    assert np.unique(a).size > 1


def test_a_loop_with_captures_is_written_the_same() -> None:
    body = graph(
        [
            node("Add", ["s", "w"], ["s1"]),
            node("Identity", ["c"], ["c1"]),
            node("Mul", ["s1", "v"], ["item"]),
        ],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [3])},
        ["c1", "s1", "item"],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "items"])
    loop.attribute.append(body_attribute(body))
    constants = {"w": np.ones(3, np.float32), "v": np.full(3, 2, np.float32), "n": np.array(4)}
    proto = model([loop], {"x": (FLOAT, [3])}, ["y", "items"], constants)
    assert len({hashlib.sha256(om_of(proto)).digest() for _ in range(3)}) == 1


def test_levels_and_targets_are_recorded_and_change_the_bytes() -> None:
    source = ROOT / "models/small_cnn.onnx"
    found = {
        om_bytes(compile_model(source, Options(opt_level=level, soc_version=soc)))
        for level in (0, 2)
        for soc in ("Ascend310P3", "Generic")
    }
    assert len(found) == 4
