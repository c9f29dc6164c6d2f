"""The plan's text form: what is parsed is what was printed; what is malformed is refused with its line."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.text import BlobTable
from atc_py.plan.text import parse_plan, print_plan
from atc_py.plan.types import Plan
from tests.plan.strategies import REGION_TYPES, assert_same, plans

EXAMPLE = """\
plan "Ascend310P3" streams 2 events 1 weights 0 arena 1024
  symbol N in [1, 64]
  hint N = 1
  option "precision_mode" = "origin"
  constant 0 = blob x"0000803f": float32[1]
  buffer 0 weights [4] at 0 index 0
  buffer 1 input [32*N] at 0 index 0 kept 0..0
  buffer 2 arena [32*N] kept 0..1
  buffer 3 output [32*N] at 0 index 0 kept 1..2
  input "x" %0 in 1: float32[N, 8]
  output "y" %4 in 3: float32[N, 8]
  initial %1 in 0
  alias %3 = %2 + [0]
  static {
    task 0 Add "add" @aicore stream 0 records 0 cost 120 from "add", "bias"
      input read %0 in 1: float32[N, 8]
      input read %1 in 0 strides [0, 0]: float32[N, 8]
      output write %2 in 2: float32[N, 8]
    task 1 Softmax "prob" @aicore stream 1 waits 0
      input read %3 in 2 + [4*N]: float32[N, 8]
      input none
      host 1 constant 0
      attrs {axis = -1}
      output write %4 in 3: float32[N, 8]
      body
        | graph "tile" {
        |   #0 %0 "x": float32[N] = Data() {index = 0}
        |   #1 NetOutput(%0) -> "x"
        | }
  }
"""


def test_the_example_comes_back_as_it_is() -> None:
    assert print_plan(parse_plan(EXAMPLE)) == EXAMPLE


def test_comments_and_blanks_mean_nothing() -> None:
    loose = "\n\n// a plan\n" + EXAMPLE.replace("  static", "\t// tasks\n\n        static")
    assert print_plan(parse_plan(loose)) == EXAMPLE


@pytest.mark.parametrize("kind", REGION_TYPES)
@settings(suppress_health_check=list(HealthCheck), max_examples=12)
@given(data=st.data())
def test_round_trip(kind: type, data: st.DataObject) -> None:
    plan, blobs = data.draw(plans(kind)), BlobTable()
    text = print_plan(plan, blobs)
    back = parse_plan(text, blobs.views)
    assert_same(plan, back)
    assert print_plan(back, BlobTable()) == text


@settings(max_examples=300)
@given(st.integers(0, len(EXAMPLE.splitlines()) - 1), st.integers(0, 60), st.sampled_from('{}"%[]x 9-\\:,\n'))
def test_damaged_text_is_refused_or_is_a_plan(line: int, column: int, char: str) -> None:
    lines = EXAMPLE.splitlines()
    lines[line] = lines[line][:column] + char + lines[line][column + 1 :]
    try:
        plan = parse_plan("\n".join(lines))
    except AtcError as e:
        assert e.code == "E30012"
        return
    assert isinstance(plan, Plan)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"prob" @aicore', '"prob" aicore', 19),
        ("buffer 2 arena", "buffer 3 arena", 8),
        ("%4 in 3: float32[N, 8]\n      body", "%4 in 3: float33[N, 8]\n      body", 24),
        ("axis = -1", "axis = ", 23),
        ("#1 NetOutput(%0)", "#1 NetOutput(%7)", 30),
        ("  }\n", "", 29),
    ],
)
def test_mistakes_name_their_line(old: str, new: str, line: int) -> None:
    assert old in EXAMPLE
    with pytest.raises(AtcError) as caught:
        parse_plan(EXAMPLE.replace(old, new))
    assert (caught.value.code, caught.value.problems[0].place) == ("E30012", f"plan text, line {line}")
