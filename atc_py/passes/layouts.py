"""In which format each value lies: feature maps in blocks of channels, weights in fractals, and what converts them.

    x: [1, 3, 224, 224] ─ Conv(w) ─ Relu ─ Add ─ GlobalAveragePool ─ Flatten ─ Gemm(v) ─ y           prefers NC1HWC0

    x ─ TransData ─ Conv(w as FRACTAL_Z) ─ Relu ─ Add ─ GlobalAveragePool ─ TransData ─ Flatten ─ Gemm(v as FRACTAL_NZ)
                     NC1HWC0 from here                             to here

Operators say what they take (`ops.layouts`). Convolutions and poolings need blocks; what can do without takes the form
in which conversions and padding cost least, over the whole graph (`layout_cut`), in cycles of the target. A value that
is needed in its other form is converted once, whoever reads it; a Cast at such a border converts as it casts, and so
does a Transpose between NHWC and NCHW, wherever its axes of one element stand. Constants are converted by a recipe that
is carried out when the plan is bound. The graph's inputs and outputs, and what bodies take and return, stay as the
model means them.

Where the target prefers another format than NC1HWC0, its units take rows of pixels as they lie: a conversion could only
cost, and there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from atc_py.ir.constants import Blob, Constant, Derived
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Format, Tensor, lanes, storage_shape
from atc_py.ops.base import Layout
from atc_py.ops.build import dims_constant
from atc_py.ops.formats import TRANS_DATA, packed
from atc_py.passes.base import PassContext
from atc_py.passes.layout_cut import BLOCKS, FREE, PLAIN, Labelling
from atc_py.passes.layout_roles import Roles
from atc_py.passes.rewriting import become
from atc_py.passes.transposes import perm_of
from atc_py.target import Target
from atc_py.target.cost import Traffic, Work, counted_sizes, evaluated, task_cycles

UNIT = 1024
"""Parts of a cycle in which costs are counted."""
WIDEST = 3
"""Fractals of a weight may take so many times its bytes: without them a task reads it, writes it in fractals, and reads
these."""
CONVERTING = ("Cast", "Transpose")
"""Operators that may read one form and make the other."""
INWARD, OUTWARD = (0, 3, 1, 2), (0, 2, 3, 1)
"""The permutations from NHWC to NCHW and back."""


def assign_layouts(graph: Graph, ctx: PassContext) -> int:
    """Give values their formats; returns how many nodes and constants were changed or made."""
    assert ctx.target is not None
    if ctx.target.prefers is not Format.NC1HWC0 or _has_formats(graph):
        return 0
    return _Layouts(graph, ctx.target, ctx.input_hint).run()


def _has_formats(graph: Graph) -> bool:
    return any(isinstance(v.type, Tensor) and v.type.storage is not None for v in graph.values.values())


@dataclass
class _Layouts:
    """One graph. `read`, `made`: the labels of what a node reads and makes as maps, where it can do both."""

    graph: Graph
    target: Target
    hint: Mapping[str, int]
    roles: Roles = field(init=False)
    prices: _Prices = field(init=False)
    taken: dict[int, Layout] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    problem: Labelling = field(default_factory=Labelling)
    types: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles = Roles(self.graph)
        self.prices = _Prices(self.graph, self.target, self.hint)

    def run(self) -> int:
        """Find the formats and write them into the graph."""
        order = self.graph.order()
        for node in order:
            found = self.roles.of(node)
            if found is not None:
                self.taken[node.id] = found
        changed = 0
        if any(found.needs for found in self.taken.values()):
            labels = self._labels(order)
            changed = self._write(order, labels)
        return changed + self._weights()

    # -- the problem -------------------------------------------------------------------------------------------

    def _labels(self, order: Sequence[Node]) -> list[int]:
        p = self.problem
        plain = p.node(PLAIN)
        blocks = p.node(BLOCKS)
        for node in order:
            found = self.taken.get(node.id)
            if found is not None and found.maps:
                read, made = self._padding(node, found)
                if node.op == "Cast":
                    self.read[node.id], self.made[node.id] = p.node(FREE, read), p.node(FREE, made)
                    continue
                label = blocks if found.needs else p.node(FREE, read + made)
                self.read[node.id] = label
                self.made[node.id] = label if found.makes_maps else plain
            elif node.op == "Transpose" and node.engine == "aicore":
                self._transpose(node)
        for node in order:
            for value in node.outputs:
                if value in self.roles.maps and node.const is None:
                    members = [self.made.get(node.id, plain)]
                    members += [self._reader(n, i, plain) for n, i in self.graph.values[value].uses]
                    p.value(self.prices.conversion(self.graph.tensor(value)), members)
        return p.solve()

    def _transpose(self, node: Node) -> None:
        """A Transpose between NHWC and NCHW may also be the conversion of the NCHW side."""
        if node.inputs[0] not in self.roles.maps or node.outputs[0] not in self.roles.maps:
            return
        perm = self._between(node)
        if perm == INWARD:
            self.made[node.id] = self.problem.node()
        elif perm == OUTWARD:
            self.read[node.id] = self.problem.node()
            self.taken[node.id] = Layout((0,))

    def _between(self, node: Node) -> tuple[int, ...] | None:
        """INWARD or OUTWARD if the Transpose is that but for axes of one element, which may stand anywhere."""
        perm = perm_of(self.graph, node)
        if perm is None or perm in (INWARD, OUTWARD):
            return perm
        before, after = (self.graph.tensor(v).dims for v in (node.inputs[0], node.outputs[0]))
        moved = [a for a in perm if before[a] != 1]
        if moved == sorted(moved):
            return None
        pixels = [perm[i] for i in OUTWARD if after[i] != 1]
        if pixels == sorted(pixels):
            return INWARD
        return OUTWARD if moved == [a for a in OUTWARD if before[a] != 1] else None

    def _reader(self, node: int, position: int, plain: int) -> int:
        """The label of what a use reads."""
        found = self.taken.get(node)
        return self.read[node] if found is not None and position in found.maps else plain

    def _padding(self, node: Node, found: Layout) -> tuple[int, int]:
        """What the padding lanes cost that the node reads, and that it writes."""
        reads, writes = (node.inputs[i] for i in found.maps), node.outputs if found.makes_maps else ()
        read, made = ([self.prices.padding(self.graph.tensor(v)) for v in values] for values in (reads, writes))
        return sum(read), sum(made)

    # -- the result --------------------------------------------------------------------------------------------

    def _write(self, order: Sequence[Node], labels: Sequence[int]) -> int:
        changed = 0
        for node in order:
            reads = labels[self.read[node.id]] if node.id in self.read else PLAIN
            makes = labels[self.made[node.id]] if node.id in self.made else PLAIN
            if reads != makes and node.op in CONVERTING:
                self._become_conversion(node, makes)
            for value in node.outputs if makes == BLOCKS else ():
                self.graph.values[value].type = self._blocked(self.graph.tensor(value))
            changed += BLOCKS in (reads, makes)
        for node in order:
            for value in node.outputs:
                if value in self.roles.maps:
                    changed += self._convert(node, value, labels)
        return changed

    def _blocked(self, type_: Tensor) -> Tensor:
        """The type in blocks, one object for equal ones."""
        key = (type_.dtype, type_.shape)
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = _stored(type_)
        return found

    def _in_format(self, type_: Tensor, fmt: Format) -> Tensor:
        """The type stored in a format, one object for equal ones."""
        key = (type_, fmt)
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = replace(type_, storage=fmt)
        return found

    def _become_conversion(self, node: Node, makes: int) -> None:
        """A Cast or a Transpose at a border converts as it casts or transposes."""
        given = {k: v for k, v in node.attrs.items() if k in ("to", "saturate", "round_mode")}
        if node.op == "Transpose":
            perm = self._between(node)
            given = {"perm": perm}
            if perm != perm_of(self.graph, node):
                node = self._settled(node, makes)
        node.op, node.attrs = TRANS_DATA, _attrs(makes == BLOCKS, **given)

    def _settled(self, node: Node, makes: int) -> Node:
        """The Transpose with its axes of one element in place: a Reshape makes what it reads, or what it made."""
        graph, inward = self.graph, makes == BLOCKS
        source, result = graph.tensor(node.inputs[0]), graph.tensor(node.outputs[0])
        pixels = result.with_shape(tuple([(result if inward else source).dims[i] for i in OUTWARD]))
        wanted = pixels if inward else result
        dims = graph.add_const(dims_constant(wanted.dims), "", node.origin)
        given = {"allowzero": int(any(d == 0 or type(d) is not int for d in wanted.dims))}
        op, read, attrs = ("Reshape", [node.inputs[0], dims], given) if inward else ("Transpose", [node.inputs[0]], {})
        made = graph.add(op, read, [pixels], attrs, name=f"{node.name}.NHWC", origin=node.origin)
        made.engine, made.precision = node.engine, node.precision
        if inward:
            graph.set_input(node, 0, made.outputs[0])
            return node
        become(graph, node, "Reshape", [made.outputs[0], dims], given)
        self.taken[made.id], self.read[made.id] = self.taken.pop(node.id), self.read.pop(node.id)
        return made

    def _convert(self, node: Node, value: int, labels: Sequence[int]) -> int:
        """Let those read another value who want this one in the form that it does not have."""
        type_ = self.graph.tensor(value)
        blocked = type_.storage is Format.NC1HWC0
        uses = [(n, i) for n, i in self.graph.values[value].uses if self._wants_blocks(n, i, labels) is not blocked]
        if not uses:
            return 0
        if node.const is not None:
            return self._constant(value, Format.NC1HWC0, uses)
        into = replace(type_, format=Format.ND, storage=None) if blocked else self._blocked(type_)
        at = node.outputs.index(value)
        made_by = f"{node.name}.{at}" if at else node.name
        name, old = f"{made_by}.{into.storage_format.value}", self.graph.values[value]
        made = self.graph.add(
            TRANS_DATA, [value], [into], _attrs(not blocked), name=name, origin=self._origin(node, uses[0][0])
        )
        made.engine, made.precision = "aicore", type_.dtype.value
        if self.graph.is_output(value) and blocked:
            self.graph.values[made.outputs[0]].name, old.name = old.name, ""
        for n, i in uses:
            self.graph.set_input(self.graph.nodes[n], i, made.outputs[0])
        return 1

    def _origin(self, node: Node, reader: int) -> tuple[str, ...]:
        return node.origin or self.graph.nodes[reader].origin

    def _wants_blocks(self, node: int, position: int, labels: Sequence[int]) -> bool:
        found = self.taken.get(node)
        return found is not None and position in found.maps and labels[self.read[node]] == BLOCKS

    # -- constants ---------------------------------------------------------------------------------------------

    def _constant(self, value: int, fmt: Format, uses: Sequence[tuple[int, int]]) -> int:
        """The readers take the constant in a format."""
        source = self.graph.producer(value)
        assert source.const is not None
        if not _packable(source.const):
            return 0
        made = self.graph.add_const(packed(source.const, fmt), self.graph.values[value].name, source.origin)
        self.graph.values[made].type = self._in_format(self.graph.tensor(value), fmt)
        for n, i in uses:
            self.graph.set_input(self.graph.nodes[n], i, made)
        if not self.graph.values[value].uses:
            self.graph.remove(source)
        return 1

    def _weights(self) -> int:
        """Weights in the formats of those who read them, where all of these agree."""
        wanted: dict[int, dict[tuple[int, int], Format]] = {}
        for number, found in self.taken.items():
            if not found.weights:
                continue
            node = self.graph.nodes[number]
            blocks = self._in_blocks(node)
            for i, fmt in found.weights.items():
                if i < len(node.inputs) and (fmt is not Format.FRACTAL_Z or blocks):
                    wanted.setdefault(node.inputs[i], {})[number, i] = fmt
        changed = 0
        for value, readers in wanted.items():
            fmt, *others = dict.fromkeys(readers.values())
            if value == ABSENT or self.graph.const(value) is None or others:
                continue
            if self.graph.values[value].uses.keys() == readers.keys() and _worth(self.graph.tensor(value), fmt):
                changed += self._constant(value, fmt, list(readers))
        return changed

    def _in_blocks(self, node: Node) -> bool:
        found = self.graph.type(node.outputs[0])
        return isinstance(found, Tensor) and found.storage is Format.NC1HWC0


def _stored(type_: Tensor) -> Tensor:
    return replace(type_, format=Format.NCHW, storage=Format.NC1HWC0)


def _attrs(blocks: bool, **given: object) -> dict[str, object]:
    """The attributes of a TransData to or from blocks of channels; GE writes them as it does."""
    source = "NHWC" if given.get("perm") == INWARD else "NCHW"
    target = "NHWC" if given.get("perm") == OUTWARD else "NCHW"
    ends = (source, "NC1HWC0") if blocks else ("NC1HWC0", target)
    plain = {"to": None, "perm": None, "saturate": 1, "round_mode": "up"}
    return {"src_format": ends[0], "dst_format": ends[1], **plain, **given}


def _packable(constant: Constant) -> bool:
    """Whether the constant has bytes of its own, at least one an element, for a recipe to pack."""
    return isinstance(constant, (Blob, Derived)) and constant.dtype.bits in (8, 16, 32)


def _worth(type_: Tensor, fmt: Format) -> bool:
    """Whether a weight is to lie in fractals: always beside maps in blocks, else unless padding is most of it."""
    if fmt is not Format.FRACTAL_NZ:
        return type_.rank == 4
    if type_.rank is None or type_.rank < 2 or not type_.static:
        return False
    return _sized(storage_shape(type_.dims, type_.dtype, fmt), {}) <= WIDEST * _sized(type_.dims, {})


class _Prices:
    """What conversions and padding cost on the target, in parts of a cycle; equal types are priced once."""

    def __init__(self, graph: Graph, target: Target, hint: Mapping[str, int]) -> None:
        self.target, self.env = target, counted_sizes(graph.symbols, hint)
        self._known: dict[tuple[object, ...], tuple[int, int]] = {}

    def conversion(self, type_: Tensor) -> int:
        """A TransData of the value, into blocks or out of them."""
        return self._of(type_)[0]

    def padding(self, type_: Tensor) -> int:
        """Moving the padding lanes of the value once."""
        return self._of(type_)[1]

    def _of(self, type_: Tensor) -> tuple[int, int]:
        key = (type_.dtype, type_.shape)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._priced(type_)
        return found

    def _priced(self, type_: Tensor) -> tuple[int, int]:
        target, size = self.target, type_.dtype.itemsize
        count = _sized(type_.dims, self.env)
        plain, blocked = size * count, size * _sized(_stored(type_).storage_shape, self.env)
        work = Work(vector=count, run=lanes(type_.dtype))
        task = task_cycles(work, Traffic(plain, blocked), type_.dtype, target).total
        rate = target.l2_read_bytes_per_cycle * target.rates.ub * target.vector_units
        return round(UNIT * task), round(UNIT * (blocked - plain) / rate)


def _sized(dims: Sequence[Size], env: Mapping[str, int]) -> int:
    found = 1
    for d in dims:
        found *= d if type(d) is int else evaluated(d, env)
    return found
