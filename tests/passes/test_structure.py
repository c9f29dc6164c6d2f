"""What is left of known networks: one dialect's graph is the other's, and a layer is what its paper says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from atc_py import frontend
from atc_py.passes import optimize
from tests.passes.interp import work

LAYERS = {"llama32": 32, "hf_bert": 12, "hf_vit": 12}


def left(path: Any) -> Counter[str]:
    graph = frontend.read(path)
    optimize(graph)
    return Counter(work(graph))


@pytest.mark.needs_models
def test_both_exports_of_llama_end_in_one_graph(corpus_model: Callable[[str], Any]) -> None:
    ops = left(corpus_model("llama32_ts").path)
    assert ops == left(corpus_model("llama32_dyn").path)
    layers = LAYERS["llama32"]
    per_layer = {
        "RMSNormalization": 2, "MatMul": 7, "RotaryEmbedding": 2, "Attention": 1, "Swish": 1, "Mul": 1, "Add": 2,
    }  # fmt: skip
    for op, count in per_layer.items():
        assert layers * count <= ops[op] <= layers * count + 1
    assert sum(ops.values()) <= layers * sum(per_layer.values()) + 20


@pytest.mark.needs_models
@pytest.mark.parametrize("name", ["hf_bert_ts", "hf_bert_dyn", "hf_vit_dyn"])
def test_attention_is_one_operator_a_layer(name: str, corpus_model: Callable[[str], Any]) -> None:
    ops = left(corpus_model(name).path)
    layers = LAYERS[name.rpartition("_")[0]]
    assert ops["Attention"] == layers == ops["Gelu"] and not ops["Softmax"] and not ops["IsNaN"]
    assert ops["LayerNormalization"] == 2 * layers + 1
    assert ops["Transpose"] <= 1 and not ops["Erf"] and not ops["ReduceMean"]


@pytest.mark.needs_models
def test_other_exporters(corpus_model: Callable[[str], Any]) -> None:
    rec = left(corpus_model("ppocr4_rec").path)
    assert (rec["Attention"], rec["LayerNormalization"], rec["Swish"], rec["HardSwish"]) == (2, 5, 7, 28)
    assert left(corpus_model("magika").path)["Gelu"] == 2
    unet = left(corpus_model("diffusion_unet_ts").path)
    assert (unet["GroupNormalization"], unet["Attention"], unet["InstanceNormalization"]) == (5, 1, 0)
