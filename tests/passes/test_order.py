"""Order-blind: names and the order of the nodes in a file change nothing of what is made of a model but names.

    a = Relu(x)   b = Exp(x)   y = Add(a, b)          v7 = Exp(v1)   v3 = Relu(v1)   v9 = Add(v3, v7)

Both end in the same optimized graph, the same lowered graph and the same plan: streams, events, places in memory.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py import Options, compile_model
from atc_py.compiler import compile_graph
from atc_py.emit import Om
from atc_py.ir.attr_text import BlobTable
from atc_py.ir.clone import clone
from atc_py.ir.constants import Blob
from atc_py.ir.graph import Graph
from atc_py.ir.order import canonicalize
from atc_py.ir.text import print_graph
from atc_py.plan.text import print_plan
from models import catalog
from tests.passes.generated import graphs

QUOTED = r'"(?:[^"\\]|\\.)*"'
KEPT = rf"= (?:{QUOTED}|\[{QUOTED}(?:, {QUOTED})*\])"
NAMES = re.compile(rf"(?P<kept>{KEPT})| (?:from|name|note) {QUOTED}(?:, {QUOTED})*| ?{QUOTED}")
"""Strings of the text forms that are names, origins or notes; the values of attributes are kept."""


class Digests(BlobTable):
    """Names blobs by their content."""

    def word(self, blob: Blob) -> str:
        return blob.digest.hex()


def nameless(om: Om) -> dict[str, str]:
    """The text of what each stage made, without names."""
    table = Digests()
    texts = {
        "optimized": print_graph(om.canonical, table),
        "lowered": print_graph(om.lowered, table),
        "plan": print_plan(om.plan, table),
    }
    return {stage: NAMES.sub(lambda m: m["kept"] or "", text) for stage, text in texts.items()}


# -- files ---------------------------------------------------------------------------------------------------------


def inside(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all graphs inside it."""
    yield graph
    for n in graph.node:
        for a in n.attribute:
            if a.HasField("g"):
                yield from inside(a.g)


def reads(n: onnx.NodeProto) -> set[str]:
    """What a node reads, by its bodies too."""
    captured = {v for a in n.attribute if a.HasField("g") for g in inside(a.g) for m in g.node for v in m.input}
    captured |= {o.name for a in n.attribute if a.HasField("g") for g in inside(a.g) for o in g.output}
    return {*n.input, *captured}


def tensors(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto | onnx.TensorProto]:
    """What a graph names beside its nodes: inputs, outputs and constants."""
    return [*graph.input, *graph.output, *graph.initializer]


def names_symbols(value: onnx.ValueInfoProto) -> bool:
    """Whether symbols are named after an input: for its dims without names."""
    dims = value.type.tensor_type.shape.dim
    return any(d.dim_value < 1 and d.dim_param in ("", "?") for d in dims)


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with all tensors and nodes renamed, nodes in another valid order, those of bodies too."""
    rng = random.Random(seed)
    all_graphs = list(inside(model.graph))
    old = {v: None for g in all_graphs for n in g.node for v in (*n.input, *n.output) if v}
    old |= {v.name: None for g in all_graphs for v in tensors(g)}
    names = dict(zip(old, (f"v{i}" for i in rng.sample(range(10 * len(old)), len(old))), strict=True)) | {"": ""}
    names |= {v.name: v.name for v in model.graph.input if names_symbols(v)}
    for g in all_graphs:
        for n in g.node:
            n.name = f"node{rng.random()}"
            n.input[:] = [names[v] for v in n.input]
            n.output[:] = [names[v] for v in n.output]
        for value in tensors(g):
            value.name = names[value.name]
        del g.value_info[:]
    for g in reversed(all_graphs):
        order = in_other_order(list(g.node), rng)
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in order]
        del g.node[:]
        g.node.extend(copies)
    return model


def in_other_order(waiting: list[onnx.NodeProto], rng: random.Random) -> list[onnx.NodeProto]:
    made_here = {v for n in waiting for v in n.output if v}
    needs = {id(n): (reads(n) & made_here) - set(n.output) for n in waiting}
    order: list[onnx.NodeProto] = []
    made: set[str] = set()
    while waiting:
        node = rng.choice([n for n in waiting if needs[id(n)] <= made])
        waiting.remove(node)
        made.update(node.output)
        order.append(node)
    return order


def cases() -> list[Any]:
    """Models of the repository, and larger ones; what else there is would only be more of the same."""
    found = [pytest.param(n) for n, e in catalog.load_manifest().items() if e.kind == "repo"]
    for name in ("hf_bert_ts", "hf_bert_dyn", "hf_vit_dyn", "ppocr4_rec", "basic_pitch", "magika", "light_densenet121",
                 "light_shufflenet", "silero_v6", "yolo_nms"):  # fmt: skip
        found.append(pytest.param(name, marks=[pytest.mark.needs_models, pytest.mark.slow]))
    return found


@pytest.mark.parametrize("name", cases())
def test_names_and_order_of_a_file_change_nothing(name: str, corpus_model: Callable[[str], Any]) -> None:
    path = corpus_model(name).path
    model = onnx.load(path)
    want = nameless(compile_model(model, Options()))
    got = nameless(compile_model(shuffled(model, 1), Options()))
    assert got == want


# -- graphs --------------------------------------------------------------------------------------------------------


def renamed(graph: Graph, rng: random.Random) -> None:
    """Give all nodes and values names that sort in another way."""
    for g in graph.walk():
        for n in g.nodes.values():
            n.name = f"n{rng.random()}" if n.op != "NetOutput" else n.name
            n.origin = (n.name,) if n.origin else ()
        for value in g.values.values():
            value.name = f"v{rng.random()}"


def permuted(graph: Graph, rng: random.Random) -> None:
    """Number nodes and values by another valid order."""
    ready = {n.id: {graph.producer(v).id for v in n.inputs if v >= 0} for n in graph.nodes.values()}
    order: list[int] = []
    while len(order) < len(graph.nodes):
        free = [n for n, needs in ready.items() if needs <= set(order) and n not in order]
        order.append(rng.choice([n for n in free if graph.nodes[n].op != "NetOutput"] or free))
    graph.renumber([graph.nodes[n] for n in order])


@settings(max_examples=60)
@given(graphs(), st.integers(0, 9), st.sampled_from(["Ascend310P3", "Generic"]), st.sampled_from(["origin", "fp16"]))
def test_names_and_order_of_a_graph_change_nothing(graph: Graph, seed: int, target: str, mode: str) -> None:
    options = Options(soc_version=target, precision_mode=mode)
    want = nameless(compile_graph(graph, options))
    other, rng = clone(graph), random.Random(seed)
    renamed(other, rng)
    permuted(other, rng)
    canonicalize(other)
    assert nameless(compile_graph(other, options)) == want


def test_some_of_the_plans_have_several_streams() -> None:
    """And what is compared holds no name, but all the rest."""
    om = compile_model(catalog.MODELS_DIR / "corpus/yolo_raw.onnx", Options())
    texts = nameless(om)
    assert om.plan.streams > 1 and "stream 1" in texts["plan"] and "waits" in texts["plan"]
    names = {n for t in om.plan.tasks() for n in (t.name, *t.origin)}
    assert not [n for n in names if f'"{n}"' in "".join(texts.values())]
    assert "Conv" in texts["optimized"] and "kernel_shape" in texts["optimized"]
