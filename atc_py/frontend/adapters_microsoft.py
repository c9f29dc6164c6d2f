"""Operators of onnxruntime's own that equal a few canonical ones: fused products, activations, normalisation.

    SkipLayerNormalization(x, skip, gamma, beta, bias)   →   LayerNormalization(x + skip + bias, gamma, beta)
    FusedMatMul(a, b) {transA: 1, alpha: 0.5}            →   MatMul(Transpose(a), b) · 0.5
    QuickGelu(x) {alpha: 1.702}                          →   Swish(x) {alpha: 1.702}

So passes, kernels and cost models see one operator a concept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.frontend.draft import Draft
from atc_py.frontend.extensions import extension
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Attr
from atc_py.ops.conv import ATTRS as CONV_ATTRS
from atc_py.ops.pool import POOL_ATTRS

MS = "com.microsoft::"


# -- small pieces that translations share ------------------------------------------------------------------


def one(d: Draft, op: str, inputs: Sequence[int], attrs: dict[str, Any] | None = None) -> int:
    """A helper node with one output."""
    return d.emit(op, inputs, attrs)[0]


def total(d: Draft, *inputs: int) -> int:
    """The sum of the inputs that are given, in their order."""
    given = [v for v in inputs if v != ABSENT]
    result = given[0]
    for value in given[1:]:
        result = one(d, "Add", [result, value])
    return result


def tensor(d: Draft, value: int) -> Tensor:
    """The type of a value that must be a tensor."""
    found = d.scope.graph.type(value)
    if not isinstance(found, Tensor):
        d.fail("expected a tensor")
    return found


def number(d: Draft, like: int, value: float) -> int:
    """A scalar constant of another value's element type."""
    return d.const(value, tensor(d, like).dtype)


def given(d: Draft, i: int) -> int:
    """Input `i`, or ABSENT."""
    return d.inputs[i] if d.has(i) else ABSENT


def asked(d: Draft, i: int) -> bool:
    """Whether output `i` has a name."""
    return i < len(d.names) and bool(d.names[i])


def outputs(d: Draft, *values: int) -> list[int]:
    """One value an output of the node."""
    return [*values, *[ABSENT] * len(d.names)][: len(d.names)]


def permuted(d: Draft, value: int, perm: Sequence[int]) -> int:
    """A Transpose."""
    return one(d, "Transpose", [value], {"perm": tuple(perm)})


def rank(d: Draft, value: int) -> int:
    """The rank of a value, which must be known."""
    found = tensor(d, value).rank
    if found is None:
        d.fail("the rank of an input must be known", "fix the shapes with --input-shape")
    return found


def to_channels_first(d: Draft, value: int) -> int:
    """[batch, spatial…, channels] as [batch, channels, spatial…]."""
    n = rank(d, value)
    return permuted(d, value, (0, n - 1, *range(1, n - 1)))


def to_channels_last(d: Draft, value: int) -> int:
    """The inverse."""
    n = rank(d, value)
    return permuted(d, value, (0, *range(2, n), 1))


def flat_softmax(d: Draft, x: int, axis: int) -> int:
    """Softmax over all dims from `axis` on, taken as one."""
    n = rank(d, x)
    at = axis + n if axis < 0 else axis
    if not 0 <= at < n:
        d.fail(f"axis {axis} is outside a tensor of rank {n}")
    if at == n - 1:
        return one(d, "Softmax", [x], {"axis": -1})
    rows = one(d, "Softmax", d.emit("Flatten", [x], {"axis": at}), {"axis": -1})
    return one(d, "Reshape", [rows, one(d, "Shape", [x])], {"allowzero": 1})


_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Clip": ("min", "max"), "Elu": ("alpha",), "Gelu": (), "HardSigmoid": ("alpha", "beta"), "HardSwish": (),
    "LeakyRelu": ("alpha",), "Relu": (), "Selu": ("alpha", "gamma"), "Sigmoid": (), "Softplus": (), "Softsign": (),
    "Tanh": (), "ThresholdedRelu": ("alpha",),
}  # fmt: skip
"""Activation → its parameters in onnxruntime's order."""


def activated(d: Draft, x: int, name: str | None, values: Sequence[float | None]) -> int:
    """`x` under an activation given by name and parameters; none for an empty name."""
    if not name:
        return x
    if name not in _PARAMETERS:
        d.fail(f"the activation '{name}' is unknown", f"known are {', '.join(_PARAMETERS)}")
    known = {k: v for k, v in zip(_PARAMETERS[name], values) if v is not None}
    if name == "Clip":
        return one(d, "Clip", [x, *(number(d, x, known[k]) if k in known else ABSENT for k in ("min", "max"))])
    return one(d, name, [x], known)


