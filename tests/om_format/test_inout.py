"""MODEL_INOUT_INFO: bytes as the runtime expects them, and no trust in lengths."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_format import ModelInOut, OmError, OmErrorCode, TensorInfo, pack_inout, parse_inout
from om_format.dtypes import Format, ge_dtype

I64 = st.integers(-(2**63), 2**63 - 1)
DIMS = st.lists(I64, max_size=4).map(tuple)
GEARS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple), max_size=4).map(tuple)
TEXTS = st.lists(st.text(max_size=9), max_size=3).map(tuple)
TENSORS = st.lists(
    st.builds(
        TensorInfo,
        name=st.text(max_size=9),
        size=st.integers(0, 2**64 - 1),
        format=st.sampled_from(Format).map(int),
        dtype=st.integers(-1, 42),
        dims=DIMS,
        dims_v2=DIMS,
        ranges=st.lists(st.tuples(I64, I64), max_size=4).map(tuple),
    ),
    max_size=3,
).map(tuple)
INFOS = st.builds(
    ModelInOut,
    inputs=TENSORS,
    outputs=TENSORS,
    dynamic_batch=st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
    dynamic_hw=GEARS,
    dynamic_dims=GEARS,
    dynamic_output_shape=TEXTS,
    designate_shape_order=TEXTS,
    unknown=st.lists(st.tuples(st.integers(7, 2**32 - 1), st.binary(max_size=9)), max_size=2).map(tuple),
)


def test_bytes() -> None:
    x = TensorInfo("x", 12, Format.ND, ge_dtype("float32"), (1, 3))
    value = struct.pack("<IQiiIIII", 1, 12, 2, 0, 1, 16, 0, 0) + b"x" + struct.pack("<qq", 1, 3)
    assert len(value) == 53
    info = ModelInOut(inputs=(x,), dynamic_dims=((1, 2), (4,)))
    gears = struct.pack("<III", 2, 2, 1) + struct.pack("<QQQ", 1, 2, 4)
    expected = struct.pack("<II", 0, 53) + value + struct.pack("<III", 1, 4, 0) + struct.pack("<II", 4, 36) + gears
    assert pack_inout(info) == expected


@given(INFOS)
@settings(max_examples=150)
def test_round_trip(info: ModelInOut) -> None:
    assert parse_inout(pack_inout(info)) == info


@given(INFOS, st.data())
@settings(max_examples=200)
def test_damage_gives_nothing_but_om_errors(info: ModelInOut, draw: st.DataObject) -> None:
    data = bytearray(pack_inout(info))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        parse_inout(data[: draw.draw(st.integers(0, len(data)))])
    except OmError as error:
        assert error.code is OmErrorCode.CORRUPT


@pytest.mark.parametrize("kind", range(7))
def test_forged_counts_fail_before_anything_is_allocated(kind: int) -> None:
    with pytest.raises(OmError) as caught:
        parse_inout(struct.pack("<IIII", kind, 8, 0xFFFFFFFF, 0xFFFFFFFF), 1000)
    assert caught.value.offset is not None and 1000 <= caught.value.offset <= 1016


def test_repeated_and_overlong_entries() -> None:
    entry = struct.pack("<III", 0, 4, 0)
    for data, cause in (
        (entry + entry, "twice"),
        (struct.pack("<III", 0, 5, 0) + b"x", "left in INPUT_DESC"),
    ):
        with pytest.raises(OmError, match=cause):
            parse_inout(data)


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(OmError) as caught:
        pack_inout(ModelInOut(inputs=(TensorInfo("x", -1, 2, 0, (1,)),)))
    assert caught.value.code is OmErrorCode.INVALID
