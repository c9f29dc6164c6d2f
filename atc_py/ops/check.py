"""Whether what a file says about operators is what the declarations say: for files may be damaged, or lie.

    task Conv, x float32[1, 3, 8, 8], w float32[4, 5, 3, 3]   →   InferError: X has 3 channels; W expects 5 …

A kernel trusts its operands, attributes and output types to fit one another. The frontend makes sure of it for
models; a plan or a graph from a file is held against the same rules here before anything is run or compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atc_py.errors import AtcError, Problems
from atc_py.ir.clone import clone
from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat
from atc_py.ir.dims import Dim, Size, symbol
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops.base import Array, Infer, InferError, Op
from atc_py.ops.build import KNOWN_LIMIT, Scope, known_value, lookup

_CONSTANTS = (Blob, Splat, Derived, DimVec)
_KINDS: Mapping[str, Any] = {
    "int": int,
    "float": (float, int),
    "str": str,
    "bytes": bytes,
    "dtype": DType,
    "tensor": _CONSTANTS,
    "type": (Tensor, SequenceType, Optional, Map),
}
_ITEMS: Mapping[str, Any] = {"ints": int, "floats": (float, int), "strs": str, "dims": (int, Dim)}


def attributes(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes with defaults, each of the declared kind. Raises `InferError`."""
    filled = op.attributes(given)
    for name, attr in op.attrs.items():
        value = filled[name]
        if value is None and attr.default is None:
            continue
        if attr.kind in _ITEMS:
            right = isinstance(value, (tuple, list)) and all(isinstance(v, _ITEMS[attr.kind]) for v in value)
        else:
            right = isinstance(value, _KINDS.get(attr.kind, object))
        if not right:
            raise InferError(f"attribute '{name}' is {value!r}"[:120] + f", expected {attr.kind}")
    return filled


def arity(op: Op, given: Sequence[object], outputs: int, captures: int = 0) -> None:
    """Whether all inputs that must be there are (None or ABSENT: not given). Raises `InferError`."""
    count = len(given) - captures
    Scope.check_arity(op, count, outputs)
    for i, name in enumerate(op.inputs[:count]):
        if not name.endswith(("?", "*")) and given[i] in (None, ABSENT):
            raise InferError(f"{op.name}: input {i} ({name}) is absent")


def fits(given: Type | None, inferred: Type | None) -> bool:
    """Whether two types of one value do not contradict each other: unknown and symbolic sizes may be anything."""
    if given is None or inferred is None:
        return True
    if isinstance(given, Tensor) and isinstance(inferred, Tensor):
        if given.dtype is not inferred.dtype:
            return False
        if given.shape is None or inferred.shape is None:
            return True
        pairs = zip(given.shape, inferred.shape)
        return len(given.shape) == len(inferred.shape) and all(
            isinstance(a, Dim) or isinstance(b, Dim) or a == b for a, b in pairs
        )
    if isinstance(given, (SequenceType, Optional)) and type(given) is type(inferred):
        return fits(given.element, inferred.element)
    return isinstance(given, Map) and isinstance(inferred, Map)


def operation(
    op: Op,
    attrs: Mapping[str, Any],
    in_types: Sequence[Type | None],
    out_types: Sequence[Type | None],
    consts: Mapping[int, Array],
    body: Graph | None = None,
) -> None:
    """Hold one operation against its declaration. Raises `InferError`, or whatever an operator's rule runs into."""
    arity(op, in_types, len(out_types))
    filled = attributes(op, attrs)
    if "body" in op.bodies and body is not None:
        inferred = _body(body, in_types, consts)
    elif op.infer_fn is None or op.bodies:
        return
    else:
        inferred = _infer(op, filled, in_types, len(out_types), consts)
    for i, (given, found) in enumerate(zip(out_types, inferred)):
        if not fits(given, found):
            raise InferError(f"output {i} is said to be {_told(given)}, but is {_told(found)}")


def _infer(
    op: Op, attrs: Mapping[str, Any], in_types: Sequence[Type | None], outputs: int, consts: Mapping[int, Array]
) -> list[Type | None]:
    small = {i: v for i, v in consts.items() if v.size <= KNOWN_LIMIT}
    values = tuple(small.get(i) for i in range(len(in_types)))
    assert op.infer_fn is not None
    result: Any = op.infer_fn(Infer(tuple(in_types), attrs, outputs, values, _fresh))
    found: list[Type | None] = list(result) if isinstance(result, (list, tuple)) else [result]
    return found + [None] * (outputs - len(found))


