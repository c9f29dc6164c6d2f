"""The bytes that are put one after the other are those of protobuf's own messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.emit.attrs import attrs_bytes, descriptor, number_entry, texts_entry
from atc_py.emit.wire import BYTES, nested, number, packed, tag, text, texts, varint, within
from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Format, Optional, Sequence, Tensor, Type
from om_format.proto.ge_ir_pb2 import AttrDef, OpDef, TensorDescriptor

INTS = st.integers(-(2**63), 2**63 - 1)
ATTR = OpDef.DESCRIPTOR.fields_by_name["attr"].number


@given(st.text(max_size=9), st.lists(st.text(max_size=200), max_size=3), INTS, st.lists(INTS, max_size=5))
def test_fields_are_those_of_the_message(name: str, inputs: list[str], number_: int, offsets: list[int]) -> None:
    message = OpDef(name=name, input=inputs, id=number_, input_i=offsets)
    made = text(1, name) + texts(5, inputs) + number(21, number_) + packed(28, offsets)
    assert made == message.SerializeToString()


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_of_more_than_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        varint(value)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, AttrDef(b=True)),
        (False, AttrDef(b=False)),
        (0, AttrDef(i=0)),
        (-5, AttrDef(i=-5)),
        (0.1, AttrDef(f=0.1)),
        (1e300, AttrDef(f=math.inf)),
        ("", AttrDef(s=b"")),
        (b"raw", AttrDef(bt=b"raw")),
        (DType.FLOAT16, AttrDef(s=b"float16")),
        (symbol("N") + 1, AttrDef(s=str(symbol("N") + 1).encode())),
        ((1, 300, -1), AttrDef(list=AttrDef.ListValue(i=[1, 300, -1], val_type="VT_LIST_INT"))),
        ((1, 0.5), AttrDef(list=AttrDef.ListValue(f=[1, 0.5], val_type="VT_LIST_FLOAT"))),
        (("a", "b"), AttrDef(list=AttrDef.ListValue(s=[b"a", b"b"], val_type="VT_LIST_STRING"))),
        ((), AttrDef(list=AttrDef.ListValue(val_type="VT_LIST_STRING"))),
    ],
)
def test_attributes(value: Any, wanted: AttrDef) -> None:
    message = OpDef(attr={"_first": AttrDef(i=1), "name": wanted})
    assert attrs_bytes(ATTR, {"name": value, "_first": 1}) == message.SerializeToString(deterministic=True)
    assert attrs_bytes(ATTR, {"name": value, "_first": 1, "left out": object()}) == message.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize(
    ("type_", "shape", "layout", "size"),
    [
        (Tensor(DType.FLOAT32, (2, 3)), [2, 3], "ND", 24),
        (Tensor(DType.FLOAT32, ()), [], "ND", 4),
        (Tensor(DType.FLOAT16, (1, 20, 5, 5), Format.NCHW, Format.NC1HWC0), [1, 2, 5, 5, 16], "NC1HWC0", 1600),
        (Tensor(DType.INT64, (symbol("N"), 4)), [-1, 4], "ND", 0),
        (Tensor(DType.INT64, None), [-1], "ND", 0),
    ],
)
def test_descriptors(type_: Tensor, shape: list[int], layout: str, size: int) -> None:
    found = TensorDescriptor.FromString(descriptor(type_, "x"))
    assert (found.name, list(found.shape.dim), found.layout, found.size) == ("x", shape, layout, size)
    assert found.HasField("shape") and found.attr["origin_format"].s == type_.format.value.encode()
    assert found.SerializeToString(deterministic=True) == descriptor(type_, "x")


@pytest.mark.parametrize("type_", [Sequence(Tensor(DType.FLOAT32, (2,))), Optional(Tensor(DType.INT8, None))])
def test_values_of_the_host_say_what_they_are(type_: Type) -> None:
    found = TensorDescriptor.FromString(descriptor(type_))
    assert found.attr["_atc_type"].s and not found.size and not found.name


@given(st.lists(st.text(max_size=200), max_size=3), INTS)
def test_entries_of_one_kind_are_the_same_entries(words: list[str], value: int) -> None:
    assert texts_entry(ATTR, "name", words) == attrs_bytes(ATTR, {"name": words})
    assert number_entry(ATTR, "name", value) == attrs_bytes(ATTR, {"name": value})


@pytest.mark.parametrize("values", [(1, True, 1.0), (0.0, -0.0), ((1,), (1.0,))])
def test_attributes_that_python_takes_for_equal_are_told_apart(values: tuple[Any, ...]) -> None:
    assert len({attrs_bytes(ATTR, {"name": value}) for value in values}) == len(values)


@given(st.binary(max_size=300))
def test_a_message_inside_of_messages(content: bytes) -> None:
    assert within(content, tag(3, BYTES), b"before" + tag(1, BYTES)) == b"before" + nested(1, nested(3, content))
