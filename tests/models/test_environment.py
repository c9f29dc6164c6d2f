"""The scaffold: pinned versions fit the declared ranges on each Python, and scripts say what they lack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_each_dependency_has_one_pin_within_its_range(python: str) -> None:
    lines = (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins: dict[str, list[str]] = {}
    for pin in (Requirement(line) for line in lines if not line.startswith("#")):
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            pins.setdefault(canonicalize_name(pin.name), []).append(next(iter(pin.specifier)).version)
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        need = Requirement(text)
        versions = pins.get(canonicalize_name(need.name), [])
        assert len(versions) == 1 and need.specifier.contains(versions[0]), text


@pytest.mark.parametrize("name", ["scripts/test", "scripts/demo", "scripts/models", ".ci/run"])
def test_scripts_are_executable_and_well_formed(name: str) -> None:
    script = ROOT / name
    assert os.access(script, os.X_OK)
    if "bash" in script.read_text(encoding="utf-8").splitlines()[0]:
        subprocess.run(["bash", "-n", script], check=True)


def environment(tmp_path: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run use_environment in a copy of the checkout's bones, with a Python of our choice."""
    (tmp_path / "scripts").mkdir(exist_ok=True)
    for name in ("scripts/_env.sh", "scripts/constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    script = tmp_path / "scripts" / "probe"
    script.write_text('set -euo pipefail\nsource "$(dirname "$0")/_env.sh"\nuse_environment dev\necho ready\n')
    env = {**os.environ, "PYTHON": python}
    return subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=False)


def fake_python(path: Path, venv: str) -> str:
    """A Python, new enough, that knows `-m venv` (as given) and `-m pip` (logged, successful) and no more."""
    path.write_text(
        f"""#!/usr/bin/env bash
case "$*" in
    *" pip "*) echo "$*" >>"{path}.log" ;;
    *venv*) {venv} ;;
    *--version*) echo "Python 3.99" ;;
esac
"""
    )
    path.chmod(0o755)
    return str(path)


def test_old_python_is_named(tmp_path: Path) -> None:
    done = environment(tmp_path, "false")
    assert done.returncode == 1 and "needs Python 3.10 or newer; tried: false" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_missing_venv_module_leaves_nothing(tmp_path: Path) -> None:
    done = environment(tmp_path, fake_python(tmp_path / "python", 'mkdir -p "$3"; exit 1'))
    assert done.returncode == 1 and "python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_second_run_installs_nothing_until_versions_change(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "python", 'mkdir -p "$3/bin"; cp "$0" "$3/bin/python"')
    log = tmp_path / "python.log"
    assert environment(tmp_path, python).stdout.endswith("ready\n")
    first = log.read_text()
    assert "--constraint" in first and "--editable .[dev]" in first
    again = environment(tmp_path, python)
    assert again.stdout == "ready\n" and log.read_text() == first
    stamp = tmp_path / ".venv" / ".stamp-dev"
    stamp.write_text("another state\n")
    assert "installing" in environment(tmp_path, python).stdout and log.read_text() == first * 2
