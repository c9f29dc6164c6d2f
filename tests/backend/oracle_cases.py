"""Models on which onnxruntime, onnx's reference or a part of onnx itself departs from the specification.

    Case("nonzero-scalar", "NonZero", [3.0], right=[int64 of shape (0, 1)], wrong=("onnxruntime",))

`right` is what the specification's text gives, worked out here by numpy; where the text leaves the result open
(`OPEN`), it is what atc-py does. `wrong` are the oracles that give something else, or refuse, at the versions of
scripts/constraints.txt. docs/oracles.md explains each case under its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper

Array = Any
F = np.float32
ORT, REF = "onnxruntime", "reference"
INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """One node, its inputs, and what it gives; None in `right` is an output that is not looked at."""

    name: str
    op: str
    inputs: Sequence[Array | None]
    right: Sequence[Array | None]
    wrong: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    rtol: float = 1e-5

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model, and its inputs by name."""
        names = ["" if v is None else f"x{i}" for i, v in enumerate(self.inputs)]
        made = [f"y{i}" for i in range(len(self.right))]
        node = helper.make_node(self.op, names, made, **self.attrs)
        feeds = {n: v for n, v in zip(names, self.inputs, strict=True) if v is not None}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feeds.items()
        ]
        graph = helper.make_graph([node], "oracles", infos, [onnx.ValueInfoProto(name=n) for n in made])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model), feeds


