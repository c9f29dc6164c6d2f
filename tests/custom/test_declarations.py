"""What may be declared, and how modules are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atc_py.custom import Attr, Engine, Flags, declare, load
from atc_py.errors import AtcError
from atc_py.ops import base, get
from atc_py.ops.base import REGISTRY
from atc_py.ops.custom import custom
from tests.cli.helpers import ROOT
from tests.custom.helpers import clean, install, write  # noqa: F401

pytestmark = pytest.mark.usefixtures("clean")
ONE = 'declare("acme::One", inputs="X", outputs="Y")\n'


def refused(code: str, *words: str, **given: Any) -> None:
    arguments: dict[str, Any] = {"name": "acme::Op", "inputs": "X", "outputs": "Y", **given}
    name = arguments.pop("name")
    with pytest.raises(AtcError) as caught:
        declare(name, **arguments)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    assert name not in REGISTRY or custom(str(name)) is None


@pytest.mark.parametrize("name", ["", "acme::", "::Op", "a b::Op", "acme::O p", "ai.onnx::Op", "a::b::Op", "acme::\n"])
def test_names_that_are_none(name: str) -> None:
    refused("E20021", name=name)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"inputs": "X* Y"}, "variadic"),
        ({"inputs": "X??"}, "X??"),
        ({"outputs": ""}, "at least one output"),
        ({"outputs": "1"}, "no name"),
        ({"attrs": {"_a": Attr("int")}}, "underscore"),
        ({"attrs": {"a": Attr("number")}}, "kind 'number'"),
        ({"attrs": {"a": Attr("ints", (1, "two"))}}, "expected ints"),
        ({"flags": base.Flags(control=True)}, "control"),
        ({"flags": Flags(inplace=(1,))}, "input 1"),
        ({"flags": Flags(alias=True), "inputs": ""}, "alias"),
        ({"flags": {"elementwise": True}}, "flags"),
        ({"engine": "aicore"}, "engine"),
        ({"engine": Engine.HCCL}, "engine HCCL is for collectives"),
    ],
)
def test_declarations_that_are_wrong(given: dict[str, object], word: str) -> None:
    refused("E20021", word, **given)


@pytest.mark.parametrize("name", ["Relu", "Fused", "com.microsoft::QLinearAdd"])
def test_names_of_ours_are_taken_whether_their_family_is_imported_or_not(name: str) -> None:
    before = REGISTRY.pop(name, None)
    try:
        refused("E20021", "already", name=name)
    finally:
        if before is not None:
            REGISTRY[name] = before


def test_nothing_is_assumed_without_flags() -> None:
    op = declare("acme::Op", inputs="X", outputs="Y")
    assert op.flags == Flags() and not op.flags.deterministic and op.engine is Engine.AICPU
    assert not declare("acme::Op2", inputs="X", outputs="Y", flags=Flags(elementwise=True)).flags.deterministic


def test_the_same_module_declares_again_another_does_not(tmp_path: Path) -> None:
    first = declare("acme::One", inputs="X", outputs="Y")
    second = declare("acme::One", inputs="X Z", outputs="Y")
    assert get("acme::One") is second is not first
    with pytest.raises(AtcError, match=r"one\.py.*test_declarations") as caught:
        load(write(tmp_path / "one.py", ONE))
    assert caught.value.code == "E20021" and get("acme::One") is second


# -- loading -------------------------------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_module_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "ops.py", ONE + 'declare("acme::Two", inputs="X", outputs="Y")')
    assert load(file) == load(str(file)) == ("acme::One", "acme::Two")
    write(tmp_path / "pack/inner.py", 'declare("acme::Three", inputs="X", outputs="Y")')
    (tmp_path / "pack/__init__.py").write_text("from . import inner")
    assert load(tmp_path / "pack") == load(tmp_path / "pack") == ("acme::Three",)
    write(tmp_path / "dotted/four.py", 'declare("acme::Four", inputs="X", outputs="Y")')
    (tmp_path / "dotted/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("dotted.four") == load("dotted.four") == load(tmp_path / "dotted/four.py") == ("acme::Four",)
    names = ("One", "Three", "Four")
    assert [custom(f"acme::{n}").module for n in names] == ["ops.py", "pack", "dotted.four"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", ["line 3", "correct the module"]),
        ("1 / 0", ["ZeroDivisionError"]),
        ("import nowhere_to_be_found", ["nowhere_to_be_found", "install"]),
        ("raise SystemExit(3)", ["SystemExit"]),
        ("x = 1", ["declares no operator"]),
    ],
)
def test_a_module_that_fails_leaves_nothing_behind(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.py"
    head = "from atc_py.custom import declare\n"
    path.write_text(head + ("" if text == "x = 1" else ONE) + text)
    with pytest.raises(AtcError) as caught:
        load(path)
    assert caught.value.code == "E20020" and all(w in str(caught.value) for w in words), caught.value
    assert custom("acme::One") is None and not [m for m in sys.modules if m.startswith("atc_custom_bad")]
    path.write_text(head + ONE)
    assert load(path) == ("acme::One",)


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "none.py", "no/such.py", "no_such_module", "not a module", tmp_path / "folder"):
        with pytest.raises(AtcError) as caught:
            load(source)
        assert caught.value.code == "E20020" and caught.value.problems[0].hint


def test_the_inner_declare_is_not_for_modules_of_others(tmp_path: Path) -> None:
    path = tmp_path / "inner.py"
    path.write_text('from atc_py.ops.base import declare\ndeclare("acme::Raw", inputs="X", outputs="Y")')
    with pytest.raises(AtcError, match=r"atc_py\.custom\.declare") as caught:
        load(path)
    assert caught.value.code == "E20021" and "acme::Raw" not in REGISTRY


def test_entry_points_are_tried_by_domain_and_broken_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atc_py.ops import plugins

    write(tmp_path / "src/good_ops.py", ONE)
    write(tmp_path / "src/bad_ops.py", "raise RuntimeError('out of order')")
    write(tmp_path / "src/other_ops.py", 'declare("other::Op", inputs="X", outputs="Y")')
    points = {"acme": "good_ops", "aaa": "bad_ops", "other": "other_ops"}
    install(tmp_path / "src", "many", {"atc_py.ops": points})
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    found = plugins.find("acme::One")
    assert found is not None and found.module == "good_ops"
    assert "bad_ops" not in sys.modules and "other_ops" not in sys.modules and not plugins.failures()
    assert plugins.find("acme::None") is None
    assert "out of order" in plugins.failures() and "'aaa'" in plugins.failures()
    assert custom("other::Op") is not None


def test_what_has_no_custom_operator_does_not_pay_for_them() -> None:
    code = "import sys, atc_py.runtime; print(sorted({'atc_py.ops.custom', 'atc_py.ops.plugins'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
