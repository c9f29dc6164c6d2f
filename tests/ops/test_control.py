"""Control flow: types as fixpoints over real subgraphs, and the kernels on onnx's node tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import Dim, Size, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Graph
from atc_py.ir.types import DType, Sequence, Tensor, Type
from atc_py.ops import (  # noqa: F401 - registers the operators
    control,
    fill_ops,
    index_ops,
    scatter_ops,
    sequence_ops,
    shape_ops,
    slice_ops,
    tensor_ops,
)
from atc_py.ops.base import REGISTRY, Call, InferError
from atc_py.ops.build import Scope
from tests.ops import node_models

N = symbol("N")
FLOAT, COUNT, FLAG = DType.FLOAT32, Tensor(DType.INT64, ()), Tensor(DType.BOOL, ())

MANY = [t for t in node_models.node_tests("If", "Loop", "Scan", single=False)
        if t.model.opset_import[0].version >= 13 or t.name in ("test_if", "test_scan9_sum", "test_scan9_scalar")
        if not t.name.startswith("test_affine")]  # fmt: skip


@pytest.mark.parametrize("test", MANY[:24], ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node_models.check(test)


class Model:
    """A graph with inputs of the given types, and bodies built by functions of (scope, values)."""

    def __init__(self, **inputs: Type) -> None:
        self.graph = Graph("outer")
        self.scope = Scope(self.graph)
        self.values = {name: self.graph.add_input(name, t) for name, t in inputs.items()}

    def body(self, types: list[Type], build: Any) -> Graph:
        inner = Graph("body", self.graph.symbols)
        values = [inner.add_input(f"x{i}", t) for i, t in enumerate(types)]
        outputs = build(Scope(inner), *values)
        inner.set_outputs(outputs, [f"y{i}" for i in range(len(outputs))])
        return inner

    def emit(self, op: str, inputs: list[int], bodies: dict[str, Graph], outputs: int, **rest: Any) -> list[Type]:
        got = self.scope.emit(op, inputs, rest.pop("attrs", {}), outputs=outputs, subgraphs=bodies, **rest)
        return [self.graph.type(v) for v in got]


def dims(t: Type) -> tuple[Size, ...]:
    assert isinstance(t, Tensor) and t.shape is not None
    return t.shape


def test_if_keeps_what_both_branches_agree_on() -> None:
    m = Model(cond=FLAG, x=Tensor(FLOAT, (N, 4)))
    x = Tensor(FLOAT, (N, 4))
    then = m.body([x], lambda s, v: s.emit("Transpose", [v], {"perm": (0, 1)}))
    other = m.body([x], lambda s, v: s.emit("Concat", [v, v], {"axis": 1}))
    [t] = m.emit("If", list(m.values.values()), {"then_branch": then, "else_branch": other}, 1, captures=1)
    assert dims(t)[0] == N and isinstance(dims(t)[1], Dim)


def test_if_of_a_known_condition_has_one_branch_type() -> None:
    m = Model(x=Tensor(FLOAT, (N, 4)))
    x = Tensor(FLOAT, (N, 4))
    then = m.body([x], lambda s, v: s.emit("Flatten", [v], {"axis": 0}))
    other = m.body([x], lambda s, v: s.emit("Transpose", [v]))
    cond = m.scope.constant(np.array(True))
    [t] = m.emit("If", [cond, m.values["x"]], {"then_branch": then, "else_branch": other}, 1, captures=1)
    assert dims(t) == (1, 4 * N)


def test_if_of_unequal_ranks_and_of_inner_symbols() -> None:
    m = Model(cond=FLAG, x=Tensor(FLOAT, (2, 4)))
    x = Tensor(FLOAT, (2, 4))
    then = m.body([x], lambda s, v: s.emit("Flatten", [v]) + s.emit("NonZero", [v]))
    other = m.body([x], lambda s, v: s.emit("Reshape", [v, s.constant([8])]) + s.emit("NonZero", [v]))
    ranks, places = m.emit("If", list(m.values.values()), {"then_branch": then, "else_branch": other}, 2, captures=1)
    assert isinstance(ranks, Tensor) and ranks.shape is None
    inner = {s for g in (then, other) for v in g.outputs[1:] for d in dims(g.type(v)) for s in symbols_of(d)}
    assert dims(places)[0] == 2 and not set(symbols_of(dims(places)[1])) & inner


def test_if_of_unequal_dtypes_is_refused() -> None:
    m = Model(cond=FLAG, x=Tensor(FLOAT, (2,)))
    then = m.body([Tensor(FLOAT, (2,))], lambda s, v: [v])
    other = m.body([Tensor(FLOAT, (2,))], lambda s, v: s.emit("Shape", [v]))
    with pytest.raises(InferError):
        m.emit("If", list(m.values.values()), {"then_branch": then, "else_branch": other}, 1, captures=1)


def _grow(s: Scope, i: int, cond: int, v: int, x: int) -> list[int]:
    return [cond, *s.emit("Concat", [v, x], {"axis": 0}), x]


def test_loop_settles_on_sizes_that_change() -> None:
    m = Model(m=COUNT, v=Tensor(FLOAT, (N, 4)), x=Tensor(FLOAT, (1, 4)))
    body = m.body([COUNT, FLAG, Tensor(FLOAT, (N, 4)), Tensor(FLOAT, (1, 4))], _grow)
    v = m.values
    carried, scanned = m.emit("Loop", [v["m"], ABSENT, v["v"], v["x"]], {"body": body}, 2, captures=1)
    assert isinstance(dims(carried)[0], Dim) and dims(carried)[0] != N and dims(carried)[1] == 4
    inside = dims(body.type(body.inputs[2]))
    assert inside[0] != N and inside[0] != dims(carried)[0] and inside[1] == 4
    assert dims(body.type(body.outputs[1]))[0] == inside[0] + 1
    assert len(dims(scanned)) == 3 and dims(scanned)[1:] == (1, 4)


@pytest.mark.parametrize(("limit", "want"), [(5, 5), (-2, 0)])
def test_loop_by_count_knows_its_trips(limit: int, want: int) -> None:
    m = Model(v=Tensor(FLOAT, (N,)))
    body = m.body([COUNT, FLAG, Tensor(FLOAT, (N,))], lambda s, i, c, v: [c, v, v])
    count = m.scope.constant(np.array(limit, np.int64))
    carried, scanned = m.emit("Loop", [count, ABSENT, m.values["v"]], {"body": body}, 2)
    assert dims(carried) == (N,) and dims(scanned) == (want, N)


def test_loop_forgets_a_rank() -> None:
    m = Model(m=COUNT, v=Tensor(FLOAT, (4,)))
    body = m.body(
        [COUNT, FLAG, Tensor(FLOAT, (4,))], lambda s, i, c, v: [c, *s.emit("Unsqueeze", [v, s.constant([0])])]
    )
    [carried] = m.emit("Loop", [m.values["m"], ABSENT, m.values["v"]], {"body": body}, 1)
    assert isinstance(carried, Tensor) and carried.shape is None


def test_loop_over_a_sequence() -> None:
    item = Tensor(FLOAT, (N,))
    m = Model(m=COUNT, x=item, s=Sequence(item))
    body = m.body([COUNT, FLAG, Sequence(item), item], lambda s, i, c, v, x: [c, *s.emit("SequenceInsert", [v, x])])
    v = m.values
    [carried] = m.emit("Loop", [v["m"], ABSENT, v["s"], v["x"]], {"body": body}, 1, captures=1)
    assert carried == Sequence(item)


def test_scan_types_follow_the_axes() -> None:
    m = Model(state=Tensor(FLOAT, (3,)), x=Tensor(FLOAT, (3, N)))
    body = m.body(
        [Tensor(FLOAT, (3,)), Tensor(FLOAT, (3,))], lambda s, a, b: [b, *s.emit("Concat", [a, b], {"axis": 0})]
    )
    attrs = {"num_scan_inputs": 1, "scan_input_axes": (1,), "scan_output_axes": (-1,)}
    state, out = m.emit("Scan", list(m.values.values()), {"body": body}, 2, attrs=attrs)
    assert dims(state) == (3,) and dims(out) == (6, N)


def _body(fn: Any) -> dict[str, Any]:
    return {"body": lambda values: fn(*values)}


def test_loop_kernel_without_iterations() -> None:
    kernel = REGISTRY["Loop"].kernel_fn
    assert kernel is not None
    types = (Tensor(FLOAT, (2,)), Tensor(DType.INT32, (symbol("trips"), 3, N)))
    call = Call({"_captures": 0}, types, [None, None], bodies=_body(lambda *v: [v[1], v[2], v[2]]))
    carried, scanned = kernel(call, np.array(0), None, np.ones(2, np.float32))
    assert carried.tolist() == [1, 1] and scanned.shape == (0, 3, 0) and scanned.dtype == np.int32


def test_loop_kernel_stops_by_condition_and_ignores_it_when_absent() -> None:
    kernel = REGISTRY["Loop"].kernel_fn
    assert kernel is not None

    def step(i: Any, cond: Any, v: Any, x: Any) -> list[Any]:
        return [np.array(i < 2), v + x, v]

    call = Call({"_captures": 1}, (None, None), [None, None], bodies=_body(step))
    total, seen = kernel(call, None, np.array(True), np.float32(0), np.float32(1))
    assert total == 3 and seen.tolist() == [0, 1, 2]
    total, _ = kernel(call, np.array(5), None, np.float32(0), np.float32(1))
    assert total == 5
    total, _ = kernel(call, np.array(5), np.array(False), np.float32(0), np.float32(1))
    assert total == 0


def test_scanned_values_outlive_the_body_s_memory() -> None:
    kernel = REGISTRY["Loop"].kernel_fn
    assert kernel is not None
    memory = np.zeros(1)

    def step(i: Any, cond: Any) -> list[Any]:
        memory[:] = i
        return [cond, memory]

    call = Call({"_captures": 0}, (None,), [None], bodies=_body(step))
    assert kernel(call, np.array(3), None)[0].tolist() == [[0], [1], [2]]


def test_scan_kernel_backward_along_other_axes() -> None:
    kernel = REGISTRY["Scan"].kernel_fn
    assert kernel is not None
    attrs = {"num_scan_inputs": 1, "scan_input_axes": (1,), "scan_input_directions": (1,), "scan_output_axes": (1,),
             "scan_output_directions": (1,), "_captures": 1}  # fmt: skip
    call = Call(attrs, (None, None), [None, None], bodies=_body(lambda s, x, k: [s + x, s * k]))
    state, out = kernel(call, np.zeros(2), np.array([[1, 2, 3], [4, 5, 6]]), 10.0)
    assert state.tolist() == [6, 15] and out.tolist() == [[50, 30, 0], [110, 60, 0]]
