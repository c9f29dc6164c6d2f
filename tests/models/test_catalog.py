"""The catalogue: an entry is found or says why not, and what is fetched is what the manifest says."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest

from models import catalog
from tests.conftest import CorpusModel

REPO = [e.id for e in catalog.load_manifest().values() if e.kind == "repo"]
ONNX_VECTORS = [e.id for e in catalog.load_manifest().values() if e.id.startswith("pt_")]


def test_manifest_entries_are_complete() -> None:
    for entry in catalog.load_manifest().values():
        assert len(entry.sha256) == 64 and entry.bytes > 0, entry.id
        assert bool(entry.package) == bool(entry.version) == (entry.kind in ("pypi", "npm")), entry.id
        assert entry.group in (catalog.DEFAULT_GROUP, "large"), entry.id


@pytest.mark.parametrize("model_id", REPO)
def test_committed_models_run_at_each_size(
    model_id: str, corpus_model: Callable[[str], CorpusModel], run_onnxruntime: Callable[..., dict[str, Any]]
) -> None:
    model = corpus_model(model_id)
    for alt in [False, True] if model.entry.alt else [False]:
        feeds = model.inputs(alt=alt)
        outputs = run_onnxruntime(model.path, feeds, optimize=False)
        assert all(np.isfinite(np.asarray(value, np.float64)).all() for value in outputs.values())


def test_every_committed_model_is_listed() -> None:
    # models/latency holds graphs without weights, which belong to measured latencies and are not run.
    found = catalog.MODELS_DIR.rglob("*.onnx")
    committed = {path.resolve() for path in found if "latency" not in path.parts}
    assert committed == {(catalog.MODELS_DIR / catalog.get(i).path).resolve() for i in REPO}


@pytest.mark.parametrize("model_id", ONNX_VECTORS)
def test_vectors_beside_onnx_models(model_id: str, corpus_model: Callable[[str], CorpusModel]) -> None:
    model = corpus_model(model_id)
    graph = onnx.load(model.path).graph
    for inputs, outputs in catalog.expected(model.path):
        made = model.inputs()
        assert {n: (a.dtype, a.shape) for n, a in inputs.items()} == {n: (a.dtype, a.shape) for n, a in made.items()}
        assert list(outputs) == [value.name for value in graph.output]


def test_unknown_id_names_the_way_out() -> None:
    with pytest.raises(catalog.CatalogError, match=r"'nosuch'.*--list"):
        catalog.find("nosuch")


# ---- inputs


def graph_with(*inputs: onnx.ValueInfoProto, path: Path) -> Path:
    constant = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0])
    values = [*inputs, onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [1])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", values, [], [constant])), path)
    return path


def entry_with(**fields: Any) -> catalog.Entry:
    plain: dict[str, Any] = {"id": "m", "kind": "repo", "path": "m.onnx", "sha256": "", "bytes": 1}
    return catalog.Entry(**(plain | fields))


def test_inputs_follow_the_spec(tmp_path: Path) -> None:
    value, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    path = graph_with(
        value("ids", types.INT64, ["batch", "seq"]),
        value("mask", types.INT64, ["batch", "seq"]),
        value("image", types.FLOAT16, [-1, 3, "h", "w"]),
        value("flag", types.BOOL, []),
        value("day", types.STRING, [2]),
        value("given", types.FLOAT, [None, None]),
        path=tmp_path / "m.onnx",
    )
    spec = catalog.Spec(
        shapes={"given": [5, 7]}, dims={"batch": 3, "image.2": 8, "*": 6}, vals={"mask": 1}, hi={"ids": 1000}
    )
    feeds = catalog.make_inputs(entry_with(spec=spec), path)
    assert {name: (array.dtype.kind, array.shape) for name, array in feeds.items()} == {
        "ids": ("i", (3, 6)),
        "mask": ("i", (3, 6)),
        "image": ("f", (1, 3, 8, 6)),
        "flag": ("b", ()),
        "day": ("O", (2,)),
        "given": ("f", (5, 7)),
    }
    assert feeds["image"].dtype == np.float16 and feeds["flag"] and (feeds["mask"] == 1).all()
    assert feeds["day"].tolist() == ["Monday", "Monday"]
    assert 4 < feeds["ids"].max() < 1000 and feeds["ids"].min() >= 0
    again = catalog.make_inputs(entry_with(spec=spec), path)
    other = catalog.make_inputs(entry_with(spec=spec), path, seed=1)
    assert all((feeds[name] == again[name]).all() for name in feeds)
    assert (feeds["given"] != other["given"]).any()


def test_second_size_overrides_and_falls_back(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "c", "l"])
    path = graph_with(value, path=tmp_path / "m.onnx")
    entry = entry_with(spec=catalog.Spec(dims={"n": 2, "c": 3}), alt=catalog.Spec(dims={"n": 4}))
    assert catalog.make_inputs(entry, path)["x"].shape == (2, 3, 16)
    assert catalog.make_inputs(entry, path, alt=True)["x"].shape == (4, 3, 16)
    with pytest.raises(catalog.CatalogError, match="no second size"):
        catalog.make_inputs(entry_with(), path, alt=True)


# ---- fetching, from archives made here

GOOD, VECTOR = b"a model", b"a vector"


def wheel(files: Mapping[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def sources(files: Mapping[str, bytes], path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"pkg-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


Make = Callable[[Mapping[str, bytes], Path], Path]
"""Packs files, by their names in the package, into an archive."""


class Package(Protocol):
    def __call__(self, make: Make, **files: bytes) -> list[str]: ...


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Package:
    """Models `a` and `b` of one package: `package(make, a=…, b=…)` sets what it serves; returns downloads."""
    monkeypatch.setenv("ATC_MODELS_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(GOOD).hexdigest()
    fields = {
        "kind": "pypi",
        "package": "no-such-pkg",
        "version": "1.0",
        "sha256": digest,
        "bytes": len(GOOD),
    }
    entries = {i: entry_with(**{**fields, "id": i, "path": f"no_such_pkg/{i}/model.onnx"}) for i in "ab"}
    monkeypatch.setattr(catalog, "load_manifest", lambda: entries)
    downloads: list[str] = []
    content: dict[str, bytes] = {}

    def serve(make: Make, **files: bytes) -> list[str]:
        content.update({f"no_such_pkg/{i}/model.onnx": data for i, data in files.items()})
        content["no_such_pkg/a/test_data_set_0/input_0.pb"] = VECTOR

        def download(entry: catalog.Entry, folder: Path) -> Path:
            downloads.append(entry.source)
            return make(content, folder / "archive")

        monkeypatch.setattr(catalog, "_download", download)
        return downloads

    return serve


@pytest.mark.parametrize("make", [wheel, sources])
def test_fetch_takes_verified_files_once(package: Package, make: Make, tmp_path: Path) -> None:
    downloads = package(make, a=GOOD, b=GOOD)
    assert catalog.find("a").path is None and "run scripts/models a" in catalog.find("a").reason
    assert catalog.fetch(["a", "b"]) == {}
    path = catalog.find("a").path
    assert path is not None and path.read_bytes() == GOOD
    assert (path.parent / "test_data_set_0" / "input_0.pb").read_bytes() == VECTOR
    assert catalog.fetch(["a", "b"]) == {} and downloads == ["no-such-pkg==1.0"]
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["a", "b"]


def test_fetch_refuses_another_file_and_keeps_the_rest(package: Package) -> None:
    package(wheel, a=GOOD, b=b"something else")
    assert "SHA-256 differs" in catalog.fetch(["a", "b"])["b"]
    assert catalog.find("a").path and not catalog.find("b").path


def test_fetch_mends_a_damaged_cache(package: Package) -> None:
    downloads = package(wheel, a=GOOD, b=GOOD)
    catalog.fetch(["a"])
    path = catalog.find("a").path
    assert path
    path.write_bytes(b"cut sho")
    assert "SHA-256 differs" in catalog.find("a").reason
    assert catalog.fetch(["a"]) == {} and path.read_bytes() == GOOD and len(downloads) == 2


def test_fetch_reports_a_failed_download(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    package(wheel, a=GOOD)

    def fails(entry: catalog.Entry, folder: Path) -> None:
        catalog._run([sys.executable, "-c", "raise SystemExit('ERROR: no network')"], entry.source)

    monkeypatch.setattr(catalog, "_download", fails)
    assert catalog.fetch(["a"]) == {"a": "no-such-pkg==1.0: ERROR: no network"}


def test_external_data_is_part_of_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "m.data"
    model.write_bytes(GOOD)
    data.write_bytes(VECTOR)
    digests = [hashlib.sha256(content).hexdigest() for content in (GOOD, VECTOR)]
    entry = entry_with(kind="shared", sha256=digests[0], data={"m.data": digests[1]})
    monkeypatch.setattr(catalog, "load_manifest", lambda: {"m": entry})
    monkeypatch.setenv("ATC_SHARED_CORPUS", str(tmp_path))
    assert catalog.find("m").path == model
    data.unlink()
    assert catalog.find("m").path is None and "m.data is absent" in catalog.find("m").reason


def test_command_lists_and_fails_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATC_SHARED_CORPUS", str(tmp_path / "nowhere"))

    def models(*args: str) -> subprocess.CompletedProcess[str]:
        script = catalog.MODELS_DIR.parent / "scripts" / "models"
        return subprocess.run([sys.executable, script, *args], capture_output=True, text=True, check=False)

    listed = models("--list", "small_cnn", "hf_vit_dyn")
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [
        ["small_cnn", "here"],
        ["hf_vit_dyn", "-"],
    ]
    path = models("--path", "small_cnn")
    assert path.returncode == 0 and Path(path.stdout.strip()).name == "small_cnn.onnx"
    for args, text in [(["hf_vit_dyn"], "ATC_SHARED_CORPUS"), (["nosuch"], "no model 'nosuch'")]:
        failed = models(*args)
        assert failed.returncode == 1 and text in failed.stdout + failed.stderr and "Traceback" not in failed.stderr
