"""TfIdfVectorizer against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops import node_models
from tests.ops.one_node import agree

RNG = np.random.default_rng(23)
POOL = {
    "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 2, "ngram_counts": [0, 4, 10],
    "ngram_indexes": [8, 1, 0, 2, 3, 5, 4, 6, 7], "weights": [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
}  # fmt: skip
TOKENS = [2, 3, 5, 7, 2, 3, 3, 2, 5, 5, 2, 3, 5, 3, 3, 3]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("skips", [0, 2])
def test_vectorizer(mode: str, lengths: tuple[int, int], skips: int) -> None:
    attrs: dict[str, Any] = POOL | {"mode": mode, "max_skip_count": skips}
    attrs |= {"min_gram_length": lengths[0], "max_gram_length": lengths[1]}
    x = RNG.integers(0, 8, (6, 40))
    for given in (x, x.astype(np.int32), x[0], x[:, :2], x[0, :0]):
        agree("TfIdfVectorizer", [given], pool_int64s=TOKENS, **attrs)
    agree("TfIdfVectorizer", [x], pool_int64s=TOKENS, symbolic=True, **attrs)
    text = np.array(WORDS, object)[x]
    agree("TfIdfVectorizer", [text], pool_strings=[WORDS[t] for t in TOKENS], **attrs)


@pytest.mark.parametrize("test", node_models.node_tests("TfIdfVectorizer"), ids=lambda t: t.name)
def test_of_onnx(test: node_models.NodeTest) -> None:
    from tests.ops.one_node import ours, same

    same(ours(test.model, {test.model.graph.input[0].name: test.inputs[0]}), test.outputs)