# -- products ----------------------------------------------------------------------------------------------

_TRANSPOSES = {"transA": Attr("int", 0), "transB": Attr("int", 0), "alpha": Attr("float", 1.0)}
_FUSED = {**_TRANSPOSES, "transBatchA": Attr("int", 0), "transBatchB": Attr("int", 0)}
_ACTIVATION = {
    "activation": Attr("str", ""),
    "activation_alpha": Attr("float", None),
    "activation_beta": Attr("float", None),
    "activation_gamma": Attr("float", None),
}


def _turned(d: Draft, value: int, swap: int, batch: int) -> int:
    """A factor with its first axis moved behind the batch axes (`batch`), then its last two swapped (`swap`)."""
    if not (swap or batch):
        return value
    n = rank(d, value)
    axes = list(range(n))
    if batch and n > 2:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if swap and n > 1:
        axes[-2:] = axes[:-3:-1]
    return value if axes == list(range(n)) else permuted(d, value, axes)


def _product(d: Draft) -> int:
    a = d.attrs
    left = _turned(d, d.inputs[0], a["transA"], a.get("transBatchA", 0))
    right = _turned(d, d.inputs[1], a["transB"], a.get("transBatchB", 0))
    result = one(d, "MatMul", [left, right])
    return result if a["alpha"] == 1 else one(d, "Mul", [result, number(d, result, a["alpha"])])


@extension(f"{MS}FusedMatMul", inputs="A B", outputs="Y", attrs=_FUSED)
@extension(f"{MS}TransposeMatMul", inputs="A B", outputs="Y", attrs=_TRANSPOSES)
def _fused_matmul(d: Draft) -> list[int]:
    return [_product(d)]


@extension(
    f"{MS}FusedMatMulActivation",
    inputs="A B",
    outputs="Y",
    attrs={**_FUSED, **_ACTIVATION, "activation_axis": Attr("int", -1)},
)
def _matmul_activation(d: Draft) -> list[int]:
    a, result = d.attrs, _product(d)
    if a["activation"] == "Softmax":
        return [one(d, "Softmax", [result], {"axis": a["activation_axis"]})]
    return [activated(d, result, a["activation"], [a[f"activation_{n}"] for n in ("alpha", "beta", "gamma")])]


@extension(
    f"{MS}FusedGemm", inputs="A B C?", outputs="Y", attrs={**_TRANSPOSES, "beta": Attr("float", 1.0), **_ACTIVATION}
)
def _fused_gemm(d: Draft) -> list[int]:
    a = d.attrs
    result = one(d, "Gemm", d.inputs, {n: a[n] for n in ("transA", "transB", "alpha", "beta")})
    return [activated(d, result, a["activation"], [a[f"activation_{n}"] for n in ("alpha", "beta", "gamma")])]


@extension(f"{MS}GemmFastGelu", inputs="X W bias?", outputs="Y")
def _gemm_fast_gelu(d: Draft) -> list[int]:
    x = total(d, one(d, "MatMul", d.inputs[:2]), given(d, 2))
    return [one(d, "Gelu", [x], {"approximate": "tanh"})]


@extension(
    f"{MS}FusedConv",
    inputs="X W B? Z?",
    outputs="Y",
    attrs={**CONV_ATTRS, "activation": Attr("str", ""), "activation_params": Attr("floats", ())},
)
def _fused_conv(d: Draft) -> list[int]:
    a = d.attrs
    result = one(d, "Conv", [*d.inputs[:2], given(d, 2)], {n: a[n] for n in CONV_ATTRS})
    return [activated(d, total(d, result, given(d, 3)), a["activation"], a["activation_params"])]


@extension(
    f"{MS}NhwcFusedConv",
    inputs="X W B? Z?",
    outputs="Y",
    attrs={**CONV_ATTRS, "activation": Attr("str", ""), "activation_params": Attr("floats", ())},
)
def _nhwc_fused_conv(d: Draft) -> list[int]:
    """FusedConv with X, Z and Y [batch, height, width, channels]; W is as Conv has it."""
    a = d.attrs
    x = to_channels_first(d, d.inputs[0])
    result = to_channels_last(d, one(d, "Conv", [x, d.inputs[1], given(d, 2)], {n: a[n] for n in CONV_ATTRS}))
    return [activated(d, total(d, result, given(d, 3)), a["activation"], a["activation_params"])]


