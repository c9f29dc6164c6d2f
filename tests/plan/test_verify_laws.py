"""Each law of the verifier: a plan that keeps them all, and for each law plans that break it in one place."""

from __future__ import annotations

import time

import pytest

from atc_py.errors import AtcError, Problem
from atc_py.memory import bind
from atc_py.ops import get
from atc_py.ops.base import Infer
from atc_py.plan.text import parse_plan
from atc_py.plan.verify import LAWS, verify
from tests.plan.test_packed import long_plan

ONES = "0000803f" * 8

GOOD = f"""\
plan "t" streams 2 events 2 weights 32 arena 1536
  symbol count in [0, inf] runtime
  constant 0 = blob x"{ONES}": float32[8]
  constant 1 = splat 0.5: float32[128]
  buffer 0 input [512] at 0 index 0 kept 0..3
  buffer 1 weights [32] at 0 index 0
  buffer 2 weights [4] at 64 index 1
  buffer 3 arena [512] at 0 kept 0..3
  buffer 4 arena [512] at 512 kept 1..3
  buffer 5 output [512] at 0 index 0
  buffer 6 host [1] at 0
  buffer 7 dynamic [8*count]
  buffer 8 arena [256] at 1024 kept 0..0
  input "x" %0 in 0: float32[128]
  output "y" %7 in 5: float32[128]
  initial %1 in 1
  initial %2 in 2
  alias %6 = %5 + [0]
  static {{
    task 0 MatMul "mm" @aicore stream 0 records 0
      input read %0 in 0: float32[128]
      input read %1 in 1: float32[8]
      output write %3 in 3: float32[128]
      scratch write %-1 in 8: uint8[256]
    task 1 Sigmoid "sig" @aicore stream 1 waits 0 records 1
      input read %3 in 3: float32[128]
      output write %4 in 4: float32[128]
    task 2 Relu "relu" @aicore stream 0 waits 1
      input read %3 in 3: float32[128]
      output write %5 in 3: float32[128]
    task 3 Concat "cat" @aicore stream 0
      input read %6 in 3: float32[4, 32]
      input read %4 in 4: float32[128]
      input read %2 in 2 strides [0]: float32[128]
      host 3 constant 0
      output write %7 in 5: float32[128]
  }}
  host {{
    task 4 NonZero "nz" @aicpu stream 0
      input read %7 in 5: float32[128]
      output write %8 in 7: int64[1, count]
      bind "count" output 0 axis 1
  }}
  static {{
    task 5 StringNormalizer "str" @host stream 0
      input read %8 in 7: int64[1, count]
      output write %9 in 6: sequence<int64[1, count]>
  }}
"""


def problems(text: str) -> list[Problem]:
    """What is wrong with a plan."""
    plan = parse_plan(text)
    binding = bind(plan)
    try:
        verify(plan, binding.offsets, binding.sizes, binding.env)
    except AtcError as e:
        return list(e.problems)
    return []


def test_the_good_plan_is_good() -> None:
    assert problems(GOOD) == []


