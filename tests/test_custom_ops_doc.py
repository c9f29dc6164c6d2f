"""docs/custom_operators.md, block by block: files are written, programs and `atc` commands run, in a folder."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import FLOAT, ROOT, atc, model, save
from tests.custom.helpers import clean, install  # noqa: F401 - a fixture

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = ROOT / "docs/custom_operators.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# file: (\S+)\n")


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each block of the page."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> Path:  # noqa: F811
    """The page's files; the working folder is theirs."""
    for _, text in blocks():
        named = FILE.match(text)
        if named:
            path = tmp_path / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_the_page_has_what_this_test_looks_for() -> None:
    kinds = [kind for kind, _ in blocks()]
    assert {k: kinds.count(k) for k in ("python", "sh", "toml")} == {"python": 7, "sh": 1, "toml": 1}
    assert sum(1 for _, text in blocks() if FILE.match(text)) == 5


def test_the_worked_example(folder: Path) -> None:
    seen = ""
    for number, (kind, text) in enumerate(blocks()):
        if kind == "python" and not FILE.match(text):
            script = folder / f"block_{number}.py"
            script.write_text(text)
            runpy.run_path(str(script))
        for line in text.splitlines() if kind == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == "atc"
            result = atc(*arguments)
            assert result.exit_code == 0, (line, result.output)
            seen += result.output
    assert "MatMul+acme::SoftCap" in seen
    assert "acme::SoftCap of softcap.py" in seen


def test_the_operator_without_a_shape_rule(folder: Path) -> None:
    from onnx import helper

    from atc_py import Options, Session, compile_model
    from atc_py.emit import om_bytes

    nodes = [helper.make_node("TopRows", ["x"], ["t"], domain="acme"), helper.make_node("Neg", ["t"], ["y"])]
    om = om_bytes(compile_model(model(nodes, {"x": (FLOAT, [4, 2])}, ["y"]), Options(custom_ops=["mystery.py"])))
    x = np.array([[1, 2], [-3, 1], [0, 5], [-1, -1]], np.float32)
    [y] = Session(om).run(None, {"x": x})
    np.testing.assert_array_equal(y, -x[[0, 2]])


def test_the_package_is_found_where_it_is_installed(folder: Path) -> None:
    from onnx import helper

    project = tomllib.loads((folder / "acme_ops/pyproject.toml").read_text())["project"]
    site = install(folder / "site", project["name"], project["entry-points"], folder / "acme_ops/acme_ops")
    proto = model([helper.make_node("Square", ["x"], ["y"], domain="acme")], {"x": (FLOAT, [3])}, ["y"])
    save(proto, folder / "m.onnx")
    code = """
import sys
import numpy as np
from atc_py import Session
[y] = Session("m.om").run(None, {"x": np.array([1, 2, 3], np.float32)})
assert y.tolist() == [1, 4, 9], y
assert not {"onnx", "atc_py.frontend", "atc_py.passes"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    convert = ["-c", "from atc_py.cli import main; main()", "convert", "m.onnx", "-o", "m.om"]
    for command in (convert, ["-c", code]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    bare = {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=False)
    assert "E40005" in done.stderr and "acme_ops" in done.stderr
