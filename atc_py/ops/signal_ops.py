"""Signal operators: DFT, STFT, the windows, MelWeightMatrix. Complex numbers are pairs in the last axis.

    DFT(x: [N, 1000, 1], onesided=1)                      ->  [N, 501, 2]
    DFT(that, inverse=1, onesided=1)                      ->  [N, 1000, 1]
    STFT(x: [N, T, 1], frame_step=160, window: [400])     ->  [N, (T - 400)//160 + 1, 201, 2]

Transforms of float64 are computed in float64, those of float32 and of the 16-bit types in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atc_py.ir.dims import Dim, Size
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import (
    Array,
    Attr,
    Call,
    Cost,
    Engine,
    Flags,
    Infer,
    InferError,
    Product,
    Result,
    declare,
    elements,
)
from atc_py.ops.shape_values import fresh_shape, scalar
from atc_py.ops.shapes import axis, show

dft = declare(
    "DFT",
    inputs="input dft_length? axis?",
    outputs="output",
    attrs={"inverse": Attr("int", 0), "onesided": Attr("int", 0)},
    host_inputs=(1, 2),
)


def _signal_axis(value: int, rank: int) -> int:
    at = axis(value, rank)
    if at == rank - 1:
        raise InferError(f"axis {value} is the last one, which holds the real and imaginary parts")
    return at


def _pairs(shape: Sequence[Size], what: str) -> None:
    last = shape[-1] if shape else 0
    if type(last) is int and last not in (1, 2):
        raise InferError(f"{what} must have 1 (real) or 2 (complex) as its last dim, but has {show(tuple(shape))}")


@dft.infer
def _(n: Infer) -> Result:
    data = n.tensor(0)
    if data.shape is None:
        return data
    _pairs(data.shape, "the signal")
    onesided, inverse = bool(n.attrs["onesided"]), bool(n.attrs["inverse"])
    parts = 1 if onesided and inverse else 2
    where, given = scalar(n, 2), scalar(n, 1)
    if n.has(2) and where is None:
        return data.with_shape((*(fresh_shape(n, len(data.shape) - 1, "dim") or ()), parts))
    at = _signal_axis(-2 if where is None else int(where), len(data.shape))
    if given is not None:
        length: Size = given
    elif n.has(1):
        length = n.fresh("length")
    else:
        length = 2 * (data.shape[at] - 1) if onesided and inverse else data.shape[at]
    out = length // 2 + 1 if onesided and not inverse else length
    return data.with_shape((*data.shape[:at], out, *data.shape[at + 1 : -1], parts))


@dft.cost
def _(n: Infer) -> Cost:
    return Cost(vector=elements(n.types[0]) * 20)  # 5 N log2 N, with log2 N taken as 4 per radix-16 step


def _complex(x: Array) -> Array:
    """The signal without its last axis: real, or complex of the same width; 16-bit types become float32."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]


def _pair(z: Array) -> Array:
    return np.stack([z.real, z.imag], axis=-1)


