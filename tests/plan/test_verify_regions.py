"""The verifier on branches, loops, scans and gears: what holds whichever way is taken, however often."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from atc_py.errors import AtcError, Problem
from atc_py.memory import bind
from atc_py.plan import flow
from atc_py.plan.text import parse_plan
from atc_py.plan.verify import verify

HEAD = """\
plan "t" streams 1 events 0 weights 0 arena 4096
  buffer 0 input [16] at 0 index 0
  buffer 1 output [16] at 0 index 0
  buffer 2 arena [1] at 0
  buffer 3 arena [16] at 512
  buffer 4 arena [16] at 1024
  buffer 5 arena [16] at 1536
  buffer 6 arena [16] at 2048
  buffer 7 arena [8] at 2560
  buffer 8 output [64] at 0 index 1
  input "x" %0 in 0: float32[4]
"""


def problems(text: str, env: Mapping[str, int] | None = None) -> list[Problem]:
    """What is wrong with a plan."""
    plan = parse_plan(text)
    binding = bind(plan, env)
    try:
        verify(plan, binding.offsets, binding.sizes, binding.env)
    except AtcError as e:
        return list(e.problems)
    return []


def codes(text: str) -> list[str]:
    return sorted({p.code for p in problems(text)})


def said(text: str, what: str) -> bool:
    return any(what in str(p) for p in problems(text))


def task(number: int, output: str, *inputs: str, kernel: str = "Mul") -> str:
    """A task on float32[4] operands given as '%value in buffer'."""
    lines = [f'task {number} {kernel} "t{number}" @aicore stream 0']
    lines += [f"input read {i}: {'bool[]' if i.startswith('%1 ') else 'float32[4]'}" for i in inputs]
    return "\n".join([*lines, f"output write {output}: {'bool[]' if output.startswith('%1 ') else 'float32[4]'}\n"])


def static(*tasks: str) -> str:
    return "static {\n" + "".join(tasks) + "}\n"


# -- If: %1 the condition, %5 its output, %3 and %4 what the branches make -------------------------------------

IF = (
    HEAD
    + """\
  output "y" %6 in 1: float32[4]
  alias %3 = %5 + [0]
  alias %4 = %5 + [0]
"""
    + static(task(0, "%1 in 2", "%0 in 0"), task(1, "%2 in 4", "%0 in 0"))
    + 'if from "choice" {\npredicate read %1 in 2: bool[]\nyields write %5 in 3: float32[4]\nthen {\n'
    + static(task(2, "%3 in 3", "%2 in 4"))
    + "}\nelse {\n"
    + static(task(3, "%7 in 5", "%0 in 0"), task(4, "%4 in 3", "%7 in 5"))
    + "}\n}\n"
    + static(task(5, "%6 in 1", "%5 in 3", "%2 in 4"))
)


def test_both_branches_make_the_output() -> None:
    assert codes(IF) == []


def test_an_output_that_one_branch_leaves_out() -> None:
    other = IF.replace("%4 in 3", "%4 in 6")
    assert said(
        other, "task 5 't5': reads %5 at arena [512, 528), but what arena [512, 528) holds depends on the branch"
    )


def test_a_branch_that_spoils_what_is_read_later() -> None:
    assert said(
        IF.replace("%7 in 5", "%7 in 4"), "reads %2 at arena [1024, 1040), but what arena [1024, 1040) holds dep"
    )


def test_a_value_of_the_other_branch() -> None:
    crossed = IF.replace(task(2, "%3 in 3", "%2 in 4"), task(2, "%3 in 3", "%7 in 5"))
    assert said(crossed, "task 2 't2': reads %7 at arena [1536, 1552), but nothing has written arena [1536, 1552)")


def test_a_predicate_that_nobody_makes() -> None:
    assert said(IF.replace("predicate read %1 in 2", "predicate read %9 in 2"), "If 'choice': reads %9")


def test_branches_without_content() -> None:
    empty = IF[: IF.index("then {")] + "then {\n}\nelse {\n}\n}\n" + static(task(5, "%6 in 1", "%2 in 4"))
    assert codes(empty) == ["E31012"]


# -- Loop: %5 the state and result, %1 the condition, %10 the counter, %12 the items' stack --------------------

LOOP = (
    HEAD
    + """\
  output "y" %11 in 1: float32[4]
  output "s" %12 in 8: float32[4, 4]
  alias %4 = %5 + [0]
"""
    + static(task(0, "%1 in 2", "%0 in 0"), task(1, "%2 in 4", "%0 in 0"))
    + """\
