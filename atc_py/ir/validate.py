"""What every graph must obey: tables of one-line laws, and `validate`, which checks them.

    validate(graph, "lower")
    →  AtcError: EI011 graph 'g' #7 Relu 'act': %7 speaks of the symbol 'K' (law: symbols in use are declared)
                 EI023 graph 'g' #9 Add 'sum': engine '' (law: each node has an engine)

A law is a sentence and a function that yields its violations, each a place and what was found there.
`GROUND` holds the laws of ids and edges, which may be asked of anything; `LAWS` those of a graph whose
edges are sound; `STAGES` those that hold after a stage of the compiler. All violations are reported at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from atc_py.errors import Problems
from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat, packed_nbytes, unpack_strings
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.symbols import node_symbols
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type

Findings = Iterator["tuple[Node | None, str]"]
"""Violations: the node where one was found (None: the graph itself), and what was found."""


@dataclass(frozen=True)
class Context:
    """A graph and where it stands: the node that it is a subgraph of, and that node's graph."""

    graph: Graph
    place: str
    parent: Graph | None = None
    owner: Node | None = None
    body: str = ""


@dataclass(frozen=True)
class Law:
    """One invariant."""

    code: str
    text: str
    check: Callable[[Context], Findings]


def validate(graph: Graph, stage: str | None = None) -> None:
    """Raise `AtcError` with every violation in the graph and its subgraphs.

    `stage` ("import", "optimize" or "lower") adds the laws that hold after that stage.
    """
    laws = LAWS + STAGES[stage] if stage is not None else LAWS
    problems = Problems()
    seen: dict[int, None] = {}
    stack = [Context(graph, f"graph '{graph.name}'")]
    while stack:
        context = stack.pop()
        if id(context.graph) in seen:
            problems.add("EI000", context.place, "the same graph stands in two places", "copy it")
            continue
        seen[id(context.graph)] = None
        found = len(problems)
        _apply(GROUND, context, problems)
        if len(problems) == found:
            _apply(laws, context, problems)
        for node in reversed(list(context.graph.nodes.values())):
            for name, inner in reversed(list(node.subgraphs.items())):
                place = f"{context.place} #{node.id}.{name}"
                stack.append(Context(inner, place, context.graph, node, name))
    problems.raise_any()


def _apply(laws: tuple[Law, ...], context: Context, problems: Problems) -> None:
    for law in laws:
        for node, found in law.check(context):
            name = f" '{node.name}'" if node is not None and node.name else ""
            place = context.place if node is None else f"{context.place} #{node.id} {node.op}{name}"
            problems.add(law.code, place, found, f"law: {law.text}")


# -- ids and edges -----------------------------------------------------------------------------------------


def _ids(c: Context) -> Findings:
    g = c.graph
    for key, node in g.nodes.items():
        if node.id != key or not 0 <= key < g._next_node:
            yield node, f"id {node.id} under key {key}, next id {g._next_node}"
    for number, value in g.values.items():
        if value.id != number or not 0 <= number < g._next_value:
            yield None, f"value %{value.id} under key %{number}, next id %{g._next_value}"


def _producers(c: Context) -> Findings:
    made: dict[int, int] = {}
    for node in c.graph.nodes.values():
        for i, number in enumerate(node.outputs):
            value = c.graph.values.get(number)
            if value is None:
                yield node, f"output {i} is %{number}, which does not exist"
            elif (value.producer, value.index) != (node.id, i):
                yield node, f"output {i} is %{number}, which says #{value.producer} output {value.index}"
            if number in made:
                yield node, f"%{number} is also made by #{made[number]}"
            made[number] = node.id
    for number in c.graph.values:
        if number not in made:
            yield None, f"%{number} is made by no node"


