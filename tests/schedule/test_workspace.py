"""Workspaces: planned, verified, bound and run as tensors are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import Session
from atc_py.compiler import Options, compile_graph
from atc_py.emit import Om, om_bytes
from atc_py.errors import AtcError
from atc_py.graph import Builder
from atc_py.ir.attr_text import BlobTable
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.memory import bind
from atc_py.npu.device import BoundPlan
from atc_py.ops.base import Array, Call, Engine, Infer
from atc_py.ops.custom import Flags, custom, declare
from atc_py.plan.text import print_plan
from atc_py.plan.text_reader import parse_plan
from atc_py.plan.types import Buffer, Plan, Space, Task
from atc_py.plan.verify import verify
from atc_py.runtime.loader import load
from tests.custom.helpers import clean  # noqa: F401

RNG = np.random.default_rng(0)


def dense(b: Builder, x: Any, rows: int, columns: int) -> Any:
    """A product and what keeps it a task of its own."""
    weight = b.const(RNG.normal(size=(rows, columns)).astype(np.float32))
    return b.op("Softmax", b.op("MatMul", x, weight))


def ranked(rows: int | str = 16) -> Om:
    """Two wide layers that are dead when TopK runs, a skip around it that is alive, and one after it."""
    b = Builder("ranked")
    x = b.data("x", "float32", (rows, 64))
    near = dense(b, x, 64, 100)
    far = dense(b, dense(b, near, 100, 4000), 4000, 100)
    values, _ = b.op("TopK", far, b.const(np.array([100], np.int64)), outputs=2)
    return compile_graph(b.build(y=b.op("Add", dense(b, values, 100, 100), near)), Options(opt_level=0))


def scratch(plan: Plan) -> tuple[Task, Buffer]:
    """The only task with a workspace, and its buffer."""
    [task] = [t for t in plan.tasks() if t.workspace]
    assert task.workspace is not None
    return task, plan.buffers[task.workspace.buffer]


def verified(plan: Plan) -> None:
    binding = bind(plan, plan.hint)
    verify(plan, binding.offsets, binding.sizes, binding.env)


def test_it_lies_in_the_arena_on_what_is_dead() -> None:
    plan = ranked().plan
    task, buffer = scratch(plan)
    number = [t.id for t in plan.tasks()].index(task.id)
    assert buffer.space is Space.ARENA and buffer.nbytes == 16 * 100 * 8
    assert (buffer.first, buffer.last) == (number, number)
    assert isinstance(buffer.offset, int) and plan.arena is not None and buffer.offset % 512 == 0
    assert 0 <= buffer.offset <= plan.arena - buffer.nbytes
    arena = [b for b in plan.buffers if b.space is Space.ARENA and b.id != buffer.id]
    spans = [(b, b.offset or 0, (b.offset or 0) + int(str(b.nbytes))) for b in arena]
    met = [b for b, low, high in spans if low < buffer.offset + buffer.nbytes and buffer.offset < high]
    assert met and all(b.last < number or b.first > number for b in met)
    verified(plan)


def test_it_counts_in_the_bound_and_in_the_summary() -> None:
    b = Builder("alone")
    x = b.data("x", "float32", (64, 512))
    values, _ = b.op("TopK", x, b.const(np.array([2], np.int64)), outputs=2)
    om = compile_graph(b.build(y=values))
    nbytes = 64 * 512 * 8
    assert om.plan.arena is not None and om.plan.arena >= nbytes
    assert om.memory["workspace"] == nbytes and om.memory["lower_bound"] >= nbytes


def test_people_see_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.helpers import atc

    monkeypatch.setenv("COLUMNS", "200")
    om = ranked()
    path = tmp_path / "ranked.om"
    path.write_bytes(om_bytes(om))
    _, buffer = scratch(om.plan)
    for shown, words in (
        (atc("inspect", path), "workspace 12.5 KiB"),
        (atc("inspect", path, "--tasks"), ", workspace"),
    ):
        assert shown.exit_code == 0 and words in " ".join(shown.output.split())
    assert f"scratch write %-1 in {buffer.id}: uint8[12800]" in print_plan(om.plan)
    assert atc("verify", path).exit_code == 0


def test_it_goes_through_the_file_and_the_text() -> None:
    om = ranked("N")
    again = load(om_bytes(om)).plan
    assert print_plan(again) == print_plan(om.plan)
    blobs = BlobTable()
    text = print_plan(om.plan, blobs)
    assert print_plan(parse_plan(text, blobs.views), blobs) == text


def test_symbolic_sizes_bind() -> None:
    om = ranked("N")
    _, buffer = scratch(om.plan)
    assert str(buffer.nbytes) == "800*N" and buffer.offset is None
    session = Session(om_bytes(om), debug_memory=True)
    for n in (1, 7, 64):
        binding = bind(om.plan, {"N": n})
        assert binding.sizes[buffer.id] == 800 * n and binding.offsets[buffer.id] % 512 == 0
        verify(om.plan, binding.offsets, binding.sizes, binding.env)
        assert session.run(None, {"x": np.ones((n, 64), np.float32)})[0].shape == (n, 100)


def late(unknown: bool) -> Om:
    """TopK over as many columns as there are elements that are not 0; of an unknown rank where that is wanted."""
    b = Builder("late")
    x = b.data("x", "float32", (4, 4))
    found = b.op("Cast", b.op("NonZero", x), to=DType.FLOAT32)
    if unknown:
        declare("acme::Same", inputs="X", outputs="Y")
        custom("acme::Same").kernel(lambda call, x: x.copy())  # type: ignore[union-attr]
        found = b.op("acme::Same", found)
    values, places = b.op("TopK", found, b.const(np.array([2], np.int64)), outputs=2)
    return compile_graph(b.build(v=values, i=places))


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("unknown", [False, True])
def test_sizes_of_the_run_time(unknown: bool, tmp_path: Path) -> None:
    from tests.cli.helpers import atc

    om = late(unknown)
    task, buffer = scratch(om.plan)
    assert buffer.space is Space.DYNAMIC and task.workspace is not None
    assert om.memory["workspace"] == 0
    verified(om.plan)
    data = om_bytes(om)
    (tmp_path / "late.om").write_bytes(data)
    assert atc("verify", tmp_path / "late.om").exit_code == 0
    for session in (Session(data), Session(data, debug_memory=True, shuffle=2)):
        for count in (5, 2, 5):
            x = np.zeros((4, 4), np.float32)
            x.reshape(-1)[-count:] = 1
            rows, columns = np.nonzero(x)
            values, _ = session.run(None, {"x": x})
            np.testing.assert_array_equal(values, [np.sort(p)[::-1][:2] for p in (rows, columns)])


def recurrent(kind: str, gates: int) -> Om:
    b = Builder(kind)
    x = b.data("x", "float32", ("T", "N", 12))
    w, r = (b.const(RNG.normal(size=(2, gates * 8, n)).astype(np.float32)) for n in (12, 8))
    y, *_ = b.op(kind, x, w, r, outputs=2, hidden_size=8, direction="bidirectional")
    return compile_graph(b.build(y=y))


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_gates_of_recurrent_operators(kind: str, gates: int) -> None:
    om = recurrent(kind, gates)
    assert str(scratch(om.plan)[1].nbytes) == f"{gates * 8 * 4}*N*T"
    data = om_bytes(om)
    x = RNG.normal(size=(5, 3, 12)).astype(np.float32)
    [expected] = Session(data).run(None, {"x": x})
    [found] = Session(data, debug_memory=True, shuffle=1).run(None, {"x": x})
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)


def test_two_at_once_have_bytes_of_their_own() -> None:
    """Two towers on two streams: nothing orders their workspaces, so they share nothing."""
    b = Builder("towers")
    x = b.data("x", "float32", (256, 256))
    ends = []
    for _ in range(2):
        v = x
        for _ in range(4):
            v, _ = b.op("TopK", dense(b, v, 256, 256), b.const(np.array([256], np.int64)), outputs=2)
        ends.append(v)
    om = compile_graph(b.build(y=b.op("Add", *ends)), Options(opt_level=0))
    assert om.plan.streams == 2
    by_stream: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for t in om.plan.tasks():
        if t.workspace is not None:
            buffer = om.plan.buffers[t.workspace.buffer]
            assert isinstance(buffer.offset, int) and isinstance(buffer.nbytes, int)
            by_stream[t.stream].append((buffer.offset, buffer.offset + buffer.nbytes))
    assert all(by_stream.values())
    verified(om.plan)
    data, feeds = om_bytes(om), {"x": RNG.normal(size=(256, 256)).astype(np.float32)}
    expected = Session(data).run(None, feeds)
    shuffled = Session(data, debug_memory=True, shuffle=5)
    for _ in range(3):
        np.testing.assert_array_equal(shuffled.run(None, feeds)[0], expected[0])


# -- what is refused -----------------------------------------------------------------------------------------------


def with_buffer(plan: Plan, number: int, **changes: Any) -> Plan:
    return replace(plan, buffers=tuple(replace(b, **changes) if b.id == number else b for b in plan.buffers))


def test_a_workspace_over_a_live_tensor_is_refused() -> None:
    plan = ranked().plan
    task, buffer = scratch(plan)
    number = [t.id for t in plan.tasks()].index(task.id)
    reads = {o.buffer for o in task.inputs if o is not None}
    [live] = [b for b in plan.buffers if b.space is Space.ARENA and b.first < number < b.last and b.id not in reads]
    with pytest.raises(AtcError, match=rf"is scratch memory, written by task {task.id} ") as caught:
        verified(with_buffer(plan, buffer.id, offset=live.offset))
    assert {p.code for p in caught.value.problems} >= {"E31014"}
    own = plan.buffers[next(iter(reads))]
    with pytest.raises(AtcError, match="writes the workspace over input 0"):
        verified(with_buffer(plan, buffer.id, offset=own.offset))


def test_a_workspace_that_is_too_small_is_refused() -> None:
    plan = ranked().plan
    task, _ = scratch(plan)
    assert task.workspace is not None

    def planted(workspace: Any) -> Plan:
        def changed(region: Any) -> Any:
            return replace(
                region, tasks=tuple(replace(t, workspace=workspace) if t is task else t for t in region.tasks)
            )

        return replace(plan, regions=tuple(changed(r) for r in plan.regions))

    short = replace(task.workspace, type=Tensor(DType.UINT8, (12799,)))
    for workspace, held in ((short, 12799), (None, 0)):
        said = f"takes 12800 bytes of workspace, the plan has {held}"
        with pytest.raises(AtcError, match=said) as caught:
            verified(planted(workspace))
        assert [p.code for p in caught.value.problems] == ["E31006"]
        with pytest.raises(AtcError, match=said) as caught:
            BoundPlan(planted(workspace), load(om_bytes(ranked())).weights)
        assert [p.code for p in caught.value.problems] == ["E40002"]
    with pytest.raises(AtcError, match=r"its workspace takes arena"):
        verified(planted(replace(task.workspace, type=Tensor(DType.UINT8, (99999,)))))


# -- operators of one's own ----------------------------------------------------------------------------------------


@pytest.fixture
def dirty(clean: None) -> Iterator[str]:  # noqa: F811
    """An operator whose kernel adds what it finds in its workspace."""
    flags = Flags(deterministic=True, elementwise=True, fusible=True, inplace=(0,))
    op = declare("acme::Dirty", inputs="X", outputs="Y", flags=flags, engine=Engine.AICORE)
    op.infer(lambda n: n.tensor(0))

    @op.workspace
    def _(n: Infer) -> Any:
        return n.tensor(0).elements * 4

    @op.kernel
    def _(call: Call, x: Array) -> Array:
        found = call.from_workspace(x.shape, np.float32)
        y = np.asarray(x + found)
        found[...] = 1
        return y

    yield op.name


def test_what_a_kernel_did_not_write_is_nan_under_debug(dirty: str) -> None:
    b = Builder("dirty")
    x = b.data("x", "float32", (4, 4))
    om = compile_graph(b.build(y=b.op(dirty, b.op("Exp", x), name="dirty")))
    session = Session(om_bytes(om), debug_memory=True)
    for _ in range(2):  # also where the run before has left something
        assert np.isnan(session.run(None, {"x": np.ones((4, 4), np.float32)})[0]).all()


def test_an_operator_with_a_workspace_is_not_fused(dirty: str) -> None:
    def product(followed: bool) -> Graph:
        b = Builder("apart")
        made = b.op("MatMul", b.data("x", "float32", (64, 64)), b.const(np.ones((64, 64), np.float32)))
        return b.build(y=b.op(dirty, made) if followed else made)

    plan = compile_graph(product(True)).plan
    assert [t.kernel for t in plan.tasks() if t.kernel != "TransData"] == ["MatMul", dirty]
    op = custom(dirty)
    assert op is not None
    op.workspace_fn = None
    fused = compile_graph(product(True)).plan
    assert [t.kernel for t in fused.tasks() if t.kernel != "TransData"] == ["Fused"]
    weights = load(om_bytes(compile_graph(product(True)))).weights
    op.workspace(lambda n: n.tensor(0).elements * 4)
    with pytest.raises(AtcError, match=f"{dirty}, an operator with a workspace, inside a fused task"):
        BoundPlan(fused, weights)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda n: -4, "the workspace rule of acme::Odd"),
        (lambda n: 2.5, "gave the size 2.5"),
        (lambda n: n.nothing, "AttributeError"),
    ],
)
def test_rules_that_are_wrong_are_told_with_their_node(rule: Any, said: str) -> None:
    op = declare("acme::Odd", inputs="X", outputs="Y")
    op.infer(lambda n: n.tensor(0))
    op.kernel(lambda call, x: x.copy())
    op.workspace(rule)
    b = Builder("odd")
    graph = b.build(y=b.op("acme::Odd", b.data("x", "float32", (4,)), name="odd"))
    with pytest.raises(AtcError, match=said) as caught:
        compile_graph(graph)
    assert caught.value.problems[0].code == "E16113" and "odd" in caught.value.problems[0].place


@pytest.mark.usefixtures("clean")
def test_kernels_that_take_more_than_they_asked_for() -> None:
    op = declare("acme::Greedy", inputs="X", outputs="Y")
    op.infer(lambda n: n.tensor(0))
    op.workspace(lambda n: 12)
    op.kernel(lambda call, x: call.from_workspace(x.shape, x.dtype))
    b = Builder("greedy")
    session = Session(om_bytes(compile_graph(b.build(y=b.op("acme::Greedy", b.data("x", "float32", (4,)))))))
    with pytest.raises(AtcError, match="takes 16 bytes of workspace, but asked for 12"):
        session.run(None, {"x": np.ones(4, np.float32)})


@pytest.mark.usefixtures("clean")
def test_outside_of_a_plan_it_is_an_ordinary_array() -> None:
    op = declare("acme::Twice", inputs="X", outputs="Y", flags=Flags(deterministic=True))
    op.infer(lambda n: n.tensor(0))
    op.workspace(lambda n: n.tensor(0).elements * 4)
    seen: list[Any] = []

    @op.kernel
    def _(call: Call, x: Array) -> Array:
        seen.append(call.workspace)
        return np.add(x, x, out=call.from_workspace(x.shape, x.dtype)).copy()

    b = Builder("folded")
    x = b.data("x", "float32", (3,))
    om = compile_graph(b.build(y=b.op("Add", x, b.op("acme::Twice", b.const(np.ones(3, np.float32))))))
    assert [t.kernel for t in om.plan.tasks()] == ["Add"] and seen and all(w.nbytes == 12 for w in seen)
    [y] = Session(om_bytes(om)).run(None, {"x": np.zeros(3, np.float32)})
    assert y.tolist() == [2, 2, 2]
