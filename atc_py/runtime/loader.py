"""The lightweight loader: an OM file as a Plan with mapped weights.

loaded = load("model.om")        # header, tables, graph and plan checked by digest; weights only mapped
loaded.plan                      # ready to bind
loaded.canonical()               # the graph for full recompilation, parsed when asked for
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.graph import Graph
from atc_py.ir.stored import unpack_graph
from atc_py.npu.weights import Weights
from atc_py.plan import partition
from atc_py.plan.gears import wrong_gears
from atc_py.plan.packed import decode
from atc_py.plan.types import Plan, Space
from om_format import OmError, OmFile, Partition

_CODES: Mapping[str, str] = {
    "not_om": "E30020",
    "truncated": "E30021",
    "corrupt": "E30022",
    "newer": "E30023",
    "unsupported": "E30024",
    "foreign": "E30025",
    "invalid": "E30026",
}
_HINTS: Mapping[str, str] = {
    "not_om": "check that the right file was given",
    "truncated": "the copy or download was cut off: get the file again, or convert the model again",
    "corrupt": "the file is damaged: get it again, or convert the model again",
    "unsupported": "convert the ONNX model that it was made from",
}
"""What to do where the container does not say it."""


def as_atc_error(e: OmError) -> AtcError:
    """A container's error as the one exception type of atc-py."""
    place = e.path or "OM"
    if e.offset is not None:
        place += f" +0x{e.offset:x}"
    kind = e.code.name.lower()
    return error(_CODES[kind], place, e.cause, e.hint or _HINTS.get(kind, ""))


def open_om(source: str | Path | bytes) -> OmFile:
    """Open an OM file or bytes; raises `AtcError` E3002x for what is not a readable OM."""
    try:
        if isinstance(source, bytes):
            return OmFile.from_bytes(source)
        return OmFile.open(source)
    except OmError as e:
        raise as_atc_error(e) from e
    except OSError as e:
        raise error("E13000", str(source), f"cannot be read: {e.strerror or e}", "check the path") from e


@dataclass
class Loaded:
    """An OM that has been opened: its container, its plans, and its blobs."""

    om: OmFile
    plans: tuple[Plan, ...]
    blobs: tuple[memoryview, ...]
    base: int

    @property
    def plan(self) -> Plan:
        """The first device's plan."""
        return self.plans[0]

    @cached_property
    def weights(self) -> Weights:
        """The first plan's weights space."""
        part = self.om.get(Partition.WEIGHTS_DATA)
        raw = part.data if part is not None else memoryview(b"")
        mapped = np.frombuffer(raw, np.uint8) if raw.nbytes else np.empty(0, np.uint8)
        return Weights(self.plan, mapped[self.base : self.base + self.plan.weights_nbytes])

    @cached_property
    def info(self) -> dict[str, Any]:
        """The figures that the conversion recorded."""
        part = self.om.get(Partition.INFO)
        try:
            found = json.loads(bytes(part.data)) if part is not None else {}
        except (ValueError, RecursionError) as e:
            raise error("E30022", "INFO partition", f"is no JSON: {e}", "convert the model again") from e
        return found if isinstance(found, dict) else {}

    def canonical(self) -> Graph:
        """The canonical graph, checked against its invariants and its operators' declarations.

        Raises `AtcError` E30012 when the file was written without it, E30011 or EI… when it is damaged.
        """
        part = self.om.get(Partition.CANONICAL_GRAPH)
        if part is None:
            raise error(
                "E30012",
                self.om.path or "OM",
                "holds no canonical graph, so it cannot be recompiled",
                "convert the ONNX model again without --canonical=off",
            )
        from atc_py.ir.validate import validate
        from atc_py.ops import check

        graph = unpack_graph(part.data, self.blobs)
        validate(graph, "optimize")
        check.graph(graph)
        return graph

    def check_weights(self) -> None:
        """Read all weights and compare their checksums; raises `AtcError` E30022 with the broken file offset."""
        try:
            self.om.check_weights()
        except OmError as e:
            raise as_atc_error(e) from e


def load(source: str | Path | bytes) -> Loaded:
    """Open an OM of ours; raises `AtcError` for anything else, naming the place in the file."""
    om = open_om(source)
    try:
        om.require_atc()
        part = om.get(Partition.WEIGHTS_DATA)
        weights = part.data if part is not None else memoryview(b"")
        parts = partition.unpack(om[Partition.PLAN_TABLE].data, weights.nbytes)
    except OmError as e:
        raise as_atc_error(e) from e
    blobs = tuple(weights[o : o + n] for o, n in parts.blobs)
    plans = tuple(decode(p, blobs) for p in parts.plans)
    if not plans:
        raise error("E30010", om.path or "OM", "holds no plan", "convert the model again")
    for plan in plans:
        _check_weights_space(plan, weights.nbytes - parts.base)
        for place, cause in wrong_gears(plan):  # whoever opens a file looks at one gear, and takes it that this is all
            raise error("E30010", f"plan table, {place}", cause, "convert the model again")
    return Loaded(om, plans, blobs, parts.base)


def _check_weights_space(plan: Plan, available: int) -> None:
    """The mapped constants must lie in the file, which ends with the last one's last byte."""
    ends = [
        (b.offset or 0) + b.nbytes
        for b in plan.buffers
        if b.space is Space.WEIGHTS and isinstance(b.nbytes, int) and (b.offset or 0) < plan.weights_nbytes
    ]
    needed = max(ends, default=0)
    if needed > available:
        raise error(
            "E30010",
            "plan table",
            f"needs {needed} bytes of weights, the file has {available}",
            "convert the model again",
        )
