"""Targets: the packaged files, and every fault of a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc_py.errors import AtcError
from atc_py.ir.types import DType, Format
from atc_py.passes import pass_names
from atc_py.target import Target, load, names
from atc_py.target.target import parse

EXPECTED = ["310", "310B1", "310P3", "910A", "910B1", "910B2", "910B3", "910B4"]


def test_all_targets_load() -> None:
    assert list(names()) == [f"Ascend{n}" for n in EXPECTED] + ["Generic"]
    for name in names():
        target = load(name)
        assert target.name == name and isinstance(target, Target)
        assert target.l0a <= target.l1 and target.has_cube(DType.FLOAT16)


def test_names_ignore_case_and_targets_compare_by_content() -> None:
    assert load("ascend310p3") == load("ASCEND310P3") != load("Ascend310")
    assert len({load("Ascend310P3"), load("ascend310p3")}) == 1


def test_facts_that_the_compiler_relies_on() -> None:
    p3, generic = load("Ascend310P3"), load("Generic")
    assert (p3.aicores, p3.l1, p3.ub, p3.prefers) == (8, 1 << 20, 256 << 10, Format.NC1HWC0)
    assert not p3.has_cube(DType.FLOAT32) and generic.has_cube(DType.FLOAT32)
    assert generic.prefers is Format.NHWC
    assert p3.cube[DType.INT8].k == 2 * p3.cube[DType.FLOAT16].k


def test_unknown_names_suggest_the_near_ones() -> None:
    with pytest.raises(AtcError) as e:
        load("Ascend310P")
    assert e.value.code == "E20010" and "Ascend310P3" in e.value.problems[0].hint
    with pytest.raises(AtcError) as e:
        load("")
    assert "Generic" in e.value.problems[0].hint


def text(name: str = "Ascend310P3") -> str:
    import atc_py.target.target as module

    return (Path(module.__file__).parent / "data" / f"{name}.toml").read_text()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text().replace('name = "Ascend310P3"', 'name = "Mine"').replace("aicores = 8", "aicores = 3"))
    target = load(path)
    assert (target.name, target.aicores) == ("Mine", 3)
    assert load(str(path)) == target


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AtcError) as e:
        load(tmp_path / "none.toml")
    assert e.value.code == "E20010"
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(AtcError):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("old", "new", "key", "cause"),
    [
        ("aicores = 8", "", "cores.aicores", "missing"),
        ("aicores = 8", "aicores = true", "cores.aicores", "whole number"),
        ("aicores = 8", "aicores = 8.0", "cores.aicores", "whole number"),
        ("aicores = 8", "aicores = -1", "cores.aicores", "outside 1 to 1024"),
        ("aicores = 8", "aicores = 8\naicore = 8", "cores.aicore", "not known"),
        ("l1 = 1_048_576", "l1 = '1M'", "buffers.l1", "whole number"),
        ("[buffers]", "[buffer]", "buffers", "missing"),
        ('prefers = "NC1HWC0"', 'prefers = "NCHW"', "target.prefers", "NC1HWC0"),
        ('name = "Ascend310P3"', 'name = ""', "target.name", "text"),
        ("[cube.float16]", "[cube.half]", "cube.half", "not known"),
        ("k = 32", "q = 32", "cube.int8.k", "missing"),
        ("k = 32", "k = 0", "cube.int8.k", "outside"),
        ("[target]", "[target", "t.toml", "not TOML"),
    ],
)
def test_faults_name_the_key(old: str, new: str, key: str, cause: str) -> None:
    with pytest.raises(AtcError) as e:
        parse(text().replace(old, new, 1), "t.toml")
    found = [p for p in e.value.problems if p.place.endswith(key) and cause in p.cause]
    assert found and all(p.code == "E20011" for p in e.value.problems), e.value


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(AtcError) as e:
        parse(text().replace("aicores = 8", "aicores = 0").replace("\nub = ", "\nubb = ", 1), "t.toml")
    assert [p.place for p in e.value.problems] == ["t.toml: cores.aicores", "t.toml: buffers.ubb", "t.toml: buffers.ub"]


def test_the_toolkit_may_be_unknown_but_not_half_known() -> None:
    with_, without = load("Ascend310P3"), parse(text().partition("[toolkit]")[0], "t.toml")
    assert with_.toolkit is not None and without.toolkit is None and with_ != without
    assert set(with_.toolkit.lacks) <= set(pass_names()) and with_.toolkit.streams == 1
    with pytest.raises(AtcError) as e:
        parse(text().partition("[toolkit]")[0] + "[toolkit]\nlacks = 3\nlack = []\n", "t.toml")
    places = [p.place for p in e.value.problems]
    assert places == [f"t.toml: toolkit.{key}" for key in ("lack", "lacks", "streams")]


def test_no_cube_at_all() -> None:
    with pytest.raises(AtcError) as e:
        parse(text().split("[cube")[0] + "[cube]\n", "t.toml")
    assert "multiplies no dtype" in e.value.problems[0].cause
