"""Placements: operands that say the same are looked at once, and each is found again where something is wrong."""

from __future__ import annotations

from dataclasses import replace

from atc_py.memory import bind
from atc_py.plan.accesses import Accesses, roots_of
from atc_py.plan.extents import Layout
from atc_py.plan.text import parse_plan
from atc_py.plan.types import Access, Static, walk
from tests.plan.test_verify_laws import GOOD, problems


def accesses(text: str) -> Accesses:
    return Accesses(list(walk(parse_plan(text).regions)))


def test_operands_that_say_the_same_are_one_placement() -> None:
    plan = parse_plan(GOOD)
    found = Accesses(list(walk(plan.regions)))
    assert [(p.operand.value, p.operand.buffer, p.scratch) for p in found.placements] == [
        (0, 0, False), (1, 1, False), (3, 3, False), (-1, 8, True), (4, 4, False), (5, 3, False), (6, 3, False),
        (2, 2, False), (7, 5, False), (8, 7, False), (9, 6, False),
    ]  # fmt: skip
    assert [p.operand.value for p in found.placements if p.written] == [3, -1, 4, 5, 7, 8, 9]
    assert all(row.plain for row in found.rows())
    three = found.placements[2]
    uses = [(use[0].id, use[1].access) for use in found.uses({three})]  # type: ignore[union-attr]
    assert uses == [(0, Access.WRITE), (1, Access.READ), (2, Access.READ)]


def test_what_is_said_differently_is_another_placement() -> None:
    one = len(accesses(GOOD).placements)
    for old, new in (
        ("read %4 in 4: float32[128]", "read %4 in 3: float32[128]"),
        ("read %4 in 4: float32[128]", "read %4 in 4 + [4]: float32[127]"),
        ("read %4 in 4: float32[128]", "read %4 in 4: float32[2, 64]"),
        ("read %4 in 4: float32[128]", "read %4 in 4 strides [4]: float32[128]"),
    ):
        assert len(accesses(GOOD.replace(old, new)).placements) == one + 1


def test_a_task_that_is_not_plain() -> None:
    for old, new in (
        ("input read %4 in 4", "input update %4 in 4"),
        ("output write %7 in 5", "output update %7 in 5"),
        ("scratch write %-1 in 8", "scratch update %-1 in 8"),
    ):
        assert [row.plain for row in accesses(GOOD.replace(old, new)).rows()].count(False) == 1


def test_places() -> None:
    plan = parse_plan(
        GOOD.replace("alias %6 = %5 + [0]", "alias %6 = %5 + [64]").replace("%6 in 3:", "%6 in 3 + [64]:")
    )
    binding = bind(plan)
    layout = Layout(plan, binding.offsets, binding.sizes, binding.env)
    found = Accesses(list(walk(plan.regions)))
    found.locate(layout, roots_of(plan, layout))
    view = next(p for p in found.placements if p.operand.value == 6)
    assert (view.root, view.base, view.low, view.simple, view.fixed) == (5, 0, 64, True, False)
    constant = next(p for p in found.placements if p.operand.value == 1)
    assert (constant.fixed, constant.simple) == (True, False)


def test_each_operand_of_a_bad_placement_is_told() -> None:
    short = [p for p in problems(GOOD.replace("buffer 3 arena [512]", "buffer 3 arena [508]")) if p.code == "E31006"]
    assert [p.place for p in short] == [f"task {k}" for k in ("0 'mm'", "1 'sig'", "2 'relu'", "2 'relu'", "3 'cat'")]
    assert [p.cause[:2] for p in short] == ["%3", "%3", "%3", "%5", "%6"]


def test_types_that_are_equal_but_not_one_object_are_alike() -> None:
    plan = parse_plan(GOOD)
    first = plan.regions[0]
    assert isinstance(first, Static)
    task = first.tasks[1]
    read = task.inputs[0]
    assert read is not None
    other = replace(task, inputs=(replace(read, type=replace(read.type)),))
    changed = replace(plan, regions=(Static((first.tasks[0], other, *first.tasks[2:])), *plan.regions[1:]))
    assert len(Accesses(list(walk(changed.regions))).placements) == len(accesses(GOOD).placements) + 1
    from atc_py.plan.verify import verify

    binding = bind(changed)
    verify(changed, binding.offsets, binding.sizes, binding.env)
