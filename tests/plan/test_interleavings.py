"""The program that runs all interleavings, on plans whose fate one can see."""

from __future__ import annotations

import pytest

from atc_py.plan.text import parse_plan
from tests.plan.interleavings import harm

GOOD = """\
plan "t" streams 2 events 2 weights 0 arena 1536
  buffer 0 input [8] at 0 index 0
  buffer 1 arena [8] at 0
  buffer 2 output [8] at 0 index 0
  buffer 3 arena [8] at 512
  buffer 4 arena [8] at 1024
  buffer 5 output [8] at 0 index 1
  input "x" %0 in 0: float32[2]
  output "y" %2 in 2: float32[2]
  output "z" %3 in 5: float32[2]
  static {
    task 0 Neg "a" @aicore stream 0 records 0
      input read %0 in 0: float32[2]
      output write %1 in 1: float32[2]
    task 1 Neg "b" @aicore stream 1 waits 0 records 1
      input read %1 in 1: float32[2]
      output write %2 in 2: float32[2]
      scratch write %-1 in 3: uint8[8]
    task 2 Neg "c" @aicore stream 0
      input read %1 in 1: float32[2]
      output write %3 in 5: float32[2]
      scratch write %-1 in 4: uint8[8]
    task 3 Neg "d" @aicore stream 0 waits 1
      input read %2 in 2: float32[2]
      output write %4 in 1: float32[2]
  }
"""


def test_a_good_plan_is_harmless() -> None:
    assert harm(parse_plan(GOOD)) == ""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("stream 1 waits 0", "stream 1", "b needs (1, 0) where ('nobody', 0) is"),
        # Whole tasks one after the other would all be well here: only what is half done shows it.
        ("at 1024", "at 512", "needs ('torn by',"),
        ("stream 0 waits 1", "stream 0", "d needs"),
        ("stream 0 records 0", "stream 0", "it waits for ever"),
        ("stream 0 records 0", "stream 0 waits 1 records 0", "it waits for ever"),
        ("stream 1 waits 0 records 1", "stream 1 waits 0 records 0", "it waits for ever"),
        ('"c" @aicore stream 0', '"c" @aicore stream 0 records 0', "c records an event that is still set"),
        ("write %2 in 2", "write %5 in 2", "needs (2, 0) where (5, 0) is"),
        ("write %4 in 1", "write %4 in 2", "an output needs (2, 0) where (4, 0) is"),
    ],
)
def test_what_is_harmful_is_found(old: str, new: str, why: str) -> None:
    assert GOOD.count(old) == 1
    assert why in harm(parse_plan(GOOD.replace(old, new)))


@pytest.mark.parametrize(("stream", "why"), [(2, "d finds another record of its event than its own"), (1, "")])
def test_an_event_that_is_recorded_again(stream: int, why: str) -> None:
    """Task c records event 0 again when b has had the first record: but stream 2 may come to its wait before that."""
    text = GOOD.replace("streams 2", "streams 3").replace(
        '"c" @aicore stream 0', '"c" @aicore stream 0 waits 1 records 0'
    )
    assert harm(parse_plan(text.replace('"d" @aicore stream 0 waits 1', f'"d" @aicore stream {stream} waits 0'))) == why
