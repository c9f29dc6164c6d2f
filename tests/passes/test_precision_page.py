"""docs/precision.md names every mode, and its lists are those of the declarations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from atc_py.cli.atc_options import PRECISION_MODES
from atc_py.passes.precision import MODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/precision.md"


def test_the_lists_are_current() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts/precision-page"), "--print"], capture_output=True, text=True, check=True
    )
    assert PAGE.read_text(encoding="utf-8") == made.stdout, "run scripts/precision-page"


def test_every_mode_and_every_older_name_is_in_the_table() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    said = {row[1].split("`")[1]: {name.strip() for name in row[2].split(",")} for row in rows}
    assert set(said) == set(MODES)
    assert {old: new for new, olds in said.items() for old in olds} == dict(PRECISION_MODES)