@extension(f"{MS}NhwcConv", inputs="X W B?", outputs="Y", attrs=CONV_ATTRS)
def _nhwc_conv(d: Draft) -> list[int]:
    """Conv with X, Y [batch, height, width, channels] and W [out, height, width, in]."""
    x, w = (to_channels_first(d, v) for v in d.inputs[:2])
    return [to_channels_last(d, one(d, "Conv", [x, w, given(d, 2)], d.attrs))]


# -- activations -------------------------------------------------------------------------------------------


@extension(f"{MS}Gelu", inputs="X", outputs="Y")
def _gelu(d: Draft) -> list[int]:
    return d.finish("Gelu", d.inputs)


@extension(f"{MS}FastGelu", inputs="X bias?", outputs="Y")
def _fast_gelu(d: Draft) -> list[int]:
    return d.finish("Gelu", [total(d, d.inputs[0], given(d, 1))], {"approximate": "tanh"})


@extension(f"{MS}BiasGelu", inputs="A B", outputs="C")
def _bias_gelu(d: Draft) -> list[int]:
    return d.finish("Gelu", [total(d, *d.inputs)])


@extension(f"{MS}QuickGelu", inputs="X", outputs="Y", attrs={"alpha": Attr("float", 1.702)})
def _quick_gelu(d: Draft) -> list[int]:
    return d.finish("Swish", d.inputs, {"alpha": d.attrs["alpha"]})


@extension(f"{MS}BiasSplitGelu", inputs="X bias", outputs="Y")
def _bias_split_gelu(d: Draft) -> list[int]:
    left, right = d.emit("Split", [total(d, *d.inputs)], {"axis": -1, "num_outputs": 2}, outputs=2)
    return d.finish("Mul", [left, one(d, "Gelu", [right])])


@extension(f"{MS}BiasAdd", inputs="X bias skip", outputs="Y")
def _bias_add(d: Draft) -> list[int]:
    return [total(d, *d.inputs)]


@extension(
    f"{MS}BiasSoftmax",
    inputs="data bias",
    outputs="output",
    attrs={"axis": Attr("int", 1), "is_inner_broadcast": Attr("int")},
)
def _bias_softmax(d: Draft) -> list[int]:
    return [flat_softmax(d, total(d, *d.inputs), d.attrs["axis"])]


# -- normalisation -----------------------------------------------------------------------------------------

_EPSILON = {"epsilon": Attr("float", 1e-12)}
_NORM = {"axis": Attr("int", -1), "epsilon": Attr("float", 1e-5), "stash_type": Attr("int", 1)}


def _inverse_deviation(d: Draft, x: int, axis: int, epsilon: float) -> int:
    """1 / sqrt(mean(x²) + epsilon) over the axes from `axis` on, in float32 at least."""
    dtype = tensor(d, x).dtype
    wide = x if dtype in (DType.FLOAT32, DType.FLOAT64) else one(d, "Cast", [x], {"to": DType.FLOAT32})
    n = rank(d, x)
    axes = d.ints(range(axis % n, n))
    mean = one(d, "ReduceMean", [one(d, "Mul", [wide, wide]), axes], {"keepdims": 1})
    return one(d, "Reciprocal", d.emit("Sqrt", [total(d, mean, number(d, mean, epsilon))]))


@extension("LayerNormalization", inputs="X Scale B?", outputs="Y Mean? InvStdDev?", attrs=_NORM)
def _layer_normalization(d: Draft) -> list[int]:
    """Before opset 17 the operator was onnxruntime's own."""
    return d.finish("LayerNormalization", d.inputs, d.attrs)


@extension("SimplifiedLayerNormalization", inputs="X scale", outputs="Y inv_std_var?", attrs=_NORM)
@extension(f"{MS}SimplifiedLayerNormalization", inputs="X scale", outputs="Y inv_std_var?", attrs=_NORM)
def _simplified(d: Draft) -> list[int]:
    y = one(d, "RMSNormalization", d.inputs, d.attrs)
    if not asked(d, 1):
        return outputs(d, y)
    return outputs(d, y, _inverse_deviation(d, d.inputs[0], d.attrs["axis"], d.attrs["epsilon"]))


@extension(
    f"{MS}SkipLayerNormalization",
    inputs="input skip gamma beta? bias?",
    outputs="output mean? inv_std_var? input_skip_bias_sum?",
    attrs=_EPSILON,
)
def _skip_norm(d: Draft) -> list[int]:
    x = total(d, d.inputs[0], d.inputs[1], given(d, 4))
    statistics = 3 if asked(d, 1) or asked(d, 2) else 1
    attrs = {"axis": -1, "epsilon": d.attrs["epsilon"]}
    made = d.emit("LayerNormalization", [x, d.inputs[2], given(d, 3)], attrs, outputs=statistics)
    return outputs(d, *[*made, ABSENT, ABSENT][:3], x)


