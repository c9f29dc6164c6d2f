"""ImageDecoder: the pixels of an encoded image. Needs Pillow, which the extra `image` installs.

    encoded: uint8 [bytes of a PNG file of 640 × 480]    ->    uint8 [480, 640, 3]

A stream that cannot be decoded gives an empty image [0, 0, channels], as ONNX wants it.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from atc_py.errors import error
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Infer, Result, declare

FORMATS = ("BMP", "DIB", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
"""ONNX's list of formats, as Pillow names them; no other decoder is tried."""
CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}

decoder = declare(
    "ImageDecoder",
    inputs="encoded_stream",
    outputs="image",
    attrs={"pixel_format": Attr("str", "RGB")},
    engine=Engine.AICPU,
)


@decoder.infer
def _(n: Infer) -> Result:
    encoded, wanted = n.tensor(0), n.attrs["pixel_format"]
    if encoded.dtype is not DType.UINT8:
        n.fail(f"input 0 must hold the bytes of an image as uint8, but is {encoded.dtype.value}")
    if encoded.rank not in (None, 1):
        n.fail(f"input 0 must have rank 1, but has rank {encoded.rank}")
    if wanted not in CHANNELS:
        n.fail(f"pixel_format must be one of {', '.join(CHANNELS)}, but is {wanted!r}")
    return Tensor(DType.UINT8, (n.fresh("height"), n.fresh("width"), CHANNELS[wanted]))


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as e:
        cause = "it decodes images with Pillow, which is not installed"
        raise error("E40004", "ImageDecoder", cause, "pip install atc-py[image]") from e
    return PIL.Image


@decoder.kernel
def _(call: Call, encoded: Array) -> Array:
    pillow, wanted = _pillow(), call.attrs["pixel_format"]
    try:
        with pillow.open(io.BytesIO(encoded.tobytes()), formats=FORMATS) as image:
            pixels = np.asarray(image.convert("L" if wanted == "Grayscale" else "RGB"))
    except Exception:  # Pillow's plugins raise many types, and ONNX wants the same result for all of them
        return np.zeros((0, 0, CHANNELS[wanted]), np.uint8)
    if wanted == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if wanted == "BGR" else pixels
