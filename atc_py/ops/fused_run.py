"""Fused tasks by whole operators: the simulator's fast implementation.

    Conv ─ a ─ Add(·, r) ─ b ─ Relu ─ y          a, b and y in the output's bytes: each follower works in place
    MatMul ─ a ─ Reshape ─ b ─ Transpose ─ y     a in the thread's pool (b is a view of it), y in the output

Where an inner value lies is decided when the task is bound: in the bytes of an output that are not final yet, where
the size is the same, or at a place of the thread's pool, which values share whose lives do not meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, DimVec, Splat
from atc_py.ir.dims import Dim, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Graph
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops import evaluate as folding
from atc_py.ops.base import Array, Call, Infer, InferError, KernelFn, scratch
from atc_py.ops.tile_program import BUFFERS, Held, Program, Step, pack, plain, program

_END = 1 << 30
_MOST = 1 << 30
"""Bytes of a buffer that no tile exceeds: files may lie."""


@dataclass(slots=True)
class Stage:
    """One operator bound to types: where its inputs come from and its outputs go, as indices into the values."""

    kernel: KernelFn
    call: Call
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    alias: bool
    """Whether the result may be a view of the input, which then keeps its bytes as long."""
    direct: int | None = None
    """The output in whose view its only result is made, of the same shape and dtype."""


@dataclass(slots=True)
class Spot:
    """Where a value lies: in the bytes of output `output`, or at `offset` of the pool; both None: the kernel's own."""

    shape: tuple[int, ...]
    dtype: Any
    output: int | None = None
    offset: int | None = None


@dataclass
class Bound:
    """A fused task bound to types. `number` gives each value of the body its index; absent inputs have the last one."""

    p: Program
    attrs: Mapping[str, Any]
    types: dict[int, Type | None]
    consts: dict[int, Array]
    number: dict[int, int]
    stages: list[Stage]
    values: list[Any]
    spots: list[Spot | None] = field(default_factory=list)
    results: tuple[int, ...] = ()
    pool: int = 0


def bound(call: Call, inputs: Sequence[Array | None] | None = None) -> Bound:
    """Bind a task's body to the types of its operands. Raises `InferError` where the attributes contradict the body."""
    body = call.body
    assert body is not None
    p = program(body)
    in_types: Sequence[Type | None] = call.in_types
    if inputs is not None:
        in_types = tuple(map(folding.tensor_type, inputs))
    number = {v: i for i, v in enumerate((*p.inputs, *_constants(body), *p.made))}
    number[ABSENT] = len(number)
    values: list[Any] = [None] * len(number)
    types: dict[int, Type | None] = {**dict(zip(p.inputs, in_types)), ABSENT: None}
    consts: dict[int, Array] = {v: call.consts[i] for i, v in enumerate(p.inputs) if i in call.consts}
    env = _symbols(body, types)
    for v, constant in _constants(body).items():
        values[number[v]] = consts[v] = array = _array(constant, env)
        types[v] = Tensor(DType.of(array.dtype), array.shape)
    out_types = dict(zip(p.outputs, call.out_types))
    stages = [_stage(step, types, consts, number, out_types) for step in p.steps]
    state = Bound(p, call.attrs, types, consts, number, stages, values)
    state.results = tuple(number[v] for v in p.outputs)
    _check(state)
    _Places(state).assign()
    return state


def _constants(body: Graph) -> dict[int, Constant]:
    return {n.outputs[0]: n.const for n in body.nodes.values() if n.const is not None}


def _symbols(body: Graph, types: Mapping[int, Type | None]) -> dict[str, int]:
    """The values of the symbols that stand alone as a dim of an input."""
    env: dict[str, int] = {}
    for v in body.inputs:
        meant, found = body.type(v), types.get(v)
        if isinstance(meant, Tensor) and isinstance(found, Tensor) and meant.shape and found.shape:
            for d, n in zip(meant.shape, found.shape):
                names = symbols_of(d) if isinstance(d, Dim) else ()
                if len(names) == 1 and type(n) is int and d == symbol(names[0]):
                    env.setdefault(names[0], n)
    return env


