"""`Session`: names, dtypes and shapes, fresh results, threads, and new shapes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from atc_py import AtcError, Session
from atc_py.plan.types import Task
from atc_py.runtime.session import BINDINGS_KEPT
from tests.making import (
    BFLOAT16,
    BOOL,
    FLOAT,
    FLOAT16,
    INT64,
    STRING,
    body_attribute,
    graph,
    model,
    node,
    om_of,
    sequence_of,
    session,
)


def refused(call: Any) -> AtcError:
    with pytest.raises(AtcError) as caught:
        call()
    for problem in caught.value.problems:
        assert problem.code and problem.place and problem.cause and problem.hint, problem
    return caught.value


@pytest.fixture(scope="module")
def affine() -> Session:
    """y = x·w + b with a symbolic batch, z = Relu(y)."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"]), node("Relu", ["y"], ["z"])]
    constants = {"w": np.eye(4, dtype=np.float32) * 2, "b": np.array([1, 2, 3, -4], np.float32)}
    return session(model(nodes, {"x": (FLOAT, ["N", 4])}, ["z", "y"], constants))


# -- what the model says about itself --------------------------------------------------------------------------


def test_inputs_and_outputs_in_order(affine: Session) -> None:
    [x] = affine.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["N", 4])
    assert [(o.name, o.shape) for o in affine.get_outputs()] == [("z", ["N", 4]), ("y", ["N", 4])]


def test_outputs_by_name_in_the_order_asked_for(affine: Session) -> None:
    x = np.ones((1, 4), np.float32)
    z, y = affine.run(None, {"x": x})
    np.testing.assert_array_equal(y, [[3, 4, 5, -2]])
    np.testing.assert_array_equal(z, [[3, 4, 5, 0]])
    [only] = affine.run(["y"], {"x": x})
    np.testing.assert_array_equal(only, y)
    twice = affine.run(["y", "z", "y"], {"x": x})
    for got, want in zip(twice, [y, z, y], strict=True):
        np.testing.assert_array_equal(got, want)
    assert len(affine.run([], {"x": x})) == 2


# -- what is wrong is said, all of it --------------------------------------------------------------------------


def test_wrong_names(affine: Session) -> None:
    e = refused(lambda: affine.run(None, {"X": np.ones((1, 4), np.float32)}))
    assert [p.code for p in e.problems] == ["E30005", "E30007"]
    assert "'x'" in str(e) and "float32[N, 4]" in str(e)
    e = refused(lambda: affine.run(["nope", "y"], {"x": np.ones((1, 4), np.float32)}))
    assert e.code == "E30006" and "nope" in str(e) and "'z'" in str(e)


def test_wrong_dtype(affine: Session) -> None:
    e = refused(lambda: affine.run(None, {"x": np.ones((1, 4))}))
    assert e.code == "E30008" and "float64" in str(e) and "float32" in str(e)


@pytest.mark.parametrize("shape", [(4,), (1, 5), (1, 4, 1), ()])
def test_wrong_shape(affine: Session, shape: tuple[int, ...]) -> None:
    e = refused(lambda: affine.run(None, {"x": np.ones(shape, np.float32)}))
    assert e.code == "E30001" and str(list(shape)) in str(e) and "[N, 4]" in str(e)


def test_shapes_that_contradict_each_other() -> None:
    two = session(model([node("Add", ["a", "b"], ["y"])], {"a": (FLOAT, ["N", 2]), "b": (FLOAT, ["N", 2])}, ["y"]))
    ones = np.ones
    e = refused(lambda: two.run(None, {"a": ones((2, 2), np.float32), "b": ones((3, 2), np.float32)}))
    assert e.code == "E30001" and "'b'" in str(e)


def test_several_mistakes_are_said_at_once() -> None:
    two = session(model([node("Add", ["a", "b"], ["y"])], {"a": (FLOAT, [2]), "b": (FLOAT, [2])}, ["y"]))
    e = refused(lambda: two.run(None, {"a": np.ones(2), "b": np.ones(2, int), "c": 1}))
    assert len(e.problems) == 3
    e = refused(lambda: two.run(None, {"a": np.ones(3, np.float32), "b": np.ones(1, np.float32)}))
    assert len(e.problems) == 2


@pytest.mark.parametrize("value", [None, "text", [[1.0, 2.0], [1.0]], {"a": 1}, object(), [np.ones(2), 3]])
def test_values_that_are_no_arrays(affine: Session, value: Any) -> None:
    refused(lambda: affine.run(None, {"x": value}))


