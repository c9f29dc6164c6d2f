"""The fallback for operators of onnx that have no declaration of their own: onnx's reference implementation.

    reference_op("", "Det", 22)  ->  Op("Det", engine=aicpu, reference=True); None where onnx has none

A node of such an operator carries three attributes beside ONNX's own: `_domain`, `_op_type` and `_opset`.
Types come from onnx's shape inference on a model of this single node, the kernel is onnx's evaluator of it.
onnx is imported when such an operator is looked up, never before: an OM without one runs without onnx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from atc_py.ir.constants import Blob, Splat
from atc_py.ir.dims import Dim, Size
from atc_py.ir.types import DType, Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops.base import Array, Call, Engine, Flags, Infer, InferError, Op, Result
from atc_py.ops.shape_values import constant_array

if TYPE_CHECKING:
    import onnx


def lookup(op_name: str, attrs: Mapping[str, Any]) -> Op | None:
    """The reference operator of a node whose operator is not declared; None when onnx cannot run it either.

    `op_name` is "Name" or "domain::Name"; `_domain`, `_op_type` and `_opset` say more than the name does.
    """
    domain, _, name = op_name.rpartition("::")
    return reference_op(attrs.get("_domain", domain), attrs.get("_op_type", name), attrs.get("_opset"))


@cache
def reference_op(domain: str, op_type: str, opset_version: int | None = None) -> Op | None:
    """The operator as onnx defines it at the opset (the newest without one), or None when onnx cannot run it.

    Operators that need a graph as an attribute are refused: onnx defines them by functions, to be expanded.
    """
    import onnx.defs

    domain = "" if domain == "ai.onnx" else domain
    version = opset_version or _newest(domain)
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    graph_kinds = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
    needs_graph = any(a.required and a.type in graph_kinds for a in schema.attributes.values())
    if schema.deprecated or needs_graph or not _implemented(domain, op_type, version):
        return None
    op = Op(
        f"{domain}::{op_type}" if domain else op_type,
        tuple(_formal(p) for p in schema.inputs),
        tuple(_formal(p) for p in schema.outputs),
        {},
        Flags(deterministic=False) if _draws(schema) else Flags(),
        Engine.AICPU,
        reference=True,
    )
    op.infer_fn = lambda n: _infer(n, domain, op_type, version)
    op.prepare_fn = lambda call: Evaluator(call, domain, op_type, version)

    def kernel(call: Call, *inputs: Any) -> Any:
        if call.state is None:  # not prepared at bind, where a rank was unknown
            call.state = Evaluator(call, domain, op_type, version)
        results = call.state(inputs)
        return results[0] if len(results) == 1 else tuple(results)

    op.kernel_fn = kernel
    return op


def _implemented(domain: str, op_type: str, version: int) -> bool:
    """Whether onnx's evaluator has the operator, as a class or as a function of others."""
    from onnx import TypeProto
    from onnx.reference import ReferenceEvaluator

    try:
        ReferenceEvaluator(single_node_model(domain, op_type, version, {}, [TypeProto()], 1))
    except NotImplementedError:
        return False
    except Exception:  # it is there, and wants the attributes and types that it will get
        return True
    return True


def _newest(domain: str) -> int:
    import onnx.defs

    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=1)


def _formal(parameter: Any) -> str:
    kind = str(parameter.option).rpartition(".")[2]
    return str(parameter.name) + {"Optional": "?", "Variadic": "*"}.get(kind, "")


def _draws(schema: Any) -> bool:
    """Whether onnx calls the operator non-deterministic."""
    return str(getattr(schema, "node_determinism", "")).endswith("NonDeterministic")


# -- one node as a model -----------------------------------------------------------------------------------


def tensor_enum(dtype: DType) -> int:
    """onnx's number of an element type."""
    from onnx import TensorProto, helper

    return int(TensorProto.STRING if dtype is DType.STRING else helper.np_dtype_to_tensor_dtype(dtype.numpy))