def told_by(body: Graph) -> frozenset[str]:
    """The symbols whose values follow from the shapes of a body's operands when the task is bound."""
    dims = [d for v in body.inputs for t in (body.type(v),) if isinstance(t, Tensor) for d in t.shape or ()]
    alone = [(symbols_of(d), d) for d in dims if isinstance(d, Dim)]
    return frozenset(names[0] for names, d in alone if len(names) == 1 and d == symbol(names[0]))


def _array(constant: Constant, env: Mapping[str, int]) -> Array:
    if not isinstance(constant, (Blob, Splat, DimVec)):
        return folding.evaluate(constant)
    try:
        return folding.evaluate(constant, env)
    except KeyError as e:
        raise InferError(f"a constant of the body needs the symbol {e}, which no operand tells") from e


def _stage(
    step: Step, types: dict[int, Type | None], consts: Mapping[int, Array], number: Mapping[int, int],
    meant: Mapping[int, Type | None],
) -> Stage:  # fmt: skip
    op = step.op
    in_types = tuple(types[v] for v in step.inputs)
    known = {k: consts[v] for k, v in enumerate(step.inputs) if v in consts}
    for v, t in zip(step.outputs, _out_types(step, in_types, known)):
        types[v] = t if t is not None else meant.get(v)
    inner = Call(step.attrs, tuple(types[v] for v in step.outputs), (), known, in_types)
    if op.prepare_fn is not None and all(t is None or _static(t) for t in in_types):
        inner.state = op.prepare_fn(inner)
    if op.kernel_fn is None:
        raise InferError(f"there is no kernel for {op.name}")
    sources, targets = (tuple([number[v] for v in side]) for side in (step.inputs, step.outputs))
    return Stage(op.kernel_fn, inner, sources, targets, op.flags.alias)


def _out_types(step: Step, in_types: tuple[Type | None, ...], known: Mapping[int, Array]) -> list[Type | None]:
    if step.op.infer_fn is None:
        return [None] * len(step.outputs)
    values = tuple(known[k] if k in known and known[k].size <= 1024 else None for k in range(len(in_types)))
    n = Infer(in_types, step.attrs, len(step.outputs), values, lambda why: symbol("any"))
    found: Any = step.op.infer_fn(n)
    listed = list(found) if isinstance(found, (list, tuple)) else [found]
    return [t if _static(t) else None for t in [*listed, *[None] * len(step.outputs)][: len(step.outputs)]]


def _static(t: Type | None) -> bool:
    return isinstance(t, Tensor) and t.shape is not None and all(type(d) is int for d in t.shape)


def _check(state: Bound) -> None:
    """Hold the attributes of the tile program against the body: plans come from files. Raises `InferError`."""
    tile, inner, places = (tuple(state.attrs.get(k, ())) for k in ("tile", "inner", "inner_in"))
    first = state.types.get(state.p.outputs[0]) if state.p.outputs else None
    rank = len(first.dims) if isinstance(first, Tensor) and first.shape is not None else None
    if tile and rank is not None and len(tile) != rank:
        raise InferError(f"the tile {list(tile)} has {len(tile)} lengths; the first result has {rank} dims")
    if any(n < 0 for n in tile):
        raise InferError(f"the tile {list(tile)} has a negative length")
    made = len(state.p.made)
    if (inner or (tile and rank)) and len(inner) != made:
        raise InferError(f"the tile program has {len(inner)} inner values, the body makes {made}")
    if len(places) != len(inner) or any(b not in BUFFERS for b in places):
        raise InferError(
            f"{len(inner)} inner values lie in {list(places)}; expected a buffer of {BUFFERS} for each"[:200]
        )
    if any(not 0 <= n <= _MOST for n in inner):
        raise InferError(f"an inner value has {min(inner) if min(inner) < 0 else max(inner)} bytes")


