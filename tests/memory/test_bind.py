"""`bind`: sizes under given symbols, offsets for the arena, and clear errors for what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.compiler import Options, compile_model
from atc_py.errors import AtcError
from atc_py.ir.dims import Size, floordiv, symbol
from atc_py.ir.graph import Range
from atc_py.memory import Effort, bind
from atc_py.memory.bind import aligned
from atc_py.plan.types import Buffer, Plan, Space
from models.catalog import MODELS_DIR

N, COUNT = symbol("N"), symbol("count")
SYMBOLS = {"N": Range(1, None), "count": Range(0, None, True)}


def plan_of(*buffers: tuple[Space, Size, int, int]) -> Plan:
    """A plan with these buffers: space, size, first and last position."""
    found = []
    for k, (space, size, first, last) in enumerate(buffers):
        fixed = None if space in (Space.ARENA, Space.DYNAMIC) else 0
        found.append(Buffer(k, space, size, fixed, -1, first, last))
    return Plan("t", SYMBOLS, tuple(found), (), (), (), ())


CHAIN = plan_of(
    (Space.INPUT, 4 * N, -1, -1),
    (Space.ARENA, 100 * N, 0, 1),
    (Space.ARENA, 200 * N, 1, 2),
    (Space.ARENA, 100 * N, 2, 3),
    (Space.DYNAMIC, 8 * COUNT, 3, 4),
)


def test_sizes_and_offsets_follow_the_symbols() -> None:
    binding = bind(CHAIN, {"N": 3})
    assert binding.sizes == (12, 300, 600, 300, -1)
    assert binding.arena == binding.lower_bound == aligned(300) + aligned(600)
    assert binding.offsets[1] == binding.offsets[3] and binding.offsets[0] == 0 and binding.offsets[4] == -1
    assert dict(binding.env) == {"N": 3}


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_size_gets_a_place_of_its_own(n: int, m: int) -> None:
    for value in (n, m):
        binding = bind(CHAIN, {"N": value})
        arena = [k for k, b in enumerate(CHAIN.buffers) if b.space is Space.ARENA]
        for i in arena:
            assert binding.offsets[i] % 512 == 0
            assert binding.offsets[i] + binding.sizes[i] <= binding.arena
            for j in arena[: arena.index(i)]:
                a, b = CHAIN.buffers[i], CHAIN.buffers[j]
                apart = a.first > b.last or b.first > a.last
                ends = [binding.offsets[k] + binding.sizes[k] for k in (i, j)]
                assert apart or ends[0] <= binding.offsets[j] or ends[1] <= binding.offsets[i]
        assert bind(CHAIN, {"N": value}) == binding


def test_planned_offsets_stay() -> None:
    fixed = replace(CHAIN, buffers=tuple(replace(b, offset=512 * k) for k, b in enumerate(CHAIN.buffers)))
    binding = bind(fixed, {"N": 1})
    assert binding.offsets == (0, 512, 1024, 1536, 2048)
    assert binding.arena == 2048


@pytest.mark.parametrize(
    ("plan", "env", "code", "said"),
    [
        (CHAIN, {}, "E30002", "N"),
        (plan_of((Space.ARENA, symbol("other"), 0, 1)), {"N": 1}, "E30002", "other"),
        (CHAIN, {"N": 1 << 50}, "E30003", "bytes of memory"),
        (plan_of((Space.ARENA, 4 - N, 0, 1)), {"N": 9}, "E30003", "has -5 bytes"),
        (plan_of((Space.ARENA, 4, 3, 1)), {"N": 9}, "E30003", "from position 3 to 1"),
        (plan_of((Space.ARENA, floordiv(4, N), 0, 1)), {"N": 0}, "E30003", "divides by 0"),
    ],
)
def test_what_cannot_be_is_said(plan: Plan, env: dict[str, int], code: str, said: str) -> None:
    with pytest.raises(AtcError, match=said) as caught:
        bind(plan, env)
    assert caught.value.code == code


def test_a_plan_without_an_arena() -> None:
    binding = bind(plan_of((Space.INPUT, N, -1, -1)), {"N": 5})
    assert (binding.arena, binding.lower_bound) == (0, 0)


@pytest.mark.parametrize("effort", ["fast", "max"])
def test_a_conversion_records_its_effort(effort: Effort) -> None:
    om = compile_model(MODELS_DIR / "small_cnn.onnx", Options(memory_effort=effort))
    assert om.plan.options["memory_effort"] == effort


def test_an_effort_that_is_none() -> None:
    with pytest.raises(AtcError, match=r"--memory-effort.*none of fast, default, max"):
        compile_model(MODELS_DIR / "small_cnn.onnx", Options(memory_effort="most"))  # type: ignore[arg-type]