def _uses(c: Context) -> Findings:
    reads: dict[int, dict[tuple[int, int], None]] = {}
    for node in c.graph.nodes.values():
        for i, number in enumerate(node.inputs):
            if number == ABSENT:
                continue
            if number not in c.graph.values:
                yield node, f"input {i} is %{number}, which does not exist"
            reads.setdefault(number, {})[(node.id, i)] = None
    for number, value in c.graph.values.items():
        actual = reads.get(number, {})
        if value.uses != actual:
            wrong = {**value.uses, **actual}
            which = next(use for use in wrong if (use in value.uses) != (use in actual))
            yield None, f"%{number} and its readers disagree on input {which[1]} of #{which[0]}"


def _ends(c: Context) -> Findings:
    for number in c.graph.inputs:
        value = c.graph.values.get(number)
        producer = None if value is None else c.graph.nodes.get(value.producer)
        if producer is None or producer.op != "Data":
            yield None, f"input %{number} is made by no Data node"
    if c.graph._net_output not in c.graph.nodes:
        yield None, "there is no NetOutput"


GROUND: tuple[Law, ...] = (
    Law("EI001", "nodes and values stand under their ids, and new ids are larger", _ids),
    Law("EI002", "each value is made by one output of one node, and knows it", _producers),
    Law("EI003", "each value knows exactly the inputs that read it", _uses),
    Law("EI004", "the graph's inputs are made by Data nodes, and there is a NetOutput", _ends),
)

# -- what nodes are ----------------------------------------------------------------------------------------


def _acyclic(c: Context) -> Findings:
    try:
        c.graph.order()
    except ValueError as problem:
        yield None, str(problem)


def _data(c: Context) -> Findings:
    data = [n for n in c.graph.nodes.values() if n.op == "Data"]
    for node in data:
        if node.inputs or len(node.outputs) != 1:
            yield node, f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        elif node.outputs[0] not in c.graph.inputs:
            yield node, f"%{node.outputs[0]} is not among the graph's inputs"
    for i, value in enumerate(c.graph.inputs):
        node = c.graph.producer(value)
        if node.attrs.get("index") != i:
            yield node, f"index {node.attrs.get('index')} at position {i}"
    if len(dict.fromkeys(c.graph.inputs)) != len(c.graph.inputs):
        yield None, f"inputs {c.graph.inputs}"


