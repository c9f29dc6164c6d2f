"""`Session`: runs an OM the way `onnxruntime.InferenceSession` runs an ONNX model.

    session = Session("model.om")
    [y] = session.run(None, {"x": np.zeros((1, 3, 224, 224), np.float32)})
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import Problems
from atc_py.ir.dims import Dim
from atc_py.ir.types import DType, Tensor, on_host
from atc_py.npu.device import BoundPlan, Context
from atc_py.ops.base import scratch_nbytes
from atc_py.plan.ports import show, solve
from atc_py.plan.types import Plan, Port
from atc_py.runtime.loader import Loaded, load

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


class Session:
    """Runs one OM on the simulated NPU.

    `model` is a path, bytes, or a `Loaded` file; `check="full"` also checks the weights' checksums. Sessions may be
    used from several threads: each run takes a context of its own from a pool.
    """

    def __init__(self, model: str | Path | bytes | Loaded, *, check: str = "load") -> None:
        self._loaded = model if isinstance(model, Loaded) else load(model)
        if check == "full":
            self._loaded.check_weights()
        self._bound: OrderedDict[tuple[Any, ...], BoundPlan] = OrderedDict()
        self._free: dict[int, list[Context]] = {}
        self._lock = threading.Lock()
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
        bound = self._bind(self._solve(arrays))
        context = self._take(bound)
        try:
            results = context.run(arrays, bound.output_arrays())
        finally:
            with self._lock:
                self._free.setdefault(id(bound), []).append(context)
        return [results[i] for i in wanted]

    def simulator_scratch(self) -> int:
        """Bytes of scratch that the simulator's kernels have used on this thread; no figure of the NPU."""
        return scratch_nbytes()

    def bound(self, feeds: Mapping[str, Any]) -> BoundPlan:
        """The plan as bound to the feeds' shapes."""
        return self._bind(self._solve(self._feeds(feeds)))

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
        for name in feeds:
            if name not in known:
                problems.add("E30005", f"input '{name}'", "the model has no such input", f"it has {_list(known)}")
        arrays: list[Any] = []
        for port in self.plan.inputs:
            if port.name not in feeds:
                problems.add("E30007", f"input '{port.name}'", "is missing", f"give {_describe(port)}")
            else:
                arrays.append(_checked(port, feeds[port.name], problems))
        problems.raise_any()
        return arrays

    def _solve(self, arrays: Sequence[Any]) -> dict[str, int]:
        shapes = [a.shape if isinstance(a, np.ndarray) else None for a in arrays]
        return solve(self.plan.inputs, shapes, self.plan.symbols)

    def _bind(self, env: Mapping[str, int]) -> BoundPlan:
        key = tuple(sorted(env.items()))
        with self._lock:
            bound = self._bound.get(key)
            if bound is None:
                bound = self._bound[key] = BoundPlan(self.plan, self._loaded.weights, env)
                if len(self._bound) > BINDINGS_KEPT:
                    _, old = self._bound.popitem(last=False)
                    self._free.pop(id(old), None)
            self._bound.move_to_end(key)
        return bound

    def _take(self, bound: BoundPlan) -> Context:
        with self._lock:
            free = self._free.get(id(bound))
            if free:
                return free.pop()
        return Context(bound)


def _list(names: Any) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names)) or "none"


def _describe(port: Port) -> str:
    t = port.type
    if not isinstance(t, Tensor):
        return f"a {type(t).__name__.lower()}"
    return t.dtype.value + ("" if t.shape is None else show(t.shape))


def _checked(port: Port, value: Any, problems: Problems) -> Any:
    """The value as the device takes it: contiguous, of exactly the port's dtype; strings as an object array."""
    t = port.type
    if not isinstance(t, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "US" or t.dtype is DType.STRING:
        array = array.astype(object)
    if on_host(t) and array.dtype == object:
        return array
    if array.dtype != t.dtype.numpy:
        problems.add(
            "E30008",
            f"input '{port.name}'",
            f"has dtype {array.dtype}, expected {t.dtype.value}",
            f"convert it: x.astype('{t.dtype.value}')",
        )
        return array
    return array if array.flags.c_contiguous else np.array(array, order="C")