@dft.kernel
def _(call: Call, x: Array, dft_length: Array | None = None, where: Array | None = None) -> Array:
    at = _signal_axis(-2 if where is None else int(where.reshape(-1)[0]), x.ndim)
    onesided, inverse = bool(call.attrs["onesided"]), bool(call.attrs["inverse"])
    length = x.shape[at] if dft_length is None else int(dft_length.reshape(-1)[0])
    if dft_length is None and onesided and inverse:
        length = 2 * (length - 1)
    if length < 1:
        raise InferError(f"DFT: the transform's length is {length}, expected a positive one")
    signal = _complex(x)
    if inverse and onesided:
        return np.fft.irfft(signal, length, at)[..., None].astype(x.dtype)
    if inverse:
        return _pair(np.fft.ifft(signal, length, at)).astype(x.dtype)
    spectrum = np.fft.fft(signal, length, at)
    if onesided:
        spectrum = spectrum[(slice(None),) * at + (slice(length // 2 + 1),)]
    return _pair(spectrum).astype(x.dtype)


stft = declare(
    "STFT",
    inputs="signal frame_step window? frame_length?",
    outputs="output",
    attrs={"onesided": Attr("int", 1)},
    flags=Flags(cube=(0,)),
    host_inputs=(1, 3),
)


@stft.infer
def _(n: Infer) -> Result:
    signal, step = n.tensor(0), scalar(n, 1)
    if signal.shape is None:
        return signal.with_shape((*(fresh_shape(n, 3, "dim") or ()), 2))
    if len(signal.shape) not in (2, 3):
        raise InferError(f"the signal must have shape [batch, samples, 1 or 2], but has {show(signal.shape)}")
    window, length = n.shape(2) if n.has(2) else None, scalar(n, 3)
    samples = signal.shape[1]
    if length is None and window:
        length = window[0]
    if length is None:
        length = n.fresh("length") if n.has(2) or n.has(3) else samples
    if step is None or isinstance(step, Dim):
        frames = n.fresh("frames")
    else:
        frames = (samples - length) // step + 1
    bins = length // 2 + 1 if n.attrs["onesided"] else length
    return signal.with_shape((signal.shape[0], frames, bins, 2))


@stft.cost
def _(n: Infer) -> Cost:
    """Each frame is multiplied with the window's sines and cosines: [frames, length] × [length, 2 bins]."""
    try:
        out = stft.infer_fn(n) if stft.infer_fn is not None else None
    except InferError:
        return Cost()
    if not isinstance(out, Tensor) or out.shape is None or n.shape(0) is None:
        return Cost()
    batch, frames, bins, parts = out.shape
    length = bins * 2 - 2 if n.attrs["onesided"] else bins
    signal = n.shape(0) or ()
    real = signal[-1] if len(signal) == 3 else 1
    return Cost(products=(Product(batch * frames, length * real, bins * parts),))


@stft.kernel
def _(call: Call, x: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None) -> Array:
    signal = _complex(x if x.ndim == 3 else x[..., None])
    step = int(frame_step.reshape(-1)[0])
    length = signal.shape[1]
    if frame_length is not None:
        length = int(frame_length.reshape(-1)[0])
    elif window is not None:
        length = window.shape[0]
    if length < 1 or step < 1 or length > signal.shape[1]:
        raise InferError(f"STFT: frames of {length} every {step} do not fit {signal.shape[1]} samples")
    places = np.arange(0, signal.shape[1] - length + 1, step)[:, None] + np.arange(length)
    frames = signal[:, places]
    if window is not None:
        if window.shape[0] != length:
            raise InferError(f"STFT: the window has {window.shape[0]} values, the frame {length}")
        frames = frames * window.astype(frames.real.dtype)
    spectrum = np.fft.fft(frames, axis=-1)
    if call.attrs["onesided"]:
        spectrum = spectrum[..., : length // 2 + 1]
    return _pair(spectrum).astype(x.dtype)


def _cosines(coefficients: Sequence[float]) -> Callable[[Array], Array]:
    """sum of (-1)^k · a_k · cos(k · angle)"""

    def window(angle: Array) -> Array:
        total = np.zeros_like(angle)
        for k, a in enumerate(coefficients):
            total += (-1) ** k * a * np.cos(k * angle)
        return total

    return window


WINDOWS = {
    "HannWindow": _cosines([0.5, 0.5]),
    "HammingWindow": _cosines([25 / 46, 21 / 46]),
    "BlackmanWindow": _cosines([0.42, 0.5, 0.08]),
}


def _declare_window(name: str, shape_of: Callable[[Array], Array]) -> None:
    op = declare(
        name,
        inputs="size",
        outputs="output",
        attrs={"output_datatype": Attr("dtype", DType.FLOAT32), "periodic": Attr("int", 1)},
        engine=Engine.AICPU,
        flags=Flags(recomputable=True),
        host_inputs=(0,),
    )

    @op.infer
    def _(n: Infer) -> Result:
        size = scalar(n, 0)
        return Tensor(n.attrs["output_datatype"] or DType.FLOAT32, (n.fresh("size") if size is None else size,))

    @op.kernel
    def _(call: Call, size: Array) -> Array:
        count = int(size.reshape(-1)[0])
        period = count if call.attrs["periodic"] else count - 1
        angle = np.arange(count) * (2 * np.pi / max(period, 1))
        return shape_of(angle).astype((call.attrs["output_datatype"] or DType.FLOAT32).numpy)


for _name, _shape in WINDOWS.items():
    _declare_window(_name, _shape)

mel = declare(
    "MelWeightMatrix",
    inputs="num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz",
    outputs="output",
    attrs={"output_datatype": Attr("dtype", DType.FLOAT32)},
    engine=Engine.AICPU,
    flags=Flags(recomputable=True),
    host_inputs=(0, 1, 2, 3, 4),
)


@mel.infer
def _(n: Infer) -> Result:
    bins, length = scalar(n, 0), scalar(n, 1)
    rows = n.fresh("spectrogram_bins") if length is None else length // 2 + 1
    cols = n.fresh("mel_bins") if bins is None else bins
    return Tensor(n.attrs["output_datatype"] or DType.FLOAT32, (rows, cols))


@mel.kernel
def _(call: Call, num_mel_bins: Array, dft_length: Array, sample_rate: Array, lower: Array, upper: Array) -> Array:
    """Triangles over the spectrogram's bins; their corners are evenly spaced in mel and cut to whole bins."""
    given = [v.reshape(-1)[0] for v in (num_mel_bins, dft_length, sample_rate, lower, upper)]
    bins, length, rate, low, high = (
        int(given[0]),
        int(given[1]),
        int(given[2]),
        float(given[3]),
        float(given[4]),
    )
    first, last = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mels = first + np.arange(bins + 2) * ((last - first) / (bins + 2))
    corners = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    out = np.zeros((length // 2 + 1, bins))
    rows = np.arange(out.shape[0])
    for i, (left, center, right) in enumerate(zip(corners, corners[1:], corners[2:])):
        if center == left:
            out[rows == center, i] = 1
        else:
            up = (rows >= left) & (rows <= center)
            out[up, i] = (rows[up] - left) / (center - left)
        down = (rows >= center) & (rows < right)
        out[down, i] = (right - rows[down]) / (right - center)
    return out.astype((call.attrs["output_datatype"] or DType.FLOAT32).numpy)