def _net_output(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        if node.op == "NetOutput":
            if node.id != c.graph._net_output:
                yield node, "a second NetOutput"
            if node.outputs or ABSENT in node.inputs or len(node.inputs) != len(c.graph.output_names):
                yield node, f"inputs {node.inputs}, outputs {node.outputs}, names {c.graph.output_names}"
    if c.graph.net_output.op != "NetOutput":
        yield c.graph.net_output, "it is taken for the NetOutput"


def _const(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        constant = node.const
        if constant is None:
            if node.op == "Const":
                yield node, "no constant"
            continue
        if node.op != "Const" or node.inputs or len(node.outputs) != 1:
            yield node, f"a constant, {len(node.inputs)} inputs and {len(node.outputs)} outputs"
            continue
        type_ = c.graph.type(node.outputs[0])
        if not isinstance(type_, Tensor) or type_.dtype is not constant.dtype or not _shaped(type_, constant):
            yield node, f"%{node.outputs[0]} is {type_}, the constant is {constant.dtype} {constant.shape}"


def _shaped(type_: Tensor, constant: Constant) -> bool:
    """Whether the constant lies as the type means it, or as the type stores it."""
    if type_.shape is None or type_.shape == constant.shape:
        return type_.shape is not None
    return _storable(type_) and type_.storage_shape == constant.shape


def _content(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        stack = [node.const] if node.const is not None else []
        while stack:
            constant = stack.pop()
            found = _constant_fault(constant)
            if found:
                yield node, found
            if isinstance(constant, Derived):
                stack += constant.inputs


def _constant_fault(constant: Constant) -> str:
    shape = constant.shape
    if any(not isinstance(d, int) or d < 0 for d in shape) and not isinstance(constant, Splat):
        return f"a constant of shape {shape}"
    if isinstance(constant, Blob) and constant.dtype is DType.STRING:
        try:
            unpack_strings(constant.data, constant.shape)
        except ValueError as problem:
            return str(problem)
    elif isinstance(constant, Blob):
        needed = packed_nbytes(constant.dtype, prod(constant.shape))
        if constant.data.nbytes != needed:
            return f"{constant.data.nbytes} bytes, but {constant.dtype} {shape} takes {needed}"
    elif isinstance(constant, Splat):
        return _splat_fault(constant)
    elif isinstance(constant, DimVec):
        fits = len(constant.elements) == prod(constant.shape) and constant.dtype.is_int
        return "" if fits else f"{len(constant.elements)} sizes as {constant.dtype} {shape}"
    return ""


def _splat_fault(constant: Splat) -> str:
    if isinstance(constant.value, str) != (constant.dtype is DType.STRING):
        return f"the value {constant.value!r} as {constant.dtype}"
    if constant.dtype is not DType.STRING:
        try:
            np.asarray(constant.value, constant.dtype.numpy).reshape(())
        except (TypeError, ValueError, OverflowError):
            return f"the value {constant.value!r} as {constant.dtype}"
    return ""


# -- subgraphs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bodies:
    """The subgraphs that an operator has.

    The node passes its inputs from `skip` on, a body takes at least `least`, and returns `extra` more than the node.
    """

    names: tuple[str, ...]
    skip: int = 0
    extra: int = 0
    least: int = 0


BODIES: Mapping[str, Bodies] = {
    "If": Bodies(("else_branch", "then_branch"), skip=1),
    "Loop": Bodies(("body",), extra=1, least=2),
    "Scan": Bodies(("body",)),
    "SequenceMap": Bodies(("body",)),
    "Fused": Bodies(("body",)),
}


def _bodies(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        declared = BODIES.get(node.op)
        if declared is not None and sorted(node.subgraphs) != sorted(declared.names):
            yield node, f"subgraphs {list(node.subgraphs)}, expected {list(declared.names)}"
        passed = len(node.inputs) - node.captures
        if passed < 0 or (node.captures and not node.subgraphs) or ABSENT in node.inputs[passed:]:
            yield (
                node,
                f"{node.captures} captures of inputs {node.inputs} for {len(node.subgraphs)} subgraphs",
            )
        for name, body in node.subgraphs.items():
            if declared is None:
                if len(body.inputs) < node.captures:
                    yield node, f"'{name}' takes {len(body.inputs)} inputs, but {node.captures} are captured"
                continue
            inputs = max(len(node.inputs) - declared.skip, declared.least)
            if len(body.inputs) != inputs:
                yield node, f"'{name}' takes {len(body.inputs)} inputs, expected {inputs}"
            outputs = len(node.outputs) + declared.extra
            if len(body.output_names) != outputs:
                yield node, f"'{name}' returns {len(body.output_names)} outputs, expected {outputs}"


def _crossing(c: Context) -> Findings:
    if c.owner is None or c.parent is None or c.owner.op not in BODIES:
        return
    node, declared = c.owner, BODIES[c.owner.op]
    captured = node.inputs[len(node.inputs) - node.captures :]
    pairs = list(zip(captured, c.graph.inputs[len(c.graph.inputs) - node.captures :]))
    pairs += list(zip(node.outputs, c.graph.outputs[declared.extra :]))
    for outer, inner in pairs:
        if outer in c.parent.values:
            a, b = c.parent.type(outer), c.graph.type(inner)
            whole = a.element if isinstance(a, Optional) and not isinstance(b, Optional) else a
            if _element(whole) is not _element(b):  # a value may leave as an optional that is there
                yield None, f"%{inner} inside is {b}, %{outer} outside is {a}"


def _element(type_: Type) -> DType | type:
    return type_.dtype if isinstance(type_, Tensor) else type(type_)


# -- types and attributes ----------------------------------------------------------------------------------


def _types(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        for value in node.outputs:
            type_: Any = c.graph.type(value)
            while isinstance(type_, (Sequence, Optional, Map)):
                type_ = type_.value if isinstance(type_, Map) else type_.element
            if not isinstance(type_, Tensor):
                yield node, f"%{value} is {type_!r}"
            elif any(not isinstance(d, Dim) and (type(d) is not int or d < 0) for d in type_.shape or ()):
                yield node, f"%{value} has the shape {type_.shape}"
            elif not _storable(type_):
                yield node, f"%{value} has rank {type_.rank} and is stored as {type_.storage}"


def _storable(type_: Tensor) -> bool:
    if type_.storage in (Format.NC1HWC0, Format.FRACTAL_Z):
        return type_.rank == 4
    return type_.storage is not Format.FRACTAL_NZ or (type_.rank or 0) >= 2


def _declared(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        for name in dict.fromkeys(node_symbols(c.graph, node)):
            if name not in c.graph.symbols:
                yield node, f"it speaks of the symbol '{name}'"


def _shared(c: Context) -> Findings:
    if c.parent is not None and c.graph.symbols is not c.parent.symbols:
        yield None, "it has symbols of its own"


_PLAIN = (int, float, bool, str, bytes, type(None), DType, Format, Dim)
_COMPOSED = (Tensor, Sequence, Optional, Map, Blob, Splat, DimVec, Derived)


def _attrs(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        for name, value in node.attrs.items():
            found = _mutable(value)
            if found:
                yield node, f"attribute '{name}' is or holds a {found}"


def _mutable(value: Any) -> str:
    stack = [value]
    while stack:
        top = stack.pop()
        if type(top) is tuple:
            stack += top
        elif type(top) not in _PLAIN and type(top) not in _COMPOSED:
            return type(top).__name__
    return ""


LAWS: tuple[Law, ...] = (
    Law("EI005", "no value depends on itself", _acyclic),
    Law("EI006", "the Data nodes are the graph's inputs, in the order of their index", _data),
    Law("EI007", "there is one NetOutput, with a name for each of its inputs", _net_output),
    Law("EI008", "Const nodes have a constant of their value's dtype and shape, and no others have", _const),
    Law("EI009", "a constant's content fits its dtype and shape", _content),
    Law("EI010", "subgraphs take and return what their node passes and returns", _bodies),
    Law("EI011", "symbols in use are declared", _declared),
    Law("EI012", "subgraphs share the symbols of the graph around them", _shared),
    Law("EI013", "attributes are immutable: numbers, strings, bytes, tuples, types, sizes, constants", _attrs),
    Law("EI014", "types are types, sizes are not negative, blocked formats fit the rank", _types),
    Law("EI015", "what is captured or returned has one dtype inside and outside", _crossing),
)

# -- stages ------------------------------------------------------------------------------------------------


def _origin(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        if node.op not in STRUCTURAL and not node.origin:
            yield node, "no origin"


def _targetless(c: Context) -> Findings:
    for node in c.graph.nodes.values():
        if node.engine or node.op == "Fused":
            yield node, f"engine '{node.engine}'" if node.engine else "a fused task"
        for value in node.outputs:
            type_ = c.graph.type(value)
            if isinstance(type_, Tensor) and type_.storage is not None:
                yield node, f"%{value} is stored as {type_.storage}"


ENGINES = ("aicore", "hccl", "aicpu", "host")


def _engine(c: Context) -> Findings:
    if c.owner is not None and c.owner.op == "Fused":
        return
    for node in c.graph.nodes.values():
        if node.op not in STRUCTURAL and node.engine not in ENGINES:
            yield node, f"engine '{node.engine}'"


_ORIGIN = Law("EI021", "each node names the ONNX nodes that it stands for", _origin)
_TARGETLESS = Law("EI022", "nothing depends on a target yet: no engine, storage format or fused task", _targetless)
STAGES: Mapping[str, tuple[Law, ...]] = {
    "import": (_ORIGIN, _TARGETLESS),
    "optimize": (_ORIGIN, _TARGETLESS),
    "lower": (_ORIGIN, Law("EI023", "each node has an engine, but for those inside a fused task", _engine)),
}
