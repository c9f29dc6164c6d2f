"""The scripts of the repository say what they do when they are asked, and do nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sorted(
    p.name
    for p in (ROOT / "scripts").iterdir()
    if p.is_file() and p.read_text(encoding="utf-8").startswith("#!/usr/bin/env python3")
)


@pytest.mark.parametrize("name", PYTHON)
def test_help(name: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / name, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.startswith("usage: ") and f"scripts/{name}" in done.stdout


def test_none_is_overlooked() -> None:
    assert {"corpus", "memory", "optimizer"} <= set(PYTHON)
