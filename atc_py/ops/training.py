"""Optimizers of ai.onnx.preview.training: one step of Adagrad, Adam and Momentum (Gradient is not among them).

    Momentum(R, T, X, G, V)                    ->  X - R·(α·V + G), α·V + G        standard mode, β = 1
    Momentum(R, T, X1, X2, G1, G2, V1, V2)     ->  X1', X2', V1', V2'

Inputs and outputs come by kind: all tensors X, then all gradients G, then the accumulated values. Computed in the
tensors' own dtype, as ONNX's formulas have it; R and T are scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Infer, Op, Result, declare, elements

Step = Callable[[Mapping[str, Any], Any, float, "list[Array]"], "list[Array]"]
"""`step(attrs, R, T, [X, G, accumulated…])` gives the new X and the new accumulated values."""


def _optimizer(name: str, kinds: int, attrs: dict[str, Attr], step: Step) -> Op:
    """Declare an optimizer whose tensors come in `kinds` kinds, the gradient among them."""
    op = declare(
        f"ai.onnx.preview.training::{name}",
        inputs="R T inputs*",
        outputs="outputs*",
        attrs=attrs,
        engine=Engine.AICPU,
        host_inputs=(0, 1),
    )

    @op.infer
    def infer(n: Infer) -> Result:
        count, left = divmod(len(n.types) - 2, kinds)
        if left or count < 1:
            n.fail(f"{name} takes R, T and {kinds} tensors for each one to optimize, but has {len(n.types)} inputs")
        return [n.tensor(2 + (0 if k == 0 else k + 1) * count + i) for k in range(kinds - 1) for i in range(count)]

    @op.cost
    def cost(n: Infer) -> Cost:
        return Cost(vector=4 * sum((elements(t) for t in n.types[2:]), start=0))

    @op.kernel
    def kernel(call: Call, rate: Array, count: Array, *tensors: Array) -> tuple[Array, ...]:
        groups = len(tensors) // kinds
        made: list[list[Array]] = []
        with np.errstate(all="ignore"):
            for i in range(groups):
                given = [tensors[k * groups + i] for k in range(kinds)]
                new = step(call.attrs, rate.reshape(-1)[0], float(count.reshape(-1)[0]), given)
                made.append([a.astype(given[0].dtype, copy=False) for a in new])
        return tuple(made[i][k] for k in range(kinds - 1) for i in range(groups))

    return op


def _adagrad(attrs: Mapping[str, Any], rate: Any, count: float, given: list[Array]) -> list[Array]:
    x, g, h = given
    g = attrs["norm_coefficient"] * x + g
    h = h + g * g
    return [x - rate / (1 + count * attrs["decay_factor"]) * g / (np.sqrt(h) + attrs["epsilon"]), h]


def _adam(attrs: Mapping[str, Any], rate: Any, count: float, given: list[Array]) -> list[Array]:
    x, g, v, h = given
    alpha, beta = attrs["alpha"], attrs["beta"]
    g = attrs["norm_coefficient"] * x + g
    v = alpha * v + (1 - alpha) * g
    h = beta * h + (1 - beta) * (g * g)
    if count > 0:
        rate = rate * np.sqrt(1 - beta**count) / (1 - alpha**count)
    x = (1 - attrs["norm_coefficient_post"]) * (x - rate * (v / (np.sqrt(h) + attrs["epsilon"])))
    return [x, v, h]


def _momentum(attrs: Mapping[str, Any], rate: Any, count: float, given: list[Array]) -> list[Array]:
    x, g, v = given
    alpha = attrs["alpha"]
    g = attrs["norm_coefficient"] * x + g
    v = alpha * v + (attrs["beta"] if count > 0 else 1.0) * g
    return [x - rate * (g + alpha * v if attrs["mode"] == "nesterov" else v), v]


adagrad = _optimizer(
    "Adagrad",
    3,
    {"decay_factor": Attr("float", 0.0), "epsilon": Attr("float", 1e-6), "norm_coefficient": Attr("float", 0.0)},
    _adagrad,
)
adam = _optimizer(
    "Adam",
    4,
    {
        "alpha": Attr("float", 0.9),
        "beta": Attr("float", 0.999),
        "epsilon": Attr("float", 1e-6),
        "norm_coefficient": Attr("float", 0.0),
        "norm_coefficient_post": Attr("float", 0.0),
    },
    _adam,
)
momentum = _optimizer(
    "Momentum",
    3,
    {"alpha": Attr("float"), "beta": Attr("float"), "mode": Attr("str"), "norm_coefficient": Attr("float")},
    _momentum,
)
