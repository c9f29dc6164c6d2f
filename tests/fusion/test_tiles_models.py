"""Each fused task of each model runs as its tile program, in the buffers of its target and of one with small buffers.

    y: [1, 16, 32, 32] ─ tile [1, 16, 4, 32] ─ the inner Conv's tile has 6 rows, and never all 32

What the tiles give is what whole operators give. No tile takes more than its share of a buffer, and a task that is cut
into several tiles never holds an inner value whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import compiler
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.fusion.tiles import SHARE
from atc_py.ops import tile_run
from atc_py.ops.tile_program import BUFFERS
from atc_py.ops.tiles import elements
from atc_py.runtime import Session
from atc_py.runtime.loader import load
from atc_py.target import Target
from atc_py.target import load as load_target
from models import catalog
from models.randomize import source
from tests.cli.helpers import atc

BYTES = {"ub": 16_384, "l1": 65_536, "l0c": 16_384}
"""A core on which few values fit whole."""


TARGETS = ("Ascend310P3", "Ascend910B1", "Generic")


@pytest.fixture(scope="module")
def small_core(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A target with less of each buffer."""
    folder = tmp_path_factory.mktemp("target")

    def make(soc: str) -> Path:
        text = (files("atc_py.target") / "data" / f"{soc}.toml").read_text(encoding="utf-8")
        for key, size in BYTES.items():
            text = re.sub(rf"^{key} = [\d_]+$", f"{key} = {size}", text, flags=re.MULTILINE)
        path = folder / f"small{soc}.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