CASES = [
    # law, what is changed, into what, what is said
    ("tables", "read %4 in 4:", "read %4 in 9:", "task 3 'cat': %4 lies in buffer 9 of 9"),
    ("tables", "host 3 constant 0", "host 3 constant 5", "task 3 'cat': input 3 is constant 5 of 2"),
    ("tables", "at 64 index 1", "at 64 index 7", "buffer 2: holds constant 7, but there are 2"),
    ("tables", "initial %2 in 2", "initial %2 in 12", "%2: lies in buffer 12 of 9"),
    ("tables", '"sig" @aicore', '"sig" @cube', "task 1 'sig': runs on 'cube', which is none of"),
    ("tables", '"sig" @aicore', '"sig" @""', "task 1 'sig': runs on '', which is none of the engines"),
    ("aliases", "alias %6 = %5 + [0]", "alias %6 = %5 + [0]\n  alias %5 = %6 + [0]", "is a view of itself"),
    ("aliases", "alias %6 = %5 + [0]", "alias %6 = %5 + [0]\n  alias %6 = %4 + [0]", "is a view of %5 and of %4"),
    ("ids", "task 3 ", "task 2 ", "task 2 'cat': comes after task 2 'relu'"),
    ("accesses", "output write %7 in 5", "output read %7 in 5", "output 0 (%7) is read, not written"),
    ("accesses", "input read %4 in 4", "input write %4 in 4", "input 1 (%4) is written, not read"),
    ("accesses", "host 3 constant 0", "host 1 constant 0", "input 1 is both an operand and a value"),
    ("accesses", "scratch write", "scratch read", "the workspace has access 'read'"),
    ("layouts", "read %4 in 4: float32[128]", "read %4 in 4: float32[2, 64]", "takes %4 as float32[2, 64]"),
    ("layouts", "read %4 in 4: float32[128]", "read %4 in 4: int32[128]", "int32[128] ND, task 1 'sig' as float32"),
    ("layouts", "read %6 in 3: float32[4, 32]", "read %6 in 3 strides [4, 16]: float32[4, 32]", "takes the view %6"),
    ("layouts", '"y" %7 in 5: float32[128]', '"y" %7 in 5: float32[64, 2]', "but port 'y' is float32[64, 2] ND"),
    ("bounds", "buffer 4 arena [512]", "buffer 4 arena [508]", "arena [512, 1024), but buffer 4 is [512, 1020)"),
    ("bounds", "weights 32 arena 1536", "weights 32 arena 1024", "takes [1024, 1280), but the arena has 1024 bytes"),
    ("bounds", "read %4 in 4:", "read %4 in 4 + [4]:", "takes arena [516, 1028), but buffer 4 is [512, 1024)"),
    ("bounds", "buffer 0 input [512]", "buffer 0 input [1024]", "input 'x': has 512 bytes, but its buffer 0 has 1024"),
    ("bounds", "buffer 5 output [512] at 0 index 0", "buffer 5 arena [512] at 1024", "output 'y': lies in arena"),
    ("bounds", "buffer 6 host [1]", "buffer 6 host [2]", "a host slot has the size 2, not 1"),
    ("bounds", "buffer 6 host [1] at 0", "buffer 6 arena [8] at 1024", "%9 has no bytes, but lies"),
    ("bounds", "buffer 7 dynamic [8*count]", "buffer 7 arena [512] at 1024", "%8 is known only at run time"),
    ("bounds", "write %4 in 4: float32[128]", "write %4 in 4 strides [0]: float32[128]", "share bytes, but are"),
    ("bounds", "8 arena [256] at 1024 kept 0..0", "8 workspace [256] at 0", "'mm': the workspace lies in workspace"),
    ("bounds", "weights [4] at 64", "weights [4] at 0", "begins at weights +0, inside of buffer 2"),
    ("alignment", "buffer 4 arena [512] at 512", "buffer 4 arena [512] at 768", "+768, which is no multiple of 512"),
    ("alignment", "weights [4] at 64", "weights [4] at 36", "weights +36, which is no multiple of 64"),
    ("alignment", "read %4 in 4:", "read %4 in 4 + [2]:", "%4 at arena +514 is not aligned to its elements of 4"),
    ("lifetimes", "at 0 kept 0..3", "at 0 kept 0..2", "buffer 3 at position 3, but the buffer is kept from 0 to 2"),
    ("weights", "weights [32]", "weights [16]", "has 16 bytes, but constant 0 takes 32"),
    ("weights", "weights 32 arena", "weights 16 arena", "ends at 32, but the file holds 16 bytes of weights"),
    ("weights", "weights 32 arena", "weights 80 arena", "is made at bind, but lies at 64, among the file's bytes"),
    ("events", "stream 1 waits 0", "stream 1 waits 0, 1", "which it records itself: it would wait for ever"),
    ("events", "stream 0 records 0", "stream 0 waits 1 records 0", "task 1 'sig' records, and that comes later"),
    ("events", " records 1", "", "waits for event 1, which no task records: it would wait for ever"),
    ("events", "waits 0 records 1", "records 0", "records event 0, which task 0 'mm' records too"),
    ("events", "stream 1 waits", "stream 2 waits", "runs on stream 2 of 2"),
    ("events", "waits 1\n", "waits 7\n", "names event 7 of 2"),
    ("events", '"nz" @aicpu stream 0', '"nz" @aicpu stream 0 waits 1', "which task 1 'sig' of another region records"),
    ("binds", 'bind "count" output 0', 'bind "count" output 1', "to output 1, which it does not have"),
    ("binds", 'bind "count" output 0 axis 1', 'bind "count" output 0 axis 2', "axis 2 of output 0, which is not there"),
    ("binds", 'bind "count" output', 'bind "N" output', "binds 'N', which is no symbol of the run time"),
    ("read-only", "write %5 in 3:", "write %5 in 0:", "task 2 'relu' (stream 0): writes %5 to input 0 [0, 512)"),
    ("read-only", "write %5 in 3: float32[128]", "write %5 in 1: float32[8]", "writes %5 to weights [0, 32)"),
    ("reads", "input read %4 in 4", "input read %8 in 4", "reads %8 at arena [512, 1024), but arena [512, 1024) holds"),
    ("reads", "read %6 in 3: float32[4, 32]", "read %6 in 3 + [64]: float32[4, 28]", "begins at 0, not at 64"),
    ("reads", "write %4 in 4:", "write %4 in 8:", "but nothing has written arena [512, 1024)"),
    ("reads", "read %4 in 4: float32[128]", "read %4 in 8: float32[64]", "is scratch memory, written by task 0 'mm'"),
    ("reads", "read %0 in 0", "read %3 in 0", "but that value is neither made nor given"),
    ("reads", "initial %2 in 2", "initial %2 in 1", "at weights [64, 68), but that value lies at weights +0"),
    ("one writer", "write %7 in 5", "write %4 in 5", "writes %4 to output 0 [0, 512), but it lies at arena +512"),
    ("one writer", "write %5 in 3", "write %3 in 3", "but task 0 'mm' (stream 0) has made it already"),
    ("one writer", "write %4 in 4", "write %2 in 4", "but it lies at weights +64 too"),
    ("in place", 'Relu "relu"', 'MatMul "relu"', "output 0 over input 0 (%3) at arena [0, 512), which MatMul may"),
    ("in place", "scratch write %-1 in 8", "scratch write %-1 in 3", "the workspace over output 0 at arena [0, 256)"),
    ("in place", "%5 in 3: float32[128]", "%5 in 3 + [64]: float32[112]", "over input 0 (%3) at arena [64, 512)"),
    ("order", "stream 0 waits 1", "stream 0", "which task 1 'sig' (stream 1) reads, but nothing orders the two"),
    ("order", " waits 0", "", "reads arena [0, 512), which task 0 'mm' (stream 0) writes, but nothing orders the two"),
    ("outputs", "write %7 in 5", "write %10 in 5", "output 'y': holds not %7 at the end: output 0 [0, 512) holds %10"),
]  # fmt: skip


