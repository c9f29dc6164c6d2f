"""What an operator of a model means: declared by atc-py, a function, onnx's reference implementation, or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any

import onnx
import onnx.defs

from atc_py.errors import Problems
from atc_py.frontend import adapters as _adapters  # noqa: F401 - fills the table
from atc_py.frontend import adapters_microsoft as _adapters_microsoft  # noqa: F401
from atc_py.frontend import adapters_microsoft_attention as _adapters_microsoft_attention  # noqa: F401
from atc_py.frontend import adapters_microsoft_collective as _adapters_microsoft_collective  # noqa: F401
from atc_py.frontend import adapters_microsoft_misc as _adapters_microsoft_misc  # noqa: F401
from atc_py.frontend import adapters_microsoft_quant as _adapters_microsoft_quant  # noqa: F401
from atc_py.frontend import adapters_nn as _adapters_nn  # noqa: F401
from atc_py.frontend.attributes import old_defaults
from atc_py.frontend.draft import ADAPTERS
from atc_py.frontend.extensions import EXTENSIONS, Extension
from atc_py.frontend.onnx_types import to_proto
from atc_py.frontend.topology import FunctionInfo, NodeInfo, function_of
from atc_py.frontend.type_rules import Formal, formals
from atc_py.ir.types import Type
from atc_py.ops import get, plugins
from atc_py.ops.base import REGISTRY, Op
from atc_py.ops.custom import CustomOp, clash, custom

Schema = Any
"""onnx.defs.OpSchema; onnx's stubs do not know all its members."""

RENAMED = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Operators that have another name in their newest form."""


@dataclass(frozen=True)
class Meaning:
    """`declared`: the operator of the newest form. `schema`: onnx's, of the model's opset.

    `extension`: an operator that onnx does not know, with its translation into canonical ones.
    """

    name: str
    version: int
    declared: Op | None = None
    schema: Schema | None = None
    reference: bool = False
    reason: str = ""
    extension: Extension | None = None

    @property
    def expandable(self) -> bool:
        """Whether onnx defines the operator by other operators."""
        return self.schema is not None and (self.schema.has_function or self.schema.has_context_dependent_function)

    @cached_property
    def unknown(self) -> bool:
        """Whether nothing can be done with it."""
        return self.declared is None and self.extension is None and not self.expandable and not self.reference

    @cached_property
    def adapted(self) -> bool:
        """Whether an adapter takes this version."""
        return any(self.version < bound for bound, _ in ADAPTERS.get(self.name, ()))

    @cached_property
    def defaults(self) -> tuple[tuple[str, Any], ...]:
        """Defaults of this version that differ from those of the newest one."""
        schema = self.schema
        return () if schema is None else old_defaults(schema.domain, schema.name, self.version)

    @cached_property
    def formals(self) -> tuple[Formal, ...]:
        """The inputs with the types that the schema allows."""
        schema = self.schema
        return () if schema is None else formals(schema.domain, schema.name, self.version)


def meaning(domain: str, op: str, opset: int) -> Meaning:
    """What (domain, op) means at version `opset` of the domain; custom operators are looked for last.

    Raises `AtcError` E20021 for a custom operator with the name of one that is known without it.
    """
    found = _built_in(domain, op, opset)
    own = plugins.find(found.name) if found.unknown else custom(found.name)
    if own is None:
        return found
    if not found.unknown:
        raise clash(found.name, own.module)
    return Meaning(found.name, found.version, own)


def _built_in(domain: str, op: str, opset: int) -> Meaning:
    name = f"{domain}::{op}" if domain else op
    try:
        schema: Schema | None = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        schema = None
    if schema is None and name in EXTENSIONS:
        return Meaning(name, opset, extension=EXTENSIONS[name])
    if schema is None and onnx.defs.has(op, domain):
        first = min(
            s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, op)
        )
        return Meaning(name, opset, reason=f"it exists since opset {first}, but the model imports opset {opset}")
    version = opset if schema is None else schema.since_version
    declared = get(RENAMED.get(name, name))
    if declared is not None and not isinstance(declared, CustomOp):
        return Meaning(name, version, declared, schema)
    if schema is not None and schema.deprecated:
        return Meaning(name, version, reason=f"it was removed in opset {version}")
    return Meaning(name, version, None, schema, schema is not None and _has_reference(domain, op, version))


def newest_version(domain: str, op: str) -> int:
    """The version of the operator's newest form."""
    return int(onnx.defs.get_schema(op, domain).since_version)


