"""`Session`: runs an OM the way `onnxruntime.InferenceSession` runs an ONNX model.

session = Session("model.om")
[y] = session.run(None, {"x": np.zeros((1, 3, 224, 224), np.float32)})
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import Problems, error
from atc_py.ir.dims import Dim
from atc_py.ir.types import DType, Map, Tensor, Type, on_host
from atc_py.ir.types import Sequence as SequenceType
from atc_py.npu.device import BoundPlan, Context
from atc_py.ops.base import scratch_nbytes
from atc_py.plan.ports import solve
from atc_py.plan.types import Plan, Port
from atc_py.runtime.custom import load_custom, require_custom
from atc_py.runtime.loader import Loaded, load
from atc_py.runtime.values import as_it_lies, handed_back, taken, told

BINDINGS_KEPT = 16
"""How many sets of shapes a session keeps bound; the one not used for longest goes first."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `shape` has ints, names of symbolic dims as text, and is None when the rank is unknown."""

    name: str
    type: str
    shape: list[int | str] | None


_ORT_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double", DType.STRING: "string"}
"""Element types that onnxruntime calls by another name than numpy."""


def _type_name(t: Type) -> str:
    """A type as onnxruntime writes it: `tensor(float)`, `seq(tensor(int64))`, `map(int64,tensor(float))`."""
    if isinstance(t, Tensor):
        return f"tensor({_ORT_NAMES.get(t.dtype, t.dtype.value)})"
    if isinstance(t, Map):
        return f"map({_ORT_NAMES.get(t.key, t.key.value)},{_type_name(t.value)})"
    return f"{'seq' if isinstance(t, SequenceType) else 'optional'}({_type_name(t.element)})"


def _node_arg(port: Port) -> NodeArg:
    t = port.type
    known = isinstance(t, Tensor) and t.shape is not None
    shape = [str(d) if isinstance(d, Dim) else d for d in t.dims] if known and isinstance(t, Tensor) else None
    return NodeArg(port.name, _type_name(t), shape)


@dataclass
class _Pool:
    """A bound plan, its symbols' values, and its contexts that no run is using."""

    key: tuple[Any, ...]
    bound: BoundPlan
    free: list[Context] = field(default_factory=list)


