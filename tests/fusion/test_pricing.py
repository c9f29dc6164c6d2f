"""Prices of groups: the clock's formula, what products that feed each other cost, and rows that cores compute twice."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion.fitting import Fitting
from atc_py.fusion.pricing import Pricer, cycles
from atc_py.fusion.tiles import Fit
from atc_py.ops.base import Product
from atc_py.ops.chains import Chains, more
from atc_py.target.cost import Load, price
from atc_py.target.tiling import Gemm, tile
from tests.fusion.making import TARGET, rand
from tests.passes.interp import Builder

NAMES = [f.name for f in fields(Load)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e7), min_size=len(NAMES), max_size=len(NAMES)))
def test_one_load_costs_what_the_clock_says(values: list[float]) -> None:
    columns = {n: np.array([v]) for n, v in zip(NAMES, values, strict=True)}
    assert cycles(Load(*values), TARGET) == pytest.approx(float(price(columns, TARGET, TARGET.rates)[-1][0]))


def test_products_that_feed_each_other_are_split_by_rows() -> None:
    chains = Chains()
    p = Product(64, 32, 16)
    chains.add([0, 1], [2], (p,), again=0.5)  # 2 = 0 · 1, half of its rows are computed twice
    chains.add([2], [3], ())  # Relu
    chains.add([3, 4], [5], (p,))  # 5 = 3 · 4
    chains.add([0, 6], [7], (p,))  # on its own
    first, second, third = chains.products()
    assert chains.chained and (first.rows, second.rows, third.rows) == (True, True, False)
    assert (first.inner, second.inner, third.inner) == (False, True, False)
    assert (first.m, second.m, third.m) == (96, 64, 64) and more(10, 0.25) == 13


def test_whole_rows_cost_weights_on_every_core() -> None:
    cube = next(iter(TARGET.cube.values()))
    free = tile(Gemm(16, 512, 512), cube, 2, TARGET)
    rows = tile(Gemm(16, 512, 512, rows=True), cube, 2, TARGET)
    # 16 rows are one block: without a split of the columns one core works.
    assert free.cores == TARGET.aicores and rows.cores == 1 and rows.cube == free.cube * TARGET.aicores
    assert tile(Gemm(16, 512, 512, inner=True), cube, 2, TARGET).left == 0


def test_rows_beyond_a_core_s_own_count_twice() -> None:
    b = Builder()
    x = b.input("x", (1, 8, 32, 32))
    v = b.op("Conv", x, b.const(rand(8, 8, 1, 1)))
    v = b.op("Conv", v, b.const(rand(8, 8, 5, 5)), pads=(2, 2, 2, 2))
    graph = b.done(v)
    nodes = [n for n in graph.order() if n.op == "Conv"]
    pricer = Pricer(graph, TARGET)
    # 8 cores make 4 rows each of 32, and need 8 rows of the map before.
    both, first = pricer.forms.of(nodes).form(), pricer.forms.of(nodes[:1]).form()
    assert pricer.slab(nodes) == [1.0, 0.0] and pricer.chained(both) and not pricer.chained(first)
    assert pricer.joined_us(both) > pricer.task_us(nodes)


def test_a_chain_is_held_against_the_tasks_that_there_are_without_it() -> None:
    b = Builder()
    v = b.op("Relu", b.op("Conv", b.input("x", (1, 16, 64, 64)), b.const(rand(16, 16, 3, 3)), pads=(1, 1, 1, 1)))
    v = b.op("Conv", v, b.const(rand(16, 16, 3, 3)), pads=(1, 1, 1, 1))
    v = b.op("MaxPool", b.op("Relu", v), kernel_shape=(2, 2), strides=(2, 2))
    graph = b.done(b.op("Sigmoid", v))
    nodes = [n for n in graph.order() if n.op in ("Conv", "Relu", "MaxPool", "Sigmoid")]
    pricer = Pricer(graph, TARGET)
    form = pricer.forms.of(nodes).form()
    tasks = sum(pricer.task_us(nodes[i:j]) for i, j in ((0, 2), (2, 4), (4, 6)))
    assert pricer.price(form, None).separate == pytest.approx(tasks)
    tile = Fitting(graph, TARGET, pricer.forms).fit_form(form)
    assert isinstance(tile, Fit)
    fused = pricer.task_us(nodes, pricer.repeated(form, tile))
    assert pricer.price(form, tile).fused == pytest.approx(fused) and fused > pricer.task_us(nodes)


def test_maps_that_the_cache_does_not_hold_come_from_memory() -> None:
    b = Builder()
    graph = b.done(b.op("Conv", b.input("x", (1, 16, 512, 512)), b.const(rand(16, 16, 1, 1))))
    [node] = [n for n in graph.order() if n.op == "Conv"]
    total = 2 * 16 * 512 * 512 * 4
    enough, none = (Pricer(graph, replace(TARGET, l2=l2)).task_us([node]) for l2 in (total, 0))
    bytes_us = TARGET.ddr_bytes_per_cycle * TARGET.aicores * TARGET.rates.ddr * TARGET.frequency_mhz
    assert none > enough and none == pytest.approx(TARGET.rates.task_us + total / bytes_us, rel=0.15)
