"""Structured control flow: If, Loop, Scan. The last inputs of their bodies are the captured values.

    If    (cond, *captures)                     then_branch(*captures), else_branch(*captures)
    Loop  (M?, cond?, *carried, *captures)      body(i, cond, *carried, *captures) -> cond, *carried, *scanned
    Scan  (*states, *scanned, *captures)        body(*states, *slices, *captures)  -> *states, *slices

Types of loops are a fixpoint. A value that is carried as [N] and comes back as [N + 1] differs in size
between iterations; its size becomes a symbol of its own inside the body, and another one outside:

    carried [N]  ->  body gives [N + 1]  ->  carried [s]  ->  body gives [s + 1]: settled; the loop gives [t]

A symbol that is born in a body means nothing outside, so a dim that mentions one leaves as a fresh symbol.

Kernels call `call.bodies[name](values) -> values`; attribute `_captures` says how many inputs are captured.
What a body returns must stay valid while it runs once more (it is carried); what is scanned is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, dmax, symbols_of
from atc_py.ir.types import DType, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, declare
from atc_py.ops.shape_values import scalar
from atc_py.ops.shapes import axis, show

Fresh = Callable[[str], Size]
CONTROL = Flags(control=True)

if_op = declare(
    "If",
    inputs="cond captures*",
    outputs="outputs*",
    flags=CONTROL,
    engine=Engine.HOST,
    bodies=("then_branch", "else_branch"),
    host_inputs=(0,),
)
loop = declare(
    "Loop",
    inputs="M? cond? v_initial*",
    outputs="v_final_and_scan_outputs*",
    flags=CONTROL,
    engine=Engine.HOST,
    bodies=("body",),
    host_inputs=(0, 1),
)
scan = declare(
    "Scan",
    inputs="initial_state_and_scan_inputs*",
    outputs="final_state_and_scan_outputs*",
    attrs={
        "num_scan_inputs": Attr("int"),
        "scan_input_axes": Attr("ints", None),
        "scan_input_directions": Attr("ints", None),
        "scan_output_axes": Attr("ints", None),
        "scan_output_directions": Attr("ints", None),
    },
    flags=CONTROL,
    engine=Engine.HOST,
    bodies=("body",),
)


def union(a: Type, b: Type, fresh: Fresh, place: str) -> Type:
    """The type of both: equal dims stay, others are `fresh(place.axis)`; ranks that differ are unknown."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return a.with_shape(None)
        return a.with_shape(
            tuple(p if p == q else fresh(f"{place}.{i}") for i, (p, q) in enumerate(zip(a.shape, b.shape)))
        )
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(union(a.element, b.element, fresh, place))
    if isinstance(a, Optional) or isinstance(b, Optional):
        inner_a = a.element if isinstance(a, Optional) else a
        return Optional(union(inner_a, b.element if isinstance(b, Optional) else b, fresh, place))
    if a != b:
        raise InferError(f"{place} is {_name(a)} in one case and {_name(b)} in another")
    return a


def _name(t: Type) -> str:
    return f"{t.dtype.value} {show(t.shape)}" if isinstance(t, Tensor) else type(t).__name__.lower()


def _names(n: Infer) -> frozenset[str]:
    """The symbols that mean something outside the bodies."""
    found: set[str] = set()
    for t in n.types:
        while isinstance(t, (SequenceType, Optional)):
            t = t.element
        if isinstance(t, Tensor):
            found.update(s for d in t.shape or () for s in symbols_of(d))
    for value in n.values:
        if value is not None and value.dtype == object:
            found.update(s for d in value.reshape(-1) if isinstance(d, Dim) for s in symbols_of(d))
    return frozenset(found)


def _leaving(t: Type, names: frozenset[str], fresh: Fresh, place: str) -> Type:
    """The type outside of a body: dims that mention a symbol of the body become fresh."""
    if isinstance(t, (SequenceType, Optional)):
        return type(t)(_leaving(t.element, names, fresh, place))
    if not isinstance(t, Tensor) or t.shape is None:
        return t
    return t.with_shape(
        tuple(d if all(s in names for s in symbols_of(d)) else fresh(f"{place}.{i}") for i, d in enumerate(t.shape))
    )


def _body(n: Infer, name: str, types: Sequence[Type | None], values: Sequence[Array | None]) -> list[Type]:
    if n.infer_body is None:
        raise InferError(f"the types of {name} are not known here")
    return list(n.infer_body(name, types, values))


def _captured(n: Infer) -> tuple[list[Type | None], list[Array | None]]:
    """Types and values of the captured inputs."""
    first = len(n.types) - n.captures
    return list(n.types[first:]), [n.value(i) for i in range(first, len(n.types))]


