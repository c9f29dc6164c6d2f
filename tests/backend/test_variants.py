"""The node tests with constants for inputs, and with symbols for sizes: folding and binding agree with the static path.

Every third test of each form, chosen by a hash, is quick; the others are slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from atc_py import backend
from tests.backend.onnx_tests import Loaded, cases, included
from tests.backend.variants import VARIANTS, run_variant, sampled


def _parameters() -> list[Any]:
    found = []
    for variant in VARIANTS:
        for name in included("node") if variant != "plain" else ():
            marks = () if sampled(variant, name) else (pytest.mark.slow,)
            found.append(pytest.param(variant, name, marks=marks, id=f"{variant}-{name}"))
    return found


@pytest.mark.parametrize(("variant", "name"), _parameters())
def test_variant(variant: str, name: str) -> None:
    run_variant(variant, cases()[name].load())


def _matmul() -> Loaded:
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (2, 3)), ("w", (3, 4)), ("y", (2, 4)))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "matmul", infos[:2], infos[2:])
    return Loaded(helper.make_model(graph), [([x, w], [x @ w])], 1e-6, 0)


@pytest.mark.parametrize(
    ("variant", "inputs", "multiplies", "static"),
    [("plain", 2, True, True), ("constants", 0, False, True), ("weights", 1, True, True), ("symbolic", 2, True, False)],
)
def test_each_form_is_what_it_says(variant: str, inputs: int, multiplies: bool, static: bool) -> None:
    [(form, options)] = VARIANTS[variant](_matmul())
    plan = backend.prepare(form.model, options=options).session.plan
    assert (len(plan.inputs), "MatMul" in [t.kernel for t in plan.tasks()], plan.static) == (inputs, multiplies, static)
    run_variant(variant, _matmul())


def test_a_wrong_result_fails_in_every_form() -> None:
    loaded = _matmul()
    [(inputs, [y])] = loaded.data_sets
    wrong = Loaded(loaded.model, [(inputs, [y + 1])], 1e-6, 0)
    for variant in VARIANTS:
        with pytest.raises(AssertionError, match="output 0"):
            run_variant(variant, wrong)


def test_sequences_and_optionals_become_constants() -> None:
    tensor = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(tensor)
    for kind, value in ((sequence, [np.ones(2, np.float32)]), (helper.make_optional_type_proto(sequence), None)):
        graph = helper.make_graph(
            [helper.make_node("OptionalHasElement", ["x"], ["y"])],
            "optional",
            [helper.make_value_info("x", kind)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, ())],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        loaded = Loaded(model, [([value], [np.array(value is not None)])], 0, 0)
        [(form, _)] = VARIANTS["constants"](loaded)
        assert not form.model.graph.input
        run_variant("constants", loaded)
