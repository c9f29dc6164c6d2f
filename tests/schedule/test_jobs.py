"""Jobs of operators that were met before are those that would be made anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atc_py import frontend
from atc_py.compiler import Options, compile_graph
from atc_py.graph import Builder
from atc_py.schedule.graph_jobs import graph_program
from atc_py.schedule.jobs import Maker, sizes_of
from atc_py.schedule.plan_jobs import plan_program

MODELS = Path(__file__).resolve().parent.parent.parent / "models"


@pytest.mark.parametrize("name", ["small_cnn", "small_transformer", "corpus/mobilenetv3", "corpus/loop_while_if"])
def test_what_is_remembered_is_what_would_be_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = frontend.read(MODELS / f"{name}.onnx")
    sizes = sizes_of(graph.symbols, {})
    remembered = graph_program(graph, sizes)
    monkeypatch.setattr(Maker, "needs", Maker._needed)
    assert repr(graph_program(graph, sizes)) == repr(remembered), "forms are told apart by identity"


def test_calls_that_differ_in_a_value_only_are_told_apart() -> None:
    b = Builder("reductions")
    x = b.data("x", "float32", (1, 20, 8, 16))
    ends = [b.op("ReduceMean", x, b.const(np.array([axis])), keepdims=1) for axis in (1, 2, 3, 1)]
    graph = b.build(**{f"y{i}": end for i, end in enumerate(ends)})
    first, second, third, again = graph_program(graph, sizes_of(graph.symbols, {})).jobs
    assert first.work is again.work and second.work is not first.work
    assert first.layout is again.layout is None, "over channels that end inside a block"
    assert second.layout == third.layout is not None


@pytest.mark.parametrize("exponent", [2.0, 2.5])
def test_a_plan_counts_what_its_graph_counts_where_a_constant_decides(exponent: float) -> None:
    b = Builder("powers")
    x = b.data("x", "float32", (4, 64))
    graph = b.build(y=b.op("Pow", x, b.const(np.float32(exponent))))
    [plain] = graph_program(graph, sizes_of({}, {})).jobs
    plan = compile_graph(graph, Options(opt_level=0)).plans[0]
    [job] = plan_program(plan, sizes_of({}, {})).jobs
    assert job.work == plain.work
    assert (job.work.vector < 5 * 4 * 64) == (exponent == 2.0), "a square is a product"