def _fresh(why: str) -> Size:
    return symbol("any")


def _told(t: Type | None) -> str:
    if not isinstance(t, Tensor):
        return type(t).__name__.lower()
    return f"{t.dtype.value}{'' if t.shape is None else [str(d) for d in t.shape]}".replace("'", "")


def _body(body: Graph, in_types: Sequence[Type | None], consts: Mapping[int, Array]) -> list[Type | None]:
    """The types that leave a tile program, its nodes held against their declarations one by one."""
    if len(body.inputs) != len(in_types):
        raise InferError(f"the body takes {len(body.inputs)} inputs, the task has {len(in_types)}")
    types: dict[int, Type | None] = dict(zip(body.inputs, in_types))
    values = {v: consts[i] for i, v in enumerate(body.inputs) if i in consts}
    types[ABSENT] = None
    for node in body.order():
        if node.const is not None:
            types[node.outputs[0]] = Tensor(node.const.dtype, node.const.shape)
            if (known := known_value(node.const)) is not None:
                values[node.outputs[0]] = known
        if node.op in STRUCTURAL:
            continue
        op = lookup(node.op, node.attrs)
        if op.bodies or op.workspace_fn is not None:
            what = "with bodies" if op.bodies else "with a workspace"
            raise InferError(f"{op.name}, an operator {what}, inside a fused task")
        arity(op, node.inputs, len(node.outputs))
        small = {i: values[v] for i, v in enumerate(node.inputs) if v in values}
        given = [types[v] for v in node.inputs]
        types |= zip(node.outputs, _infer(op, attributes(op, node.attrs), given, len(node.outputs), small))
    return [types[v] for v in body.outputs]


# -- graphs --------------------------------------------------------------------------------------------------------


def graph(source: Graph) -> None:
    """Hold a graph that satisfies `ir.validate` against the declarations of its operators.

    Raises `AtcError` E30011 naming each node that they contradict.
    """
    problems = Problems()
    for inner in source.walk():
        for node in inner.nodes.values():
            if node.op not in STRUCTURAL:
                _guard(problems, node, lambda node=node: _node(node))
            for constant in _recipes(node.const):
                _guard(problems, node, lambda c=constant: _recipe(c))
    problems.raise_any()
    copy = clone(source)
    scope = Scope(copy)
    _guard(problems, None, scope.reinfer)
    problems.raise_any()
    for inner, other in zip(source.walk(), copy.walk()):
        for node in inner.nodes.values():
            for value in node.outputs:
                given, found = inner.type(value), other.type(value)
                if node.op not in STRUCTURAL and not fits(given, found):
                    cause = f"its output is said to be {_told(given)}, but is {_told(found)}"
                    problems.add("E30011", f"node '{node.name or node.id}'", cause, _HINT)
    problems.raise_any()


_HINT = "the file is damaged; convert the ONNX model again"


def _guard(problems: Problems, node: Node | None, check: Any) -> None:
    """Turn what a check runs into into a problem: rules may fail in any way on what no frontend has seen."""
    place = "canonical graph" if node is None else f"node '{node.name or node.id}'"
    try:
        check()
    except AtcError as e:
        problems.extend(e.problems)
    except InferError as e:
        problems.add("E30011", place, e.cause, _HINT)
    except Exception as e:
        problems.add("E30011", place, f"its operator refuses it: {type(e).__name__}: {e}"[:300], _HINT)


def _node(node: Node) -> None:
    op = lookup(node.op, node.attrs)
    arity(op, node.inputs, len(node.outputs), node.captures)
    attributes(op, node.attrs)
    if sorted(node.subgraphs) != sorted(op.bodies):
        raise InferError(f"{op.name} has the bodies {sorted(node.subgraphs)}, expected {sorted(op.bodies)}")
    for name, body in node.subgraphs.items():
        if len(body.inputs) < node.captures or body._net_output is None:
            raise InferError(f"the body '{name}' has {len(body.inputs)} inputs, {node.captures} values are captured")


def _recipes(constant: Constant | None) -> list[Derived]:
    found: list[Derived] = []
    stack = [constant]
    while stack:
        top = stack.pop()
        if isinstance(top, Derived):
            found.append(top)
            stack += top.inputs
    return found


def _recipe(constant: Derived) -> None:
    op = lookup(constant.op, constant.attrs)
    types: list[Type | None] = [Tensor(c.dtype, c.shape) for c in constant.inputs]
    operation(op, constant.attrs, types, [Tensor(constant.dtype, constant.shape)], {})
