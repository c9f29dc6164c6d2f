"""What fusion makes of whole models: the same tasks from two exporters, nothing left beside a convolution."""

from __future__ import annotations

from functools import cache

import pytest

from atc_py import compile_model
from atc_py.compiler import Options
from atc_py.emit import Om
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from models import catalog

LAYERS = {"llama32_ts": 32, "hf_bert_ts": 12, "hf_vit_dyn": 12}


@cache
def compiled(name: str, level: int = 2) -> Om:
    found = catalog.find(name)
    if found.path is None:
        pytest.skip(found.reason)
    return compile_model(found.path, Options(opt_level=level))


def parts(node: Node) -> list[Node]:
    """The operators that a node of the lowered graph runs."""
    if node.op != "Fused":
        return [node]
    return [n for n in node.subgraphs["body"].order() if n.op not in STRUCTURAL]


def kernels(graph: Graph) -> list[tuple[str, ...]]:
    """Each task's operators with the shapes of their results, in order."""
    found = []
    for node in graph.order():
        if node.op not in STRUCTURAL:
            owner = node.subgraphs.get("body", graph)
            found.append(tuple(f"{n.op} {owner.type(n.outputs[0])}" for n in parts(node)))
    return found


def test_llama_has_a_fraction_of_its_nodes() -> None:
    figures, plain = compiled("llama32_ts").summary, compiled("llama32_ts", 0).summary
    nodes, tensors = figures["nodes"], figures["tensors"]
    assert nodes["after"] <= 0.2 * nodes["before"] and tensors["after"] <= 0.15 * tensors["before"]
    assert figures["tasks"] <= 0.2 * plain["tasks"] and figures["tasks"] <= 8 * LAYERS["llama32_ts"] + 16
    assert figures["memory"]["arena"] <= 0.5 * plain["memory"]["arena"]
    assert figures["memory"]["arena"] <= 0.3 * figures["memory"]["sum_before"]


def test_llama_of_two_exporters_ends_in_the_same_tasks() -> None:
    one, two = compiled("llama32_ts"), compiled("llama32_dyn")
    assert kernels(one.lowered) == kernels(two.lowered)
    assert [t.kernel for t in one.plan.tasks()] == [t.kernel for t in two.plan.tasks()]


ALONE = {"BatchNormalization", "Add", "Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Swish", "Clip", "LeakyRelu"}


@pytest.mark.parametrize("name", ["resnet50_ts", "mobilenetv3", "ppocr4_rec", "ppocr4_det", "ppocr_cls"])
def test_nothing_elementwise_is_left_beside_a_convolution(name: str) -> None:
    graph = compiled(name).lowered
    left = [n.op for n in graph.order() if n.op in ALONE]
    left += [n.op for n in graph.order() if n.op == "Fused" and {m.op for m in parts(n)} <= ALONE]
    assert left == []


@pytest.mark.parametrize("name", ["hf_bert_ts", "hf_vit_dyn"])
def test_attention_is_one_task_a_layer(name: str) -> None:
    graph = compiled(name).lowered
    ops = [n.op for t in graph.order() for n in parts(t)]
    assert ops.count("FlashAttentionScore") == LAYERS[name] and not {"Softmax", "Attention"} & set(ops)
    assert sum(any(m.op == "FlashAttentionScore" for m in parts(n)) for n in graph.order()) == LAYERS[name]


@pytest.mark.parametrize("name", ["llama32_ts", "mobilenetv3", "hf_bert_ts"])
def test_tiles_leave_room_in_the_buffers(name: str) -> None:
    target = compiled(name).target
    assert target is not None
    rooms = (target.ub, target.l1, target.l0c)
    tasks = [n for n in compiled(name).lowered.order() if n.op == "Fused"]
    assert tasks
    for task in tasks:
        assert all(used <= 0.7 * room for used, room in zip(task.attrs["buffers"], rooms, strict=True)), task.name
