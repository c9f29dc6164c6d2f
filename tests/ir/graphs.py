"""Random graphs for the tests of this folder: one abstract plan, built in any order and under any names."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat
from atc_py.ir.dims import Dim, symbol
from atc_py.ir.graph import ABSENT, Graph, Range
from atc_py.ir.types import DType, Format, Tensor, Type

N = symbol("N")
X = Tensor(DType.FLOAT32, (N, 4))
Ref = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """One node: `inputs` are (step, output) pairs; graph inputs are the steps before 0."""

    op: str
    inputs: tuple[Ref | None, ...] = ()
    outputs: int = 1
    number: int = 0


@dataclass(frozen=True)
class Plan:
    """What a graph computes, without names, ids or order."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]


ARITY = {"Const": 0, "Relu": 1, "Neg": 1, "Split": 1, "NonZero": 1, "Add": 2, "Sub": 2, "Clip": 3, "If": 3}


@st.composite
def plans(draw: st.DrawFn, largest: int = 12) -> Plan:
    inputs = draw(st.integers(1, 3))
    values: list[Ref] = [(-1 - i, 0) for i in range(inputs)]
    steps: list[Step] = []
    for i in range(draw(st.integers(1, largest))):
        op = draw(st.sampled_from(sorted(ARITY)))
        refs: list[Ref | None] = [draw(st.sampled_from(values)) for _ in range(ARITY[op])]
        if op == "Clip" and draw(st.booleans()):
            refs[1] = None
        step = Step(op, tuple(refs), 2 if op == "Split" else 1, draw(st.integers(0, 2)))
        steps.append(step)
        values += [(i, k) for k in range(step.outputs)]
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return Plan(inputs, tuple(steps), tuple(outputs))


def constant(number: int) -> Constant:
    data = np.full(20, number, np.float32)
    blob = Blob(DType.FLOAT32, (20,), data.data.cast("B"))
    if number == 0:
        return blob
    if number == 1:
        return Splat(DType.FLOAT32, (N, 4), np.float32(0.1))
    return Derived(DType.FLOAT16, (20,), "Cast", (blob,), {"to": DType.FLOAT16})


@dataclass
class Builder:
    """Builds a plan. `seed` decides the order of nodes, all names, and the order of captures and attributes."""

    plan: Plan
    seed: int
    graph: Graph = field(default_factory=lambda: Graph("g", {"N": Range(1)}))
    made: dict[Ref, int] = field(default_factory=dict)

    def build(self) -> Graph:
        rng, graph = random.Random(self.seed), self.graph
        for i in range(self.plan.inputs):
            self.made[-1 - i, 0] = graph.add_input(f"in{rng.random()}", X)
        todo = list(range(len(self.plan.steps)))
        while todo:
            ready = [i for i in todo if all(r is None or r in self.made for r in self.plan.steps[i].inputs)]
            i = rng.choice(ready)
            todo.remove(i)
            for k, value in enumerate(self.node(self.plan.steps[i], rng)):
                self.made[i, k] = value
        graph.set_outputs([self.made[r] for r in self.plan.outputs], [f"out{rng.random()}" for _ in self.plan.outputs])
        return graph

    def node(self, step: Step, rng: random.Random) -> list[int]:
        graph, name = self.graph, f"n{rng.random()}"
        if step.op == "Const":
            return [graph.add_const(constant(step.number), name)]
        inputs = [ABSENT if r is None else self.made[r] for r in step.inputs]
        type_: Type = graph.type(inputs[0])
        if step.op == "If":
            return self.branch(step, inputs, rng)
        if step.op == "NonZero":
            fresh = graph.fresh_symbol(f"NonZero{graph._next_node}.count")
            type_ = Tensor(DType.INT64, (2, fresh))
        attrs = [("axis", step.number), ("mode", "a")]
        rng.shuffle(attrs)
        names = [f"v{rng.random()}" for _ in range(step.outputs)]
        origin = (f"o{rng.random()}",)
        return graph.add(
            step.op, inputs, [type_] * step.outputs, dict(attrs), name=name, names=names, origin=origin
        ).outputs

    def branch(self, step: Step, inputs: list[int], rng: random.Random) -> list[int]:
        graph = self.graph
        captured = list(dict.fromkeys(inputs[1:]))
        rng.shuffle(captured)
        bodies = {}
        for name in rng.sample(["then_branch", "else_branch"], 2):
            body = Graph(f"b{rng.random()}", graph.symbols)
            own = {v: body.add_input(f"c{rng.random()}", graph.type(v)) for v in captured}
            a, b = own[inputs[1]], own[inputs[2]]
            if name == "then_branch":
                tail = body.add("Sub", [b, a], [graph.type(inputs[1])], origin=("then",)).outputs
            elif step.number == 2:
                fresh = body.fresh_symbol(f"NonZero{body._next_node}.count")
                inner = body.add("NonZero", [a], [Tensor(DType.INT64, (2, fresh))], origin=("else",)).outputs
                tail = body.add("Cast", inner, [graph.type(inputs[1])], origin=("else",)).outputs
            else:
                tail = body.add("Relu", [a], [graph.type(inputs[1])], origin=("else",)).outputs
            body.set_outputs(tail, ["out"])
            bodies[name] = body
        types = [graph.type(inputs[1])]
        args = [inputs[0], *captured]
        return graph.add("If", args, types, subgraphs=bodies, captures=len(captured), origin=("if",)).outputs


