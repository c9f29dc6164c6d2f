"""Order-blind: names and the order of the nodes in a file do not change what the optimizer makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
import pytest

from atc_py import frontend
from atc_py.ir.graph import Graph
from atc_py.passes import optimize
from models import catalog

MODELS = [
    pytest.param(name, marks=[] if catalog.load_manifest()[name].kind == "repo" else [pytest.mark.needs_models])
    for name in ("small_cnn", "small_transformer", "hf_bert_ts", "hf_bert_dyn", "ppocr4_rec", "basic_pitch", "magika")
]


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every inner tensor and node renamed, nodes in another valid order, initializers too."""
    rng, graph = random.Random(seed), model.graph
    inner = [o for n in graph.node for o in n.output if o] + [i.name for i in graph.initializer]
    kept = {v.name for v in (*graph.input, *graph.output)}
    fresh = rng.sample(range(10 * len(inner)), len(inner))
    names = {old: f"v{new}" for old, new in zip(inner, fresh) if old not in kept}
    for n in graph.node:
        n.name = f"node{rng.random()}"
        n.input[:] = [names.get(v, v) for v in n.input]
        n.output[:] = [names.get(v, v) for v in n.output]
    for initializer in graph.initializer:
        initializer.name = names.get(initializer.name, initializer.name)
    del graph.value_info[:]
    made = kept | {i.name for i in graph.initializer} | {""}
    waiting, order = list(graph.node), []
    while waiting:
        ready = [n for n in waiting if all(v in made for v in n.input)]
        node = rng.choice(ready)
        waiting.remove(node)
        made.update(node.output)
        order.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(order)
    return model


def structure(graph: Graph) -> list[Any]:
    """Everything but names."""
    return [
        (n.op, n.inputs, n.outputs, sorted(n.attrs.items(), key=lambda a: a[0]), n.const and n.const.digest)
        for n in graph.order()
    ] + [sorted((v, str(x.type)) for v, x in graph.values.items())]


@pytest.mark.parametrize("name", MODELS)
def test_names_and_order_change_nothing(name: str, corpus_model: Callable[[str], Any]) -> None:
    path = corpus_model(name).path
    want = frontend.read(path)
    optimize(want)
    for seed in range(2):
        model = onnx.load(path)
        if any(a.HasField("g") for n in model.graph.node for a in n.attribute):
            pytest.skip("the shuffle does not rename what subgraphs capture")
        got = frontend.read(shuffled(model, seed))
        optimize(got)
        assert structure(got) == structure(want)
