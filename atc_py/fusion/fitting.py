"""Fits by form (`forms`): layers that are alike are cut once.

    layer 0   RMSNormalization ─ MatMul, MatMul, MatMul      a tile is looked for
    layer 1   RMSNormalization ─ MatMul, MatMul, MatMul      of the same form: its tile

A group whose sizes have no tile rule has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.fusion.bodies import body_of
from atc_py.fusion.forms import Form, Forms
from atc_py.fusion.tiles import Fit, Misfit, fit
from atc_py.ir.dims import DimOverflow
from atc_py.ir.graph import Graph, Node
from atc_py.ops.base import InferError
from atc_py.target import Target


class Fitting:
    """The tiles of groups of one graph on one target."""

    def __init__(self, graph: Graph, target: Target, forms: Forms | None = None) -> None:
        self.graph, self.target = graph, target
        self.forms = forms or Forms(graph)
        self._found: dict[int, Fit | Misfit] = {}

    def fit(self, nodes: Sequence[Node]) -> Fit | Misfit:
        """The largest tile of the group of nodes, given in order."""
        return self.fit_form(self.forms.of(nodes).form())

    def fit_form(self, form: Form) -> Fit | Misfit:
        """The largest tile of a group."""
        found = self._found.get(form.number)
        if found is None:
            found = self._found[form.number] = self._fit(form)
        return found

    def _fit(self, form: Form) -> Fit | Misfit:
        try:
            return fit(body_of(self.graph, form.nodes)[0], self.target)
        except (InferError, DimOverflow) as problem:  # sizes that symbols may have, but for which nothing is computed
            return Misfit("rule", str(problem))