@pytest.mark.parametrize(("law", "old", "new", "said"), CASES)
def test_broken_laws_are_told(law: str, old: str, new: str, said: str) -> None:
    assert GOOD.count(old) == 1, f"{old!r} is there {GOOD.count(old)} times"
    code = next(x.code for x in LAWS if x.name == law)
    found = problems(GOOD.replace(old, new))
    mine = [str(p) for p in found if p.code == code]
    assert any(said in text for text in mine), "\n".join(map(str, found))
    assert all(p.hint for p in found)


NEXT_STEPS = [
    # what is changed, into what, the cause, what to do
    ("stream 1 waits", "stream 2 waits", "runs on stream 2 of 2", "name one of the plan's streams, 0 to 1"),
    ("waits 1\n", "waits 7\n", "names event 7 of 2", "name one of the plan's events, 0 to 1"),
    (" events 2 ", " events 0 ", "names event 0 of 0", "let it have events"),
    ("stream 0 records 0", "stream 0 records 0, 0", "more than once", "take the second record away"),
    (" records 1", "", "which no task records", "record the event, or take the wait away"),
    ("stream 1 waits 0", "stream 1 waits 0, 1", "records itself", "let an earlier task record the event"),
    ("stream 0 records 0", "stream 0 waits 1 records 0", "and that comes later", "wait for each other never run"),
    ("waits 0 records 1", "records 0", "records too", "give one of the two records an event of its own"),
    (
        '"nz" @aicpu stream 0',
        '"nz" @aicpu stream 0 waits 1',
        "of another region",
        "take the wait away: a region begins",
    ),
    (" waits 0", "", "nothing orders the two", "let the later task wait for an event that the earlier one records"),
]