@pytest.mark.parametrize("feeds", [None, [], 3, "x"])
def test_feeds_that_are_no_mapping(affine: Session, feeds: Any) -> None:
    refused(lambda: affine.run(None, feeds))


def test_values_for_sequences_are_checked() -> None:
    concat = session(model([node("ConcatFromSequence", ["s"], ["y"], axis=0)], {"s": sequence_of(FLOAT, ["N"])}, ["y"]))
    for value in (np.ones(3, np.float32), [np.ones(3)], ["a"], None, 3, [[1.0]]):
        refused(lambda v=value: concat.run(None, {"s": v}))


def test_values_for_strings_are_checked() -> None:
    normalize = node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")
    upper = session(model([normalize], {"x": (STRING, [2])}, ["y"]))
    for value in (np.ones(2, np.float32), np.array([1, 2], object), [None, "a"], np.array([b"\xff", 3], object)):
        refused(lambda v=value: upper.run(None, {"x": v}))


# -- kinds of values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("onnx_dtype", "numpy_dtype"),
    [
        (FLOAT16, np.float16),
        (BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.INT4, ml_dtypes.int4),
        (TensorProto.UINT4, ml_dtypes.uint4),
        (TensorProto.INT2, ml_dtypes.int2),
        (TensorProto.UINT2, ml_dtypes.uint2),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.FLOAT8E8M0, ml_dtypes.float8_e8m0fnu),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
        (BOOL, np.bool_),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT16, np.uint16),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.COMPLEX64, np.complex64),
        (TensorProto.COMPLEX128, np.complex128),
    ],
)
def test_every_dtype_goes_in_and_comes_out(onnx_dtype: int, numpy_dtype: Any) -> None:
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Transpose", ["r"], ["y"], perm=[1, 0])]
    proto = model(nodes, {"x": (onnx_dtype, [6])}, ["y"], {"s": np.array([2, 3])})
    x = np.array([0, 1, 1, 0, 1, 0]).astype(numpy_dtype)
    [y] = session(proto).run(None, {"x": x})
    assert y.dtype == np.dtype(numpy_dtype) and y.shape == (3, 2)
    np.testing.assert_array_equal(y.astype(np.complex128), x.reshape(2, 3).T.astype(np.complex128))


