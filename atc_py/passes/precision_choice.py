"""Which nodes compute in the narrow float: the decision, before anything is changed.

    fp16     x ─ Conv ─ Relu ─ Pow 2 ─ ReduceMean ─ Sqrt ─ s        Conv, Relu   float16
                         └───────────── Div s ─ Conv ─ y            Pow          float32: not safe in float16
                                                                    ReduceMean, Sqrt   float32: they read Pow's range
                                                                    Div          float32: one operand has that range
                                                                    Conv         float16, through one Cast

What an operator that is not safe has made may be beyond float16 (65504), and so may what is computed from it alone;
such a statistic stays float32 up to the operator that joins it with a tensor of the common range. The square of a value
counts as one too. In the mixed modes white operators (`mixlist`) are narrow, black ones float32, and a gray one is
narrow where all values that it reads are. Operators that only move elements take the dtype that needs fewer Casts.

One walk forwards and one backwards; both look at each edge once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.ir.dims import Dim, DimOverflow, symbol
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.base import Engine, Infer, InferError, Op
from atc_py.ops.build import as_types, known_value, lookup
from atc_py.passes.mixlist import Kind, PrecisionLists
from atc_py.passes.precision_weights import is_lost

NARROW, WIDE, PLAIN = "narrow", "wide", "plain"
"""What is known of a value: made in the narrow type; made in float32 because its range may need it; neither."""


@dataclass(frozen=True)
class Mode:
    """A precision mode: tensors of the `sources` become `target`.

    `mixed`: gray operators follow what they read. `cube_only`: only the cube's operands become `target`, results leave
    the cube in the source's dtype. `widens`: range is no reason against anything.
    """

    target: DType
    sources: tuple[DType, ...] = (DType.FLOAT32,)
    mixed: bool = False
    cube_only: bool = False
    widens: bool = False


@dataclass(frozen=True)
class Change:
    """What becomes of one node: which inputs it reads in the narrow type, and the types of its outputs."""

    reads: tuple[int, ...]
    types: tuple[Type, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def choose(graph: Graph, mode: Mode, lists: PrecisionLists) -> dict[int, Change]:
    """Node id → what becomes of it, in the graph's order; nodes that stay as they are are missing."""
    chooser = _Chooser(graph, mode, lists)
    chooser.forwards()
    if not mode.cube_only:
        chooser.backwards()
    return chooser.changes


@dataclass(frozen=True)
class _Traits:
    """What counts of an operator, looked up once: inputs that are never narrow, attributes that have dtypes."""

    op: Op
    kind: Kind
    excluded: tuple[int, ...]
    dtype_attrs: tuple[str, ...]
    any_dtype: bool
    unfit: bool


