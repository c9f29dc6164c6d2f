"""ONNX's own definitions of its functions, expanded into their pieces, are recognised as the functions."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from atc_py import frontend
from atc_py.passes import OptimizeOptions, optimize
from tests.backend.onnx_tests import cases
from tests.passes.interp import work

KINDS = {
    "gelu": "Gelu",
    "greater_equal": "GreaterOrEqual",
    "hardsigmoid": "HardSigmoid",
    "hardswish": "HardSwish",
    "leakyrelu": "LeakyRelu",
    "less_equal": "LessOrEqual",
    "logsoftmax": "LogSoftmax",
    "mish": "Mish",
    "relu": "Relu",
    "rms_normalization": "RMSNormalization",
    "rotary_embedding": "RotaryEmbedding",
    "softmax": "Softmax",
    "softsign": "Softsign",
    "spacetodepth": "SpaceToDepth",
    "depthtospace": "DepthToSpace",
    "swish": "Swish",
    "attention": "Attention",
}
PIECES = {"Exp", "Erf", "Tanh", "Sqrt", "Softmax", "Div", "Neg"}
"""What a function is made of, and what nothing else in these models needs."""

READ_INSIDE = re.compile("qk_matmul|mode3|gqa_rank4")
"""Tests that want the scores or the weights of an attention too: there the pieces stay."""


def of_kind(kind: str) -> list[str]:
    return [n for n in sorted(cases()) if re.match(rf"node/test_{kind}_(?!.*({READ_INSIDE.pattern})).*expanded", n)]


@pytest.mark.parametrize("kind", KINDS)
def test_expanded_functions(kind: str) -> None:
    names = of_kind(kind) or [n for n in sorted(cases()) if n.startswith(f"node/test_{kind}_expanded")]
    assert names
    for name in names:
        graph = frontend.read(cases()[name].load().model)
        optimize(graph, OptimizeOptions(debug=True))
        left = Counter(work(graph))
        assert left[KINDS[kind]] == 1, f"{name}: {dict(left)}"
        assert not (PIECES - {KINDS[kind]}) & set(left), f"{name}: {dict(left)}"
