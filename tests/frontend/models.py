"""Small models in ONNX's text form, and what is asked of an import again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from atc_py import frontend
from atc_py.errors import AtcError, Problem
from atc_py.ir.constants import Constant
from atc_py.ir.graph import STRUCTURAL, Graph
from atc_py.ir.validate import validate
from atc_py.ops.evaluate import evaluate
from tests.frontend.interpreter import interpret


def model(body: str, opset: int = 21, ir: int = 10, extra: str = "") -> onnx.ModelProto:
    """A model of ONNX's text form without its header; `extra` are further opset imports, e.g. `"com.microsoft": 1`."""
    imports = f'"": {opset}' + (f", {extra}" if extra else "")
    return onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]>\n{body}")


def read(proto: onnx.ModelProto | str, **options: Any) -> Graph:
    """The graph, checked against the laws of the IR."""
    graph = frontend.read(model(proto) if isinstance(proto, str) else proto, frontend.ReadOptions(**options))
    validate(graph)
    return graph


def problems(proto: onnx.ModelProto | str | bytes, **options: Any) -> tuple[Problem, ...]:
    """Everything that is wrong with a model that must not be read."""
    with pytest.raises(AtcError) as caught:
        frontend.read(model(proto) if isinstance(proto, str) else proto, frontend.ReadOptions(**options))
    assert all(p.code != "E19999" for p in caught.value.problems), caught.value
    return caught.value.problems


def ops(graph: Graph) -> list[str]:
    """The operators that do work, in order."""
    return [n.op for n in graph.nodes.values() if n.op not in STRUCTURAL]


def shape(graph: Graph, name: str) -> list[str] | None:
    """The shape of the value called `name`, dims as text."""
    [value] = [v for v in graph.values.values() if v.name == name]
    return None if value.tensor.shape is None else [str(d) for d in value.tensor.shape]


def const(graph: Graph, value: int) -> np.ndarray[Any, Any]:
    """The content of a constant value."""
    constant: Constant | None = graph.const(value)
    assert constant is not None
    return evaluate(constant)


def same_as_onnxruntime(proto: onnx.ModelProto, feeds: Sequence[np.ndarray[Any, Any]], rtol: float = 1e-5) -> Graph:
    """Import, interpret, and compare with onnxruntime on the model as it is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: f for i, f in zip(session.get_inputs(), feeds, strict=True)})
    graph = read(proto)
    got = interpret(graph, feeds)
    for name, a, b in zip(graph.output_names, got, wanted, strict=True):
        assert np.asarray(a).dtype == b.dtype, name
        np.testing.assert_allclose(a, b, rtol, 1e-5, err_msg=name)
    return graph
