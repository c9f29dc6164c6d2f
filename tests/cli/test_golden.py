from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cli.helpers import MODELS, atc, codes, valid


@pytest.fixture
def golden(om: Path, tmp_path: Path) -> Path:
    result = atc("golden", "record", om, "-o", tmp_path / "g", "--seed", 5, "--json")
    assert result.exit_code == 0, result.output
    facts = valid(result.stdout, "golden-record")
    assert facts["seed"] == 5 and facts["outputs"] == ["probabilities"]
    return tmp_path / "g.npz"


def test_the_file_needs_no_pickle_and_is_the_same_each_time(golden: Path, om: Path, tmp_path: Path) -> None:
    with np.load(golden, allow_pickle=False) as file:
        assert "digest" in str(file["meta"]) and "versions" in str(file["meta"])
    assert atc("golden", "record", om, "-o", tmp_path / "h.npz", "--seed", 5).exit_code == 0
    assert golden.read_bytes() == (tmp_path / "h.npz").read_bytes()


def test_the_same_model_passes(golden: Path, om: Path, tmp_path: Path) -> None:
    result = atc("golden", "verify", om, golden, "--junit", tmp_path / "r.xml", "--json")
    facts = valid(result.stdout, "golden-verify")
    assert result.exit_code == 0 and facts["passed"] and facts["same_model"] and facts["seed"] == 5
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert root.tag == "testsuites" and root.get("tests") == "1" and root.get("failures") == "0"


def test_another_digest_is_a_note(golden: Path, template: Path) -> None:
    result = atc("golden", "verify", template, golden)
    assert result.exit_code == 0 and "another OM" in result.stdout
    assert not valid(atc("golden", "verify", template, golden, "--json").stdout, "golden-verify")["same_model"]


def _tampered(golden: Path, by: float) -> Path:
    with np.load(golden) as file:
        arrays = {k: file[k] for k in file.files}
    arrays["value_1"] = arrays["value_1"].copy()
    arrays["value_1"][0, 7] += np.float32(by)
    target = golden.with_name("tampered.npz")
    np.savez(target, **arrays)
    return target


def test_a_failure_says_which_how_far_and_where(golden: Path, om: Path, tmp_path: Path) -> None:
    bad = _tampered(golden, 0.5)
    result = atc("golden", "verify", om, bad, "--junit", tmp_path / "r.xml", "--json")
    assert result.exit_code == 1
    [output] = valid(result.stdout, "golden-verify")["outputs"]
    assert output["worst"]["index"] == [0, 7] and output["mismatches"] == 1
    assert output["max_abs"] == pytest.approx(0.5, abs=1e-3)
    text = atc("golden", "verify", om, bad).stdout
    assert "probabilities" in text and "[0, 7]" in text and "want" in text
    case = ElementTree.parse(tmp_path / "r.xml").getroot().find("testsuite/testcase/failure")
    assert case is not None and "1 of 10" in str(case.get("message"))


def test_tolerances_can_be_given(golden: Path, om: Path) -> None:
    bad = _tampered(golden, 1e-3)
    assert atc("golden", "verify", om, bad).exit_code == 1
    assert atc("golden", "verify", om, bad, "--atol", "0.1").exit_code == 0
    assert atc("golden", "verify", om, golden, "--rtol", "0", "--atol", "0").exit_code == 0
    far = _tampered(golden, 5)
    assert atc("golden", "verify", om, far, "--atol", "10", "--cosine", "0.999").exit_code == 1


def test_wrong_files(golden: Path, om: Path, tmp_path: Path, convert: Callable[..., Path]) -> None:
    (tmp_path / "no.npz").write_bytes(b"no archive")
    assert codes(atc("golden", "verify", om, tmp_path / "no.npz", "--json")) == ["E30013"]
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert codes(atc("golden", "verify", om, tmp_path / "other.npz", "--json")) == ["E30031"]
    assert codes(atc("golden", "verify", om, tmp_path / "none.npz", "--json")) == ["E13000"]
    transformer = convert("small_transformer")
    assert "E30006" in codes(atc("golden", "verify", transformer, golden, "--json"))
    assert codes(atc("golden", "record", om, "-o", tmp_path / "no" / "g.npz", "--json")) == ["E13001"]
    assert codes(atc("golden", "verify", om, golden, "--junit", tmp_path / "no" / "r.xml", "--json")) == ["E13001"]
    assert codes(atc("golden", "recrod", "--json")) == ["E10001"]


def test_models_of_the_repository_are_recorded_too(convert: Callable[..., Path], tmp_path: Path) -> None:
    path = convert("small_transformer")
    assert MODELS.is_dir()
    assert atc("golden", "record", path, "-o", tmp_path / "t.npz").exit_code == 0
    assert atc("golden", "verify", path, tmp_path / "t.npz").exit_code == 0
