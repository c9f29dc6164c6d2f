"""Rules of users: the worked example of docs/custom_fusion.md, entry points, names, and what is wrong with a module."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import Session, compile_model, compiler
from atc_py.compiler import Options
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.fusion import plugins
from atc_py.passes import pass_names
from tests.making import FLOAT, model, node

PAGE = Path(__file__).resolve().parents[2] / "docs/custom_fusion.md"
OURS = frozenset({"vector_chain"})


def example(folder: Path) -> Path:
    """The page's module, written to a file."""
    [(name, code)] = re.findall(
        r"```python\n# (scaled_softmax\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    path = folder / str(name)
    path.write_text(str(code), encoding="utf-8")
    return path


def scaled(size: int) -> Any:
    nodes = [node("Mul", ["x", "two"], ["s"], name="scale"), node("Softmax", ["s"], ["y"], axis=-1, name="soft")]
    return model(nodes, {"x": (FLOAT, [3, size])}, ["y"], {"two": np.full(size, 2.5, np.float32)})


def test_the_page_s_example(tmp_path: Path) -> None:
    rules = [str(example(tmp_path))]
    om = compile_model(scaled(64), Options(fusion_rules=rules, disabled_passes=OURS))
    [task] = [t for t in om.plan.tasks() if t.kernel == "Fused"]
    assert task.body is not None
    assert [n.op for n in task.body.order() if n.op in ("Mul", "Softmax")] == ["Mul", "Softmax"]
    x = np.linspace(-1, 1, 192, dtype=np.float32).reshape(3, 64)
    e = np.exp(x * 2.5)
    [y] = Session(om_bytes(om)).run(None, {"x": x})
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_its_refusal_is_told_and_its_name_can_be_disabled(tmp_path: Path) -> None:
    rules = [example(tmp_path)]
    om = compile_model(scaled(48), Options(fusion_rules=rules, disabled_passes=OURS))
    told = [d.reason for d in om.report.declined if d.rule == "scaled_softmax"]
    assert told == ["kernel: Mul 'scale' is not fused: no kernel for this shape: rows of 48, there is one for 64"]
    assert told[0] in PAGE.read_text(encoding="utf-8")
    off = Options(fusion_rules=rules, disabled_passes=OURS | {"scaled_softmax"})
    assert not [t for t in compile_model(scaled(64), off).plan.tasks() if t.kernel == "Fused"]


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("acme", "scaled_softmax", plugins.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == plugins.GROUP else [])
    plugins.installed.cache_clear()
    try:
        assert pass_names()[-1] == "scaled_softmax"
        om = compile_model(scaled(64), Options(disabled_passes=OURS))
        assert [t.kernel for t in om.plan.tasks()] == ["Fused"]
    finally:
        monkeypatch.undo()
        plugins.installed.cache_clear()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RULES = []", "it offers no RULES"),
        ("x = 1", "it offers no RULES"),
        ("RULES = [3]", "RULES holds 3, which is no atc_py.fusion.Rule"),
        ("def f(:", "line 1: "),
        ("import no_such_module", "ModuleNotFoundError"),
        (
            "from atc_py.fusion import Rule\nRULES = [Rule('cse', 'd', frozenset())]",
            "there is a rule or pass 'cse' already",
        ),
        ("from atc_py.fusion import Rule\nRULES = [Rule('a b', 'd', frozenset())]", "'a b' is no name for a rule"),
    ],
)
def test_what_is_wrong_with_a_module(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "rules.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AtcError) as caught:
        compile_model(scaled(8), Options(fusion_rules=[path]))
    assert [p.code for p in caught.value.problems] == ["E20050"] and cause in caught.value.problems[0].cause


def test_a_path_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(AtcError, match="there is no such file"):
        plugins.load(tmp_path / "none.py")
    with pytest.raises(AtcError, match="ModuleNotFoundError"):
        plugins.load("no_such_rules_module")


def test_files_are_read_once_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, call: Any) -> Any:
        def told(*arguments: Any) -> Any:
            calls.append(name)
            return call(*arguments)

        return told

    for name in ("load_all", "read_switches"):
        monkeypatch.setattr(compiler, name, counted(name, getattr(compiler, name)))
    switches = tmp_path / "off.cfg"
    switches.write_text("SoftmaxFusionPass:off\n", encoding="utf-8")
    options = Options(fusion_rules=(example(tmp_path),), fusion_switch_file=switches)
    for conversions in (1, 2):
        compile_model(scaled(4), options)
        assert sorted(calls) == ["load_all"] * conversions + ["read_switches"] * conversions