def test_strings() -> None:
    upper = session(
        model([node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")], {"x": (STRING, ["N"])}, ["y"])
    )
    for value in (np.array(["grün", "b"], object), np.array(["grün", "b"]), ["grün", "b"]):
        [y] = upper.run(None, {"x": value})
        assert y.tolist() == ["GRÜN", "B"] and y.dtype == object


def test_sequences() -> None:
    nodes = [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceLength", ["t"], ["n"])]
    proto = model(nodes, {"s": sequence_of(FLOAT), "x": (FLOAT, [2])}, ["t", "n"])
    values = [np.zeros(3, np.float32), np.ones((1, 2), np.float32)]
    x = np.array([7, 8], np.float32)
    runner = session(proto)
    t, n = runner.run(None, {"s": values, "x": x})
    assert n == 3 and len(values) == 2
    for got, want in zip(t, [*values, x], strict=True):
        np.testing.assert_array_equal(got, want)
    x[:] = 0
    assert t[2].tolist() == [7, 8], "a result must not change with the caller's array"
    assert runner.run(["n"], {"s": [], "x": x})[0] == 1


def test_scalars_and_lists_are_taken_as_arrays() -> None:
    add = session(model([node("Add", ["a", "b"], ["y"])], {"a": (TensorProto.INT64, []), "b": (INT64, [2])}, ["y"]))
    [y] = add.run(None, {"a": 1, "b": [2, 3]})
    assert y.tolist() == [3, 4]


@pytest.mark.parametrize("kind", ["transposed", "reversed", "strided", "broadcast", "unaligned", "swapped", "readonly"])
def test_any_memory_layout_of_inputs(affine: Session, kind: str) -> None:
    base = np.arange(32, dtype=np.float32).reshape(4, 8)
    x = {
        "transposed": base[:, :4].T,
        "reversed": base[::-1, 3::-1],
        "strided": base[::2, ::2],
        "broadcast": np.broadcast_to(base[0, :4], (3, 4)),
        "unaligned": np.frombuffer(b"\0" + base[:, :4].tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 4),
        "swapped": base[:, :4].astype(">f4"),
        "readonly": np.frombuffer(base.tobytes(), np.float32).reshape(8, 4),
    }[kind]
    before = x.copy()
    [y] = affine.run(["y"], {"x": x})
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, before.astype(np.float32) * 2 + np.array([1, 2, 3, -4], np.float32))


# -- results are the caller's ----------------------------------------------------------------------------------


def test_results_are_fresh(affine: Session) -> None:
    first = affine.run(None, {"x": np.ones((2, 4), np.float32)})
    kept = [r.copy() for r in first]
    second = affine.run(None, {"x": np.zeros((2, 4), np.float32)})
    for a, b, c in zip(first, kept, second, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.shares_memory(a, c) and a.flags.writeable
        a[:] = 5
    np.testing.assert_array_equal(affine.run(None, {"x": np.ones((2, 4), np.float32)})[0], kept[0])


def test_inputs_constants_and_the_same_value_twice_as_outputs() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["again"]), node("Reshape", ["r", "s"], ["flat"])]
    constants = {"c": np.array([1, 2], np.float32), "s": np.array([-1]), "k": np.array([[4]], np.float32)}
    proto = model(nodes, {"x": (FLOAT, ["N", 2])}, ["x", "c", "r", "again", "flat"], constants)
    for level in (0, 2):
        runner = session(proto, opt_level=level)
        x = np.array([[1, -1], [2, -2]], np.float32)
        outputs = runner.run(None, {"x": x})
        want = [x, constants["c"], np.maximum(x, 0), np.maximum(x, 0), np.maximum(x, 0).reshape(-1)]
        for i, (got, right) in enumerate(zip(outputs, want, strict=True)):
            np.testing.assert_array_equal(got, right)
            assert not np.shares_memory(got, x)
            assert not any(np.shares_memory(got, other) for other in outputs[:i])
            got[...] = 9
        for got, right in zip(runner.run(None, {"x": x}), want, strict=True):
            np.testing.assert_array_equal(got, right)


def test_a_model_of_constants_only() -> None:
    proto = model(
        [node("Add", ["a", "b"], ["y"])], {}, ["y"], {"a": np.array([1], np.float32), "b": np.array([2], np.float32)}
    )
    for level in (0, 2):
        assert session(proto, opt_level=level).run(None, {})[0].tolist() == [3]


def test_an_output_that_is_an_input_of_a_kind_without_bytes() -> None:
    proto = model([node("Identity", ["s"], ["y"])], {"s": (STRING, [1]), "q": sequence_of(FLOAT)}, ["y", "s", "q"])
    y, s, q = session(proto).run(None, {"s": ["a"], "q": [np.ones(2, np.float32)]})
    assert y.tolist() == s.tolist() == ["a"] and q[0].tolist() == [1, 1]


# -- shapes ----------------------------------------------------------------------------------------------------


def test_new_shapes_are_bound_and_kept(affine: Session) -> None:
    for n in (1, 3, 1, 0, 7, 3):
        x = np.full((n, 4), n, np.float32)
        [y] = affine.run(["y"], {"x": x})
        np.testing.assert_array_equal(y, x * 2 + np.array([1, 2, 3, -4], np.float32))
    bound = affine.bound({"x": np.ones((3, 4), np.float32)})
    assert affine.bound({"x": np.zeros((3, 4), np.float32)}) is bound
    assert affine.bound({"x": np.zeros((4, 4), np.float32)}) is not bound


def test_only_so_many_shapes_are_kept(affine: Session) -> None:
    first = affine.bound({"x": np.ones((1, 4), np.float32)})
    for n in range(2, BINDINGS_KEPT + 3):
        affine.run(None, {"x": np.ones((n, 4), np.float32)})
    assert affine.bound({"x": np.ones((1, 4), np.float32)}) is not first
    assert len(affine._pools) == BINDINGS_KEPT


def test_an_empty_batch_through_many_operators() -> None:
    from pathlib import Path

    from atc_py import compile_model
    from atc_py.emit import om_bytes

    root = Path(__file__).resolve().parent.parent
    runner = Session(om_bytes(compile_model(root / "models/small_cnn.onnx")))
    [y] = runner.run(None, {"x": np.empty((0, 3, 32, 32), np.float32)})
    assert y.shape == (0, 10)
    runner = Session(om_bytes(compile_model(root / "models/small_transformer.onnx")))
    assert runner.run(None, {"x": np.empty((0, 5, 32), np.float32)})[0].shape == (0, 5, 32)


def test_sizes_that_only_the_run_time_knows() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("Cast", ["t"], ["y"], to=FLOAT)]
    runner = session(model(nodes, {"x": (FLOAT, ["N", 3])}, ["i", "y"]))
    for x in (np.eye(3), np.zeros((2, 3)), np.ones((1, 3)), np.ones((0, 3)), np.eye(3)):
        i, y = runner.run(None, {"x": x.astype(np.float32)})
        np.testing.assert_array_equal(i, np.array(np.nonzero(x)))
        np.testing.assert_array_equal(y, np.array(np.nonzero(x)).T.astype(np.float32))