@pytest.mark.parametrize(("old", "new", "cause", "step"), NEXT_STEPS)
def test_each_cause_has_a_next_step_of_its_own(old: str, new: str, cause: str, step: str) -> None:
    assert GOOD.count(old) == 1
    assert [p for p in problems(GOOD.replace(old, new)) if cause in p.cause and step in p.hint]


def test_a_size_may_be_found_out_beside_other_tasks() -> None:
    """In one list with them, as long as none of them needs it."""
    beside = GOOD.replace("  }\n  host {\n    task 4", "    task 4")
    assert beside != GOOD and not problems(beside)
    needed = beside.replace("  }\n  static {\n    task 5", "    task 5")
    assert needed != beside
    (found,) = problems(needed)
    assert found.code == "E31011" and "needs 'count', which task 4 'nz' finds out in the same list" in found.cause


LAUNCHED = """\
plan "t" streams 1 events 0 weights 0 arena 2048
  buffer 0 input [16] at 0 index 0
  buffer 1 input [4] at 0 index 1
  buffer 2 output [16] at 0 index 0
  buffer 3 arena [512] at 0
  buffer 4 arena [512] at 512
  buffer 5 arena [512] at 1024
  input "x" %0 in 0: float32[4]
  input "k" %1 in 1: int32[1]
  output "y" %9 in 2: float32[4]
  alias %3 = %2 + [0]
  static {
    task 0 Abs "abs" @aicore stream 0
      input read %1 in 1: int32[1]
      output write %2 in 3: int32[1]
    task 1 Relu "relu" @aicore stream 0
      input read %0 in 0: float32[4]
      output write %4 in 4: float32[4]
CUT    task 2 Expand "expand" @aicore stream 0
      input read %4 in 4: float32[4]
      input read SHAPE
      output write %9 in 2: float32[4]
  }
"""
"""Expand is launched with a shape."""


@pytest.mark.parametrize("shape", ["%2 in 3: int32[1]", "%3 in 3: int32[1]"])
def test_what_the_host_reads_to_launch_a_task_is_made_in_an_earlier_list(shape: str) -> None:
    """Through a view too; what the host has got from the caller it knows."""
    text = LAUNCHED.replace("SHAPE", shape)
    (found,) = problems(text.replace("CUT", ""))
    assert (found.code, found.place) == ("E31011", "task 2 'expand'")
    value = shape[:2]
    assert found.cause == f"is launched with the content of {value}, which task 0 'abs' makes in the same list of tasks"
    assert problems(text.replace("CUT", "  }\n  static {\n")) == []
    assert problems(LAUNCHED.replace("SHAPE", "%1 in 1: int32[1]").replace("CUT", "")) == []
    assert problems(text.replace("CUT", "").replace('"expand" @aicore', '"expand" @host')) == []


def test_parts_of_a_value_are_looked_at_by_their_bytes() -> None:
    """Expand reads one half of %5, and the list makes the other one."""
    views = "alias %2 = %5 + [0]\n  alias %3 = %5 + [4]"
    other = """static {
    task -1 Abs "half" @aicore stream 0
      input read %1 in 1: int32[1]
      output write %3 in 3 + [4]: int32[1]
  }
  static {"""
    halves = LAUNCHED.replace("alias %3 = %2 + [0]", views).replace("static {", other)
    assert problems(halves.replace("SHAPE", "%3 in 3 + [4]: int32[1]").replace("CUT", "")) == []
    whole = problems(halves.replace("SHAPE", "%5 in 3: int32[2]").replace("CUT", ""))
    assert [p.code for p in whole] == ["E31011"] and "'abs'" in whole[0].cause


UNKNOWN = """\
plan "t" streams 1 events 0 weights 0 arena 0
  buffer 0 input [16] at 0 index 0
  buffer 1 input [16] at 0 index 1
  buffer 2 dynamic [1]
  buffer 3 dynamic [1]
  input "x" %0 in 0: float32[4]
  input "s" %1 in 1: int64[2]
  output "y" %3 in 3: float32[?]
  static {
    task 0 Reshape "shape" @aicore stream 0
      input read %0 in 0: float32[4]
      input read %1 in 1: int64[2]
      output write %2 in 2: float32[?]
CUT    task 1 Sigmoid "sig" @aicore stream 0
      input read %2 in 2: float32[?]
      output write %3 in 3: float32[?]
  }
"""