@if_op.infer
def _(n: Infer) -> Result:
    types, values = _captured(n)
    names, known = _names(n), scalar(n, 0)
    found: dict[str, list[Type]] = {}
    for branch, taken in (("then_branch", True), ("else_branch", False)):
        try:
            found[branch] = _body(n, branch, types, values)
        except InferError:
            if known is None or bool(known) is taken:
                raise
            # A branch that is never taken may be ill-typed: exporters guard code by the shapes it is for.
    if known is not None and not isinstance(known, Dim):
        taken_types = found["then_branch" if known else "else_branch"]
        return [_leaving(t, names, n.fresh, f"out{i}") for i, t in enumerate(taken_types)]
    then_types, else_types = found["then_branch"], found["else_branch"]
    if len(then_types) != len(else_types):
        raise InferError(f"the branches have {len(then_types)} and {len(else_types)} outputs")
    return [
        union(_leaving(a, names, n.fresh, f"out{i}"), _leaving(b, names, n.fresh, f"out{i}"), n.fresh, f"out{i}")
        for i, (a, b) in enumerate(zip(then_types, else_types))
    ]


@if_op.kernel
def _(call: Call, cond: Array, *captures: Any) -> tuple[Any, ...]:
    branch = "then_branch" if bool(np.asarray(cond).reshape(-1)[0]) else "else_branch"
    return tuple(call.bodies[branch](list(captures)))


def _settled(n: Infer, carried: list[Type], run: Callable[[list[Type]], list[Type]]) -> tuple[list[Type], list[Type]]:
    """Carried types that the body maps to themselves, and all output types of the body for them.

    Each round only forgets (a dim becomes a symbol, a rank unknown), so there are few.
    """
    while True:
        outputs = run(carried)
        after = [union(a, b, n.fresh, f"carried{i}") for i, (a, b) in enumerate(zip(carried, outputs))]
        if after == carried:
            return carried, outputs
        carried = after


def _final(n: Infer, initial: Sequence[Type], carried: Sequence[Type]) -> list[Type]:
    """Types of the carried values after the loop: sizes that changed are symbols of their own outside."""
    return [union(a, b, n.fresh, f"out{i}") for i, (a, b) in enumerate(zip(initial, carried))]


def _given(n: Infer, first: int, count: int) -> list[Type]:
    types = [n.types[i] for i in range(first, first + count)]
    found = [t for t in types if t is not None]
    if len(found) != count:
        raise InferError("a carried value is absent")
    return found


def _trips(n: Infer) -> Size:
    """Iterations of a Loop: M when no condition is given, else known only at run time."""
    most = scalar(n, 0)
    if most is None or n.has(1):
        return n.fresh("trips")
    return dmax(most, 0) if isinstance(most, Dim) else max(int(most), 0)


@loop.infer
def _(n: Infer) -> Result:
    types, values = _captured(n)
    count = max(len(n.types) - 2 - n.captures, 0)
    initial, names = _given(n, 2, count), _names(n)
    counter, flag = Tensor(DType.INT64, ()), Tensor(DType.BOOL, ())

    def run(carried: list[Type]) -> list[Type]:
        unknown: list[Array | None] = [None] * (2 + count)
        outputs = _body(n, "body", [counter, flag, *carried, *types], unknown + values)
        if len(outputs) < 1 + count:
            raise InferError(f"the body of Loop has {len(outputs)} outputs, expected at least {1 + count}")
        return outputs[1:]

    carried, outputs = _settled(n, initial, run)
    result = _final(n, initial, carried)
    for i, t in enumerate(outputs[count:], count):
        result.append(_stacked(n, _leaving(t, names, n.fresh, f"out{i}"), _trips(n), 0))
    return result


def _stacked(n: Infer, t: Type, length: Size, at: int) -> Type:
    """The type of all iterations' values, one after the other along a new axis."""
    if not isinstance(t, Tensor):
        raise InferError(f"a scanned output must be a tensor, but is a {type(t).__name__.lower()}")
    if t.shape is None:
        return t
    at = axis(at, len(t.shape) + 1)
    stacked: Type = t.with_shape((*t.shape[:at], length, *t.shape[at:]))
    return stacked


def _no_cost(n: Infer) -> Cost:
    return Cost()


for _op in (if_op, loop, scan):
    _op.cost(_no_cost)


def _truth(value: Any) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