def build(plan: Plan, seed: int = 0) -> Graph:
    return Builder(plan, seed).build()


def forget_names(graph: Graph) -> Graph:
    for inner in graph.walk():
        inner.name = ""
        inner.output_names = [""] * len(inner.output_names)
        for node in inner.nodes.values():
            node.name, node.origin = "", ()
        for value in inner.values.values():
            value.name = ""
    return graph


def decorated() -> Graph:
    """A graph with something of everything that a graph can carry."""
    g = Graph('odd "name"\n', {"N": Range(1), "a b": Range(0, 7), "Slice9.end": Range(runtime=True)})
    g.doc = {"producer": "tést 1", "x": ""}
    x = g.add_input("x", Tensor(DType.FLOAT16, (N, 20, symbol("a b"), 5), Format.NCHW, Format.NC1HWC0))
    other = g.add_input("y", Tensor(DType.INT64, None))
    w = g.add_const(constant(0), "w", ("w0",))
    small = g.add_const(Blob(DType.INT4, (3,), memoryview(b"\x21\x03")), "")
    dims = g.add_const(DimVec(DType.INT64, (2,), (N // 2, symbol("Slice9.end") * 3)))
    cast = g.add_const(constant(2))
    n = g.add(
        "com.microsoft::Odd-Op", [x, ABSENT, w, small, dims, cast], [X, X], odd_attrs(), name="n", names=["", "q\\"]
    )
    n.origin, n.engine, n.precision, n.stream, n.priority = ("a", 'b"'), "aicore", "fp 16", "s1", -3
    n.notes = ("inner value has another reader", "2")
    body = Graph("then", g.symbols)
    c = body.add_input("c", X)
    body.set_outputs(body.add("Relu", [c], [X]).outputs, ["o"])
    alone = Graph("else", {"N": Range(2)})
    c = alone.add_input("c", X)
    alone.set_outputs([c], ["o"])
    branch = g.add("If", [other, n.outputs[0]], [X], subgraphs={"then_branch": body, "else_branch": alone}, captures=1)
    g.add("Reserved", [], [])
    g.remove(g.add("Gone", [], [X]))
    g.set_outputs([branch.outputs[0], n.outputs[1]], ["first", ""])
    return g


def odd_attrs() -> dict[str, Any]:
    from atc_py.ir.types import Map, Optional, Sequence

    dim = symbol("N") * 2 + 1
    assert isinstance(dim, Dim)
    return {
        "int": -(2**63), "float": 1.0, "tiny": 5e-324, "inf": float("inf"), "minus": -float("inf"), "zero": -0.0,
        "true": True, "false": False, "none": None, "str": 'q"\\\n\u2028é\ud800', "empty": "", "bytes": b"\x00\xff",
        "tuple": (1, 2, -3), "mixed": (1, 2.0, ("x", (), (True,)), None), "dtype": DType.BFLOAT16, "bool": DType.BOOL,
        "format": Format.FRACTAL_NZ, "tensor": Tensor(DType.FLOAT32, (dim, 3), Format.NHWC, Format.NHWC),
        "seq": Sequence(Optional(Tensor(DType.STRING, None))),
        "map": Map(DType.INT64, Sequence(Tensor(DType.INT8, ()))),
        "dim": dim, "dims": (dim, 3), "blob": constant(0), "splat": constant(1), "derived": constant(2),
        "odd name": 1, "a.b": 2, "scalars": (Splat(DType.BOOL, (), np.True_), Splat(DType.STRING, (2,), "s\"")),
    }  # fmt: skip
