"""The values at which a plan's figures are evaluated satisfy what the model requires of its symbols."""

from __future__ import annotations

import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.graph import Range
from atc_py.plan.live import violated
from atc_py.plan.types import Requirement
from atc_py.schedule.hint import fitting_hint


def _multiple(name: str, of: int) -> Requirement:
    return Requirement(symbol(name), of * (symbol(name) // of), "Reshape")


def test_a_hint_that_fits_stays() -> None:
    assert fitting_hint({"H": 16}, [_multiple("H", 8)], {"H": Range()}, ()) == {"H": 16}


@pytest.mark.parametrize("count", [1, 3, 10])
def test_many_symbols_that_must_move_together(count: int) -> None:
    names = [f"s{i}" for i in range(count)]
    needs = [_multiple(name, 9 if i % 2 else 3) for i, name in enumerate(names)]
    found = fitting_hint(dict.fromkeys(names, 16), needs, {n: Range() for n in names}, ())
    assert not violated(needs, found)


def test_a_size_that_must_be_zero() -> None:
    needs = [Requirement(symbol("N"), 0, "Reshape")]
    assert fitting_hint({"N": 1}, needs, {"N": Range()}, ()) == {"N": 0}


def test_given_values_and_ranges_are_kept() -> None:
    needs = [_multiple("H", 3)]
    assert fitting_hint({"H": 16}, needs, {"H": Range()}, ("H",)) == {"H": 16}
    assert fitting_hint({"H": 16}, needs, {"H": Range(16, 17)}, ()) == {"H": 16}


def test_requirements_that_contradict_each_other_leave_the_hint() -> None:
    needs = [Requirement(symbol("H"), 3, "a"), Requirement(symbol("H"), 5, "b")]
    assert fitting_hint({"H": 16}, needs, {"H": Range()}, ()) == {"H": 16}
