"""Real models and onnx's own tests: everything imports, and the types agree with onnx's shape inference."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
import onnx.shape_inference
import pytest
from onnx.backend.test.case.test_case import TestCase

from atc_py import frontend
from atc_py.errors import AtcError
from atc_py.frontend.onnx_types import declared
from atc_py.ir.types import Tensor
from atc_py.ir.validate import validate
from tests.frontend.models import model
from tests.ir.structure import structural_hash

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
CORPUS = Path(os.environ.get("ATC_CORPUS", Path(__file__).parents[3] / "shared/corpus")) / "models"
MODELS = LIGHT + sorted(CORPUS.glob("*.onnx"))


def _file(t: TestCase) -> str:
    assert t.model_dir is not None
    return os.path.join(t.model_dir, "model.onnx")


@lru_cache(maxsize=1)
def suites() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    return {
        t.name: t.model or _file(t)
        for kind in ("node", "simple", "pytorch-converted", "pytorch-operator")
        for t in load_model_tests(kind=kind)
    }


@pytest.mark.parametrize("path", MODELS, ids=[p.stem for p in MODELS])
def test_types_agree_with_onnx(path: Path) -> None:
    found = frontend.import_model(path)
    validate(found.graph)
    assert not found.warnings
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), data_prop=True)
    ours = {v.name: v.type for v in found.graph.values.values() if isinstance(v.type, Tensor)}
    compared = 0
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        theirs, type_ = declared(info.type), ours.get(info.name)
        if theirs is None or type_ is None:
            continue
        compared += 1
        assert type_.dtype is theirs.dtype, info.name
        if theirs.dims is not None:
            # Wherever onnx knows a size, so do we; it may know fewer.
            assert type_.shape is not None and len(type_.shape) == len(theirs.dims), info.name
            for mine, other in zip(type_.shape, theirs.dims, strict=True):
                assert type(other) is not int or mine == other, (info.name, type_, theirs)
    assert compared


@pytest.mark.slow
def test_every_model_of_the_onnx_tests_imports() -> None:
    """Gradient differentiates a graph, which no inference runtime does; all others import."""
    refused = {}
    for name, source in suites().items():
        try:
            frontend.read(source)
        except AtcError as problem:
            refused[name] = problem
    assert {p.code for e in refused.values() for p in e.problems} <= {"E16002"}
    assert sorted(refused) == ["test_gradient_of_add", "test_gradient_of_add_and_mul"], refused


@pytest.mark.parametrize("path", LIGHT[:3] + sorted(CORPUS.glob("hf_bert_ts.onnx")), ids=lambda p: p.stem)
def test_file_order_and_names_change_nothing(path: Path) -> None:
    proto = onnx.load(path)
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    del other.graph.node[:]
    other.graph.node.extend(reversed(proto.graph.node))
    for node in other.graph.node:
        node.name = ""
    assert structural_hash(frontend.read(proto)) == structural_hash(frontend.read(other))


def test_description_of_the_file() -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.producer_name, proto.producer_version = "maker", "1.2"
    proto.metadata_props.add(key="names", value="{0: 'cat'}")
    doc = frontend.read(proto).doc
    assert doc == {"producer": "maker 1.2", "ir_version": "10", "opsets": "ai.onnx 21", "metadata.names": "{0: 'cat'}"}