def test_a_value_of_unknown_rank_is_made_in_an_earlier_list() -> None:
    (found,) = problems(UNKNOWN.replace("CUT", ""))
    assert (found.code, found.place) == ("E31011", "task 1 'sig'")
    assert "takes %2, whose shape nobody knows before, which task 0 'shape' makes in the same list" in found.cause
    assert problems(UNKNOWN.replace("CUT", "  }\n  static {\n")) == []


def test_a_workspace_that_the_operator_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is none of its operator's kind: the device would not bind it."""

    def rule(n: Infer) -> int:
        n.fail("a matrix is expected")
        return 0

    text = LAUNCHED.replace("SHAPE", "%1 in 1: int32[1]").replace("CUT", "")
    op = get("Relu")
    assert op is not None and problems(text) == []
    monkeypatch.setattr(op, "workspace_fn", rule)
    (found,) = problems(text)
    assert (found.code, found.place) == ("E31006", "task 1 'relu'")
    assert found.cause == "Relu cannot tell how many bytes of workspace it takes: a matrix is expected"
    monkeypatch.setattr(op, "workspace_fn", lambda n: n.attrs["sorted"])
    (found,) = problems(text)
    assert "KeyError: 'sorted'" in found.cause
    template = text.replace("  buffer 0", "  symbol N in [1, 8]\n  hint N = 4\n  buffer 0").replace(
        "float32[4]", "float32[N]"
    )
    plan = parse_plan(template.replace("[16]", "[4*N]"))
    binding = bind(plan, {"N": 4})
    verify(plan, binding.offsets, binding.sizes, binding.env)  # another N may be one that it takes


def test_every_law_is_tested() -> None:
    tested_elsewhere = {"control", "collectives"}  # in test_verify_regions, tests/schedule/test_collectives
    assert {law.name for law in LAWS} == {case[0] for case in CASES} | tested_elsewhere
    assert len({law.code for law in LAWS}) == len(LAWS)


def test_all_violations_come_at_once() -> None:
    broken = GOOD.replace("stream 0 waits 1", "stream 0").replace("buffer 4 arena [512]", "buffer 4 arena [508]")
    assert {p.code for p in problems(broken)} >= {"E31006", "E31017"}


def test_sizes_and_offsets_must_be_those_of_the_plan() -> None:
    plan = parse_plan(GOOD)
    with pytest.raises(AtcError, match="9 buffers, 0 offsets"):
        verify(plan, (), (), {})


def test_unknown_operators_may_not_work_in_place() -> None:
    assert any(p.code == "E31016" for p in problems(GOOD.replace('Relu "relu"', '"my::Relu" "relu"')))


def test_a_template_is_verified_under_given_values() -> None:
    text = (
        GOOD.replace("float32[128]", "float32[N]")
        .replace("[512]", "[4*N]")
        .replace("float32[4, 32]", "float32[4, N//4]")
    )
    text = text.replace("  symbol count", "  symbol N in [1, 4096]\n  symbol count").replace(" arena 1536", "")
    text = text.replace("arena [4*N] at 0", "arena [4*N]").replace("arena [4*N] at 512", "arena [4*N]")
    text = text.replace("arena [256] at 1024", "arena [256]").replace(
        "splat 0.5: float32[N]", "splat 0.5: float32[128]"
    )
    plan = parse_plan(text)
    for n in (4, 128, 4096):
        binding = bind(plan, {"N": n})
        verify(plan, binding.offsets, binding.sizes, binding.env)
    binding = bind(plan, {"N": 128})
    with pytest.raises(AtcError) as caught:
        verify(plan, [0] * len(binding.offsets), binding.sizes, binding.env)
    assert {p.code for p in caught.value.problems} >= {"E31014"}


@pytest.mark.slow
def test_it_is_fast() -> None:
    """Some 10 µs a task; the limit leaves room for a busy machine."""
    plan = long_plan(2000)
    binding = bind(plan)
    seconds = []
    for _ in range(4):
        start = time.process_time()
        verify(plan, binding.offsets, binding.sizes, binding.env)
        seconds.append(time.process_time() - start)
    assert min(seconds) / 2000 < 60e-6
