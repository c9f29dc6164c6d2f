"""onnx's backend tests as plain functions: find them, run one through the whole path, compare what came of it.

    cases()["node/test_relu"].load()  →  model, data sets of inputs and expected outputs, tolerances
    run(loaded)                       →  convert, bytes of an OM, load, run, compare; what it ran on

A case's name is its category (onnx's kind) and onnx's name of the test.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

from atc_py import Options, backend
from atc_py.ops.build import lookup

CATEGORIES = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")

RANDOM = "random output: test_random_outputs.py checks dtype, shape and distribution"
GRADIENT = "training: the operator Gradient"
EXCLUDED: Mapping[str, str] = {
    **{f"node/test_bernoulli{kind}{form}": RANDOM for kind in ("", "_double", "_seed") for form in ("", "_expanded")},
    "simple/test_gradient_of_add": GRADIENT,
    "simple/test_gradient_of_add_and_mul": GRADIENT,
}
"""The tests that are not run, and why."""

Values = Sequence[Any]


@dataclass(frozen=True)
class Loaded:
    """A test's model and data; values are arrays, lists (sequences) or None (an absent optional)."""

    model: onnx.ModelProto
    data_sets: Sequence[tuple[Values, Values]]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """One of onnx's tests."""

    category: str
    test: Any

    def load(self) -> Loaded:
        """The model and the data."""
        test = self.test
        data: list[tuple[Values, Values]]
        if test.model is not None:
            model, data = test.model, [([_plain(v) for v in i], [_plain(v) for v in o]) for i, o in test.data_sets]
        elif test.model_dir is not None:
            model = onnx.load(os.path.join(test.model_dir, "model.onnx"))
            folders = sorted(glob.glob(os.path.join(test.model_dir, "test_data_set*")))
            data = [(_read(f, "input", model.graph.input), _read(f, "output", model.graph.output)) for f in folders]
        else:
            model, data = _light(test)
        return Loaded(model, data, test.rtol, test.atol)


@cache
def cases() -> dict[str, Case]:
    """All tests by name, also those that are excluded."""
    found: dict[str, Case] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in CATEGORIES:
            for test in sorted(load_model_tests(kind=category), key=lambda t: t.name):
                found[f"{category}/{test.name}"] = Case(category, test)
    return found


def included(*categories: str) -> list[str]:
    """The names of the tests that are run."""
    return [n for n, c in cases().items() if n not in EXCLUDED and c.category in (categories or CATEGORIES)]


def _light(test: Any) -> tuple[onnx.ModelProto, list[tuple[Values, Values]]]:
    """A model of a real architecture whose weights are all alike, with the inputs that onnx's runner makes for it."""
    path = Path(DATA_DIR, "light", os.path.basename(test.url))
    model = onnx.load(path)
    weights = {i.name for i in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in model.graph.input if v.name not in weights]
    outputs = [
        numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_{i}.pb")))
        for i in range(len(model.graph.output))
    ]
    return model, [(inputs, outputs)]


def _read(folder: str, what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    kinds: dict[str | None, Any] = {
        "tensor_type": onnx.TensorProto,
        "sequence_type": onnx.SequenceProto,
        "optional_type": onnx.OptionalProto,
    }
    count = len(glob.glob(os.path.join(folder, f"{what}_*.pb")))
    protos = [kinds[v.type.WhichOneof("value")] for v in infos][:count]
    files = [Path(folder, f"{what}_{i}.pb").read_bytes() for i in range(count)]
    return [_plain(proto.FromString(data)) for proto, data in zip(protos, files, strict=True)]


def _plain(value: Any) -> Any:
    """A value of a data set as the runtime takes it."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None else np.asarray(value)


def run(loaded: Loaded, options: Options | None = None) -> list[str]:
    """Convert, write, load and run the model on every data set; raises `AssertionError` when anything differs.

    Returns the operators that ran on onnx's reference implementation.
    """
    assert loaded.data_sets, "the test has no data"
    prepared = backend.prepare(loaded.model, options=options)
    for inputs, expected in loaded.data_sets:
        got = list(prepared.run(list(inputs)))
        assert len(got) == len(expected), f"{len(got)} outputs, expected {len(expected)}"
        for i, (have, want) in enumerate(zip(got, expected, strict=True)):
            assert_alike(have, want, loaded.rtol, loaded.atol, f"output {i}")
    tasks = prepared.session.plan.tasks()
    return sorted({t.kernel for t in tasks if lookup(t.kernel, t.attrs).reference})


def assert_alike(have: Any, want: Any, rtol: float, atol: float, place: str) -> None:
    """Same kind, shape and dtype; numbers within onnx's tolerances, integers and strings exactly.

    onnx's own comparison is not used: it takes a tensor within a sequence for a sequence of its rows, and so fails on
    scalars there. Its rule for bfloat16, two units in the last place, is kept.
    """
    if want is None or have is None:
        assert have is want, f"{place} is {type(have).__name__}, expected {type(want).__name__}"
    elif isinstance(want, (list, tuple)):
        assert isinstance(have, (list, tuple)), f"{place} is {type(have).__name__}, expected a sequence"
        assert len(have) == len(want), f"{place} has {len(have)} elements, expected {len(want)}"
        for i, (a, b) in enumerate(zip(have, want, strict=True)):
            assert_alike(a, b, rtol, atol, f"{place}[{i}]")
    else:
        _assert_close(np.asarray(have), np.asarray(want), rtol, atol, place)


def _assert_close(have: Any, want: Any, rtol: float, atol: float, place: str) -> None:
    assert have.shape == want.shape, f"{place} has shape {have.shape}, expected {want.shape}"
    if want.dtype.kind in "OUS":
        assert have.dtype.kind in "OUS", f"{place} is {have.dtype}, expected strings"
        assert [_text(x) for x in have.flat] == [_text(x) for x in want.flat], place
        return
    assert have.dtype == want.dtype, f"{place} is {have.dtype}, expected {want.dtype}"
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(have, want, err_msg=place)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol, atol, err_msg=place)


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)
