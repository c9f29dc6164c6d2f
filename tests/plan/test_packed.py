"""The packed table: exact, deterministic, and safe against every damaged byte."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.text import BlobTable
from atc_py.ir.types import DType, Tensor
from atc_py.plan import records
from atc_py.plan.packed import decode, encode
from atc_py.plan.text import parse_plan
from atc_py.plan.types import Access, Buffer, If, Operand, Plan, Port, Space, Static, Task
from tests.plan.strategies import REGION_TYPES, assert_same, plans
from tests.plan.test_text import EXAMPLE

REGIONS = (
    EXAMPLE
    + """\
  host {
    task 5 NonZero "nz" @aicpu stream 0
      output write %9 in 2: int64[2, N]
      bind "N" output 0 axis 1
  }
  if from "if_1" {
    predicate read %5 in 2: bool[]
    yields write %6 in 2: float32[N]
    then {
      static {
      }
    }
    else {
      loop {
        counter write %8 in 2: int64[]
        carried read %7 in 2: float32[N]
        state update %6 in 2: float32[N]
        result read %8 in 2 strides [-4]: float32[N]
        item axis 0 forward read %8 in 2: float32[N]
        stack write %8 in 2: sequence<float32[N]>
        body {
          scan {
            sliced axis 1 backward read %7 in 2: float16[1, N, 2, 2] NCHW as NC1HWC0
            slice write %8 in 2: float32[N]
            body {
            }
          }
        }
      }
    }
  }
  require [4*N] >= [8] at "reshape" branch 1
  alias %8 = %2 + [4*N] strides [N, -4]
  gears N {
    gear 1 {
    }
    gear 16 {
      static {
      }
    }
  }