# -- where values lie ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Store:
    """Bytes that values share, one after the other in place."""

    shape: tuple[int, ...]
    dtype: Any
    first: int
    last: int
    output: int | None


class _Places:
    """Chooses a spot for each value that the stages make."""

    def __init__(self, state: Bound) -> None:
        self.state = state
        self.made_at = {v: i for i, step in enumerate(state.p.steps) for v in step.outputs}
        self.outputs: dict[int, int] = {}
        for k, v in enumerate(state.p.outputs):
            if v in self.made_at:
                self.outputs.setdefault(v, k)
        self.last = {v: _END if v in self.outputs else state.p.last[v] for v in state.p.made}
        for i in range(len(state.p.steps) - 1, -1, -1):
            source, target = self._view(i)
            if source in self.made_at:
                self.last[source] = max(self.last[source], self._given(target))
        self.stores: dict[int, _Store] = {}
        self.busy: dict[int, list[_Store]] = {k: [] for k in self.outputs.values()}

    def _view(self, i: int) -> tuple[int, int]:
        """(input, output) of a step that only gives its input another shape; (ABSENT, ABSENT) of another one."""
        step = self.state.p.steps[i]
        return (step.inputs[0], step.outputs[0]) if step.op.flags.alias else (ABSENT, ABSENT)

    def _given(self, v: int) -> int:
        """The last step that reads a view's bytes as far as its source has to keep them."""
        return self.made_at[v] if v in self.outputs else self.last[v]

    def assign(self) -> None:
        """Fill the state's spots and the size of its pool."""
        state = self.state
        state.spots = [None] * len(state.values)
        for i, step in enumerate(state.p.steps):
            for j, v in enumerate(step.outputs):
                t = state.types[v]
                if not (isinstance(t, Tensor) and _static(t)):
                    continue
                if step.op.flags.alias and v not in self.outputs:
                    continue
                self.stores[v] = self._store(i, j, v, plain(t.dims), t.dtype.numpy)
        pooled = list({id(s): s for s in self.stores.values() if s.output is None}.values())
        held = [Held(-(-prod(s.shape) * s.dtype.itemsize // 64) * 64, s.first, s.last) for s in pooled]
        offsets, state.pool = pack(held)
        at = {id(s): offset for s, offset in zip(pooled, offsets)}
        for v, s in self.stores.items():
            t = state.types[v]
            assert isinstance(t, Tensor)
            shape = plain(t.dims)
            state.spots[state.number[v]] = Spot(shape, t.dtype.numpy, s.output, at.get(id(s)))
        for stage in state.stages:
            spot = state.spots[stage.targets[0]]
            if len(stage.targets) == 1 and spot is not None and spot.output is not None:
                t = state.types[state.p.outputs[spot.output]]
                if isinstance(t, Tensor) and t.dims == spot.shape and t.dtype.numpy == spot.dtype:
                    stage.direct = spot.output

    def _store(self, i: int, j: int, v: int, shape: tuple[int, ...], dtype: Any) -> _Store:
        if v in self.outputs:
            s = _Store(shape, dtype, i, _END, self.outputs[v])
            self.busy[self.outputs[v]].append(s)
            return s
        for target, k in self.outputs.items():
            if self._may_use(i, j, v, shape, dtype, target, k):
                s = _Store(shape, dtype, i, self.last[v], k)
                self.busy[k].append(s)
                return s
        for u in self.state.p.steps[i].inputs:
            old = self.stores.get(u)
            if old is not None and old.output is None and old.last == i and self._over(i, j, u, shape, dtype):
                old.last = self.last[v]
                return old
        return _Store(shape, dtype, i, self.last[v], None)

    def _may_use(self, i: int, j: int, v: int, shape: tuple[int, ...], dtype: Any, target: int, k: int) -> bool:
        """Whether value `v` may lie in the bytes of output `k` until `target`, that output's value, is made."""
        t = self.state.types[target]
        if not (isinstance(t, Tensor) and _static(t)):
            return False
        final, goal = self.made_at[target], plain(t.dims)
        if prod(goal) * t.dtype.itemsize != prod(shape) * dtype.itemsize or self.last[v] > final:
            return False
        if self.last[v] == final:
            step = self.state.p.steps[final]
            turned = step.op.flags.alias and target == step.outputs[0]
            if not turned and not self._over(final, step.outputs.index(target), v, goal, t.dtype.numpy):
                return False
        for other in self.busy[k]:
            if other.last < i or self.last[v] < other.first:
                continue
            same = other.last == i and any(
                self.stores.get(u) is other and self._over(i, j, u, shape, dtype) for u in self.state.p.steps[i].inputs
            )
            if not same:
                return False
        return True

    def _over(self, i: int, j: int, u: int, shape: tuple[int, ...], dtype: Any) -> bool:
        """Whether step `i` may write its output `j`, of this shape and dtype, over its input `u`."""
        step, t = self.state.p.steps[i], self.state.types[u]
        return (
            j == 0
            and isinstance(t, Tensor)
            and tuple(t.dims) == shape
            and t.dtype.numpy == dtype
            and all(k in step.op.flags.inplace for k, w in enumerate(step.inputs) if w == u)
        )


# -- running -------------------------------------------------------------------------------------------------------


def run(state: Bound, call: Call, inputs: Sequence[Array | None]) -> list[Any]:
    """The results of a fused task, in the views of `call` where it has them."""
    values = list(state.values)
    values[: len(inputs)] = inputs
    outs, spots = call.outs, state.spots
    memory = scratch(state.pool, "inner") if state.pool else None
    placed = len(outs) == len(state.results)
    for stage in state.stages:
        arguments = [values[s] for s in stage.sources]
        if stage.direct is not None and placed:
            view = outs[stage.direct]
            result = stage.kernel(stage.call.at(view), *arguments)
            if result is view and view is not None:
                values[stage.targets[0]] = result
                continue
            views = [view]
        else:
            views = [_view(spots[t], outs, memory) for t in stage.targets]
            result = stage.kernel(stage.call.at(*views), *arguments)
        _store(stage, views, result if isinstance(result, tuple) else (result,), values)
    results = [values[r] for r in state.results]
    for k, made in enumerate(results):
        view = outs[k] if k < len(outs) else None
        if view is not None and made is not view:
            np.copyto(view, made)
            results[k] = view
    return results


def _store(stage: Stage, views: Sequence[Array | None], results: Sequence[Any], values: list[Any]) -> None:
    """Keep what a kernel has made, in the views that it was given."""
    for t, view, made in zip(stage.targets, views, results):
        if view is not None and made is not view:
            if made.shape != view.shape or made.dtype != view.dtype:
                raise InferError(f"a kernel gave {made.dtype}{list(made.shape)} for {view.dtype}{list(view.shape)}")
            np.copyto(view, made)
            made = view
        elif view is None and not stage.alias and made.base is not None:
            made = made.copy()  # a view of what may be overwritten while this lives
        values[t] = made


def _view(spot: Spot | None, outs: Sequence[Array | None], memory: Array | None) -> Array | None:
    if spot is None:
        return None
    if spot.output is not None:
        out = outs[spot.output] if spot.output < len(outs) else None
        if out is None or (out.shape == spot.shape and out.dtype == spot.dtype):
            return out
        if not out.flags.c_contiguous:
            return np.empty(spot.shape, spot.dtype)
        same: Array = out.reshape(-1).view(spot.dtype).reshape(spot.shape)
        return same
    if memory is None:  # nothing but empty arrays lies in a pool of 0 bytes
        return np.empty(spot.shape, spot.dtype)
    inner: Array = np.ndarray(spot.shape, spot.dtype, memory, spot.offset or 0)
    return inner