class _Chooser:
    """The state of one decision."""

    def __init__(self, graph: Graph, mode: Mode, lists: PrecisionLists) -> None:
        self.graph, self.mode, self.lists = graph, mode, lists
        self.order = graph.order()
        self.changes: dict[int, Change] = {}
        self.state: dict[int, str] = {}
        self._known: dict[str, _Traits] = {}
        self._answers: dict[Any, tuple[DType | None, ...]] = {}

    def _traits(self, node: Node) -> _Traits:
        found = self._known.get(node.op)
        if found is None:
            op = lookup(node.op, node.attrs)
            excluded = op.host_inputs + op.flags.wide_inputs
            if self.mode.cube_only:
                excluded = tuple(i for i in range(len(node.inputs)) if i not in op.flags.cube)
            dtypes = tuple(name for name, a in op.attrs.items() if a.kind == "dtype" or name == "stash_type")
            unfit = op.flags.control or op.reference or bool(op.bodies)
            found = _Traits(op, self.lists.kind(op), excluded, dtypes, takes_any(node, op), unfit)
            self._known[node.op] = found
        return found

    # -- forwards: by operator and by what is read ---------------------------------------------------------------

    def forwards(self) -> None:
        """Decide for each node in order."""
        for node in self.order:
            if node.op in STRUCTURAL:
                continue
            traits = self._traits(node)
            if node.op == "Cast":
                self._set(node, self._cast_state(node))
                continue
            reads, states = self._survey(node, traits)
            wanted, otherwise = self._wish(node, traits, states)
            if not wanted or not self._open(node, traits) or not self._try(node, traits, reads):
                self._set(node, otherwise)

    def _wish(self, node: Node, traits: _Traits, states: list[str]) -> tuple[bool, str]:
        """Whether the node should compute in the narrow type, and what its results are if it does not."""
        if traits.unfit or (self.lists.keeps and self.lists.kept(node)):
            return False, PLAIN
        if self.mode.widens or self.mode.cube_only:
            return self.mode.widens or traits.kind is Kind.WHITE, PLAIN
        if _left_bytes(self.graph, node):
            return False, PLAIN
        if traits.kind is not Kind.GRAY:
            return (True, PLAIN) if traits.kind is Kind.WHITE else (False, WIDE)
        if (node.op == "Mul" and node.inputs[0] == node.inputs[1]) or self._beyond(node, traits):
            return False, WIDE
        return self._followed(traits, states)

    def _beyond(self, node: Node, traits: _Traits) -> bool:
        """Whether the node reads a single number (a bound, an epsilon) that is infinite or 0 in the narrow type."""
        for i, number in enumerate(node.inputs):
            if number != ABSENT and i not in traits.excluded:
                constant = self.graph.const(number)
                if constant is not None and constant.dtype in self.mode.sources and is_lost(constant, self.mode.target):
                    return True
        return False

    def _followed(self, traits: _Traits, states: list[str]) -> tuple[bool, str]:
        """A gray operator after what it reads."""
        wide = WIDE in states
        if self.mode.mixed:
            return NARROW in states and PLAIN not in states and not wide, WIDE if wide else PLAIN
        if not wide:
            return True, PLAIN
        joins = NARROW in states or PLAIN in states
        return False, PLAIN if joins and not traits.op.flags.moves else WIDE

    def _survey(self, node: Node, traits: _Traits) -> tuple[tuple[int, ...], list[str]]:
        """The inputs that are narrow when the node is, and the states of those that are computed."""
        values, nodes, sources, excluded = self.graph.values, self.graph.nodes, self.mode.sources, traits.excluded
        reads: list[int] = []
        states: list[str] = []
        for i, number in enumerate(node.inputs):
            if number == ABSENT or i in excluded:
                continue
            value = values[number]
            if isinstance(value.type, Tensor) and value.type.dtype in sources:
                reads.append(i)
                if nodes[value.producer].const is None:
                    states.append(self.state.get(number, PLAIN))
        return tuple(reads), states

    def _cast_state(self, node: Node) -> str:
        """A Cast of the model from the narrow type: its readers can have what it reads."""
        source = self.graph.type(node.inputs[0])
        return NARROW if isinstance(source, Tensor) and source.dtype is self.mode.target else PLAIN

    def _open(self, node: Node, traits: _Traits) -> bool:
        """Whether the AI Core runs the node, with a kernel of ours."""
        return node.engine == "aicore" and not traits.unfit

    def _set(self, node: Node, state: str) -> None:
        for value in node.outputs:
            self.state[value] = state

    def _try(self, node: Node, traits: _Traits, reads: tuple[int, ...]) -> bool:
        """Decide for the narrow type where the operator takes it; whether it does."""
        if not reads:
            return False
        attrs = {"out_dtype": self.graph.tensor(node.outputs[0]).dtype} if self.mode.cube_only else {}
        types = self._outputs(node, traits, reads, attrs)
        if types is None:
            return False
        self.changes[node.id] = Change(reads, types, attrs)
        target = self.mode.target
        for value, type_ in zip(node.outputs, types, strict=True):
            self.state[value] = NARROW if isinstance(type_, Tensor) and type_.dtype is target else PLAIN
        return True

    # -- what the declaration says of other dtypes ---------------------------------------------------------------

    def _outputs(
        self, node: Node, traits: _Traits, reads: tuple[int, ...], attrs: Mapping[str, Any]
    ) -> tuple[Type, ...] | None:
        """The types of the outputs when these inputs are narrow; None where the declaration does not take them.

        Shapes stay; which dtypes come out depends on the dtypes that go in, on the attributes' dtypes, and on nothing
        else, so that one question an operator and signature is enough.
        """
        values = self.graph.values
        types = [None if v == ABSENT else values[v].type for v in node.inputs]
        given = tuple([id(t.dtype) if isinstance(t, Tensor) else 0 for t in types])  # an enum's own hash is slow
        said = tuple([node.attrs.get(name) for name in traits.dtype_attrs]) if traits.dtype_attrs else ()
        key = (node.op, given, reads, len(node.outputs), said)
        dtypes = self._answers.get(key)
        if dtypes is None:
            dtypes = self._ask(node, traits.op, types, reads, attrs)
            if dtypes is None:
                return None
            self._answers[key] = dtypes
        return tuple([retyped(values[v].type, d) for v, d in zip(node.outputs, dtypes, strict=True)])

    def _ask(
        self, node: Node, op: Op, types: Sequence[Type | None], reads: tuple[int, ...], attrs: Mapping[str, Any]
    ) -> tuple[DType | None, ...] | None:
        narrow = tuple(retyped(t, self.mode.target) if i in reads and t is not None else t for i, t in enumerate(types))
        known = tuple(None if v == ABSENT else known_value(self.graph.const(v)) for v in node.inputs)
        n = Infer(narrow, {**op.attributes(node.attrs), **attrs}, len(node.outputs), known, _any_size)
        if op.infer_fn is None:
            return None
        try:
            found = as_types(op.infer_fn(n))
        except (InferError, DimOverflow):
            return None
        dtypes: list[DType | None] = []
        for i, value in enumerate(node.outputs):
            old, new = self.graph.type(value), found[i] if i < len(found) else None
            if not isinstance(old, Tensor):
                if new != old:
                    return None
                dtypes.append(None)
            else:
                dtypes.append(new.dtype if isinstance(new, Tensor) else old.dtype)
        return tuple(dtypes)

    # -- backwards: operators that only move elements -------------------------------------------------------------

    def backwards(self) -> None:
        """Give nodes that move elements the dtype that needs fewer Casts, last ones first."""
        moving = [node for node in self.order if node.op not in STRUCTURAL and self._moves(node)]
        if not moving:
            return
        counts = self._demands()
        for node in reversed(moving):
            self._move(node, self._known[node.op], counts)

    def _moves(self, node: Node) -> bool:
        """Whether the node's dtype is free: it moves elements, or casts them from a dtype that the mode leaves."""
        traits = self._known[node.op]
        free = traits.op.flags.moves or (node.op == "Cast" and self.state[node.outputs[0]] != NARROW)
        return free and self._open(node, traits) and not self.lists.kept(node)

    def _demands(self) -> dict[int, list[int]]:
        """Value → [readers that want it as it was, readers that want it narrow]; those that take both do not count."""
        counts: dict[int, list[int]] = {}
        sources, values = self.mode.sources, self.graph.values
        for node in self.order:
            traits = self._known.get(node.op)
            if traits is not None and traits.any_dtype:
                continue
            change = self.changes.get(node.id)
            narrow = change.reads if change is not None else ()
            for i, value in enumerate(node.inputs):
                if value != ABSENT:
                    type_ = values[value].type
                    if isinstance(type_, Tensor) and type_.dtype in sources:
                        found = counts.get(value)
                        if found is None:
                            found = counts[value] = [0, 0]
                        found[i in narrow] += 1
        return counts

    def _move(self, node: Node, traits: _Traits, counts: dict[int, list[int]]) -> None:
        now = self.changes.get(node.id)
        wants = [counts[v] for v in node.outputs if v in counts]
        plain, narrow = sum(w[0] for w in wants), sum(w[1] for w in wants)
        if not wants or (plain and narrow) or bool(narrow) == (now is not None):
            return
        cast = node.op == "Cast"
        reads = () if cast else now.reads if now is not None else self._survey(node, traits)[0]
        moved = {node.inputs[i] for i in reads if self.graph.const(node.inputs[i]) is None}
        # A Cast before the node is needed unless the value is made so, or another reader has it cast.
        before = sum(1 for v in moved if not self._made(v, bool(narrow)) and not counts[v][narrow > 0])
        after = sum(1 for w in wants if sum(w))
        smaller = narrow > 0 and not traits.op.flags.alias
        if before > after or (before == after and not smaller):
            return
        attrs = {"to": self.mode.target} if cast else {}
        types = self._outputs(node, traits, reads, attrs) if narrow else None
        if narrow and types is None:
            return
        for i in reads:
            pair = counts[node.inputs[i]]
            pair[now is not None] -= 1
            pair[now is None] += 1
        if types is None:
            del self.changes[node.id]
            self._set(node, PLAIN)
        else:
            self.changes[node.id] = Change(reads, types, attrs)
            self._set(node, NARROW)

    def _made(self, value: int, narrow: bool) -> bool:
        """Whether the value is made in the wanted dtype."""
        return (self.state.get(value) == NARROW) == narrow


def retyped(type_: Type, dtype: DType | None) -> Type:
    """A tensor's type in another dtype; other types, and for None all, as they are."""
    if dtype is None or not isinstance(type_, Tensor) or type_.dtype is dtype:
        return type_
    return Tensor(dtype, type_.shape, type_.format, type_.storage)


def takes_any(node: Node, op: Op | None) -> bool:
    """Whether the node reads its input in whichever dtype there is: a Cast, and the host where it looks at a shape."""
    return node.op == "Cast" or (op is not None and op.flags.type_only and op.engine is Engine.HOST)


_BYTES = {id(d) for d in DType if d.is_int and d.itemsize == 1}
"""By identity: an enum's own hash and properties take longer than the look."""


def _left_bytes(graph: Graph, node: Node) -> bool:
    """Whether the units work on bytes: the first operand is one of 8-bit integers."""
    first = None if not node.inputs or node.inputs[0] == ABSENT else graph.type(node.inputs[0])
    return isinstance(first, Tensor) and id(first.dtype) in _BYTES


def _any_size(why: str) -> Dim:
    """A stand-in for a size that does not matter."""
    return symbol(f"any {why}")
