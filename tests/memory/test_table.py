"""Tables of buffers and `atc plan-memory`: what is read, what is written, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atc_py.cli.app import app
from atc_py.errors import AtcError
from atc_py.memory import Block
from atc_py.memory.table import parse_table, read_table, with_offsets
from tests.memory.checker import check

EXAMPLE = "id,lower,upper,size\na,0,2,512\nb,1,3,1024\nc,2,4,512\n"


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan-memory", *map(str, args)])
    return result.exit_code, result.output


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(EXAMPLE)
    return path


def test_columns_come_in_any_order() -> None:
    table = parse_table('size, upper ,note,ID,lower\r\n512,2,x,a,0\r\n\r\n3,9,"y,z",b,-4\r\n', "t")
    assert table.blocks == (Block(0, 2, 512), Block(-4, 9, 3))
    assert with_offsets(table, [7, 8]) == 'size,upper,note,id,lower,offset\n512,2,x,a,0,7\n3,9,"y,z",b,-4,8\n'


def test_an_offset_that_is_there_is_replaced() -> None:
    table = parse_table("id,offset,lower,upper,size\na,9,0,1,4\n", "t")
    assert with_offsets(table, [0]) == "id,offset,lower,upper,size\na,0,0,1,4\n"


def test_the_command_writes_offsets(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    code, text = run(example, "--capacity", 1536, "-o", out)
    assert code == 0 and "1,536 bytes (no plan takes less)" in text
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["id", "lower", "upper", "size", "offset"]
    numbers = [tuple(map(int, row[1:])) for row in rows[1:]]
    check([n[:3] for n in numbers], [n[3] for n in numbers], 1536)  # type: ignore[misc]


def test_the_summary_as_json(example: Path) -> None:
    code, text = run(example, "--json", "--effort", "max", "--alignment", 1024)
    facts = json.loads(text)
    assert code == 0
    assert (facts["peak"], facts["lower_bound"], facts["optimal"], facts["buffers"]) == (1536, 1536, True, 3)
    assert facts["effort"] == "max" and facts["capacity"] is None and facts["file"] is None


@pytest.mark.parametrize(("capacity", "said"), [(1535, "1,536 bytes are live at once"), (0, "no plan can fit")])
def test_too_little_capacity(example: Path, tmp_path: Path, capacity: int, said: str) -> None:
    out = tmp_path / "out.csv"
    code, text = run(example, "--capacity", capacity, "-o", out)
    assert code == 1 and "E20061" in text and said in text and not out.exists()


def test_nothing_is_rounded_behind_the_last_buffer(tmp_path: Path) -> None:
    path, out = tmp_path / "two.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size\na,0,3,10\nb,1,4,5\n")
    assert run(path, "--alignment", 512, "--capacity", 517, "-o", out)[0] == 0
    assert out.read_text().splitlines()[1:] == ["a,0,3,10,0", "b,1,4,5,512"]
    code, text = run(path, "--alignment", 512, "--capacity", 516)
    assert code == 1 and "no plan with offsets at multiples of 512 takes less than 517 bytes" in " ".join(text.split())


def test_each_buffer_has_an_alignment_of_its_own(tmp_path: Path) -> None:
    path, out = tmp_path / "two.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size,alignment\na,0,3,100,64\nb,1,4,33,32\nc,2,5,10,\nd,4,6,200,512\n")
    code, text = run(path, "--alignment", 2, "-o", out, "--json")
    facts = json.loads(text)
    offsets = [int(line.split(",")[-1]) for line in out.read_text().splitlines()[1:]]
    assert code == 0 and [o % a for o, a in zip(offsets, (64, 32, 2, 512), strict=True)] == [0] * 4
    assert facts["peak"] == 210 == facts["lower_bound"] and facts["optimal"]
    path.write_text("id,lower,upper,size,alignment\na,0,1,8,64\nb,0,1,8,1\n")
    assert run(path, "--capacity", 16)[0] == 0
    code, text = run(path, "--capacity", 15)
    assert code == 1 and "16 bytes are live at once" in text


def test_a_plan_that_no_search_can_find(tmp_path: Path) -> None:
    """Five bytes live at once, six needed: the exact search says that there is no such plan."""
    from tests.memory.test_search import ABOVE

    path = tmp_path / "above.csv"
    lines = [f"{i},{b.lower},{b.upper},{b.size}" for i, b in enumerate(ABOVE)]
    path.write_text("id,lower,upper,size\n" + "\n".join(lines))
    code, text = run(path, "--capacity", 5)
    assert code == 1 and "the best plan found takes 6 bytes" in text and "no plan takes less" in text


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", "t", "is empty"),
        ("id,lower,size\n", "t:1", "no column 'upper'"),
        ("id,lower,upper,size,size\n", "t:1", "'size' comes 2 times"),
        ("id,lower,upper,size\na,0,1\n", "t:2", "has 3 fields where the header has 4"),
        ("id,lower,upper,size\na,0,1,x\n", "t:2", "size is 'x', which is no whole number"),
        ("id,lower,upper,size\na,0,1,1_0\n", "t:2", "no whole number"),
        ("id,lower,upper,size\na,0,1,٣\n", "t:2", "no whole number"),
        ("id,lower,upper,size\na,0,1,1.5\n", "t:2", "no whole number"),
        ("id,lower,upper,size\na,0,1," + "9" * 5000 + "\n", "t:2", "outside 0"),
        ("id,lower,upper,size\na,0,1,99999999999999999999999\n", "t:2", "outside 0"),
        ("id,lower,upper,size,alignment\na,0,1,8,0\n", "t:2", "alignment is 0, outside 1"),
        ("id,lower,upper,size,alignment\na,0,1,8,32768\nb,0,1,8,65537\n", "t", "no common multiple"),
        ("id,lower,upper,size\na,0,1,-4\n", "t:2", "size is -4, outside 0"),
        ("id,lower,upper,size\na,0,1,99999999999999999\n", "t:2", "outside 0"),
        ("id,lower,upper,size\na,3,3,1\n", "t:2", "upper 3 is not above lower 3"),
        ("id,lower,upper,size\na,0,1,1\n\na,0,1,1\n", "t:4", "the id 'a' is that of line 2 too"),
        ("id,lower,upper,size\n,0,1,1\n", "t:2", "the id is empty"),
        ('id,lower,upper,size\n"a,0,1,1\n', "t:2", "is not CSV"),
        ("id,lower,upper,size\n" + "a" * 200_000 + ",0,1,1\n", "t:2", "is not CSV"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(text: str, place: str, said: str) -> None:
    with pytest.raises(AtcError) as caught:
        parse_table(text, "t")
    assert [(p.code, p.place) for p in caught.value.problems] == [("E20060", place)]
    assert said in caught.value.problems[0].cause


def test_all_wrong_lines_are_named_up_to_a_limit() -> None:
    with pytest.raises(AtcError) as caught:
        parse_table("id,lower,upper,size\n" + "".join(f"{k},1,0,z\n" for k in range(100)), "t")
    assert len(caught.value.problems) == 51 and "150 more" in caught.value.problems[-1].cause


def test_files_that_are_none(tmp_path: Path, example: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"id,lower,upper,size\n\xe9,0,1,1\n")
    for path, code in ((tmp_path / "absent.csv", "E13000"), (tmp_path, "E13000"), (latin, "E20060")):
        with pytest.raises(AtcError) as caught:
            read_table(path)
        assert caught.value.code == code and caught.value.problems[0].place == str(path)
    assert run(example, "-o", tmp_path / "no" / "out.csv")[0] == 1
    assert run(example, "--effort", "most")[0] == 2 and run(example, "--capacity", -1)[0] == 2


@given(st.text(max_size=60), st.lists(st.sampled_from(["a", "0", "7", "-1", ",", "\n", '"', "\x00", " "]), max_size=30))
def test_any_text_is_read_or_refused(header: str, body: list[str]) -> None:
    for text in (header, "id,lower,upper,size\n" + "".join(body)):
        try:
            table = parse_table(text, "t")
        except AtcError as refused:
            assert refused.code == "E20060"
        else:
            assert parse_table(with_offsets(table, [0] * len(table.blocks)), "t").blocks == table.blocks