class Watch:
    """Looks at each execution of a tile program: its buffers, and whether a tile holds as much as the whole.

    In a tile that is a part, an inner value is whole only where it is no larger than the tile of the result: a vector
    beside it. `larger`: or what an operator reads all of, such as the channels of a convolution cut along its results.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: Target, larger: bool) -> None:
        self.tasks = self.tiles = self.cut = 0
        self.several = False
        limits = {"UB": target.ub, "L1": target.l1, "L0C": target.l0c}
        buffers, tile = tile_run._buffers, tile_run._tile

        def watched(m: Any, state: Any, g: Any) -> None:
            buffers(m, state, g)
            self.tasks += 1
            assert all(space.nbytes <= SHARE * limits[name] for name, space in m.space.items())
            self.several = max(g.number) > 1
            self.cut += self.several

        def counted(m: Any, t: Any, *given: Any) -> None:
            self.tiles += 1
            full = [v for v in m.p.made if v in t.regions and elements(t.regions[v]) == prod(m.shapes[v])]
            assert not self.several or len(full) < len(m.p.made), "a tile has all values in full size"
            assert not self.several or m.p.outputs[0] not in full
            tile_size = elements(t.regions[m.p.outputs[0]]) if m.p.outputs[0] in t.regions else 0
            inner = [v for v in full if v not in m.p.outputs and prod(m.shapes[v]) > tile_size]
            assert larger or not self.several or not inner, "an inner value is whole"
            tile(m, t, *given)

        monkeypatch.setattr(tile_run, "_buffers", watched)
        monkeypatch.setattr(tile_run, "_tile", counted)


def close(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        if w.dtype.kind == "f":
            scale = float(np.abs(w[np.isfinite(w)]).max(initial=0))
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4 * scale)
        else:
            np.testing.assert_array_equal(g, w)


@cache
def compiled(name: str, **options: Any) -> tuple[bytes, Mapping[str, Any]]:
    path, reason = catalog.find(name)
    if path is None:
        pytest.skip(reason)
    entry = catalog.get(name)
    om = compiler.compile_model(source(entry, path), compiler.Options(**options))
    return om_bytes(om), catalog.make_inputs(entry, path)


def run_in_tiles(
    name: str, soc: str, monkeypatch: pytest.MonkeyPatch, larger: bool = False, alt: bool = False
) -> Watch:
    """Compile, look at the planned buffers, run tile by tile, and compare with whole operators; `alt`: at two sizes."""
    om, feeds = compiled(name, soc_version=soc)
    found, entry = catalog.find(name).path, catalog.get(name)
    sizes = (
        [feeds]
        if not alt or entry.alt is None or found is None
        else [feeds, catalog.make_inputs(entry, found, alt=True)]
    )
    session, target = Session(om, kernels="tiles"), load_target(soc)
    limits = dict(zip(BUFFERS, (target.ub, target.l1, target.l0c), strict=True))
    for task in [task for task in session.plan.tasks() if task.body is not None]:
        used = dict(zip(BUFFERS, task.attrs["buffers"], strict=True))
        assert all(used[b] <= SHARE * limits[b] for b in BUFFERS), f"{task.name} takes {used}"
    watch = Watch(monkeypatch, target, larger)
    for given in sizes:
        close(Session(om).run(None, given), session.run(None, given))
    return watch


REPO = [name for name, entry in catalog.load_manifest().items() if entry.kind == "repo"]
SMALL = {"bilstm_text", "bigru_text", "loop_while_if", "if_shape", "cond_dyn", "moe_nonzero", "scan_rnn", "sk_mlp"}
"""Models whose values all fit on the small core whole."""
LARGER = ("resnet18_qop", "hf_vit_dyn", "llama32_ts_kv", "hf_bert_ts", "ppocr4_rec", "minilm_int8", "basic_pitch",
          "magika", "silero_v6", "light_shufflenet", "light_squeezenet", "mtcnn_onet")  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REPO)
def test_models_of_the_repository(
    name: str, target: str, small_core: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = run_in_tiles(name, target, monkeypatch, alt=True)
    assert watch.tasks or name == "if_shape"  # its only fused task lies in a branch that both sizes leave out
    monkeypatch.undo()
    watch = run_in_tiles(name, str(small_core(target)), monkeypatch)
    assert bool(watch.cut) == (name not in SMALL)


@pytest.mark.needs_models
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LARGER)
def test_larger_models(
    name: str, target: str, small_core: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for soc in (target, str(small_core(target))):
        assert run_in_tiles(name, soc, monkeypatch, larger=True).tasks
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["unet_convt", "diffusion_unet_ts", "hf_vit_dyn", "resnet18_qop"])
def test_tiles_give_what_plain_operators_give(name: str, small_core: Callable[[str], Path]) -> None:
    om, feeds = compiled(name, soc_version=str(small_core("Ascend310P3")))
    plain, _ = compiled(name, opt_level=0)
    close(Session(om, kernels="tiles").run(None, feeds), Session(plain).run(None, feeds))


def test_the_switch(tmp_path: Path) -> None:
    om, _ = compiled("unet_convt")
    with pytest.raises(AtcError, match="E10001"):
        Session(om, kernels="slow")
    (tmp_path / "m.om").write_bytes(om)
    result = atc("run", tmp_path / "m.om", "--tiles", "--json")
    assert result.exit_code == 0, result.output


def test_inspect_shows_the_tile_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    om, _ = compiled("unet_convt")
    (tmp_path / "m.om").write_bytes(om)
    shown = atc("inspect", tmp_path / "m.om", "--tasks").stdout
    assert "tile 1×·×" in shown and "L0C" in shown


@pytest.mark.parametrize(
    "attrs",
    [
        {"tile": (1,)}, {"tile": (1, 0, -4, 0)}, {"tile": "wide"}, {"tile": (1, 0, 2.5, 0)}, {"inner": ()},
        {"inner": (-1, 8)}, {"inner": (1 << 60, 8)}, {"inner_in": ("UB", "DDR")}, {"inner_in": ("UB",)},
        {"inner": (1, 1)},
    ],
)  # fmt: skip
def test_a_tile_program_from_a_file_that_lies(attrs: dict[str, Any]) -> None:
    om, feeds = compiled("unet_convt")
    loaded = load(om)
    task = next(t for t in loaded.plan.tasks() if t.body is not None)
    assert isinstance(task.attrs, dict)
    task.attrs.update(attrs)
    with pytest.raises(AtcError) as caught:
        Session(loaded, kernels="tiles").run(None, feeds)
    assert all(p.place == f"task '{task.name}'" for p in caught.value.problems)
