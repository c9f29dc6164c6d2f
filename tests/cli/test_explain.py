from __future__ import annotations

import re
from pathlib import Path

import pytest

from atc_py.error_catalogue import OWN, catalogue
from tests.cli.helpers import MODELS, ROOT, atc, codes, valid

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


def test_a_model_is_explained_pass_by_pass() -> None:
    facts = valid(atc("explain", MODELS / "small_transformer.onnx", "--json").stdout, "explain")
    stages = facts["stages"]
    assert stages[0]["stage"] == "import" and stages[0]["nodes"] == 33
    assert any(s["stage"] == "optimize/attention" for s in stages)
    assert stages[-1]["nodes"] < stages[0]["nodes"] and stages[-1]["predicted_us"] < stages[0]["predicted_us"]
    assert stages[-1]["bytes_moved"] < stages[0]["bytes_moved"]
    assert "import" in atc("explain", MODELS / "small_transformer.onnx").stdout


def test_a_node_is_followed_to_its_task() -> None:
    model = MODELS / "small_transformer.onnx"
    facts = valid(atc("explain", model, "--node", "scores.scaled", "--json").stdout, "explain")["node"]
    assert facts["steps"][0] == {"stage": "import", "as": ["Div"]}
    assert any(s["as"] == ["Attention"] for s in facts["steps"])
    task = facts["tasks"][-1]
    assert "FlashAttentionScore" in task["operators"]
    assert task["engine"] == "aicore" and task["task"] is not None and "scores.scaled" in task["stands_for"]
    assert "Attention" in atc("explain", model, "--node", "scores.scaled").stdout


def test_what_explain_cannot_tell() -> None:
    model = MODELS / "small_transformer.onnx"
    result = atc("explain", model, "--node", "score.scaled", "--json")
    assert codes(result) == ["E20031"] and "scores.scaled" in result.stdout
    assert codes(atc("explain", model, "--rule", "cses", "--json")) == ["E10001"]
    assert codes(atc("explain", "E16002", "--node", "x", "--json")) == ["E10001"]
