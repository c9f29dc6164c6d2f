"""Extents of operands against the bytes of each element."""

from __future__ import annotations

import random
from itertools import product

import pytest

from atc_py.ir.dims import Size, symbol
from atc_py.ir.types import DType, Format, Tensor
from atc_py.plan import extents
from atc_py.plan.extents import Layout
from atc_py.plan.types import Access, Buffer, Operand, Plan, Space

BASE = 4096


def layout(env: dict[str, int] | None = None) -> Layout:
    buffers = (Buffer(0, Space.ARENA, 1 << 20), Buffer(1, Space.DYNAMIC, 8), Buffer(2, Space.HOST, 1))
    plan = Plan("t", {}, buffers, (), (), (), ())
    return Layout(plan, [BASE, 0, 3], [1 << 20, -1, 1], env or {})


def operand(
    shape: tuple[Size, ...] | None, delta: Size = 0, strides: tuple[Size, ...] | None = None, buffer: int = 0
) -> Operand:
    return Operand(0, Access.READ, buffer, Tensor(DType.INT16, shape), delta, strides)


def test_strided_views() -> None:
    rng = random.Random(1)
    seen = {"repeats": 0, "apart": 0, "plain": 0}
    for _ in range(1000):
        shape = tuple([rng.randint(1, 4) for _ in range(rng.randint(0, 3))])
        strides = tuple([rng.choice([-16, -2, 0, 2, 3, 4, 6, 8, 16, 40]) for _ in shape])
        x = layout().extent(operand(shape, 100, strides))
        starts = [sum(s * i for s, i in zip(strides, at, strict=True)) for at in product(*map(range, shape))]
        each = [BASE + 100 + s + k for s in starts for k in range(2)]
        assert [b for start, end in x.runs for b in range(start, end)] == sorted(set(each))
        assert all(end < start for (_, end), (start, _) in zip(x.runs, x.runs[1:], strict=False)), "runs are apart"
        assert (x.low, x.high) == (min(each), max(each) + 1)
        assert x.repeats == (len(set(each)) < len(each)), (shape, strides)
        in_order = each == list(range(each[0], each[0] + len(each)))
        assert (x.strides is None) == in_order and x.first == BASE + 100
        assert not (x.scattered or x.late or x.unit)
        seen["repeats"] += x.repeats
        seen["apart"] += len(x.runs) > 1
        seen["plain"] += in_order
    assert min(seen.values()) > 50, seen


def test_c_order_and_blocks() -> None:
    assert layout().extent(operand((2, 3), 8)).runs == ((BASE + 8, BASE + 20),)
    assert layout().extent(operand((2, 0))).runs == ()
    assert layout().extent(operand((2, 0), 0, (4, 2))).runs == ()
    blocked = Tensor(DType.FLOAT16, (1, 17, 2, 2), Format.NCHW, Format.NC1HWC0)
    assert layout().nbytes(blocked) == 2 * 2 * 2 * 16 * 2
    assert layout().nbytes(Tensor(DType.FLOAT16, (1, 17), Format.ND, Format.NC1HWC0)) is None  # no such rank
    assert layout().nbytes(Tensor(DType.STRING, (3,))) == 0


def test_sizes_under_symbols() -> None:
    n = symbol("n")
    known = layout({"n": 3})
    assert known.extent(operand((n, 2), 4 * n, (4 * n, 2 * n))).runs == tuple(
        [(BASE + 12 + at, BASE + 14 + at) for at in (0, 6, 12, 18, 24, 30)]
    )
    assert layout().extent(operand((n, 2))).late and layout().extent(operand((2,), n)).late
    assert layout().extent(operand((3, 2), 0, (n, 2))).late and layout().extent(operand(None)).late
    assert known.extent(operand((n, 2), 0, (4, 2))).strides is None


def test_slots_are_units() -> None:
    dynamic, host = layout().extent(operand(None, buffer=1)), layout().extent(operand((2,), buffer=2))
    assert dynamic.unit and dynamic.runs == ((0, 1),)
    assert host.unit and host.runs == ((3, 4),)


def test_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "MAX_RUNS", 4)
    x = layout().extent(operand((5,), 0, (8,)))
    assert x.scattered and x.runs == ((BASE, BASE + 34),)
    assert not layout().extent(operand((4,), 0, (8,))).scattered
