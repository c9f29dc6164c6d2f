"""Nodes of custom operators: held against the declaration, and marked with the module that it comes from.

    acme::SoftCap(x) {cap: 30}   →   acme::SoftCap (x) {cap = 30.0, _custom = "softcap.py"}

Without a shape rule, the element types that the model declares for the outputs are noted too (`_dtypes`); what it
declares of their shapes is taken over as for any output whose size only the run time knows.
"""

from __future__ import annotations

from typing import Any

from atc_py.frontend.attributes import coerce, decode
from atc_py.frontend.external import ExternalFiles
from atc_py.frontend.frame import Site
from atc_py.frontend.onnx_types import declared
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType
from atc_py.ops import MARK
from atc_py.ops.base import InferError
from atc_py.ops.build import Scope
from atc_py.ops.custom import DTYPES, CustomOp


def emit(site: Site, op: CustomOp, files: ExternalFiles) -> list[int]:
    """Type the node and add it; returns its results. Raises `InferError` where it is not as declared."""
    strange = next(iter(site.node.bodies), None)
    if strange is not None:
        raise InferError(f"attribute '{strange}' is a graph, which custom operators cannot take")
    outputs = len(site.node.outputs)
    while outputs > site.leading and outputs <= len(op.outputs) and op.outputs[outputs - 1].endswith("?"):
        outputs -= 1
    inputs = list(site.inputs)
    while inputs and inputs[-1] == ABSENT and len(inputs) > op.min_inputs:
        inputs.pop()
    Scope.check_arity(op, len(inputs), outputs)
    for i, name in enumerate(op.inputs[: len(inputs)]):
        if inputs[i] == ABSENT and not name.endswith(("?", "*")):
            raise InferError(f"{op.name}: input {i} ({name}) is absent")
    attrs = coerce(op, {n: decode(a, files) for n, a in site.given.items()}, None)
    marks: dict[str, Any] = {MARK: op.module}
    if not op.has_shape_rule:
        marks[DTYPES] = tuple(_declared_dtype(site, name) for name in site.node.outputs[:outputs])
    draft = site.draft(attrs)
    draft.outputs = outputs
    return draft.finish(op.name, inputs, attrs | marks)


def _declared_dtype(site: Site, name: str) -> DType | None:
    """The element type that the model declares for a tensor, None when it declares none."""
    proto = site.frame.info.declared.get(name)
    told = None if proto is None else declared(proto)
    return None if told is None else told.dtype