def _x(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(F)


def _floats(*values: float) -> Array:
    return np.array(values, F)


def _counted_loop() -> Case:
    """A Loop with a trip count and no condition, whose body gives one all the same: i < 1."""
    body = onnx.parser.parse_graph(
        """body (int64 i, bool before, float[2] sum) => (bool after, float[2] more) {
        one = Constant<value_float: float = 1.0>() more = Add(sum, one)
        limit = Constant<value_int: int = 1>() after = Less(i, limit) }"""
    )
    given: list[Array | None] = [np.array(5), None, _floats(0, 1)]
    return Case("loop-without-condition", "Loop", given, [_floats(5, 6)], (ORT, REF), {"body": body})


def _rnn(clip: float | None = None, lengths: Sequence[int] | None = None) -> Case:
    """A simple RNN, by its equation Ht = tanh(clip(Xt·W' + Ht-1·R')), a sequence at a time."""
    x, w, r = _x(4, 2, 3), _x(1, 5, 3), _x(1, 5, 5)
    y, last = np.zeros((4, 1, 2, 5), F), np.zeros((1, 2, 5), F)
    for b in range(2):
        h = np.zeros(5, F)
        for t in range(4 if lengths is None else lengths[b]):
            before = x[t, b] @ w[0].T + h @ r[0].T
            h = np.tanh(before if clip is None else np.clip(before, -clip, clip))
            y[t, 0, b] = h
        last[0, b] = h
    given: list[Array | None] = [x, w, r]
    attrs: dict[str, Any] = {"hidden_size": 5}
    if lengths is not None:
        given += [None, np.array(lengths, np.int32)]
    if clip is not None:
        attrs["clip"] = clip
    name = "rnn-sequence-lens" if clip is None else "rnn-clip"
    return Case(name, "RNN", given, [y, last], (REF,), attrs, rtol=1e-4)


def _lrn() -> Case:
    x, size, alpha = _x(1, 5, 2, 2), 4, 0.5
    y = np.empty_like(x)
    for c in range(5):
        near = x[:, max(0, c - (size - 1) // 2) : c + -(-(size - 1) // 2) + 1]
        y[:, c] = x[:, c] / (1 + alpha / size * (near**2).sum(axis=1)) ** 0.75
    return Case("lrn-even-size", "LRN", [x], [y], (ORT, REF), {"size": size, "alpha": alpha, "beta": 0.75})


def _align_corners() -> Case:
    """Linear interpolation at x·(n - 1)/(n·scale - 1), the length being the scaled one before it is cut to an int."""
    x, scale = np.arange(1, 5, dtype=F), 0.6
    at = np.arange(int(4 * scale)) * (4 - 1) / (4 * np.float32(scale) - 1)
    y = np.interp(at, np.arange(4), x).astype(F)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    scales = np.array([1, scale], F)
    return Case("resize-align-corners", "Resize", [x[None], None, scales], [y[None]], (ORT,), attrs)


def _same_lower() -> Case:
    x = _x(1, 1, 5)
    # ceil(5 / 2) = 3 windows of 3; they need (3 - 1)·2 + 3 - 5 = 2 of padding, one on each side.
    y = np.array([[[x[0, 0, max(0, i - 1) : i + 2].max() for i in (0, 2, 4)]]], F)
    attrs = {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}
    return Case("maxpool-same-lower", "MaxPool", [x], [y], (REF,), attrs)


def _column_major() -> Case:
    x = np.arange(6, dtype=F).reshape(1, 1, 2, 3)
    attrs = {"kernel_shape": [2, 2], "storage_order": 1}
    # The largest are x[1, 1] and x[1, 2]: column-major indices 1 + 1·2 and 1 + 2·2.
    right = [np.array([[[[4, 5]]]], F), np.array([[[[3, 5]]]])]
    return Case("maxpool-storage-order", "MaxPool", [x], right, (REF,), attrs)


def _uneven_pads() -> Case:
    x = np.arange(1, 7, dtype=F).reshape(1, 1, 6)
    attrs = {"kernel_shape": [3], "strides": [3], "pads": [1, 0], "ceil_mode": 1}
    # The windows hold (padding, 1, 2), (3, 4, 5) and (6).
    return Case("averagepool-one-pad", "AveragePool", [x], [_floats(1.5, 4, 6).reshape(1, 1, 3)], (REF,), attrs)


def _lp_ceil() -> Case:
    x = np.arange(1, 5, dtype=F).reshape(1, 1, 4)
    right = np.array([[[(1 + 8 + 27) ** (1 / 3), (27 + 64) ** (1 / 3)]]], F)
    attrs = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "p": 3}
    return Case("lppool-ceil-mode", "LpPool", [x], [right], (REF,), attrs, opset=22)


def _unpool() -> Case:
    """Indices count in the shape that kernel, strides and pads give (4×4), whatever output_shape (5×5) says."""
    x, at = _floats(5, 6, 7, 8).reshape(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    y = np.zeros((1, 1, 5, 5), F)
    y[0, 0, [1, 1, 3, 3], [1, 3, 1, 3]] = x.reshape(-1)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return Case("maxunpool-output-shape", "MaxUnpool", [x, at, np.array([1, 1, 5, 5])], [y], (ORT,), attrs)


def _masked_scores() -> Case:
    """The scores with the causal mask added, output 3 in mode 2."""
    q, k, v = (_x(1, 1, 3, 4) for _ in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / 2
    scores = np.where(np.tri(3, dtype=bool), scores, F(-INF)).astype(F)
    attrs = {"is_causal": 1, "qk_matmul_output_mode": 2}
    return Case("attention-masked-scores", "Attention", [q, k, v], [None, None, None, scores], (ORT,), attrs, opset=24)


def _dft() -> Case:
    x = np.arange(100, dtype=F).reshape(1, 10, 10, 1)
    wide = np.fft.fft(x[..., 0].astype(np.float64), axis=1)
    right = np.stack([wide.real, wide.imag], axis=-1).astype(F)
    return Case("dft-precision", "DFT", [x, None, np.array(1)], [right], (ORT,), opset=20, rtol=1e-7)


def _old_softmax() -> Case:
    """Up to opset 12 the axes from `axis` on are one: here all six elements."""
    x = _x(1, 3, 2)
    return Case("softmax-before-13", "Softmax", [x], [np.exp(x) / np.exp(x).sum()], (REF,), opset=12)


def _quantize() -> Case:
    x = _floats(INF, -INF, 1e9, 2.5, 3.5)
    right = np.array([255, 0, 255, 5, 7], np.uint8)
    return Case("quantize-infinity", "QuantizeLinear", [x, np.array(1, F), np.array(3, np.uint8)], [right], (REF,))


DECIDED: list[Case] = [
    _rnn(lengths=[4, 2]),
    _rnn(clip=0.3),
    _lrn(),
    _align_corners(),
    _same_lower(),
    _column_major(),
    _uneven_pads(),
    _lp_ceil(),
    _unpool(),
    _masked_scores(),
    _dft(),
    _quantize(),
    _old_softmax(),
    Case("nonzero-scalar", "NonZero", [np.array(3, F)], [np.zeros((0, 1), np.int64)], (ORT,)),
    Case("pad-negative", "Pad", [_floats(1, 2, 3, 4), np.array([-1, 2])], [_floats(2, 3, 4, 0, 0)], (REF,)),
    Case("logsumexp-of-minus-infinity", "ReduceLogSumExp", [_floats(-INF, -INF)], [_floats(-INF)], (REF,)),
    Case("log-softmax-far-apart", "LogSoftmax", [_floats(1000, 1)], [_floats(0, -999)], (REF,)),
    Case(
        "maxpool-of-minus-infinity",
        "MaxPool",
        [_floats(-INF, -INF, 1).reshape(1, 1, 3)],
        [_floats(-INF, 1).reshape(1, 1, 2)],
        (ORT,),
        {"kernel_shape": [2]},
    ),
    Case(
        "resize-to-one-element",
        "Resize",
        [_floats(1, 2, 4, 8)[None], None, None, np.array([1, 1])],
        [_floats(1)[None]],
        (REF,),
        {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ),
    Case(
        "int-power",
        "Pow",
        [np.array([2, 1, -1, 3], np.int32), np.array([-1, -2, -3, -1], np.int32)],
        [np.array([0, 1, -1, 0], np.int32)],
        (REF,),
    ),
    Case(
        "unique-with-nan",
        "Unique",
        [_floats(NAN, 1, 2, 1)],
        [_floats(1, 2, NAN), None, None, np.array([2, 1, 1])],
        (ORT,),
    ),
    _counted_loop(),
]
"""Cases that the text decides."""

_BIG = np.full(3, 2**30, np.int32)

OPEN: list[Case] = [
    Case("argmax-with-nan", "ArgMax", [_floats(1, NAN, 3)], [np.array([1])], (ORT,)),
    Case("mean-of-nothing", "ReduceMean", [np.zeros((2, 0), F), np.array([1])], [np.full((2, 1), NAN, F)], (ORT,)),
    Case("int-sum-overflow", "ReduceSum", [_BIG], [np.array([-(2**30)], np.int32)], (ORT,)),
    Case(
        "int-division-by-zero",
        "Div",
        [np.array([7, -7], np.int32), np.zeros(2, np.int32)],
        [np.zeros(2, np.int32)],
        (ORT,),
    ),
    Case("clip-with-nan", "Clip", [_floats(-5, 0), np.array(NAN, F), np.array(1, F)], [_floats(NAN, NAN)], (ORT,)),
    Case("hardmax-with-nan", "Hardmax", [_floats(1, NAN)], [_floats(0, 1)], (ORT,)),
    Case(
        "reflect-beyond-the-edge",
        "Pad",
        [_floats(0, 1, 2), np.array([5, 0])],
        [_floats(1, 0, 1, 2, 1, 0, 1, 2)],
        (ORT,),
        {"mode": "reflect"},
    ),
    Case(
        "dynamic-quantize-zeros",
        "DynamicQuantizeLinear",
        [np.zeros(3, F)],
        [np.zeros(3, np.uint8), np.array(1 / 255, F), np.array(0, np.uint8)],
        (ORT,),
    ),
    Case(
        "maxpool-with-nan",
        "MaxPool",
        [_floats(NAN, 1, 2).reshape(1, 1, 3)],
        [_floats(NAN, 2).reshape(1, 1, 2)],
        (ORT, REF),
        {"kernel_shape": [2]},
    ),
]
"""Cases that the text leaves open."""
