"""The first tensor of an ONNX model that comes out different.

1. All inner tensors are made outputs, a batch at a time, and compared: the first different one in the order of the
   nodes is the answer. Nothing is fused then, for every tensor must be stored.
2. When all of them agree, the fault comes with fusion. A bisection over the order makes one tensor at a time the only
   output, so that what leads to it is compiled as it was; the first different one is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atc_py.cli.oracle import Oracle
from atc_py.compiler import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.runtime import Session
from atc_py.runtime.compare import Difference

BATCH = 64
"""Tensors that are compared at a time: what they need in memory is bounded."""


@dataclass(frozen=True)
class Candidate:
    """A tensor of the main graph and the node that makes it."""

    tensor: str
    node: str
    op_type: str


def candidates(oracle: Oracle) -> list[Candidate]:
    """The tensors that the main graph's nodes make, in the order of the nodes."""
    return [
        Candidate(name, node.name or name, f"{node.domain}::{node.op_type}" if node.domain else node.op_type)
        for node in oracle.proto.graph.node
        for name in node.output
        if name
    ]


class Search:
    """Looks for the first difference with the inputs and tolerances of a failed check."""

    def __init__(
        self, oracle: Oracle, options: Options, feeds: Mapping[str, Any], rtol: float | None, atol: float | None
    ) -> None:
        self.oracle, self.options, self.feeds = oracle, options, feeds
        self.rtol, self.atol = rtol, atol

    def first(self) -> dict[str, Any] | None:
        """The first different tensor as JSON-able facts, or None."""
        found = self._all_at_once()
        note = "found with every tensor stored, so it does not come from fusion"
        if found is None:
            found = self._bisect()
            note = "it agrees when every tensor is stored, so the difference comes from fusion before it"
        if found is None:
            return None
        candidate, difference = found
        return {
            "tensor": candidate.tensor,
            "node": candidate.node,
            "op_type": candidate.op_type,
            "reason": difference.reason,
            "max_abs": difference.to_json()["max_abs"],
            "mismatches": difference.mismatches,
            "note": note,
        }

    def _all_at_once(self) -> tuple[Candidate, Difference] | None:
        everything = candidates(self.oracle)
        for start in range(0, len(everything), BATCH):
            batch = everything[start : start + BATCH]
            for candidate, difference in zip(batch, self._compare([c.tensor for c in batch]), strict=True):
                if difference is not None and not difference.passed:
                    return candidate, difference
        return None

    def _bisect(self) -> tuple[Candidate, Difference] | None:
        everything = candidates(self.oracle)
        low, high, found = 0, len(everything), None
        while low < high:
            middle = (low + high) // 2
            [difference] = self._compare([everything[middle].tensor])
            if difference is not None and not difference.passed:
                high, found = middle, (everything[middle], difference)
            else:
                low = middle + 1
        return found

    def _compare(self, tensors: Sequence[str]) -> list[Difference | None]:
        """One difference a tensor; None for what cannot be compared (one side cannot make it an output)."""
        try:
            om = om_bytes(compile_model(self.oracle.path, replace(self.options, out_nodes=tuple(tensors))))
            session = Session(om)
            feeds = {p.name: self.feeds[p.name] for p in session.plan.inputs}
            got = session.run(None, feeds)
            judged = self.oracle.compare(tensors, got, self.feeds, self.rtol, self.atol)
        except (AtcError, KeyError):
            if len(tensors) == 1:
                return [None]
            middle = len(tensors) // 2
            return self._compare(tensors[:middle]) + self._compare(tensors[middle:])
        return [next((d for d in j.differences if not d.passed), j.differences[0]) for j in judged]
