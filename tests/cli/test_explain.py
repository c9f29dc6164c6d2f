from __future__ import annotations

import re
from pathlib import Path

import pytest

from atc_py.error_catalogue import OWN, catalogue
from tests.cli.helpers import ROOT, atc, codes, valid

CODE = re.compile(r"""["'](E[A-Z]?\d{3,5}|W\d{5})["']""")


def used() -> dict[str, Path]:
    """Every code that stands in the sources, but for the catalogue's own table."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "atc_py").rglob("*.py")):
        if path.name != "error_catalogue.py":
            found |= dict.fromkeys(CODE.findall(path.read_text()), path)
    return found


def test_every_code_in_the_sources_is_in_the_catalogue_and_no_others() -> None:
    known, found = catalogue(), used()
    assert not {c: str(p) for c, p in found.items() if c not in known}
    assert not [c for c in known if c not in found]


def test_no_code_has_two_homes() -> None:
    from atc_py.frontend.codes import CODES

    assert not set(OWN) & (set(CODES) - {"E19999"})


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_each_is_explained(code: str) -> None:
    entry = catalogue()[code]
    assert entry.meaning and entry.explanation
    result = atc("explain", code.lower())
    assert result.exit_code == 0 and entry.meaning in result.stdout
    assert valid(atc("explain", code, "--json").stdout, "explain")["code"] == code


def test_the_list_and_unknown_codes() -> None:
    assert "E16002" in atc("explain").stdout
    assert len(valid(atc("explain", "--json").stdout, "explain")["codes"]) == len(catalogue())
    assert codes(atc("explain", "E1600", "--json")) == ["E10001"]
    assert "E16002" in atc("explain", "E1600").stderr