def enum_dtype(number: int) -> DType:
    """The element type of onnx's number."""
    from onnx import TensorProto, helper

    return DType.STRING if number == TensorProto.STRING else DType.of(helper.tensor_dtype_to_np_dtype(number))


def type_proto(t: Type) -> onnx.TypeProto:
    """The type as onnx has it; a symbolic dim is named by its text."""
    from onnx import helper

    if isinstance(t, SequenceType):
        return helper.make_sequence_type_proto(type_proto(t.element))
    if isinstance(t, Optional):
        return helper.make_optional_type_proto(type_proto(t.element))
    if isinstance(t, Map):
        return helper.make_map_type_proto(tensor_enum(t.key), type_proto(t.value))
    shape = None if t.shape is None else [str(d) if isinstance(d, Dim) else d for d in t.shape]
    return helper.make_tensor_type_proto(tensor_enum(t.dtype), shape)


def _attribute_value(value: Any) -> Any:
    """An attribute of the IR as onnx's helper takes it."""
    from onnx import numpy_helper

    if isinstance(value, (Blob, Splat, np.ndarray)):
        return numpy_helper.from_array(np.array(constant_array(value), order="C"))
    if isinstance(value, DType):
        return tensor_enum(value)
    if isinstance(value, (Tensor, SequenceType, Optional, Map)):
        return type_proto(value)
    return list(value) if isinstance(value, tuple) else value


def _attribute_kind(attribute: Any) -> int:
    """onnx's number of an attribute's type (an enum in its schemas)."""
    return int(getattr(attribute.type, "value", attribute.type))


def _is_function(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def single_node_model(
    domain: str,
    op_type: str,
    version: int,
    attrs: Mapping[str, Any],
    inputs: Sequence[onnx.TypeProto | None],
    outputs: int,
    initializers: Mapping[int, Array] | None = None,
) -> onnx.ModelProto:
    """A model whose only node is the operator; inputs `i0`, `i1` (absent where None), outputs `o0`, `o1` …"""
    from onnx import ValueInfoProto, helper, numpy_helper
    from onnx.defs import get_schema

    names = ["" if t is None else f"i{i}" for i, t in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"o{i}" for i in range(outputs)], domain=domain)
    kinds = get_schema(op_type, version, domain).attributes
    for name, value in attrs.items():
        if value is not None and name in kinds:
            kind = _attribute_kind(kinds[name])
            node.attribute.append(helper.make_attribute(name, _attribute_value(value), attr_type=kind))
    infos = [helper.make_value_info(name, t) for name, t in zip(names, inputs) if t is not None]
    fixed = [numpy_helper.from_array(np.array(a, order="C"), f"i{i}") for i, a in (initializers or {}).items()]
    results = [ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "node", infos, results, fixed)
    imports = [helper.make_opsetid(domain, version)]
    if domain:
        imports.append(helper.make_opsetid("", _newest("")))
    return helper.make_model(graph, opset_imports=imports)


# -- types -------------------------------------------------------------------------------------------------


def _infer(n: Infer, domain: str, op_type: str, version: int) -> Result:
    from onnx import shape_inference
    from onnx.defs import get_schema

    known: dict[str, Dim] = {}
    for t in n.types:
        while isinstance(t, (SequenceType, Optional)):
            t = t.element
        if isinstance(t, Tensor):
            known.update((str(d), d) for d in t.shape or () if isinstance(d, Dim))
    values = {
        i: v.astype(n.dtype(i).numpy)
        for i, v in enumerate(n.values)
        if v is not None and v.dtype != object and isinstance(n.types[i], Tensor)
    }
    protos = [None if t is None else type_proto(t) for t in n.types]
    model = single_node_model(domain, op_type, version, n.attrs, protos, n.outputs, values)
    try:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError as problem:
        if not _is_function(get_schema(op_type, version, domain)):
            cause = " ".join(str(problem).split())
            raise InferError(f"onnx cannot infer the types of {op_type}: {cause}") from problem
        # onnx checks a function's body under opsets that it may not be written for: types stay unknown then.
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    return [_type(o.type, known, n, f"out{i}") for i, o in enumerate(inferred.graph.output)]


