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
from atc_py.ir.types import Tensor, on_host
from atc_py.npu.device import BoundPlan, Context
from atc_py.ops.base import scratch_nbytes
from atc_py.plan.ports import solve
from atc_py.plan.types import Plan, Port
from atc_py.runtime.loader import Loaded, load
from atc_py.runtime.values import handed_back, taken, told

BINDINGS_KEPT = 16
"""How many sets of shapes a session keeps bound; the one not used for longest goes first."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `shape` has ints, names of symbolic dims as text, and is None when the rank is unknown."""

    name: str
    type: str
    shape: list[int | str] | None


def _node_arg(port: Port) -> NodeArg:
    t = port.type
    if not isinstance(t, Tensor):
        return NodeArg(port.name, type(t).__name__.lower(), None)
    shape = None if t.shape is None else [str(d) if isinstance(d, Dim) else d for d in t.shape]
    return NodeArg(port.name, f"tensor({t.dtype.value})", shape)


@dataclass
class _Pool:
    """A bound plan, and its contexts that no run is using."""

    bound: BoundPlan
    free: list[Context] = field(default_factory=list)


class Session:
    """Runs one OM on the simulated NPU.

    `model` is a path, bytes, or a `Loaded` file; `check="full"` also checks the weights' checksums. Sessions may be
    used from several threads: each run takes a context of its own from a pool.
    """

    def __init__(self, model: str | Path | bytes | Loaded, *, check: str = "load") -> None:
        self._loaded = model if isinstance(model, Loaded) else load(model)
        if check == "full":
            self._loaded.check_weights()
        self._pools: OrderedDict[tuple[Any, ...], _Pool] = OrderedDict()
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

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run once; returns the named outputs (None: all), as fresh arrays.

        Raises `AtcError` naming each wrong name, dtype or shape, with what was expected and what came.
        """
        wanted = self._wanted(output_names)
        arrays = self._feeds(feeds)
        pool = self._bind(self._solve(arrays))
        context = self._take(pool)
        try:
            results = context.run(arrays, pool.bound.output_arrays(), next(self._runs))
        finally:
            with self._lock:
                pool.free.append(context)
        return [handed_back(results[i]) if on_host(self.plan.outputs[i].type) else results[i] for i in wanted]

    def simulator_scratch(self) -> int:
        """Bytes of scratch that the simulator's kernels have used on this thread; no figure of the NPU."""
        return scratch_nbytes()

    def bound(self, feeds: Mapping[str, Any]) -> BoundPlan:
        """The plan as bound to the feeds' shapes."""
        return self._bind(self._solve(self._feeds(feeds))).bound

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        known = {p.name: i for i, p in enumerate(self.plan.outputs)}
        if names is None:
            return list(range(len(self.plan.outputs)))
        problems = Problems()
        for name in names:
            if name not in known:
                problems.add("E30006", f"output '{name}'", "the model has no such output", f"it has {_list(known)}")
        problems.raise_any()
        return [known[name] for name in names]

    def _feeds(self, feeds: Mapping[str, Any]) -> list[Any]:
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

    def _solve(self, arrays: Sequence[Any]) -> dict[str, int]:
        shapes = [a.shape if isinstance(a, np.ndarray) else None for a in arrays]
        return solve(self.plan.inputs, shapes, self.plan.symbols)

    def _bind(self, env: Mapping[str, int]) -> _Pool:
        key = tuple(sorted(env.items()))
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = _Pool(BoundPlan(self.plan, self._loaded.weights, env))
                if len(self._pools) > BINDINGS_KEPT:
                    self._pools.popitem(last=False)
            self._pools.move_to_end(key)
        return pool

    def _take(self, pool: _Pool) -> Context:
        with self._lock:
            if pool.free:
                return pool.free.pop()
        return Context(pool.bound)


def _list(names: Any) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names)) or "none"
