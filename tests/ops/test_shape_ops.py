"""Shapes and values of the shape family, on ints and on symbolic dims, and its kernels on edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import Dim, Size, dmax, dmin, symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import fill_ops, shape_ops, slice_ops, tensor_ops  # noqa: F401 - registers the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from atc_py.ops.shapes import as_objects
from tests.ops import node_models

N, S, H = symbol("N"), symbol("S"), symbol("H")
FAR = 2**63 - 1


def build(op: str, shapes: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 1, **values: Any) -> Infer:
    """An Infer whose inputs have the given shapes (a list is an int64 vector's known value)."""
    types: list[Any] = []
    known: list[Any] = []
    for shape in shapes:
        if isinstance(shape, list):
            array = as_objects(shape) if any(isinstance(x, Dim) for x in shape) else np.array(shape, np.int64)
            types.append(Tensor(DType.INT64, (len(shape),)))
            known.append(array)
        else:
            types.append(shape if shape is None or isinstance(shape, Tensor) else Tensor(DType.FLOAT32, shape))
            known.append(None)
    return Infer(tuple(types), REGISTRY[op].attributes(attrs or {}), outputs, tuple(known), symbol)


def shape_of(op: str, shapes: list[Any], attrs: dict[str, Any] | None = None) -> tuple[Size, ...] | None:
    infer = REGISTRY[op].infer_fn
    assert infer is not None
    t = infer(build(op, shapes, attrs))
    assert isinstance(t, Tensor)
    return t.shape


def value_of(op: str, shapes: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 1) -> Any:
    value = REGISTRY[op].value_fn
    assert value is not None
    return value(build(op, shapes, attrs, outputs))


def run(op: str, attrs: dict[str, Any] | None, *inputs: Any, outputs: int = 1) -> Any:
    kernel = REGISTRY[op].kernel_fn
    assert kernel is not None
    return kernel(Call(REGISTRY[op].attributes(attrs or {}), (None,) * outputs, [None] * outputs), *inputs)


OPS = ("Shape", "Size", "Reshape", "Flatten", "Expand", "Tile", "Range", "ConstantOfShape", "EyeLike", "NonZero")
MORE = ("OneHot", "Trilu", "Transpose", "Concat", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Col2Im")


@pytest.mark.parametrize("test", node_models.node_tests(*OPS, *MORE), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node_models.check(test)


INPUT_FORM = [t for t in node_models.node_tests("Squeeze", "Unsqueeze", "Split", "Slice", "Pad")
              if t.model.opset_import[0].version >= 13]  # fmt: skip


@pytest.mark.parametrize("test", INPUT_FORM, ids=lambda t: t.name)
def test_node_with_axes_as_inputs(test: node_models.NodeTest) -> None:
    node_models.check(test)


@pytest.mark.parametrize(
    ("data", "target", "want"),
    [
        ((N, S, 768), [0, -1, 12, 64], (N, S, 12, 64)),
        ((N, S, 12, 64), [0, 0, -1], (N, S, 768)),
        ((N, 16, H, H), [0, 16, -1], (N, 16, H * H)),
        ((2, 3, 4), [-1], (24,)),
        ((2 * N, S), [N, -1], (N, 2 * S)),
        ((N, S), [-1], (N * S,)),
        ((0, 3), [0, -1], (0, 0)),
        ((N, 5), [N * 5], (N * 5,)),
    ],
)
def test_reshape_symbolic(data: Any, target: list[Any], want: Any) -> None:
    if data == (0, 3):  # an empty dim leaves nothing to divide by
        assert shape_of("Reshape", [data, [0, 3]]) == (0, 3)
        return
    assert shape_of("Reshape", [data, target]) == want


def test_reshape_of_unknown() -> None:
    fresh = shape_of("Reshape", [(2, 3), Tensor(DType.INT64, (3,))])
    assert fresh is not None and len(fresh) == 3 and len(set(map(str, fresh))) == 3
    assert shape_of("Reshape", [(2, N), Tensor(DType.INT64, (1,))]) == (2 * N,)
    assert shape_of("Reshape", [(2, N), Tensor(DType.INT64, None)]) is None
    assert shape_of("Reshape", [Tensor(DType.FLOAT32, None), [N, 4]]) == (N, 4)


@pytest.mark.parametrize(("data", "target"), [((2, 3), [4, -1]), ((2, 3), [7]), ((2, 3), [-1, -1]), ((2,), [2, 0])])
def test_reshape_that_does_not_fit(data: Any, target: list[int]) -> None:
    with pytest.raises(InferError):
        shape_of("Reshape", [data, target])


def test_reshape_allowzero() -> None:
    assert shape_of("Reshape", [(0, 5), [3, 0]], {"allowzero": 1}) == (3, 0)
    got = run("Reshape", {"allowzero": 1}, np.zeros((0, 5)), np.array([3, 0]))
    assert got.shape == (3, 0)


def test_shape_arithmetic_follows_symbols() -> None:
    shape = value_of("Shape", [(N, 3, H, 4)])
    assert list(shape) == [N, 3, H, 4]
    tail = value_of("Slice", [list(shape), [2], [FAR]])
    assert list(tail) == [H, 4]
    joined = value_of("Concat", [[N], list(tail)], {"axis": 0})
    assert list(joined) == [N, H, 4]
    halves = value_of("Split", [[N, 3, H, 4], [1, 3]], {"axis": 0}, outputs=2)
    assert [list(h) for h in halves] == [[N], [3, H, 4]]
    assert value_of("Size", [(N, 3)]).item() == 3 * N
    concrete = value_of("Shape", [(N, 3, H, 4)], {"start": -1})
    assert concrete.dtype == np.int64 and concrete.tolist() == [4]
    assert value_of("Unsqueeze", [[N, 2], [0]]).shape == (1, 2)
    assert list(value_of("Expand", [[N], [2]])) == [N, N]
    assert list(value_of("Tile", [[N, 1], [2]])) == [N, 1, N, 1]
    assert value_of("ConstantOfShape", [[2, 2]]).tolist() == [[0, 0], [0, 0]]
    assert list(value_of("Pad", [[N, 2], [1, 0]])) == [0, N, 2]


def test_values_stay_small() -> None:
    assert value_of("Tile", [[1], [10**12]]) is None
    assert value_of("Expand", [[1], [10**12]]) is None
    assert value_of("Range", [[0], [10**12], [1]]) is None
    assert value_of("ConstantOfShape", [[10**6, 10**6]]) is None


def test_range_counts() -> None:
    assert shape_of("Range", [[0], [N], [1]]) == (N,)
    assert shape_of("Range", [[2], [N], [3]]) == (dmax(0, (N) // 3),)
    assert shape_of("Range", [[N], [0], [-2]]) == ((N + 1) // 2,)
    assert shape_of("Range", [[5], [0], [1]]) == (0,)
    with pytest.raises(InferError):
        shape_of("Range", [[0], [5], [0]])
    half = run("Range", {}, np.float16(0), np.float16(4096), np.float16(1))
    assert half.size == 4096 and half[-1] == 4096  # 4095 rounds to it in float16


SLICES = [
    ((N, 10), [1], [FAR], [1], [3], (N, 3)),
    ((N,), [0], [FAR], [0], [1], (N,)),
    ((N,), [-1], [FAR], [0], [1], (dmin(1, N),)),
    ((N,), [0], [-1], [0], [1], (dmax(N - 1, 0),)),
    ((N,), [FAR], [-FAR - 1], [0], [-1], (N,)),
    ((N,), [0], [S], [0], [1], (dmin(N, S),)),
    ((N,), [0], [N], [0], [1], (N,)),
    ((N + S,), [N], [FAR], [0], [1], (S,)),
    ((2 * N,), [0], [N], [0], [1], (N,)),
    ((7,), [5], [1], [0], [-2], (2,)),
    ((7,), [2], [5], [0], [-1], (0,)),
    ((7,), [-3], [FAR], [-1], [2], (2,)),
    ((0,), [0], [5], [0], [1], (0,)),
    ((0,), [-1], [-5], [0], [-1], (0,)),
]


@pytest.mark.parametrize(("data", "starts", "ends", "axes", "steps", "want"), SLICES)
def test_slice_shapes(data: Any, starts: Any, ends: Any, axes: Any, steps: Any, want: Any) -> None:
    assert shape_of("Slice", [data, starts, ends, axes, steps]) == want


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("start", [-(2**63), -6, -2, 0, 3, 2**63 - 1])
@pytest.mark.parametrize("end", [-(2**63), -6, -1, 0, 4, 2**63 - 1])
def test_slice_infers_what_it_takes(size: int, step: int, start: int, end: int) -> None:
    x = np.arange(size)
    got = run("Slice", {}, x, np.array([start]), np.array([end]), None, np.array([step]))
    assert shape_of("Slice", [(size,), [start], [end], None, [step]]) == got.shape
    symbolic = shape_of("Slice", [(N,), [start], [end], None, [step]])
    assert symbolic is not None
    from atc_py.ir.dims import evaluate

    assert evaluate(symbolic[0], {"N": size}) == got.shape[0]
    low = min(max(start + size if start < 0 else start, 0), size if step > 0 else size - 1)
    stop = min(max(end + size if end < 0 else end, 0 if step > 0 else -1), size if step > 0 else size - 1)
    assert got.tolist() == [i for i in range(low, stop, step) if 0 <= i < size]


def test_slice_by_what_is_not_known() -> None:
    shape = shape_of("Slice", [(N, 4, 5), Tensor(DType.INT64, (1,)), Tensor(DType.INT64, (1,)), [1]])
    assert shape is not None and shape[0] == N and shape[2] == 5 and isinstance(shape[1], Dim)
    assert shape_of("Slice", [Tensor(DType.FLOAT32, None), [0], [1]]) is None


def test_pad_shapes_and_negative_pads() -> None:
    assert shape_of("Pad", [(N, 4), [0, -1, 2, 3]]) == (N + 2, 6)
    x = np.arange(5, dtype=np.float32)
    assert run("Pad", {}, x, np.array([-2, 3])).tolist() == [2, 3, 4, 0, 0, 0]
    assert run("Pad", {"mode": "edge"}, x, np.array([2, -1])).tolist() == [0, 0, 0, 1, 2, 3]
    assert run("Pad", {"mode": "reflect"}, x[:2], np.array([3, 3])).tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert run("Pad", {"mode": "wrap"}, x[:2], np.array([3, 0])).tolist() == [1, 0, 1, 0, 1]
    assert run("Pad", {}, np.array(["a"], object), np.array([0, 1])).tolist() == ["a", ""]
    with pytest.raises(InferError):
        shape_of("Pad", [(2,), [-2, -1]])


def test_concat_and_split_shapes() -> None:
    assert shape_of("Concat", [(N, 3), (S, 3)], {"axis": 0}) == (N + S, 3)
    assert shape_of("Concat", [(N, 3), (5, H)], {"axis": -2}) == (N + 5, 3)
    with pytest.raises(InferError):
        shape_of("Concat", [(2, 3), (2, 4)], {"axis": 0})
    split = REGISTRY["Split"].infer_fn
    assert split is not None
    types: Any = split(build("Split", [(7, H)], {"num_outputs": 3}, 3))
    assert [t.shape for t in types] == [(3, H), (3, H), (1, H)]
    types = split(build("Split", [(4 * N,)], {"num_outputs": 2}, 2))
    assert [t.shape for t in types] == [(2 * N,), (2 * N,)]
    types = split(build("Split", [(N,)], {"num_outputs": 2}, 2))
    assert types[0].shape == ((N + 1) // 2,)
    parts = run("Split", {"axis": -1}, np.arange(5), outputs=3)
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3], [4]]
    with pytest.raises(InferError):
        run("Split", {}, np.arange(5), np.array([2, 2]), outputs=2)


def test_concat_leaves_what_is_in_place() -> None:
    out = np.empty((4, 2), np.float32)
    out[:2] = 7
    call = Call({"axis": 0}, (), [out])
    kernel = REGISTRY["Concat"].kernel_fn
    assert kernel is not None
    assert kernel(call, out[:2], np.ones((2, 2), np.float32)) is out
    assert out.tolist() == [[7, 7], [7, 7], [1, 1], [1, 1]]


def test_squeeze_and_expand_shapes() -> None:
    assert shape_of("Squeeze", [(1, N, 1), [0, -1]]) == (N,)
    assert shape_of("Squeeze", [(1, N, 1)]) is None  # N may be 1
    assert shape_of("Squeeze", [(1, 3, 1)]) == (3,)
    with pytest.raises(InferError):
        shape_of("Squeeze", [(2, 1), [0]])
    assert shape_of("Unsqueeze", [(N, 3), [0, -1]]) == (1, N, 3, 1)
    assert shape_of("Expand", [(N, 1), [S, 1, 4]]) == (S, N, 4)
    assert shape_of("Flatten", [(N, 3, H)], {"axis": -1}) == (3 * N, H)
    assert shape_of("Flatten", [()], {"axis": 0}) == (1, 1)
    assert shape_of("Tile", [(N, 3), [2, S]]) == (2 * N, 3 * S)
    assert (
        run("Tile", {}, np.arange(6).reshape(2, 3).T, np.array([2, 2])).tolist()
        == np.tile(np.arange(6).reshape(2, 3).T, (2, 2)).tolist()
    )


def test_fills() -> None:
    assert run("NonZero", {}, np.array(5)).shape == (0, 1)
    assert run("NonZero", {}, np.zeros((2, 0))).shape == (2, 0)
    assert run("EyeLike", {"k": 100}, np.ones((2, 3), np.int32)).tolist() == [[0, 0, 0], [0, 0, 0]]
    eye = run("EyeLike", {"k": -1, "dtype": DType.BFLOAT16}, np.ones((3, 2)))
    assert eye.astype(int).tolist() == [[0, 0], [1, 0], [0, 1]]
    wide = run("Trilu", {"upper": 0}, np.ones((2, 3, 3), np.int8), np.array(2**62))
    assert wide.sum() == 18
    assert shape_of("OneHot", [(N,), [S], (2,)], {"axis": 0}) == (S, N)


def test_col2im_adds_what_overlaps() -> None:
    columns = np.ones((1, 2, 3), np.float16)
    got = run("Col2Im", {}, columns, np.array([1, 4]), np.array([1, 2]))
    assert got.dtype == np.float16 and got.tolist() == [[[[1, 2, 2, 1]]]]
