"""Memory of the simulated device: views at planned places, and what may not be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.memory import bind
from atc_py.npu.memory import Placed, Spaces, allocate, as_bytes, detached, fresh, place, store
from atc_py.plan.types import Access, Buffer, Operand, Plan, Space

F32 = np.dtype(np.float32)


def placed(offset: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Placed:
    return Placed(Space.ARENA, -1, offset, shape, F32, strides)


def test_a_view_has_the_planned_address() -> None:
    base = allocate(4096)
    view = placed(512, (2, 8)).view(base)
    assert view.ctypes.data == base.ctypes.data + 512 and view.strides == (32, 4)
    view[...] = 7
    assert np.count_nonzero(base[512:576].view(F32) == 7) == 16
    turned = placed(512, (8, 2), (4, 32)).view(base)
    turned[3, 1] = 9
    assert view[1, 3] == 9
    assert placed(512 + 28, (8,), (-4,)).view(base).tolist() == view[0, ::-1].tolist()


def test_arrays_begin_at_a_page() -> None:
    for nbytes in (0, 1, 100, 5000):
        array = allocate(nbytes)
        assert array.nbytes == nbytes and (not nbytes or array.ctypes.data % 4096 == 0)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (-1, (1,), None),
        (-4, (2,), None),
        (1024, (1,), None),
        (1020, (2,), None),
        (0, (257,), None),
        (0, (2, 2), (1024, 4)),
        (0, (2,), (-4,)),
        (512, (3,), (1 << 61,)),
        (0, (1 << 40,), None),
    ],
)
def test_a_view_beyond_its_space_is_refused(offset: int, shape: tuple[int, ...], strides: Any) -> None:
    with pytest.raises(AtcError) as caught:
        placed(offset, shape, strides).view(allocate(1024))
    assert caught.value.code == "E30010"


@given(
    offset=st.integers(-64, 600),
    shape=st.lists(st.integers(0, 6), max_size=3),
    strides=st.lists(st.integers(-16, 16), min_size=3, max_size=3),
)
def test_every_element_of_a_view_lies_inside(offset: int, shape: list[int], strides: list[int]) -> None:
    steps = tuple(4 * s for s in strides[: len(shape)])
    p = placed(offset, tuple(shape), steps)
    low, high = p.span
    addresses = [offset]
    for size, step in zip(shape, steps, strict=True):
        addresses = [a + step * k for a in addresses for k in range(size)]
    if addresses:
        assert (low, high) == (min(addresses), max(addresses) + 4)
    try:
        view = p.view(allocate(512))
    except AtcError:
        assert low < 0 or high > 512
    else:
        assert view.shape == tuple(shape)
        assert not addresses or (min(addresses) >= 0 and max(addresses) + 4 <= 512)


# -- operands ------------------------------------------------------------------------------------------------------


def plan(*buffers: Buffer, **fields: Any) -> Plan:
    whole: dict[str, Any] = {"symbols": {}, "inputs": (), "outputs": (), "regions": (), "constants": ()}
    return Plan("T", buffers=buffers, **{**whole, **fields})


ARENA = Buffer(0, Space.ARENA, 1024, 0, -1, 0, 1)
WHOLE = Operand(0, Access.READ, 0, Tensor(DType.FLOAT32, (16, 16)))


def placing(operand: Operand, *buffers: Buffer) -> Placed | None:
    made = plan(*buffers or (ARENA,))
    return place(made, bind(made), operand, {})


def test_an_operand_is_placed_inside_its_buffer() -> None:
    second = replace(ARENA, id=1, offset=1024)
    found = placing(replace(WHOLE, buffer=1, type=Tensor(DType.FLOAT32, (4,)), delta=8), ARENA, second)
    assert found is not None and (found.offset, found.shape, found.strides) == (1032, (4,), None)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 4},
        {"delta": -4},
        {"type": Tensor(DType.FLOAT64, (16, 16))},
        {"type": Tensor(DType.FLOAT32, (257,))},
        {"strides": (128, 4)},
        {"strides": (-64, 4)},
    ],
)
def test_an_operand_that_leaves_its_buffer_is_refused(change: dict[str, Any]) -> None:
    neighbours = (ARENA, replace(ARENA, id=1, offset=1024))  # the space goes on, the buffer does not
    for number in (0, 1):
        with pytest.raises(AtcError) as caught:
            placing(replace(WHOLE, buffer=number, **change), *neighbours)
        assert caught.value.code == "E30010"


def test_sizes_that_come_to_nothing_sensible() -> None:
    n = symbol("N")
    made = plan(ARENA)
    operand = replace(WHOLE, type=Tensor(DType.FLOAT32, (n - 5, 4)))
    assert place(made, bind(made), operand, {}) is None, "not known yet"
    with pytest.raises(AtcError) as caught:
        place(made, bind(made), operand, {"N": 3})
    assert "[-2, 4]" in str(caught.value)


def test_types_without_bytes_have_no_place() -> None:
    assert placing(replace(WHOLE, type=Tensor(DType.STRING, (2,)))) is None
    assert placing(WHOLE, Buffer(0, Space.DYNAMIC, 0)) is None
    assert placing(WHOLE, Buffer(0, Space.HOST, 1, 0)) is None


def test_ports_must_be_there_and_have_bytes() -> None:
    spaces = Spaces(allocate(0), allocate(0), [], inputs=[np.zeros(4, F32), ["no", "array"]], outputs=[None])
    assert spaces.base(Placed(Space.INPUT, 0, 0, (4,), F32, None)).nbytes == 16
    for space, index in ((Space.INPUT, 1), (Space.INPUT, 2), (Space.INPUT, -1), (Space.OUTPUT, 0)):
        with pytest.raises(AtcError):
            spaces.base(Placed(space, index, 0, (4,), F32, None))


# -- results -------------------------------------------------------------------------------------------------------


def test_a_result_is_copied_to_its_place_or_refused() -> None:
    target = np.zeros((2, 2), F32)
    store(target, np.ones((2, 2), F32), "t")
    assert target.all()
    for wrong in (np.ones((2, 3), F32), np.ones((2, 2)), np.float32(1), np.array([[1, 2], [3, 4]])):
        with pytest.raises(AtcError) as caught:
            store(target, wrong, "t")
        assert caught.value.code == "E40002" and "float32[2, 2]" in str(caught.value)
    scalar = np.zeros((), np.int64)
    store(scalar, np.int64(5), "t")
    assert scalar == 5


def test_detached_values_share_nothing_with_what_they_came_from() -> None:
    base = np.arange(8, dtype=F32)
    owned = np.ones(2, F32)
    value = detached([base[2:4], owned, {"k": [base[:1]]}, "text", None, 3])
    assert value[1] is owned, "what has bytes of its own is not copied"
    base[:] = 0
    assert value[0].tolist() == [2, 3] and value[2]["k"][0].tolist() == [0]
    assert value[3:] == ["text", None, 3]


def test_what_cannot_be_allocated_is_said() -> None:
    calls: list[Callable[[], object]] = [
        lambda: allocate(1 << 62), lambda: fresh((1 << 30, 1 << 30), F32), lambda: fresh((-1,), F32)
    ]  # fmt: skip
    for make in calls:
        with pytest.raises(AtcError) as caught:
            make()
        assert caught.value.code == "E30004"


def test_bytes_of_an_array_are_its_own() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    as_bytes(array)[:2] = 0xFF
    assert array[0, 0] == -1
    assert as_bytes(np.array(1, np.float32)).nbytes == 4
    assert as_bytes(np.empty((0, 3), F32)).nbytes == 0
