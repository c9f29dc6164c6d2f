"""Node tests with a single node as cases of the harness, at the newest form of each operator."""

from __future__ import annotations

import warnings
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.ops.harness import Case


@lru_cache(maxsize=1)
def _all() -> tuple[Any, ...]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators of the test data overflow on purpose
        return tuple(load_model_tests(kind="node"))


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value


def _float6(model: onnx.ModelProto) -> bool:
    """Whether an input or output is float6 (element types 27 and up), which the IR does not have."""
    return any(v.type.tensor_type.elem_type > 26 for v in (*model.graph.input, *model.graph.output))


@cache
def cases(*ops: str) -> list[Case]:
    """The node tests that are one node of one of the operators."""
    found = []
    for test in _all():
        graph = test.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type not in ops or _float6(test.model):
            continue
        node = graph.node[0]
        data_in, data_out = test.data_sets[0]
        ins = {v.name: np.asarray(_array(x)) for v, x in zip(graph.input, data_in, strict=True)}
        outs = {v.name: np.asarray(_array(x)) for v, x in zip(graph.output, data_out, strict=True)}
        found.append(
            Case(
                test.name, node.op_type, node,
                tuple(ins.get(i) for i in node.input), tuple(outs.get(o) for o in node.output),
            )
        )  # fmt: skip
    return found
