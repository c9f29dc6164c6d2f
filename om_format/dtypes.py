"""Numbers of element types and formats.

One type has two numbers: `TensorDescriptor.dtype` carries the *proto* numbering (float32 = 1), while
attributes (`AttrDef.dt`, `dst_type` of Cast) and MODEL_INOUT_INFO carry GE's *in-memory* numbering (float32
= 0).

Example: bfloat16 has a code that every reader knows; float8_e4m3fn has one that Netron refuses; uint4 has
none.

    >>> wire_dtype("bfloat16")
    WireDtype(proto=27, atc_dtype=None)
    >>> wire_dtype("float8_e4m3fn"), wire_dtype("uint4").proto
    (WireDtype(proto=4, atc_dtype='float8_e4m3fn'), 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .errors import invalid

ATC_DTYPE_ATTR: Final = "_atc_dtype"
"""String attribute of a TensorDescriptor that says DT_UINT8: the name of the real dtype."""

FIRST_REFUSED: Final = 32
"""Proto codes from here on make Netron's reader throw."""


@dataclass(frozen=True)
class Dtype:
    """One element type: its name in ONNX and numpy, both numbers (None where GE has none), and its bits."""

    name: str
    proto: int | None
    ge: int | None
    bits: int
    """0: no fixed width (string)."""


@dataclass(frozen=True)
class WireDtype:
    """What a TensorDescriptor says: the code, and the text of its `_atc_dtype` attribute or None."""

    proto: int
    atc_dtype: str | None


DTYPES: Final[tuple[Dtype, ...]] = (
    Dtype("undefined", 0, 28, 0),
    Dtype("float32", 1, 0, 32),
    Dtype("float16", 2, 1, 16),
    Dtype("int8", 3, 2, 8),
    Dtype("uint8", 4, 4, 8),
    Dtype("int16", 5, 6, 16),
    Dtype("uint16", 6, 7, 16),
    Dtype("int32", 7, 3, 32),
    Dtype("int64", 8, 9, 64),
    Dtype("uint32", 9, 8, 32),
    Dtype("uint64", 10, 10, 64),
    Dtype("bool", 11, 12, 8),
    Dtype("float64", 12, 11, 64),
    Dtype("string", 13, 13, 0),
    Dtype("complex64", 16, 16, 64),
    Dtype("complex128", 17, 17, 128),
    Dtype("bfloat16", 27, 27, 16),
    Dtype("int4", 28, 29, 4),
    Dtype("uint1", 29, 30, 1),
    Dtype("int2", 30, 31, 2),
    Dtype("uint2", 31, 32, 2),
    Dtype("complex32", 32, 33, 32),
    Dtype("hifloat8", 33, 34, 8),
    Dtype("float8_e5m2", 34, 35, 8),
    Dtype("float8_e4m3fn", 35, 36, 8),
    Dtype("float8_e8m0fnu", 36, 37, 8),
    Dtype("float6_e3m2fn", 37, 38, 6),
    Dtype("float6_e2m3fn", 38, 39, 6),
    Dtype("float4_e2m1fn", 39, 40, 4),
    Dtype("float4_e1m2fn", 40, 41, 4),
    Dtype("hifloat4", 41, 42, 4),
    Dtype("uint4", None, None, 4),
    Dtype("float8_e4m3fnuz", None, None, 8),
    Dtype("float8_e5m2fnuz", None, None, 8),
)

_BY_NAME: Final = {dtype.name: dtype for dtype in DTYPES}
_BY_PROTO: Final = {dtype.proto: dtype.name for dtype in DTYPES if dtype.proto is not None}
_BY_GE: Final = {dtype.ge: dtype.name for dtype in DTYPES if dtype.ge is not None}
_UINT8: Final = 4


def dtype(name: str) -> Dtype:
    """The entry of a dtype's name; INVALID for an unknown one."""
    found = _BY_NAME.get(name)
    if found is None:
        raise invalid(f"no dtype is called {name!r}", hint=f"known: {', '.join(_BY_NAME)}")
    return found


def wire_dtype(name: str) -> WireDtype:
    """How a desc writes a dtype so that every reader opens the file."""
    code = dtype(name).proto
    if code is None or code >= FIRST_REFUSED:
        return WireDtype(_UINT8, name)
    return WireDtype(code, None)


def ge_dtype(name: str) -> int:
    """The in-memory number, for attributes and MODEL_INOUT_INFO; uint8's for a type that GE does not have."""
    code = dtype(name).ge
    return _UINT8 if code is None else code


def dtype_from_proto(code: int, atc_dtype: str | None = None) -> str | None:
    """The name behind a desc's code and `_atc_dtype`; None for codes without a name here (resource ...)."""
    return atc_dtype if atc_dtype in _BY_NAME else _BY_PROTO.get(code)


def dtype_from_ge(code: int) -> str | None:
    """The name behind an in-memory number, None for numbers without one here."""
    return _BY_GE.get(code)


class Format(IntEnum):
    """ge::Format: the order of a tensor's dimensions in memory."""

    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1C0HWPAD = 5
    NHWC1C0 = 6
    FSR_NCHW = 7
    FRACTAL_DECONV = 8
    C1HWNC0 = 9
    FRACTAL_DECONV_TRANSPOSE = 10
    FRACTAL_DECONV_SP_STRIDE_TRANS = 11
    NC1HWC0_C04 = 12
    FRACTAL_Z_C04 = 13
    CHWN = 14
    FRACTAL_DECONV_SP_STRIDE8_TRANS = 15
    HWCN = 16
    NC1KHKWHWC0 = 17
    BN_WEIGHT = 18
    FILTER_HWCK = 19
    HASHTABLE_LOOKUP_LOOKUPS = 20
    HASHTABLE_LOOKUP_KEYS = 21
    HASHTABLE_LOOKUP_VALUE = 22
    HASHTABLE_LOOKUP_OUTPUT = 23
    HASHTABLE_LOOKUP_HITS = 24
    C1HWNCoC0 = 25
    MD = 26
    NDHWC = 27
    FRACTAL_ZZ = 28
    FRACTAL_NZ = 29
    NCDHW = 30
    DHWCN = 31
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    CN = 34
    NC = 35
    DHWNC = 36
    FRACTAL_Z_3D_TRANSPOSE = 37
    FRACTAL_ZN_LSTM = 38
    FRACTAL_Z_G = 39
    RESERVED = 40
    ALL = 41
    NULL = 42
    ND_RNN_BIAS = 43
    FRACTAL_ZN_RNN = 44
    NYUV = 45
    NYUV_A = 46
    NCL = 47
    FRACTAL_Z_WINO = 48
    C1HWC0 = 49
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51
    FRACTAL_NZ_C0_2 = 52
    FRACTAL_NZ_C0_4 = 53
    FRACTAL_NZ_C0_8 = 54
