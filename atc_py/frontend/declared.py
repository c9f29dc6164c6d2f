"""What a model declares about inner tensors, held against what was inferred.

inferred [N, NonZero7.count]   declared [N, 5]   →   [N, 5]           # only what the run time would tell is taken over
inferred [N, 4]                declared [N, 5]   →   [N, 4], warning
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atc_py.errors import Problem, Problems
from atc_py.frontend import codes
from atc_py.frontend.onnx_types import Declared, declared
from atc_py.ir.dims import Dim, Size, symbol
from atc_py.ir.graph import Graph
from atc_py.ir.types import Tensor
from atc_py.ops.shapes import show

if TYPE_CHECKING:
    from atc_py.frontend.frame import Frame
    from atc_py.frontend.topology import NodeInfo


class Refiner:
    """Compares and refines. `reshaped`: the user gave other input shapes, so that declared sizes may be stale."""

    def __init__(self, problems: Problems, warnings: list[Problem]) -> None:
        self._problems = problems
        self._warnings = warnings
        self.reshaped = False

    def refine(self, frame: Frame, node: NodeInfo, name: str, made: int) -> None:
        """Refine the type of value `made`, which `node` has just made for the tensor `name` that is declared."""
        told = declared(frame.info.declared[name])
        if told is None:
            return
        graph = frame.scope.graph
        value = graph.values[made]
        if not isinstance(value.type, Tensor):
            return
        if told.dtype is not None and told.dtype is not value.type.dtype:
            cause = f"the model declares output '{name}' as {told.dtype!r}, but it is {value.type.dtype!r}"
            self._problems.add(
                codes.CONTRADICTION, frame.place(node), cause, "the model was edited wrongly: export it again"
            )
            return
        if told.dims is not None:
            shape = self._shape(frame, node, value.type, told, name)
            if shape != value.type.shape:
                value.type = value.type.with_shape(shape)

    def _shape(self, frame: Frame, node: NodeInfo, found: Tensor, told: Declared, name: str) -> tuple[Size, ...] | None:
        assert told.dims is not None
        if found.shape == told.dims:
            return found.shape
        graph = frame.scope.graph
        if found.shape is None:
            return tuple(
                size if (size := self._size(graph, d)) is not None else graph.fresh_symbol(f"declared.{i}")
                for i, d in enumerate(told.dims)
            )
        pairs = list(zip(found.shape, told.dims))
        differs = any(type(a) is int and type(b) is int and a != b for a, b in pairs)
        if len(found.shape) != len(told.dims) or differs:
            if not self.reshaped:
                listed = "[" + ", ".join("?" if d is None else str(d) for d in told.dims) + "]"
                cause = f"output '{name}' has shape {show(found.shape)}, but the model declares {listed}"
                self._warnings.append(Problem(codes.DECLARED_SHAPE, frame.place(node), cause))
            return found.shape
        return tuple(
            size if _at_run_time(graph, a) and (size := self._size(graph, b)) is not None else a for a, b in pairs
        )

    def _size(self, graph: Graph, told: int | str | None) -> Size | None:
        """A declared dim that can be trusted: a size, or the symbol of an input."""
        if type(told) is int:
            return None if self.reshaped else told
        if isinstance(told, str) and told in graph.symbols and not graph.symbols[told].runtime:
            return symbol(told)
        return None


def _at_run_time(graph: Graph, size: Size) -> bool:
    """Whether the size is a symbol that only the run time binds."""
    if not isinstance(size, Dim):
        return False
    found = graph.symbols.get(str(size))
    return found is not None and found.runtime
