"""Random programs: models over values of shape [N, 4] that use what schedules find hard.

Each step takes earlier values and makes a new one of the same shape: elementwise operators that may work in place,
chains of views, splits and joins, branches and loops that capture, sizes that only the run time knows, sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto

from tests.making import BOOL, FLOAT, INT64, body_attribute, graph, model, node

N, M = "N", 4
CONSTANTS: dict[str, Any] = {
    "rows": np.array([-1, M]),
    "pairs": np.array([-1, 2]),
    "flat": np.array([-1]),
    "axis0": np.array([0]),
    "two": np.array([2]),
    "zero": np.float32(0),
    "half": np.float32(0.5),
    "ramp": np.array([0.5, -1, 2, 0.25], np.float32),
    "halves": np.array([2, 2]),
    "last": np.array(-1),
}


@dataclass
class Program:
    """Nodes written so far. `values` are the names of those of shape [N, 4]; bodies see only what they are given."""

    nodes: list[NodeProto] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    prefix: str = ""
    count: int = 0

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> list[str]:
        """One node."""
        names = []
        for _ in range(outputs):
            names.append(f"{self.prefix}v{self.count}")
            self.count += 1
        self.nodes.append(node(op, list(inputs), names, name=f"{self.prefix}{op}{self.count}", **attrs))
        return names

    def one(self, op: str, *inputs: str, **attrs: Any) -> str:
        """One node with one output."""
        return self.add(op, *inputs, **attrs)[0]

    def inner(self) -> Program:
        """A body: it may capture every value."""
        self.count += 1
        return Program([], list(self.values), f"{self.prefix}b{self.count}_")

    def keep(self, value: str) -> None:
        """A value of shape [N, 4] that later steps may use."""
        self.values.append(value)


Step = Callable[[st.DrawFn, Program, int], str]


def _pick(draw: st.DrawFn, p: Program) -> str:
    # Recent values are picked more often, so that lifetimes are short and buffers are used again.
    return (
        p.values[max(0, len(p.values) - 1 - draw(st.integers(0, 4)))]
        if draw(st.booleans())
        else draw(st.sampled_from(p.values))
    )


def unary(draw: st.DrawFn, p: Program, depth: int) -> str:
    return p.one(draw(st.sampled_from(["Relu", "Neg", "Abs", "Tanh", "Sigmoid"])), _pick(draw, p))


def binary(draw: st.DrawFn, p: Program, depth: int) -> str:
    other = draw(st.sampled_from(["ramp", "half", ""])) or _pick(draw, p)
    return p.one(draw(st.sampled_from(["Add", "Sub", "Max", "Min"])), _pick(draw, p), other)


def views(draw: st.DrawFn, p: Program, depth: int) -> str:
    """A chain of views with work in between: in-place work on a view is work on its source."""
    x = p.one("Reshape", _pick(draw, p), draw(st.sampled_from(["pairs", "flat"])))
    if draw(st.booleans()):
        x = p.one("Neg", x)
    if draw(st.booleans()):
        x = p.one("Identity", p.one("Unsqueeze", x, "axis0"))
    return p.one("Reshape", x, "rows")


def transposed(draw: st.DrawFn, p: Program, depth: int) -> str:
    x = p.one("Transpose", _pick(draw, p), perm=[1, 0])
    return p.one("Transpose", p.one("Relu", x) if draw(st.booleans()) else x, perm=[1, 0])


def joined(draw: st.DrawFn, p: Program, depth: int) -> str:
    a, b = p.add("Split", _pick(draw, p), "halves", outputs=2, axis=1)
    c = p.one("Neg", a) if draw(st.booleans()) else a
    return p.one("Concat", *draw(st.permutations([c, b])), axis=1)


def doubled(draw: st.DrawFn, p: Program, depth: int) -> str:
    whole = p.one("Concat", _pick(draw, p), _pick(draw, p), axis=0)
    a, b = p.add("Split", whole, outputs=2, axis=0, num_outputs=2)
    return p.one("Add", a, b)


def counted(draw: st.DrawFn, p: Program, depth: int) -> str:
    """A size that only the run time knows, and a value that comes of it."""
    x = _pick(draw, p)
    found = p.one("Cast", p.one("NonZero", p.one("Relu", x)), to=FLOAT)
    total = p.one("ReduceMax", p.one("Concat", p.one("Reshape", found, "flat"), "ramp", axis=0), keepdims=0)
    return p.one("Add", x, total)


def gathered(draw: st.DrawFn, p: Program, depth: int) -> str:
    """Values whose own shape is known at run time only, worked on in place."""
    x = _pick(draw, p)
    index = p.one("Transpose", p.one("NonZero", x), perm=[1, 0])
    items = p.one("Neg", p.one("Abs", p.one("GatherND", x, index)))
    return p.one("Add", x, p.one("ReduceSum", items, keepdims=0))


def sequence(draw: st.DrawFn, p: Program, depth: int) -> str:
    made = p.one("SequenceConstruct", _pick(draw, p), _pick(draw, p))
    grown = p.one("SequenceInsert", made, _pick(draw, p))
    p.keep(p.one("Neg", _pick(draw, p)))
    return p.one("Add", p.one("SequenceAt", grown, draw(st.sampled_from(["last", "one_i"]))), p.values[-1])


def branch(draw: st.DrawFn, p: Program, depth: int) -> str:
    condition = p.one("Greater", p.one("ReduceSum", _pick(draw, p), keepdims=0), "zero")
    bodies = [_body(draw, p, depth) for _ in range(2)]
    made = p.one("If", condition)
    for (inner, result), name in zip(bodies, ("then_branch", "else_branch"), strict=True):
        p.nodes[-1].attribute.append(body_attribute(graph(inner.nodes, {}, [result], name=f"{made}.{name}"), name))
    return made


def _body(draw: st.DrawFn, p: Program, depth: int) -> tuple[Program, str]:
    inner = p.inner()
    steps(draw, inner, draw(st.integers(0, 3)), depth + 1)
    # What a branch returns may be what it captures.
    return inner, _pick(draw, inner)


def loop(draw: st.DrawFn, p: Program, depth: int) -> str:
    start, trips = _pick(draw, p), draw(st.sampled_from(["trips0", "trips1", "trips3"]))
    inner = p.inner()
    names = [f"{inner.prefix}{n}" for n in ("i", "c", "s", "t")]
    i, c, s, t = names
    inner.values += [s, t]
    steps(draw, inner, draw(st.integers(1, 3)), depth + 1)
    going = inner.one("Identity", c)
    result, other, item = (_pick(draw, inner) for _ in range(3))
    results = [going, result, other, item]
    formals = {i: (INT64, []), c: (BOOL, []), s: (FLOAT, [N, M]), t: (FLOAT, [N, M])}
    one, two, items = p.add("Loop", trips, "", start, _pick(draw, p), outputs=3)
    p.nodes[-1].attribute.append(body_attribute(graph(inner.nodes, formals, results, name=f"{one}.body")))
    p.keep(two)
    if trips == "trips0":  # how large the items of a loop are that never runs need not be known
        return one
    return p.one("Add", one, p.one("ReduceSum", items, "axis0", keepdims=0))


def scan(draw: st.DrawFn, p: Program, depth: int) -> str:
    inner = p.inner()
    s, x = f"{inner.prefix}s", f"{inner.prefix}x"
    total = inner.one("Add", s, x)
    item = inner.one("Mul", total, x)
    body = graph(inner.nodes, {s: (FLOAT, [M]), x: (FLOAT, [M])}, [total, item], name=f"{s}.body")
    _, items = p.add("Scan", "ramp", _pick(draw, p), outputs=2, num_scan_inputs=1)
    p.nodes[-1].attribute.append(body_attribute(body))
    return items


PLAIN: tuple[Step, ...] = (unary, unary, binary, binary, views, transposed, joined, doubled)
LATE: tuple[Step, ...] = (counted, gathered, sequence)
CONTROL: tuple[Step, ...] = (branch, loop, scan)


def steps(draw: st.DrawFn, p: Program, count: int, depth: int) -> None:
    """Write `count` steps; control flow nests two deep."""
    kinds = PLAIN + LATE + (CONTROL if depth < 2 else ())
    for _ in range(count):
        p.keep(draw(st.sampled_from(kinds))(draw, p, depth))


@st.composite
def programs(draw: st.DrawFn, largest: int = 10) -> ModelProto:
    """A model with inputs x and z of shape [N, 4]; outputs may repeat, and may be inputs or constants."""
    p = Program(values=["x", "z"])
    steps(draw, p, draw(st.integers(1, largest)), 0)
    outputs = draw(st.lists(st.sampled_from(p.values), min_size=1, max_size=4, unique=True))
    constants = {**CONSTANTS, **{f"trips{k}": np.array(k) for k in (0, 1, 3)}, "one_i": np.array(1)}
    return model(p.nodes, {"x": (FLOAT, [N, M]), "z": (FLOAT, [N, M])}, outputs, constants)