loop from "again" {
condition read %1 in 2: bool[]
counter write %10 in 7: int64[]
carried read %0 in 0: float32[4]
state update %4 in 3: float32[4]
result read %7 in 6: float32[4]
next read %1 in 2: bool[]
item axis 0 forward read %7 in 6: float32[4]
stack write %12 in 8: float32[4, 4]
yields write %5 in 3: float32[4]
body {
"""
    + static(task(2, "%6 in 5", "%4 in 3", "%2 in 4"), task(3, "%7 in 6", "%6 in 5"))
    + "}\n}\n"
    + static(task(4, "%11 in 1", "%5 in 3"))
)


def test_a_loop_that_is_good() -> None:
    assert codes(LOOP) == []


def test_the_second_iteration_finds_what_the_first_one_leaves() -> None:
    spoilt = LOOP.replace("%7 in 6", "%7 in 4")  # %2 is overwritten: only the second iteration notices
    assert codes(spoilt) == ["E31014"]
    assert said(spoilt, "task 2 't2': reads %2 at arena [1024, 1040), but what arena [1024, 1040) holds depends on")


def test_a_body_that_reads_what_only_an_earlier_iteration_made() -> None:
    early = LOOP.replace(task(2, "%6 in 5", "%4 in 3", "%2 in 4"), task(2, "%6 in 5", "%7 in 6"))
    assert said(early, "task 2 't2': reads %7 at arena [2048, 2064), but nothing has written arena [2048, 2064)")


def test_a_body_that_spoils_the_state() -> None:
    in_place = LOOP.replace("%6 in 5", "%6 in 3")
    assert codes(in_place) == []  # Mul may write over the state, which is used up
    again = in_place.replace("input read %6 in 3: float32[4]\n", "input read %4 in 3: float32[4]\n")
    assert said(again, "reads %4 at arena [512, 528), but arena [512, 528) holds %6, written by task 2 't2'")


def test_a_stack_is_complete_only_after_the_loop() -> None:
    early = LOOP.replace(task(3, "%7 in 6", "%6 in 5"), task(3, "%7 in 6", "%6 in 5", "%12 in 8"))
    early = early.replace("input read %12 in 8: float32[4]\n", "input read %12 in 8: float32[4, 4]\n")
    assert said(
        early, "task 3 't3': reads %12 at output 1 [0, 64), but output 1 [0, 64) is a stack that is not complete"
    )


def test_what_only_the_body_makes_is_unknown_after_the_loop() -> None:
    maybe = LOOP.replace(task(4, "%11 in 1", "%5 in 3"), task(4, "%11 in 1", "%6 in 5"))
    assert said(maybe, "task 4 't4': reads %6")


def test_a_state_that_is_moved_before_it_is_made() -> None:
    assert said(LOOP.replace("result read %7 in 6", "result read %8 in 6"), "Loop 'again': reads %8")


def test_carried_values_keep_their_shape() -> None:
    other = LOOP.replace("result read %7 in 6: float32[4]", "result read %7 in 6: float32[2, 2]")
    assert "E31012" in codes(other)


def test_buffers_are_kept_to_the_end_of_a_loop_that_reads_them_again() -> None:
    """Positions: tasks 0 and 1; the loop 2, its tasks 3 and 4, its end 5; task 6."""
    short = LOOP.replace("arena [16] at 1024", "arena [16] at 1024 kept 1..3")
    assert said(
        short,
        "uses buffer 4 at position 3 and is needed until 5, where a loop ends, but the buffer is kept from 1 to 3",
    )
    assert codes(LOOP.replace("arena [16] at 1024", "arena [16] at 1024 kept 1..5")) == []
    assert codes(LOOP.replace("arena [16] at 1536", "arena [16] at 1536 kept 3..4")) == []
    assert codes(LOOP.replace("arena [16] at 512", "arena [16] at 512 kept 2..6")) == []
    assert codes(LOOP.replace("arena [16] at 512", "arena [16] at 512 kept 3..6")) == ["E31008"]


def test_loops_inside_loops() -> None:
    inner = LOOP[LOOP.index("loop from") : LOOP.rindex("static {")]
    outer = 'loop from "outer" {\nbody {\n' + inner + "}\n}\n"
    maybe_never = ["E31014", "E31018"]  # then %5 and %12 are not there
    assert codes(LOOP.replace(inner, outer)) == maybe_never
    deep = inner
    for _ in range(40):
        deep = 'loop from "outer" {\nbody {\n' + deep + "}\n}\n"
    assert codes(LOOP.replace(inner, deep)) == maybe_never


def test_there_is_a_limit_to_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STEPS", 0)
    monkeypatch.setattr(flow, "ROUNDS", 1)
    assert said(LOOP, "Loop 'again': loops nest too deep")


# -- Scan and Gears --------------------------------------------------------------------------------------------

SCAN = (
    HEAD.replace("input [16]", "input [64]").replace("float32[4]", "float32[4, 4]")
    + """\
  output "y" %5 in 1: float32[4]
  alias %4 = %5 + [0]
scan {
sliced axis 0 forward read %0 in 0: float32[4, 4]
slice write %2 in 4: float32[4]
carried read %3 in 6: float32[4]
state update %4 in 1: float32[4]
result read %6 in 5: float32[4]
yields write %5 in 1: float32[4]
body {
"""
    + static(task(1, "%6 in 5", "%4 in 1", "%2 in 4"))
    + "}\n}\n"
)
START = static('task 0 Mul "t0" @aicore stream 0\n', "output write %3 in 6: float32[4]\n")


def scan() -> str:
    return SCAN.replace("scan {", START + "scan {")


def test_a_scan() -> None:
    assert codes(scan()) == []
    assert said(SCAN, "Scan: reads %3")
    assert codes(scan().replace("slice write %2 in 4", "slice write %2 in 3")) != []


GEARS = (
    HEAD.replace("plan", "plan", 1).replace("  buffer 0", "  symbol N in [1, 8]\n  hint N = 1\n  buffer 0")
    + '  output "y" %2 in 1: float32[4]\ngears N {\ngear 1 {\n'
    + static(task(0, "%2 in 1", "%0 in 0"))
    + "}\ngear 8 {\n"
    + static(task(1, "%1 in 2", "%0 in 0"))
    + "}\n}\n"
)


def test_the_gear_that_is_named_is_looked_at() -> None:
    assert problems(GEARS, {"N": 1}) == []
    assert [p.code for p in problems(GEARS, {"N": 8})] == ["E31018"]
    plan = parse_plan(GEARS)
    with pytest.raises(AtcError, match="E30009"):
        bind(plan, {"N": 3})
    offsets, sizes = ([getattr(b, what) for b in plan.buffers] for what in ("offset", "nbytes"))
    with pytest.raises(AtcError) as raised:  # no gear: all of them must do
        verify(plan, offsets, sizes, {"N": 3})
    assert [p.code for p in raised.value.problems] == ["E31018"]


# -- collectives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["hccl", "aicore"])
@pytest.mark.parametrize(
    ("plan", "number", "region"),
    [(IF, 2, "If 'choice'"), (IF, 4, "If 'choice'"), (LOOP, 2, "Loop 'again'"), (scan(), 1, "Scan")],
)
def test_there_are_no_collectives_in_bodies(plan: str, number: int, region: str, engine: str) -> None:
    """Whatever engine the plan says: the operator is one."""
    assert codes(plan) == []
    one = plan.replace(f'task {number} Mul "t{number}" @aicore', f'task {number} HcomAllReduce "t{number}" @{engine}')
    (found,) = [p for p in problems(one) if p.code == "E31019"]
    assert found.place == f"task {number} 't{number}'" and f"is a collective in {region}" in found.cause


def test_a_collective_in_nested_bodies_is_told_once() -> None:
    inner = LOOP[LOOP.index("loop from") : LOOP.rindex("static {")]
    deep = LOOP.replace(inner, 'loop from "outer" {\nbody {\n' + inner + "}\n}\n")
    found = problems(deep.replace('task 2 Mul "t2" @aicore', 'task 2 Mul "t2" @hccl'))
    assert [p.place for p in found if p.code == "E31019"] == ["task 2 't2'"]


def test_what_a_gear_runs_is_in_no_body() -> None:
    one = GEARS.replace('task 0 Mul "t0" @aicore', 'task 0 HcomAllReduce "t0" @hccl')
    assert "E31019" not in [p.code for p in problems(one, {"N": 1})]


# -- views -----------------------------------------------------------------------------------------------------

CONCAT = (
    (
        HEAD
        + """\
  output "y" %0 in 1: float32[4]
"""
    ).replace('"y" %0 in 1: float32[4]', '"y" %3 in 1: float32[2, 2]')
    + """\
  alias %1 = %3 + [0] strides [8, 4]
  alias %2 = %3 + [4] strides [8, 4]
  static {
    task 0 Mul "left" @aicore stream 0
      input read %0 in 0: float32[4]
      output write %1 in 1 strides [8, 4]: float32[2, 1]
    task 1 Mul "right" @aicore stream 0
      input read %0 in 0: float32[4]
      output write %2 in 1 + [4] strides [8, 4]: float32[2, 1]
  }
"""
)


def test_inputs_of_a_concat_made_in_its_output() -> None:
    assert codes(CONCAT) == []
    missing = CONCAT[: CONCAT.index("    task 1")] + "  }\n"
    assert said(missing, "output 'y': holds not %3 at the end: nothing has written output 0 [4, 8)")
    assert codes(CONCAT.replace("1 + [4]", "1 + [8]")) != []
    assert codes(CONCAT.replace("1 + [4] strides [8, 4]", "1 + [4] strides [4, 4]")) != []
    assert codes(CONCAT.replace("1 + [4] strides [8, 4]", "1")) != []


def test_parts_of_a_split_are_views() -> None:
    split = (
        HEAD + '  output "y" %4 in 1: float32[4]\n  alias %2 = %1 + [0]\n  alias %3 = %1 + [8]\n'
        + static(
            task(0, "%9 in 5", "%0 in 0"),
            'task 1 Mul "a" @aicore stream 0\ninput read %0 in 0: float32[4]\noutput write %1 in 3: float32[4, 1]\n',
            'task 2 Concat "b" @aicore stream 0\ninput read %2 in 3: float32[2]\n'
            "input read %3 in 3 + [8]: float32[2]\noutput write %4 in 1: float32[4]\n",
        )
    )  # fmt: skip
    split = split.replace("%1 in 3: bool[]", "%1 in 3: float32[4]")
    assert codes(split) == []
    assert codes(split.replace("%3 in 3 + [8]", "%3 in 3 + [4]")) == ["E31014"]
    assert codes(split.replace("%3 = %1 + [8]", "%3 = %1 + [4]")) == ["E31014"]