def _type(proto: onnx.TypeProto, known: Mapping[str, Dim], n: Infer, place: str) -> Type | None:
    """The type that onnx inferred; dims that it does not know become fresh symbols. None without a type."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        element = _type(proto.sequence_type.elem_type, known, n, place)
        return None if element is None else SequenceType(element)
    if kind == "optional_type":
        element = _type(proto.optional_type.elem_type, known, n, place)
        return None if element is None else Optional(element)
    if kind == "map_type":
        value = _type(proto.map_type.value_type, known, n, place)
        return None if value is None else Map(enum_dtype(proto.map_type.key_type), value)
    if kind != "tensor_type" or not proto.tensor_type.elem_type:
        return None
    dtype = enum_dtype(proto.tensor_type.elem_type)
    if not proto.tensor_type.HasField("shape"):
        return Tensor(dtype, None)
    dims: list[Size] = []
    for i, d in enumerate(proto.tensor_type.shape.dim):
        if d.HasField("dim_value"):
            dims.append(int(d.dim_value))
        else:
            dims.append(known[d.dim_param] if d.dim_param in known else n.fresh(f"{place}.{i}"))
    return Tensor(dtype, tuple(dims))


# -- kernel ------------------------------------------------------------------------------------------------


class Evaluator:
    """onnx's evaluator of one node, built at bind where the input types are known, else at the first run."""

    def __init__(self, call: Call, domain: str, op_type: str, version: int) -> None:
        self._what = (domain, op_type, version)
        self._attrs = dict(call.attrs)
        self._outputs = max(len(call.out_types), len(call.outs), 1)
        self._built: dict[tuple[Any, ...], Any] = {}
        types = [None if t is None else type_proto(t) for t in call.in_types]
        if types and all(isinstance(t, Tensor) for t in call.in_types):
            self._evaluator(tuple((t.dtype, t.rank) for t in call.in_types if isinstance(t, Tensor)), types)

    def _evaluator(self, key: tuple[Any, ...], types: Sequence[onnx.TypeProto | None]) -> Any:
        from onnx.reference import ReferenceEvaluator

        if key not in self._built:
            self._built[key] = ReferenceEvaluator(single_node_model(*self._what, self._attrs, types, self._outputs))
        return self._built[key]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for the inputs: arrays, lists (sequences), dicts (maps), None (absent)."""
        types = [_value_type(v) for v in inputs]
        key = tuple((t.dtype, t.rank) if isinstance(t, Tensor) else t for t in types)
        evaluator = self._evaluator(key, [None if t is None else type_proto(t) for t in types])
        feeds = {f"i{i}": v for i, v in enumerate(inputs) if v is not None}
        return [_result(v) for v in evaluator.run(None, feeds)]


def _value_type(value: Any) -> Type | None:
    """A type for a value: exact for tensors, from the first element for sequences and maps."""
    if value is None:
        return None
    if isinstance(value, list):
        inner = _value_type(value[0]) if value else None
        return SequenceType(inner or Tensor(DType.FLOAT32, None))
    if isinstance(value, dict):
        key, item = next(iter(value.items()), ("", 0.0))
        return Map(
            DType.STRING if isinstance(key, str) else DType.INT64,
            Tensor(DType.of(np.asarray(item).dtype), ()),
        )
    array = np.asarray(value)
    return Tensor(DType.of(array.dtype), (None,) * array.ndim)  # type: ignore[arg-type]


def _result(value: Any) -> Any:
    """The evaluator's value as the runtime holds it: strings as objects, numbers as arrays."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return [_result(v) for v in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array