def test_a_failed_run_leaves_the_session_usable() -> None:
    runner = session(model([node("Gather", ["x", "i"], ["y"])], {"x": (FLOAT, [3]), "i": (INT64, [1])}, ["y"]))
    x = np.array([1, 2, 3], np.float32)
    e = refused(lambda: runner.run(None, {"x": x, "i": np.array([7])}))
    assert e.code == "E40001"
    assert runner.run(None, {"x": x, "i": np.array([2])})[0].tolist() == [3]


def test_elements_of_sequences_outlive_the_memory_that_they_were_made_in() -> None:
    """What a slot holds must not be a view of the arena, which is used again."""
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("SplitToSequence", ["a"], ["s"], axis=0, keepdims=1),
        node("SequenceInsert", ["s", "a"], ["t"]),
        node("SequenceLength", ["t"], ["n"]),
        node("Cast", ["n"], ["f"], to=FLOAT),
        node("Add", ["x", "f"], ["c0"]),  # so that all of this runs after the sequence was made
        *[node("Sin" if i % 2 else "Cos", [f"c{i}"], [f"c{i + 1}"]) for i in range(6)],
        node("Mul", ["c6", "c2"], ["c"]),
        node("ReduceMin", ["c"], ["m"], keepdims=0),
        node("Mul", ["m", "zero"], ["p"]),
        node("Cast", ["p"], ["position"], to=INT64),
        node("SequenceErase", ["t", "position"], ["rest"]),  # read long after it was made
        node("ConcatFromSequence", ["rest"], ["y"], axis=0),
    ]
    proto = model(nodes, {"x": (FLOAT, [3, 4])}, ["y"], {"zero": np.float32(0)})
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    [y] = session(proto, opt_level=0).run(None, {"x": x})
    np.testing.assert_allclose(y, np.concatenate([np.exp(x)[1:], np.exp(x)]), rtol=1e-5)


# -- threads ---------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def test_four_threads_on_one_session() -> None:
    from pathlib import Path

    from atc_py import compile_model
    from atc_py.emit import om_bytes

    path = Path(__file__).resolve().parent.parent / "models/small_cnn.onnx"
    runner = Session(om_bytes(compile_model(path)))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1 + i % 2, 3, 32, 32)).astype(np.float32)} for i in range(4)]
    want = [runner.run(None, f)[0] for f in feeds]

    def work(number: int) -> None:
        for _ in range(10):
            np.testing.assert_array_equal(runner.run(None, feeds[number])[0], want[number])

    in_threads(4, work)


def test_threads_with_loops_and_run_time_sizes() -> None:
    body = graph(
        [node("Identity", ["c"], ["c1"]), node("Add", ["s", "s"], ["s1"]), node("Relu", ["s1"], ["item"])],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, ["N"])},
        ["c1", "s1", "item"],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "items"])
    loop.attribute.append(body_attribute(body))
    runner = session(model([loop], {"x": (FLOAT, ["N"]), "n": (INT64, [])}, ["y", "items"]))

    def work(number: int) -> None:
        for trips in (0, 1, number, 5):
            y, items = runner.run(None, {"x": np.array([1, -1], np.float32), "n": np.array(trips)})
            assert y.tolist() == [2**trips, -(2**trips)] and items.shape == (trips, 2)

    in_threads(4, work)


