"""docs/oracles.md, case by case: atc-py does what the specification says, and the oracles do what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from atc_py import backend
from tests.backend.onnx_tests import assert_alike, cases
from tests.backend.oracle_cases import DECIDED, OPEN, ORT, REF, Case

ROOT = Path(__file__).resolve().parents[2]
ALL = {c.name: c for c in (*DECIDED, *OPEN)}


def _at_the_pages_versions(oracle: str) -> bool:
    """What an oracle does is only known for the versions in scripts/constraints.txt."""
    package, version = ("onnxruntime", onnxruntime.__version__) if oracle == ORT else ("onnx", onnx.__version__)
    return f"{package} {version}" in (ROOT / "docs/oracles.md").read_text()


def _ask(oracle: str, model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    if oracle == REF:
        return list(ReferenceEvaluator(model).run(None, feeds))
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _compare(got: Sequence[Any], case: Case) -> None:
    for i, (have, want) in enumerate(zip(got, case.right, strict=True)):
        if want is not None:
            assert_alike(np.asarray(have), want, case.rtol, 1e-6, f"output {i}")


@pytest.mark.parametrize("name", list(ALL))
def test_ours(name: str) -> None:
    model, feeds = ALL[name].model()
    _compare(backend.prepare(model).run(feeds), ALL[name])


@pytest.mark.parametrize("oracle", [ORT, REF])
@pytest.mark.parametrize("name", list(ALL))
def test_oracle(name: str, oracle: str) -> None:
    if not _at_the_pages_versions(oracle):
        return
    case = ALL[name]
    model, feeds = case.model()
    if oracle not in case.wrong:
        _compare(_ask(oracle, model, feeds), case)
        return
    try:
        got = _ask(oracle, model, feeds)
    except Exception:  # the oracle refuses the model: any type, of its own
        return
    with pytest.raises(AssertionError):
        _compare(got, case)


def test_the_function_body_of_bernoulli_draws_ones_with_the_complement() -> None:
    body, operator = (cases()[f"node/test_bernoulli{form}"].load().model for form in ("_expanded", ""))
    ones = np.ones(10)
    runs: list[Callable[[onnx.ModelProto], Any]] = [
        lambda m: backend.prepare(m).run([ones])[0], lambda m: _ask(REF, m, {"x": ones})[0]
    ]  # fmt: skip
    for run in runs:
        assert np.all(run(body) == 0) and np.all(run(operator) == 1)
    if _at_the_pages_versions(ORT):  # it takes the body for the operator, which it has no kernel of
        old = onnx.ModelProto.FromString(operator.SerializeToString())
        old.opset_import[0].version = 15
        assert np.all(_ask(ORT, old, {"x": ones})[0] == 0)


def test_softmax_in_float16_rounds_the_values_of_its_function_body() -> None:
    x = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float16)
    wide = x.astype(np.float64)
    shifted = (wide - wide.max(axis=1, keepdims=True)).astype(np.float16)
    powers = np.exp(shifted.astype(np.float64)).astype(np.float16).astype(np.float64)
    body = (powers / powers.sum(axis=1, keepdims=True).astype(np.float16)).astype(np.float16)
    model, feeds = Case("", "Softmax", [x], [body], (), {"axis": 1}).model()
    [got] = backend.prepare(model).run(feeds)
    assert np.mean(got == body) > 0.99  # what is left is float32's exp against float64's, next to a tie


def test_tanh_of_onnxruntime_exceeds_one() -> None:
    x = np.linspace(-12, 12, 200_001).astype(np.float32)
    exact = np.tanh(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32))
    model, feeds = Case("", "Tanh", [x], [x], ()).model()
    [ours] = backend.prepare(model).run(feeds)
    assert np.max(np.abs(ours)) == 1 and np.max(np.abs(ours - exact) / unit) < 2
    if _at_the_pages_versions(ORT):
        [theirs] = _ask(ORT, model, feeds)
        assert np.max(theirs) > 1 and np.max(np.abs(theirs - exact) / unit) > 4


def test_a_scalar_that_a_loop_stacks_has_no_axis_of_its_own() -> None:
    loaded = cases()["node/test_range_float_type_positive_delta_expanded"].load()
    [(inputs, [y])] = loaded.data_sets
    [got] = backend.prepare(loaded.model).run(inputs)
    assert got.shape == y.shape == (2,)
    if _at_the_pages_versions(REF):
        names = [i.name for i in loaded.model.graph.input]
        assert _ask(REF, loaded.model, dict(zip(names, inputs, strict=True)))[0].shape == (2, 1)


def test_the_page_names_every_case_and_no_other() -> None:
    page = (ROOT / "docs/oracles.md").read_text()
    named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page))
    assert named == set(ALL)
    for test in re.findall(r"`(test_\w+)`", page):
        assert f"def {test}" in Path(__file__).read_text() or f"node/{test}" in cases(), test