@cache
def _has_reference(domain: str, op: str, version: int) -> bool:
    """Whether onnx's reference implementation can take the operator over."""
    from onnx.reference import ReferenceEvaluator

    from atc_py.ops import reference

    if reference.reference_op(domain, op, version) is None:
        return False
    schema: Schema = onnx.defs.get_schema(op, version, domain)
    names = [
        [f"{side}{i}" for i in range(len(formal))] for side, formal in (("i", schema.inputs), ("o", schema.outputs))
    ]
    graph = onnx.GraphProto(
        name="probe", node=[onnx.NodeProto(op_type=op, domain=domain, input=names[0], output=names[1])]
    )
    graph.input.extend(onnx.ValueInfoProto(name=n) for n in names[0])
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in names[1])
    imports = [onnx.OperatorSetIdProto(domain=domain, version=version)]
    try:
        ReferenceEvaluator(onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph, opset_import=imports))
    except NotImplementedError:
        return False
    except Exception:  # the implementation exists, and misses an attribute
        return True
    return True


def report(unknown: Mapping[tuple[str, str, int], Sequence[str]], code: str, problems: Problems) -> None:
    """One problem for each unknown operator, with the nodes that use it and the nearest spelling that is known."""
    from atc_py.ops.index import INDEX

    if not unknown:
        return
    standard = (s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated)
    every = sorted({*INDEX, *EXTENSIONS, *standard, *REGISTRY}, key=lambda n: ("::" not in n, n))
    names = {n.rpartition("::")[2].lower(): n for n in every}  # onnx's own last: they win over other domains
    reasons = plugins.failures()
    for (domain, op, opset), nodes in unknown.items():
        found = meaning(domain, op, opset)
        shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
        near = [names[n] for n in get_close_matches(op.lower(), list(names), 2, 0.75)]
        hint = f"nearest supported: {', '.join(near)}; " if near else ""
        problems.add(
            code,
            f"operator '{found.name}' (opset {opset} of '{domain or 'ai.onnx'}')",
            f"{found.reason or 'it is not supported'}; used by {shown}",
            f"{hint}replace it in the exporter, give the model a local function of that name, or register it: "
            f"--custom-ops module.py (docs/custom_operators.md){'; ' if reasons else ''}{reasons}",
        )


def expansion(
    node: NodeInfo, found: Meaning, types: Sequence[Type | None], attributes: Mapping[str, onnx.AttributeProto]
) -> FunctionInfo | None:
    """The operator's body as onnx defines it for inputs of these types; None when there is none for them."""
    schema = found.schema
    assert schema is not None
    if schema.has_function:
        return _fixed_body(schema.domain, schema.name, schema.since_version)
    proto = onnx.NodeProto(op_type=node.op, domain=node.domain, name=node.label)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.attribute.extend(attributes.values())
    given = [b"" if t is None else to_proto(t).SerializeToString() for t in types]
    try:
        raw = schema.get_context_dependent_function_with_opset_version(
            schema.context_dependent_function_opset_versions[-1], proto.SerializeToString(), given
        )
        # An empty body is onnx's way to say that these types (dims that are unknown) have none.
        return _function(onnx.FunctionProto.FromString(raw), schema) if raw else None
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


@cache
def _fixed_body(domain: str, op: str, version: int) -> FunctionInfo:
    schema: Schema = onnx.defs.get_schema(op, version, domain)
    body: Any = schema.get_function_with_opset_version(schema.function_opset_versions[-1])
    return _function(onnx.FunctionProto.FromString(body) if isinstance(body, bytes) else body, schema)


def _function(proto: onnx.FunctionProto, schema: Schema) -> FunctionInfo:
    problems = Problems()
    function = function_of(proto, problems, f"operator '{schema.name}'")
    problems.raise_any()
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    function.defaults = defaults | dict(function.defaults)
    return function