def test_a_session_from_a_path_bytes_and_a_loaded_file(tmp_path: Any) -> None:
    from atc_py.runtime.loader import load

    data = om_of(model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"]))
    (tmp_path / "m.om").write_bytes(data)
    x = np.array([-1, 2], np.float32)
    for source in (data, tmp_path / "m.om", str(tmp_path / "m.om"), load(data)):
        assert Session(source, check="full").run(None, {"x": x})[0].tolist() == [0, 2]


def test_optional_inputs_and_outputs() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    nodes = [node("OptionalHasElement", ["o"], ["has"])]
    runner = session(model(nodes, {"o": kind}, ["has", "o"]))
    has, o = runner.run(None, {"o": np.array([1, 2], np.float32)})
    assert has and o.tolist() == [1, 2]
    has, o = runner.run(None, {"o": None})
    assert not has and o is None


def test_results_are_written_into_the_callers_arrays() -> None:
    double = session(model([node("Add", ["x", "x"], ["y"])], {"x": (FLOAT, ["N", 2])}, ["y"]))
    y = np.zeros((3, 2), np.float32)
    double.run_bound({"x": np.ones((3, 2), np.float32)}, {"y": y})
    np.testing.assert_array_equal(y, np.full((3, 2), 2.0))
    for wrong in (np.zeros((2, 2), np.float32), np.zeros((3, 2)), np.zeros((2, 3), np.float32).T, None):
        with pytest.raises(AtcError) as e:
            double.run_bound({"x": np.ones((3, 2), np.float32)}, {"y": wrong})
        assert e.value.code == "E30028"


def test_arguments_are_named_as_onnxruntime_names_them() -> None:
    double = session(model([node("Add", ["x", "x"], ["y"])], {"x": (FLOAT, ["N", 2])}, ["y"]))
    x = np.ones((1, 2), np.float32)
    [y] = double.run(output_names=[], input_feed={"x": x}, run_options=None)
    np.testing.assert_array_equal(y, 2 * x)
    with pytest.raises(AtcError) as e:
        double.run("y", {"x": x})
    assert e.value.code == "E30006" and "['y']" in e.value.problems[0].hint
    assert "x: tensor(float)" in repr(double) and double.get_providers()


def test_binding_one_shape_does_not_stop_runs_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    import atc_py.runtime.session as module
    from atc_py.npu.device import BoundPlan

    s = session(model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["N"])}, ["y"]))
    s.run(None, {"x": np.ones(1, np.float32)})
    begun, go = threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return BoundPlan(*given)

    monkeypatch.setattr(module, "BoundPlan", slow)
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(s.run(None, {"x": np.ones(2, np.float32)})))
    same = threading.Thread(target=lambda: results.append(s.run(None, {"x": np.ones(1, np.float32)})))
    other.start()
    assert begun.wait(60)
    same.start()
    same.join(60)
    assert [len(r[0]) for r in results] == [1]
    go.set()
    other.join(60)
    assert [len(r[0]) for r in results] == [1, 2]


def test_tasks_of_sizes_that_come_back_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose size only the run knows is kept for each size; other sizes between do not disturb it."""
    from atc_py.npu.binder import Binder, Step

    nodes = [node("NonZero", ["x"], ["at"]), node("Cast", ["at"], ["f"], to=FLOAT), node("Exp", ["f"], ["y"])]
    s = session(model(nodes, {"x": (FLOAT, [6])}, ["y"]))
    bound: list[str] = []
    step = Binder.step

    def noted(self: Binder, task: Task, env: Mapping[str, int]) -> Step:
        bound.append(task.kernel)
        return step(self, task, env)

    monkeypatch.setattr(Binder, "step", noted)
    counts = []
    for ones in (2, 4, 2, 4, 0, 2):
        x = (np.arange(6) < ones).astype(np.float32)
        [y] = s.run(None, {"x": x})
        np.testing.assert_allclose(y, np.exp(np.nonzero(x)).astype(np.float32), 1e-6)
        counts.append(len(bound))
    assert counts[0] > 0 and counts[1] > counts[0] and counts[3] == counts[1] and counts[5] == counts[4]


def test_what_inputs_make_too_small_for_its_reader_is_said_so() -> None:
    longer = graph([node("Concat", ["x", "x"], ["c"], axis=0)], {}, ["c"])
    same = graph([node("Tan", ["x"], ["t"])], {}, ["t"])
    nodes = [
        node("If", ["p"], ["y"], then_branch=longer, else_branch=same),
        node("Reshape", ["y", "s"], ["r"]),
        node("Sin", ["r"], ["o"]),
    ]
    one = session(model(nodes, {"x": (FLOAT, [8, 4]), "p": (BOOL, [])}, ["o"], {"s": np.array([16, 4])}))
    x = np.ones((8, 4), np.float32)
    assert one.run(None, {"x": x, "p": np.array(True)})[0].shape == (16, 4)
    [problem] = refused(lambda: one.run(None, {"x": x, "p": np.array(False)})).problems
    assert problem.code == "E40002" and "float32[8, 4]" in problem.cause and "float32[16, 4]" in problem.cause
