"""Transposes between Reshapes: atoms of shapes, and the law on random shapes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ir.graph import Range
from atc_py.passes.axes import plan, refine, through
from tests.passes.interp import Builder, optimized, whole, work

N, S = symbol("N"), symbol("S")


@pytest.mark.parametrize(
    ("a", "b", "sizes"),
    [
        ([4 * N, 8], [N, 32], [N, 4, 8]),
        ([64, N, 32], [64, 4 * N, 8], [64, N, 4, 8]),
        ([6, 4], [2, 12], [2, 3, 4]),
        ([6], [4], None),
        ([N], [S], None),
        ([N, S], [N * S], [N, S]),
        ([2, 3], [7], None),
    ],
)
def test_refine(a: list[Any], b: list[Any], sizes: list[Any] | None) -> None:
    found = refine(a, b)
    assert (None if found is None else found[0]) == sizes
    if found is not None:
        for dims, groups in ((a, found[1]), (b, found[2])):
            assert [prod([found[0][i] for i in g], start=1) for g in groups] == dims


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_law(data: st.DataObject) -> None:
    """a → b, transposed, → c is what the plan says, on numbers."""
    a = tuple(data.draw(SHAPES))
    b = _regrouped(data, a)
    perm = tuple(data.draw(st.permutations(range(len(b)))))
    turned = tuple(b[i] for i in perm)
    c = _regrouped(data, turned)
    found = plan(a, b, perm, c)
    if found is None:
        return
    before, order, after = tuple(map(whole, found[0])), found[1], tuple(map(whole, found[2]))
    assert before == a or after == c
    x = np.arange(prod(a)).reshape(a)
    want = x.reshape(b).transpose(perm).reshape(c)
    np.testing.assert_array_equal(x.reshape(before).transpose(order).reshape(after).reshape(c), want)
    assert x.reshape(before).transpose(order).shape == after


def _regrouped(data: st.DataObject, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many elements: primes grouped anew."""
    primes = [p for d in dims for p in ([2, 2] if d == 4 else [d])]
    out = [1]
    for p in primes:
        if data.draw(st.booleans()):
            out.append(1)
        out[-1] *= p
    return tuple(out)


@pytest.mark.parametrize(
    ("x", "middle", "perm", "last", "left"),
    [
        ((N, 12, S, 8), (-1, S, 8), (0, 2, 1), (N, 12, 8, S), ["Transpose"]),
        ((5, N, 32), (5, -1, 8), (1, 0, 2), (N, 4, 5, 8), ["Reshape", "Transpose"]),
        ((N, 4, S, 8), (N, 4, -1), (2, 0, 1), (-1, 8, 4 * N), ["Reshape", "Transpose"]),
        ((N, 1, S, 8), (N, -1, 2), (1, 0, 2), (4 * S, 2 * N), ["Reshape", "Transpose", "Reshape"]),
    ],
)
def test_chains(x: Any, middle: Any, perm: Any, last: Any, left: list[str]) -> None:
    b = Builder(N=Range(1), S=Range(1))
    v = b.input("x", x)

    def shaped(v: int, dims: Any) -> int:
        if all(type(d) is int for d in dims):
            return b.op("Reshape", v, b.const(dims))
        parts = []
        for d in dims:
            factor = d if type(d) is int else 1
            for name in ("N", "S"):
                if type(d) is not int and name in str(d):
                    size = b.op("Shape", sources[name][0], start=sources[name][1], end=sources[name][1] + 1)
                    factor = int(str(d).split("*")[0]) if "*" in str(d) else 1
                    parts.append(b.op("Mul", size, b.const([factor])))
                    break
            else:
                parts.append(b.const([factor]))
        return b.op("Reshape", v, b.op("Concat", *parts, axis=0))

    sources = {name: (v, x.index(d)) for name, d in (("N", N), ("S", S)) if d in x}
    y = shaped(b.op("Transpose", shaped(v, middle), perm=perm), last)
    assert work(optimized(b.done(y), {"N": 2, "S": 3})) == left


@pytest.mark.parametrize("batch", [1, 2])
def test_axes_of_size_1_stay_where_larger_ones_would(batch: int) -> None:
    """Heads of one sequence are taken apart as those of two are."""
    a, b, c = (batch, 16, 384), (batch, 16, 12, 32), (batch, 12, 16, 32)
    assert plan(a, b, (0, 2, 1, 3), c) == (b, (0, 2, 1, 3), c)
    assert through(a, (0, 1, 2), b) == (b, (0, 1, 2, 3))
