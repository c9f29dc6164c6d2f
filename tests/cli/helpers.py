"""The command line as tests call it, and its machine output checked against the published schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from click.testing import CliRunner, Result
from onnx import ModelProto, TensorProto, helper, numpy_helper
from referencing import Registry, Resource

from atc_py.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
SCHEMAS = ROOT / "docs" / "schema"


def atc(*args: object) -> Result:
    """Run `atc` in this process."""
    return CliRunner().invoke(app, [str(a) for a in args], prog_name="atc")


@cache
def _registry() -> Any:
    files = [(p.name, Resource.from_contents(json.loads(p.read_text()))) for p in SCHEMAS.glob("*.json")]
    return Registry().with_resources(files)


def valid(text: str, schema: str) -> Any:
    """The JSON object, which must be all of the text and fit docs/schema/<schema>.schema.json."""
    found = json.loads(text)
    body = json.loads((SCHEMAS / f"{schema}.schema.json").read_text())
    jsonschema.Draft202012Validator(body, registry=_registry()).validate(found)
    return found


def problems(result: Result) -> list[dict[str, str]]:
    """The problems of a failed call with --json: each with a code, a place, a cause and a hint."""
    assert result.exit_code in (1, 2), (result.exit_code, result.output, result.exception)
    found: list[dict[str, str]] = valid(result.stdout, "error")["error"]["problems"]
    for problem in found:
        assert problem["place"] and problem["cause"] and problem["hint"], problem
    return found


def codes(result: Result) -> list[str]:
    """The codes of a failed call with --json, in order, each once."""
    return list(dict.fromkeys(p["code"] for p in problems(result)))


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: dict[str, Any] | None = None
) -> ModelProto:
    """A model: inputs as name → (type, shape), constants as name → array."""
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, outs, weights)
    domains = sorted({n.domain for n in nodes})
    opsets = [helper.make_opsetid(d, 17 if not d else 1) for d in dict.fromkeys(["", *domains])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def save(proto: ModelProto, path: Path) -> Path:
    """Write a model."""
    path.write_bytes(proto.SerializeToString())
    return path


FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
