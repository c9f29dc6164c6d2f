"""ImageDecoder: what onnx's node tests do not ask for."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

from atc_py.errors import AtcError
from atc_py.ops import get
from tests.ops.harness import run

PIL_Image = pytest.importorskip("PIL.Image")


def encode(pixels: np.ndarray[Any, Any], kind: str, mode: str | None = None) -> np.ndarray[Any, Any]:
    stream = io.BytesIO()
    image = PIL_Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


def decode(data: np.ndarray[Any, Any], wanted: str = "RGB") -> np.ndarray[Any, Any]:
    op = get("ImageDecoder")
    assert op is not None
    _, [image] = run(op, {"pixel_format": wanted}, (data,))
    return np.asarray(image)


def test_every_mode_of_a_file_gives_the_channels_that_are_asked_for() -> None:
    np.testing.assert_array_equal(decode(encode(PIXELS, "PNG")), PIXELS)
    np.testing.assert_array_equal(decode(encode(PIXELS, "PNG", "RGBA")), PIXELS)
    np.testing.assert_array_equal(decode(encode(PIXELS, "PNG"), "BGR"), PIXELS[:, :, ::-1])
    gray = encode(PIXELS, "PNG", "L")
    assert decode(gray).shape == (4, 6, 3)
    assert decode(gray, "Grayscale").shape == (4, 6, 1)
    assert decode(encode(PIXELS, "PNG", "P")).shape == (4, 6, 3)


@pytest.mark.parametrize("damage", ["truncated", "empty", "other format"])
def test_what_cannot_be_decoded_is_an_empty_image(damage: str) -> None:
    whole = encode(PIXELS, "GIF" if damage == "other format" else "PNG")
    data = {"truncated": whole[:40], "empty": whole[:0], "other format": whole}[damage]
    assert decode(data).shape == (0, 0, 3)
    assert decode(data, "Grayscale").shape == (0, 0, 1)


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(PIXELS, "PNG")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(AtcError, match=r"E40004.*Pillow(.|\n)*atc-py\[image\]"):
        decode(data)