@loop.kernel
def _(call: Call, limit: Array | None, cond: Array | None, *rest: Any) -> tuple[Any, ...]:
    count = len(rest) - call.attrs["_captures"]
    carried, captures = list(rest[:count]), list(rest[count:])
    most = None if limit is None else int(np.asarray(limit).reshape(-1)[0])
    go = cond is None or _truth(cond)
    scanned: list[list[Any]] = [[] for _ in range(max(len(call.outs), len(call.out_types)) - count)]
    i = 0
    while go and (most is None or i < most):
        got = call.bodies["body"]([np.array(i, np.int64), np.array(True), *carried, *captures])
        if cond is not None or most is None:
            go = _truth(got[0])
        carried = list(got[1 : 1 + count])
        if i == 0:
            scanned = [[] for _ in got[1 + count :]]
        for values, value in zip(scanned, got[1 + count :]):
            values.append(np.array(value))  # a copy: the body's memory is used again
        i += 1
    return (*carried, *(_stack(call, count + k, values, 0, False) for k, values in enumerate(scanned)))


def _stack(call: Call, i: int, values: list[Any], at: int, backward: bool) -> Array:
    """The scanned values along axis `at`; without any, an empty tensor of the type that is known."""
    if values:
        return np.stack(values[::-1] if backward else values, axis=at)
    t = call.out_types[i] if i < len(call.out_types) else None
    if not isinstance(t, Tensor):
        return np.empty((0,), np.float32)
    at = at % len(t.shape) if t.shape else 0
    dims = [0 if k == at or isinstance(d, Dim) else d for k, d in enumerate(t.shape or (0,))]
    return np.empty(dims, t.dtype.numpy)


def _scan_parts(n: Infer) -> tuple[int, int]:
    """How many states and how many scanned inputs the node has."""
    scanned = n.attrs["num_scan_inputs"]
    states = len(n.types) - n.captures - scanned
    if scanned < 1 or states < 0:
        raise InferError(f"num_scan_inputs is {scanned}, but the node has {len(n.types) - n.captures} inputs")
    return states, scanned


def _per(given: Sequence[int] | None, count: int) -> list[int]:
    """An optional list attribute of Scan: zeros where it is absent."""
    return list(given) if given else [0] * count


@scan.infer
def _(n: Infer) -> Result:
    types, values = _captured(n)
    states, scanned = _scan_parts(n)
    initial, names = _given(n, 0, states), _names(n)
    length: Size | None = None
    slices: list[Type] = []
    for i, at in enumerate(_per(n.attrs["scan_input_axes"], scanned)):
        t = n.tensor(states + i)
        if t.shape is None:
            slices.append(t)
            continue
        at = axis(at, len(t.shape))
        here = t.shape[at]
        if type(here) is int and type(length) is int and here != length:
            raise InferError(f"scanned inputs have {length} and {here} slices")
        length = here if length is None or type(here) is int else length
        slices.append(t.with_shape((*t.shape[:at], *t.shape[at + 1 :])))

    def run(carried: list[Type]) -> list[Type]:
        unknown: list[Array | None] = [None] * (states + scanned)
        outputs = _body(n, "body", [*carried, *slices, *types], unknown + values)
        if len(outputs) < states:
            raise InferError(f"the body of Scan has {len(outputs)} outputs, expected at least {states}")
        return outputs

    carried, outputs = _settled(n, initial, run)
    result = _final(n, initial, carried)
    trips = n.fresh("trips") if length is None else length
    places = _per(n.attrs["scan_output_axes"], len(outputs) - states)
    for i, (part, at) in enumerate(zip(outputs[states:], places), states):
        result.append(_stacked(n, _leaving(part, names, n.fresh, f"out{i}"), trips, at))
    return result


@scan.kernel
def _(call: Call, *inputs: Any) -> tuple[Any, ...]:
    scanned = call.attrs["num_scan_inputs"]
    first = len(inputs) - call.attrs["_captures"]
    states, captures = list(inputs[: first - scanned]), list(inputs[first:])
    backward = _per(call.attrs["scan_input_directions"], scanned)
    sources = [
        np.moveaxis(x, at, 0)[::-1] if back else np.moveaxis(x, at, 0)
        for x, at, back in zip(inputs[first - scanned : first], _per(call.attrs["scan_input_axes"], scanned), backward)
    ]
    count = len(states)
    outputs: list[list[Any]] = [[] for _ in range(max(len(call.outs), len(call.out_types)) - count)]
    for i in range(sources[0].shape[0]):
        got = call.bodies["body"]([*states, *(source[i] for source in sources), *captures])
        states = list(got[:count])
        if i == 0:
            outputs = [[] for _ in got[count:]]
        for values, value in zip(outputs, got[count:]):
            values.append(np.array(value))  # a copy: the body's memory is used again
    places = _per(call.attrs["scan_output_axes"], len(outputs))
    turned = _per(call.attrs["scan_output_directions"], len(outputs))
    stacked = [_stack(call, count + k, v, places[k], bool(turned[k])) for k, v in enumerate(outputs)]
    return (*states, *stacked)