@extension(
    f"{MS}SkipSimplifiedLayerNormalization",
    inputs="input skip gamma bias?",
    outputs="output mean? inv_std_var? input_skip_bias_sum?",
    attrs=_EPSILON,
)
def _skip_simplified(d: Draft) -> list[int]:
    x = total(d, d.inputs[0], d.inputs[1], given(d, 3))
    y = one(d, "RMSNormalization", [x, d.inputs[2]], {"axis": -1, "epsilon": d.attrs["epsilon"]})
    if asked(d, 1):
        d.fail("its output 'mean' is not defined")
    inverse = _inverse_deviation(d, x, -1, d.attrs["epsilon"]) if asked(d, 2) else ABSENT
    return outputs(d, y, ABSENT, inverse, x)


_GROUPS = {
    "activation": Attr("int"),
    "channels_last": Attr("int", 1),
    "epsilon": Attr("float", 1e-5),
    "groups": Attr("int"),
}


def _group_norm(d: Draft, x: int, gamma: int, beta: int) -> int:
    a = d.attrs
    source = to_channels_first(d, x) if a["channels_last"] else x
    dtype = tensor(d, x).dtype
    gamma, beta = (v if tensor(d, v).dtype is dtype else one(d, "Cast", [v], {"to": dtype}) for v in (gamma, beta))
    attrs = {"num_groups": a["groups"], "epsilon": a["epsilon"]}
    y = one(d, "GroupNormalization", [source, gamma, beta], attrs)
    y = one(d, "Swish", [y], {"alpha": 1.0}) if a["activation"] else y
    return to_channels_last(d, y) if a["channels_last"] else y


@extension(f"{MS}GroupNorm", inputs="X gamma beta", outputs="Y", attrs=_GROUPS)
def _group(d: Draft) -> list[int]:
    return [_group_norm(d, *d.inputs)]


@extension(f"{MS}SkipGroupNorm", inputs="X gamma beta skip bias?", outputs="Y S?", attrs=_GROUPS)
def _skip_group(d: Draft) -> list[int]:
    x, gamma, beta, skip = d.inputs[:4]
    if rank(d, skip) == 2:
        skip = one(d, "Unsqueeze", [skip, d.ints([1, 2] if d.attrs["channels_last"] else [2, 3])])
    bias = given(d, 4)
    if bias != ABSENT and not d.attrs["channels_last"]:
        bias = one(d, "Unsqueeze", [bias, d.ints([1, 2])])
    x = total(d, x, skip, bias)
    return outputs(d, _group_norm(d, x, gamma, beta), x)


@extension(
    f"{MS}EmbedLayerNormalization",
    inputs="input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
    outputs="output mask_index? embedding_sum?",
    attrs={**_EPSILON, "mask_index_type": Attr("int", 0)},
)
def _embed(d: Draft) -> list[int]:
    ids, segments, words, places, kinds, gamma, beta = d.inputs[:7]
    place = d.inputs[8] if d.has(8) else positions(d, ids)
    x = total(d, one(d, "Gather", [words, ids]), one(d, "Gather", [places, place]))
    if segments != ABSENT:
        x = total(d, x, one(d, "Gather", [kinds, segments]))
    y = one(d, "LayerNormalization", [x, gamma, beta], {"axis": -1, "epsilon": d.attrs["epsilon"]})
    return outputs(d, y, mask_index(d, ids) if asked(d, 1) else ABSENT, x)


def positions(d: Draft, ids: int) -> int:
    """0, 1, … for each step of ids [batch, steps]."""
    steps = one(d, "Gather", [one(d, "Shape", [ids]), d.const(np.int64(1))], {"axis": 0})
    return one(d, "Range", [d.const(np.int64(0)), steps, d.const(np.int64(1))])


def mask_index(d: Draft, ids: int) -> int:
    """The number of ones in each row of the mask; zeros without a mask."""
    if d.has(7):
        return one(d, "ReduceSum", [d.inputs[7], d.ints([1])], {"keepdims": 0})
    zeros = one(d, "Mul", [one(d, "Cast", [ids], {"to": DType.INT32}), d.const(np.int32(0))])
    return one(d, "ReduceSum", [zeros, d.ints([1])], {"keepdims": 0})


# -- pooling -----------------------------------------------------------------------------------------------


@extension(f"{MS}NhwcMaxPool", inputs="x", outputs="y", attrs=POOL_ATTRS)
def _nhwc_max_pool(d: Draft) -> list[int]:
    return [to_channels_last(d, one(d, "MaxPool", [to_channels_first(d, d.inputs[0])], d.attrs))]
