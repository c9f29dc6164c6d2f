"""An OM compiled again from the graph that it holds: the same for the same options, right for others."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import AtcError, Options, Session, compile_model
from atc_py.compiler import recompile
from atc_py.emit import om_bytes
from atc_py.runtime.feeds import random_feeds
from atc_py.runtime.loader import Loaded, load
from om_format import Partition

ROOT = Path(__file__).resolve().parent.parent
NAMES = [
    "small_cnn",
    "small_transformer",
    "corpus/bilstm_text",
    "corpus/centernet_topk",
    "corpus/loop_while_if",
    "corpus/mobilenetv3",
    "corpus/moe_nonzero",
    "corpus/scan_rnn",
    "corpus/unet_bilinear",
]
LEVELS = (0, 2, 3)


def converted(name: str, **options: Any) -> Loaded:
    return load(om_bytes(compile_model(ROOT / f"models/{name}.onnx", Options(**options))))


def again(loaded: Loaded, **options: Any) -> Loaded:
    return load(om_bytes(recompile(loaded.canonical(), Options(**options), recorded=loaded.info)))


def outputs(loaded: Loaded, seed: int = 0) -> list[Any]:
    session = Session(loaded)
    return session.run(None, random_feeds(session.plan.inputs, dict(session.plan.hint or {}), seed))


def assert_near(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(b).max(initial=0))))
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", LEVELS)
def test_the_same_target_and_options_give_the_same_plan_and_bits(name: str, level: int) -> None:
    first = converted(name, opt_level=level)
    second = again(first, opt_level=level)
    for kind in (Partition.PLAN_TABLE, Partition.CANONICAL_GRAPH, Partition.MODEL_DEF, Partition.TASK_INFO):
        assert bytes(first.om[kind].data) == bytes(second.om[kind].data), kind.name
    for a, b in zip(outputs(first), outputs(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_sizes_that_an_om_records_are_those_that_its_passes_counted_with() -> None:
    first = converted("corpus/mobilenetv3")  # with a dynamic batch: that of the hint decides what is fused
    second = again(first, input_hint=first.info["hint"])
    assert first.info["hint"] and bytes(first.om[Partition.PLAN_TABLE].data) == bytes(
        second.om[Partition.PLAN_TABLE].data
    )


@pytest.mark.parametrize("name", NAMES)
def test_another_target(name: str) -> None:
    first = converted(name)
    other = again(first, soc_version="Generic")
    assert other.plan.target == "Generic" and other.info["soc_version"] == "Generic"
    assert_near(outputs(other), outputs(first))


def own_target(folder: Path) -> Path:
    """A target file of one's own: small buffers, few cores."""
    text = (files("atc_py.target") / "data/Ascend310P3.toml").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        if key == "name":
            line = 'name = "Pocket1"'
        elif key == "aicores":
            line = "aicores = 1"
        lines.append(line)
    path = folder / "pocket target.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer", "corpus/mobilenetv3"])
def test_a_target_file_of_ones_own(name: str, tmp_path: Path) -> None:
    path = own_target(tmp_path)
    first = converted(name)
    other = again(first, soc_version=str(path))
    assert other.plan.target == other.info["soc_version"] == "Pocket1"
    assert_near(outputs(other), outputs(first))
    whole = om_bytes(compile_model(ROOT / f"models/{name}.onnx", Options(soc_version=str(path))))
    assert b"pocket target" not in whole and str(tmp_path).encode() not in whole


def test_a_chain_of_recompilations_loses_nothing(tmp_path: Path) -> None:
    first = converted("small_transformer")
    there = again(first, soc_version="Generic")
    back = again(again(there, soc_version=str(own_target(tmp_path))), soc_version="Ascend310P3")
    assert bytes(back.om[Partition.PLAN_TABLE].data) == bytes(first.om[Partition.PLAN_TABLE].data)


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_level_optimizes_further(name: str) -> None:
    plain = converted(name, opt_level=0)
    better = again(plain, opt_level=2)
    assert len(list(better.plan.tasks())) <= len(list(plain.plan.tasks()))
    assert better.info["opt_level"] == "O2"
    assert_near(outputs(better), outputs(plain))


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"opt_level": 1}, "--opt-level"),
        ({"out_nodes": ("gap",)}, "--out-nodes"),
        ({"input_shapes": {"x": (1, 3, 32, 32)}}, "--input-shape"),
    ],
)
def test_what_needs_the_onnx_file_is_refused_by_saying_so(options: dict[str, Any], place: str) -> None:
    with pytest.raises(AtcError) as caught:
        again(converted("small_cnn"), **options)
    [problem] = caught.value.problems
    assert (problem.code, problem.place) == ("E20004", place)
    assert "ONNX model" in problem.hint


def test_an_om_without_its_graph_says_so() -> None:
    om = compile_model(ROOT / "models/small_cnn.onnx")
    om.embed_canonical = False
    loaded = load(om_bytes(om))
    assert outputs(loaded)[0].shape == (1, 10)
    with pytest.raises(AtcError) as caught:
        loaded.canonical()
    assert caught.value.code == "E30012"


def test_recompiling_leaves_the_graph_as_it_was() -> None:
    from atc_py.ir.text import BlobTable, print_graph

    graph = converted("small_cnn").canonical()
    before = print_graph(graph, BlobTable())
    recompile(graph, Options())
    assert print_graph(graph, BlobTable()) == before
