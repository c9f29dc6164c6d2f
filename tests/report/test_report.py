from __future__ import annotations

import io
import sys

import pytest

from atc_py.errors import Problem
from atc_py.report import conversion, memory, numbers
from atc_py.report.problems import error_block, grouped
from atc_py.report.screen import console, pairs, printable, table


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (300 << 30, "300 GiB"),
    ],
)
def test_bytes_for_people(n: int | None, text: str) -> None:
    assert numbers.nbytes(n) == text


@pytest.mark.parametrize(
    ("t", "text"), [(0.0, "0.00 µs"), (2e-6, "2.00 µs"), (0.0123, "12.3 ms"), (1.5, "1.50 s"), (150, "150 s")]
)
def test_times_for_people(t: float, text: str) -> None:
    assert numbers.seconds(t) == text


def test_figures_that_differ_look_different() -> None:
    """What is told beside each other is told so exactly that a difference is seen."""
    assert conversion.sizes_text(102_912, 102_400) == ("102,912 B", "102,400 B")
    assert conversion.sizes_text(102_400, 102_400) == ("100 KiB", "100 KiB")
    assert conversion.sizes_text(1536, 1024) == ("1.50 KiB", "1.00 KiB")
    memory = {"arena": 102_912, "lower_bound": 102_400, "sum_after": 205_824}
    assert conversion.arena_text(memory) == "102,912 B, 50.0% of one buffer a tensor, lower bound 102,400 B"
    assert conversion.arena_text(memory | {"arena": 102_400}).endswith(", at the lower bound")
    assert conversion.arena_text(memory | {"arena": 204_800}) == (
        "200 KiB, 99.5% of one buffer a tensor, lower bound 100 KiB"
    )
    assert conversion.latency_text({"before": 159.4, "after": 159.1}) == "159.4 µs node by node → 159.1 µs as planned"
    assert conversion.latency_text({"before": 2000.0, "after": 159.1}) == "2.00 ms node by node → 159 µs as planned"
    assert conversion.latency_text(None) == ""


def test_labels_are_told_where_there_are_some() -> None:
    figures = {"tasks": 3, "streams": 3, "events": 4, "labels": 3}
    assert conversion.tasks_text(figures) == "3 on 3 streams, 4 events, 3 labels"
    assert conversion.tasks_text(figures | {"labels": 0}) == "3 on 3 streams, 4 events"
    assert conversion.tasks_text(figures | {"labels": None}) == "3 on 3 streams, 4 events"


def printed(body: object) -> str:
    stream = io.StringIO()
    real, sys.stdout = sys.stdout, stream
    try:
        console().print(body)
    finally:
        sys.stdout = real
    return stream.getvalue()


def test_nothing_is_cut_off_and_nothing_is_coloured_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = "layer." * 30
    for body in (table(["name", ">count"], [[long, 12345]]), pairs([("name", long)])):
        text = printed(body)
        assert "\x1b" not in text and "…" not in text
        assert text.count(".") == 30 and text.count("y") == 30
        assert max(len(line) for line in text.splitlines()) <= 50
        assert all(line == line.rstrip() for line in text.splitlines())


def test_markup_in_names_is_text() -> None:
    assert "[bold]x[/bold]" in printed(table(["name"], [["[bold]x[/bold]"]]))
    assert printable("a\x1b[0m\n") == "a\\x1b[0m\n"


def test_problems_of_one_cause_are_one_entry_with_all_places() -> None:
    many = [Problem("E1", f"node '{i}'", "no kernel", "replace it") for i in range(3)] + [Problem("E2", "", "other")]
    assert [(p.code, places) for p, places in grouped(many)] == [
        ("E1", ["node '0'", "node '1'", "node '2'"]),
        ("E2", [""]),
    ]
    text = printed(error_block(many))
    assert (
        text.startswith("error: 4 problems")
        and "1. E1 node '0'" in text
        and "node '1', node '2'" in text
        and "2. E2" in text
    )


def buffer(offset: int, size: int, first: int, last: int) -> dict[str, int]:
    return {"offset": offset, "bytes": size, "first": first, "last": last}


def test_the_chart_shows_each_buffer_where_and_when_it_lives() -> None:
    lines = memory.chart([buffer(0, 512, 0, 1), buffer(512, 512, 1, 2)], 1024, 3).plain.splitlines()
    assert lines[0] == "0x200 │" + "·" * 8 + "B" * 16
    assert lines[1] == "0x000 │" + "A" * 16 + "·" * 8


def test_the_chart_stays_small() -> None:
    many = [buffer(512 * i, 512, i, i + 1) for i in range(5000)]
    lines = memory.chart(many, 512 * 5000, 5000).plain.splitlines()
    assert len(lines) <= memory.ROWS + 2 and max(map(len, lines)) < 100


@pytest.mark.parametrize(("x", "text"), [(None, "–"), (0.0, "0"), (1 / 3, "0.33333"), ("inf", "inf"), (1e-9, "1e-09")])
def test_reals_for_people(x: float | str | None, text: str) -> None:
    assert numbers.real(x) == text


def test_a_narrow_table_keeps_its_columns_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = printed(table(["output", ">max abs", ">max rel", ">cosine"], [["probabilities", 1e-8, 2e-7, "1.0000000"]]))
    [row] = [line for line in text.splitlines() if "probabilities" in line]
    assert "1.0000000" in row and "output" in text


@pytest.mark.parametrize(("width", "left"), [(40, "ab"), (50, "abc"), (60, "abcd")])
def test_columns_that_are_not_needed_go_first_the_last_one_first(
    width: int, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(table(["a" * 10, ">" + "b" * 12, "?>" + "c" * 14, "?>" + "d" * 8], [["1", 2, "3", 4]]))
    assert "".join(word[0] for word in text.splitlines()[0].split()) == left
    assert max(len(line) for line in text.splitlines()) <= width


def test_the_chart_fits_a_narrow_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    live = {**buffer(0, 512, 0, 9), "id": 0, "space": "arena", "values": ["a"]}
    text = printed(memory.memory_map({"spaces": {"arena": 512}, "buffers": [live], "positions": 9}))
    [row] = [line for line in text.splitlines() if "│" in line]
    assert row.startswith("  0x0 │AAAA") and len(row) <= 50 and row.endswith("A")


def test_long_names_are_broken_at_their_joints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    rows = [["Conv+Sigmoid+Mul", "/stem/block/Conv", "xxxxxxxxxxxxxxxxxxxx", "plain words"]]
    lines = printed(table(["kernel", "name", "odd", "text"], rows)).splitlines()
    assert max(map(len, lines)) <= 44
    told = [line.split() for line in lines[2:]]
    assert told[0][0] == "Conv+" and told[1][0] == "Sigmoid+" and told[2][0] == "Mul"
    assert told[0][1] == "/stem" and told[1][1] == "/block" and told[2][1] == "/Conv"
    assert "".join(line[2] for line in told[:3] if len(line) > 2 and "x" in line[2]) == "x" * 20


@pytest.mark.parametrize("width", range(40, 90, 7))
def test_no_letter_of_a_table_is_lost_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows: list[list[object]] = [
        ["Conv+Sigmoid+Mul", "/stem/block/Conv", "x" * 20, "plain words", 12345],
        ["a", "", "b c", None, 1],
    ]
    text = printed(table(["kernel", "name", "odd", "text", ">number"], rows))
    told = "".join(str(c or "") for c in [*rows[0], "a", "b c", "–", 1])
    body = "".join(line for line in text.splitlines()[2:])
    assert sorted(body.replace(" ", "")) == sorted(told.replace(" ", ""))
