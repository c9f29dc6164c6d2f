"""A scope follows the values that are known while a graph grows, whatever it has seen of like nodes before."""

from __future__ import annotations

import numpy as np

from atc_py.ir.constants import Blob, DimVec
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array
from atc_py.ops.build import Scope, Values, dims_constant

ROW = Tensor(DType.INT64, (2,))


def numbers(scope: Scope, value: int) -> list[int] | None:
    known = scope.known(value)
    return None if known is None else [int(x) for x in known.reshape(-1)]


def test_values_are_known_as_soon_as_all_inputs_are() -> None:
    scope = Scope(Graph("g"))
    x, one = scope.graph.add_input("x", ROW), scope.constant(np.array([1, 2], np.int64))
    for a, b, known in ((x, x, None), (one, one, [2, 4]), (x, one, None), (one, x, None), (one, one, [2, 4])):
        [total] = scope.emit("Add", [a, b])
        assert scope.graph.type(total) == ROW and numbers(scope, total) == known


def test_a_value_that_types_alone_tell_is_known_each_time() -> None:
    scope = Scope(Graph("g"))
    for name in ("x", "y"):
        [shape] = scope.emit("Shape", [scope.graph.add_input(name, Tensor(DType.FLOAT32, (3, 5)))])
        assert numbers(scope, shape) == [3, 5]


def test_types_that_follow_from_values_are_not_taken_from_like_nodes() -> None:
    scope = Scope(Graph("g"))
    x = scope.graph.add_input("x", Tensor(DType.FLOAT32, (6,)))
    for dims in ((2, 3), (3, 2), (2, 3), (1, 6, 1)):
        [made] = scope.emit("Reshape", [x, scope.graph.add_const(dims_constant(dims))], {"allowzero": 0})
        assert scope.graph.tensor(made).shape == dims


def test_what_was_asked_of_values() -> None:
    def find(value: int) -> Array | None:
        return np.array(value) if value else None

    values = Values(find, [0, 7, 0])
    assert (len(values), values.asked) == (3, False)
    assert values[-1] is None and values.asked and values.places == {2: False}
    assert [None if v is None else int(v) for v in values[:2]] == [None, 7]
    assert values.places == {2: False, 0: False, 1: True}


def test_sizes_as_constants() -> None:
    made = dims_constant((2, -1))
    assert isinstance(made, Blob) and bytes(made.data) == np.array([2, -1], "<i8").tobytes() and made.shape == (2,)
    n = symbol("N")
    other = dims_constant((n, 2))
    assert isinstance(other, DimVec) and other.elements == (n, 2) and other.dtype is DType.INT64