"""
)


def table(plan: Plan) -> tuple[bytes, list[memoryview]]:
    """The table of a plan, and the blobs that it refers to."""
    blobs = BlobTable()
    return encode(plan, blobs), blobs.views


@pytest.mark.parametrize("kind", REGION_TYPES)
@settings(suppress_health_check=list(HealthCheck), max_examples=12)
@given(draws=st.data())
def test_round_trip(kind: type, draws: st.DataObject) -> None:
    plan = draws.draw(plans(kind))
    data, blobs = table(plan)
    back = decode(memoryview(data), blobs)
    assert_same(plan, back)
    assert table(back)[0] == data


@pytest.mark.parametrize("engine", ["", "xx", "cube", "vector", "AICORE"])
def test_engines_that_nobody_knows(engine: str) -> None:
    """What times a plan asks nobody before."""
    plan = parse_plan(REGIONS)
    first = next(r for r in plan.regions if isinstance(r, Static))
    tasks = (first.tasks[0], *(replace(t, engine=engine) for t in first.tasks[1:2]), *first.tasks[2:])
    regions = tuple([Static(tasks) if r is first else r for r in plan.regions])
    data, blobs = table(replace(plan, regions=regions))
    with pytest.raises(AtcError) as caught:
        decode(memoryview(data), blobs)
    (problem,) = caught.value.problems
    assert problem.code == "E30010" and problem.cause == f"tasks 1: engine '{engine}' is not known"


def test_trailing_bytes_do_not_matter() -> None:
    data, blobs = table(parse_plan(REGIONS))
    assert table(decode(memoryview(data + b"\xff" * 9), blobs))[0] == data


def attempt(data: bytes, blobs: list[memoryview]) -> str:
    """Decode damaged bytes: 'ok', or the code of the error. Any other exception is a failure of the test."""
    try:
        plan = decode(memoryview(data), blobs)
    except AtcError as e:
        assert e.problems[0].cause
        assert e.problems[0].place.startswith("plan table +0x")
        return e.code
    assert isinstance(plan, Plan)
    for _ in plan.tasks():
        pass
    return "ok"


def test_every_truncation_is_refused() -> None:
    data, blobs = table(parse_plan(REGIONS))
    assert {attempt(data[:n], blobs) for n in range(len(data))} == {"E30010"}


EDGES = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFE,
    0xFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 62),
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]


@pytest.mark.parametrize("width", [1, 4, 8])
def test_every_field_may_hold_anything(width: int) -> None:
    """Each aligned field of the table is set to edge values; nothing but an `AtcError` may come of it."""
    data, blobs = table(parse_plan(REGIONS))
    rng = random.Random(width)
    seen = set()
    for at in range(0, len(data) - width + 1, width):
        value = rng.choice(EDGES) & ((1 << 8 * width) - 1)
        broken = bytearray(data)
        broken[at : at + width] = value.to_bytes(width, "little")
        seen.add(attempt(bytes(broken), blobs))
    assert seen == {"ok", "E30010"}


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6))
def test_bytes_changed_at_random(changes: list[tuple[int, int]]) -> None:
    data, blobs = table(parse_plan(REGIONS))
    broken = bytearray(data)
    for at, value in changes:
        broken[at % len(broken)] = value
    assert attempt(bytes(broken), blobs) in ("ok", "E30010")


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(plans(), st.randoms(use_true_random=False))
def test_random_plans_damaged_at_random(plan: Plan, rng: random.Random) -> None:
    data, blobs = table(plan)
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    assert attempt(bytes(broken), blobs) in ("ok", "E30010")


def test_missing_blobs_are_refused() -> None:
    text = EXAMPLE.replace('blob x"0000803f": float32[1]', "blob 0: float32[16]")
    data, blobs = table(parse_plan(text, [memoryview(bytes(64))]))
    assert attempt(data, blobs) == "ok"
    assert attempt(data, []) == "E30010"
    assert attempt(data, [memoryview(bytes(63))]) == "E30010"


def test_errors_name_the_offset_and_the_row() -> None:
    data, blobs = table(parse_plan(EXAMPLE))
    entries = np.frombuffer(data, records.ENTRY, len(records.SECTIONS), records.HEAD.itemsize)
    names = [name for name, _ in records.SECTIONS]
    section = names.index("operands")
    start = int(entries["offset"][section])
    dtype = records.SECTIONS[section][1]
    assert dtype.fields is not None
    at = start + 2 * dtype.itemsize + dtype.fields["buffer"][1]
    broken = bytearray(data)
    broken[at] = 77
    with pytest.raises(AtcError) as caught:
        decode(memoryview(bytes(broken)), blobs)
    problem = caught.value.problems[0]
    assert problem.place == f"plan table +0x{start + 2 * dtype.itemsize:x}"
    assert problem.cause == "operands 2: buffer 77 is not in [0, 4)"


def test_other_versions_are_refused() -> None:
    data, blobs = table(parse_plan(EXAMPLE))
    with pytest.raises(AtcError, match="version 9 is not known"):
        decode(memoryview(data[:8] + b"\x09" + data[9:]), blobs)


def test_what_has_no_place_is_refused() -> None:
    deep: Static | If = Static(())
    read = Operand(0, Access.READ, 0, Tensor(DType.BOOL, ()))
    for _ in range(records.MAX_NESTING):
        deep = If(read, (deep,), ())
    one = Buffer(0, Space.ARENA, 1)
    with pytest.raises(AtcError, match="nest more than 64"):
        table(Plan("t", {}, (one,), (), (), (), (deep,)))
    with pytest.raises(AtcError, match="too large"):
        table(Plan("t", {}, (Buffer(0, Space.ARENA, 1 << 70),), (), (), (), ()))
    with pytest.raises(AtcError, match="numbered 3"):
        table(Plan("t", {}, (Buffer(3, Space.ARENA, 1),), (), (), (), ()))
    with pytest.raises(AtcError, match="cannot be stored"):
        table(Plan("t", {}, (one,), (), (), (), (), streams=1 << 80))


def long_plan(count: int) -> Plan:
    """A chain of tasks with two inputs each."""
    t = Tensor(DType.FLOAT32, (1, 64, 56, 56))
    tasks = []
    for k in range(count):
        inputs = tuple(Operand(max(k - d, 0), Access.READ, max(k - d, 0), t) for d in (0, 1))
        output = Operand(k + 1, Access.WRITE, k + 1, t)
        tasks.append(Task(k, "Add", f"add_{k}", inputs, (output,), {"axis": k % 9}, origin=(f"node_{k}",)))
    size = 802816
    buffers = [Buffer(0, Space.INPUT, size, 0, 0)]
    buffers += [Buffer(k, Space.ARENA, size, k % 3 * size, -1, k - 1, k + 1) for k in range(1, count + 1)]
    return Plan("t", {}, tuple(buffers), (), (Port("x", t, 0, 0),), (), (Static(tuple(tasks)),), arena=3 * size)


@pytest.mark.slow
def test_loading_is_fast() -> None:
    """2,000 tasks take some 20 ms; the limit leaves room for a busy machine."""
    data, blobs = table(long_plan(2000))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        decode(memoryview(data), blobs)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.06