class Session:
    """Runs one OM on the simulated NPU.

    `model` is a path, bytes, or a `Loaded` file; `sess_options` and `providers` are accepted and ignored, for there is
    one device; `check="full"` also checks the weights' checksums. `custom_ops` are modules that declare operators (see
    `atc_py.custom.load`); raises `AtcError` E40005 where the model has operators that nothing declares. With
    `kernels="tiles"` fused tasks run as their tile programs, inner values in buffers of the planned sizes; the default
    "fast" gives the same results sooner. With `debug_memory` each read of the arena is checked (`atc_py.npu.debug`);
    `shuffle` is a seed with which each run draws an order of the tasks among those that the plan allows. Sessions
    may be used from several threads: each run takes a context of its own from a pool.
    """

    def __init__(
        self,
        model: str | Path | bytes | bytearray | memoryview | Loaded,
        sess_options: object = None,
        providers: object = None,
        *,
        check: str = "load",
        custom_ops: Sequence[str | Path] = (),
        kernels: str = "fast",
        debug_memory: bool = False,
        shuffle: int | None = None,
    ) -> None:
        if kernels not in ("fast", "tiles"):
            raise error("E10001", "kernels", f"there are no kernels called {kernels!r}", "give 'fast' or 'tiles'")
        self._tiles = kernels == "tiles"
        self._debug = (debug_memory, shuffle) if debug_memory or shuffle is not None else None
        load_custom(custom_ops)
        if isinstance(model, (bytearray, memoryview)):
            model = bytes(model)
        self._loaded = model if isinstance(model, Loaded) else load(model)
        if check == "full":
            self._loaded.check_weights()
        require_custom(self.plan)
        self._pools: OrderedDict[tuple[Any, ...], _Pool] = OrderedDict()
        self._by_shapes: dict[tuple[Any, ...], _Pool] = {}
        self._taken = [(p.name, _dtype_of_bytes(p.type)) for p in self.plan.inputs]
        self._on_host = [on_host(p.type) for p in self.plan.outputs]
        self._all = None if any(self._on_host) else range(len(self._on_host))  # all outputs, as they are
        self._lock = threading.Lock()
        self._runs = itertools.count()
        if self.plan.static:
            self._bind({})

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._loaded.plan

    @property
    def loaded(self) -> Loaded:
        """The file behind the session."""
        return self._loaded

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [_node_arg(p) for p in self.plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [_node_arg(p) for p in self.plan.outputs]

    def get_providers(self) -> list[str]:
        """What runs the model: the simulated NPU alone."""
        return [f"Simulated {self.plan.target}"]

    def __repr__(self) -> str:
        """The model's signature."""
        ends = [", ".join(f"{a.name}: {a.type}{a.shape or ''}" for a in side) for side in self._ends()]
        return f"<Session on simulated {self.plan.target}: ({ends[0]}) → ({ends[1]})>"

    def _ends(self) -> tuple[list[NodeArg], list[NodeArg]]:
        return self.get_inputs(), self.get_outputs()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """Run once; returns the named outputs (None or none named: all), as fresh arrays.

        `run_options` is accepted and ignored. Raises `AtcError` naming each wrong name, dtype or shape, with what was
        expected and what came.
        """
        wanted = self._wanted(output_names)
        arrays = self._feeds(input_feed)
        pool = self._pool(arrays)
        results = self._run(pool, arrays, pool.bound.output_arrays())
        if wanted is self._all:
            return results
        return [handed_back(results[i]) if self._on_host[i] else results[i] for i in wanted]

    def run_bound(self, input_feed: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Run once and write the results into the caller's arrays, one for each output, where they lie.

        Each array must be C-contiguous and writable and have exactly its output's dtype and shape; outputs whose shape
        only the run knows, and those that are no tensors, cannot be bound. Raises `AtcError` E30028 otherwise.
        """
        arrays = self._feeds(input_feed)
        pool = self._pool(arrays)
        problems = Problems()
        for name in outputs:
            if name not in {p.name for p in self.plan.outputs}:
                problems.add("E30006", f"output '{name}'", "the model has no such output", "")
        bound = [
            _bound_output(port.name, t, outputs.get(port.name), problems)
            for port, t in zip(self.plan.outputs, pool.bound.output_types(), strict=True)
        ]
        problems.raise_any()
        self._run(pool, arrays, bound)

    def _run(self, pool: _Pool, arrays: list[Any], outputs: list[Any]) -> list[Any]:
        context = self._take(pool)
        try:
            return context.run(arrays, outputs, next(self._runs))
        finally:
            pool.free.append(context)

    def simulator_scratch(self) -> int:
        """Bytes of scratch that the simulator's kernels have used on this thread; no figure of the NPU."""
        return scratch_nbytes()

    def bound(self, feeds: Mapping[str, Any]) -> BoundPlan:
        """The plan as bound to the feeds' shapes."""
        return self._pool(self._feeds(feeds)).bound

    def _wanted(self, names: Sequence[str] | None) -> Sequence[int]:
        if names is None and self._all is not None:
            return self._all
        known = {p.name: i for i, p in enumerate(self.plan.outputs)}
        if isinstance(names, str):
            cause = f"output_names is the text '{names}', expected a list of names"
            raise error("E30006", "outputs", cause, f"pass ['{names}']")
        if not names:
            return list(range(len(self.plan.outputs)))
        problems = Problems()
        for name in names:
            if name not in known:
                problems.add("E30006", f"output '{name}'", "the model has no such output", f"it has {_list(known)}")
        problems.raise_any()
        return [known[name] for name in names]

    def _feeds(self, feeds: Any) -> list[Any]:
        if not isinstance(feeds, dict) or len(feeds) != len(self._taken):
            return self._checked(feeds)
        arrays = []
        for name, dtype in self._taken:
            view = None if dtype is None else as_it_lies(dtype, feeds.get(name))
            if view is None:
                return self._checked(feeds)
            arrays.append(view)
        return arrays

    def _checked(self, feeds: Any) -> list[Any]:
        """The feeds with everything that is wrong with them told."""
        problems = Problems()
        known = {p.name for p in self.plan.inputs}
        if not isinstance(feeds, Mapping):
            cause = f"are a {type(feeds).__name__}, expected a mapping from names to values"
            raise error("E30008", "inputs", cause, f"the model's inputs are {_list(known)}")
        for name in feeds:
            if name not in known:
                problems.add("E30005", f"input '{name}'", "the model has no such input", f"it has {_list(known)}")
        arrays: list[Any] = []
        for port in self.plan.inputs:
            if port.name not in feeds:
                problems.add("E30007", f"input '{port.name}'", "is missing", f"give {told(port.type)}")
            else:
                arrays.append(taken(port.type, feeds[port.name], f"input '{port.name}'", problems))
        problems.raise_any()
        return arrays

    def _pool(self, arrays: Sequence[Any]) -> _Pool:
        """The plan bound to the arrays' shapes."""
        shapes = tuple([a.shape if isinstance(a, np.ndarray) else None for a in arrays])
        with self._lock:
            pool = self._by_shapes.get(shapes)
            if pool is not None:
                self._pools.move_to_end(pool.key)
                return pool
        pool = self._bind(solve(self.plan.inputs, shapes, self.plan.symbols))
        with self._lock:
            if self._pools.get(pool.key) is pool:
                if len(self._by_shapes) >= 4 * BINDINGS_KEPT:  # inputs of no known rank: many shapes, one binding
                    self._by_shapes.clear()
                self._by_shapes[shapes] = pool
        return pool

    def _bind(self, env: Mapping[str, int]) -> _Pool:
        key = tuple(sorted(env.items()))
        with self._lock:
            found = self._pools.get(key)
        # Not under the lock: runs of other shapes go on. Of two first runs of one shape at once, one binds in vain.
        made = found or _Pool(key, BoundPlan(self.plan, self._loaded.weights, env, self._tiles))
        with self._lock:
            pool = self._pools.setdefault(key, made)
            self._pools.move_to_end(key)
            if len(self._pools) > BINDINGS_KEPT:
                _, old = self._pools.popitem(last=False)
                self._by_shapes = {s: p for s, p in self._by_shapes.items() if p is not old}
        return pool

    def _take(self, pool: _Pool) -> Context:
        try:
            return pool.free.pop()  # a list's pop and append are whole, whatever other threads do
        except IndexError:
            return self._context(pool.bound)

    def _context(self, bound: BoundPlan) -> Context:
        if self._debug is None:
            return Context(bound)
        from atc_py.npu.debug import DebugContext

        memory, seed = self._debug
        return DebugContext(bound, seed, memory)


def _dtype_of_bytes(type_: Type) -> np.dtype[Any] | None:
    return type_.dtype.numpy if isinstance(type_, Tensor) and not on_host(type_) else None


def _bound_output(name: str, wanted: Tensor | None, given: Any, problems: Problems) -> Any:
    """The caller's array for an output, when results can be written into it as it lies."""
    if wanted is None:
        cause = "is no tensor, or its shape is known only when the model has run"
        problems.add("E30028", f"output '{name}'", cause, "use run(), which returns fresh arrays")
        return None
    fits = (
        isinstance(given, np.ndarray)
        and given.dtype == wanted.dtype.numpy
        and given.shape == wanted.shape
        and given.flags.c_contiguous
        and given.flags.writeable
    )
    if not fits:
        what = f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
        cause = f"cannot be written into {what}"
        problems.add("E30028", f"output '{name}'", cause, f"give a C-contiguous, writable array of {told(wanted)}")
    return given


def _list(names: Any) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names)) or "none"
