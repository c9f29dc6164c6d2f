"""ai.onnx.ml's operators on features, labels and dictionaries, against onnxruntime where it has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from atc_py.errors import AtcError
from tests.ops.one_node import agree, expected, feeds, model, ours, same

X = np.array([[1, 2, 0], [3, -4, 9], [-1, 0.5, 2], [0, 0, 0]], np.float32)
INTS = X.astype(np.int64)
WORDS = np.array([["a", "z"], ["b", "a"]], object)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("scale", [[2.0, 3.0, 0.1], [0.5]])
def test_scaler(dtype: str, scale: list[float]) -> None:
    agree("ai.onnx.ml::Scaler", [X.astype(dtype)], scale=scale, offset=[0.1] * len(scale), symbolic=True)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_normalizer(norm: str, dtype: str) -> None:
    agree("ai.onnx.ml::Normalizer", [X.astype(dtype)], norm=norm, symbolic=True)
    agree("ai.onnx.ml::Normalizer", [X[1].astype(dtype)], norm=norm)


def test_binarizer() -> None:
    agree("ai.onnx.ml::Binarizer", [X], threshold=0.5, symbolic=True)
    [got] = ours(model("ai.onnx.ml::Binarizer", [INTS], {"threshold": 0.5}), {"x0": INTS})
    same([got], [(INTS > 0.5).astype(np.int64)])


@pytest.mark.parametrize("values", [[9.0, 8.0, 7.0], [9.0]])
def test_imputer_floats(values: list[float]) -> None:
    agree("ai.onnx.ml::Imputer", [X], imputed_value_floats=values, replaced_value_float=2.0)
    missing = X.copy()
    missing[1] = np.nan
    agree("ai.onnx.ml::Imputer", [missing], imputed_value_floats=values, replaced_value_float=float("nan"))


def test_imputer_ints() -> None:
    agree("ai.onnx.ml::Imputer", [INTS], imputed_value_int64s=[9, 8, 7], replaced_value_int64=2, symbolic=True)
    with pytest.raises(AtcError, match="imputed_value_floats"):
        ours(model("ai.onnx.ml::Imputer", [X], {"imputed_value_int64s": [1]}), {"x0": X})


@pytest.mark.parametrize("widths", [[2, 4], [3, 3], [1, 1]])
@pytest.mark.parametrize("parts", [[X, X], [X[0], X[1]], [INTS, INTS], [X.reshape(2, 2, 3)] * 2])
def test_feature_vectorizer(widths: list[int], parts: list[Any]) -> None:
    agree("ai.onnx.ml::FeatureVectorizer", parts, inputdimensions=widths)


@pytest.mark.parametrize("x", [X, X[0], X.reshape(1, 4, 3), INTS, np.array([["p", "q", "r"]], object)])
@pytest.mark.parametrize("indices", [[2, 0], [[1, 1], [0, 2]], 1])
def test_array_feature_extractor(x: Any, indices: Any) -> None:
    given = [x, np.array(indices, np.int64)]
    agree("ai.onnx.ml::ArrayFeatureExtractor", given, symbolic=True)
    agree("ai.onnx.ml::ArrayFeatureExtractor", given, consts=(1,))


def test_array_feature_extractor_refuses() -> None:
    given = [X, np.array([3])]
    proto = model("ai.onnx.ml::ArrayFeatureExtractor", given, {})
    with pytest.raises(AtcError, match="outside"):
        ours(proto, feeds(given))
    with pytest.raises(AtcError, match="must lie in"):
        ours(model("ai.onnx.ml::ArrayFeatureExtractor", given, {}, consts=(1,)), feeds(given, (1,)))


# -- tables ------------------------------------------------------------------------------------------------

NAN = float("nan")
ENCODERS: list[tuple[Any, dict[str, Any]]] = [
    (WORDS, {"keys_strings": ["a", "b"], "values_int64s": [4, 5]}),
    (WORDS, {"keys_strings": ["b", "a", "b"], "values_strings": ["x", "y", "never"], "default_string": "none"}),
    (WORDS, {"keys_strings": ["a"], "values_floats": [1.5], "default_float": 2.5}),
    (INTS, {"keys_int64s": [3, 1], "values_strings": ["three", "one"]}),
    (INTS, {"keys_int64s": [3, 1], "values_floats": [0.5, 1.5]}),
    (X, {"keys_floats": [0.5, NAN, 2.0], "values_int64s": [1, 2, 3]}),
    (np.array([NAN, 0.5], np.float32), {"keys_floats": [0.5, NAN], "values_strings": ["half", "none"]}),
]


@pytest.mark.parametrize(("x", "attrs"), ENCODERS)
def test_label_encoder(x: Any, attrs: dict[str, Any]) -> None:
    agree("ai.onnx.ml::LabelEncoder", [x], version=4, symbolic=True, **attrs)
    if x.dtype != np.float32:  # onnxruntime's version 2 does not find NaN, which that version's text asks for
        agree("ai.onnx.ml::LabelEncoder", [x], version=2, **attrs)


def test_label_encoder_tensors() -> None:
    keys = helper.make_tensor("k", 7, [2], [3, 1])
    values = helper.make_tensor("v", 5, [2], [30, 10])
    attrs = {"keys_tensor": keys, "values_tensor": values, "default_tensor": helper.make_tensor("d", 5, [1], [-7])}
    [got] = ours(model("ai.onnx.ml::LabelEncoder", [INTS], attrs, version=4), {"x0": INTS})
    same([got], [np.select([INTS == 3, INTS == 1], [30, 10], -7).astype(np.int16)])


def test_label_encoder_of_the_first_version() -> None:
    for x in (WORDS, INTS):
        agree("ai.onnx.ml::LabelEncoder", [x], version=1, classes_strings=["b", "a"])


def test_category_mapper() -> None:
    for x in (WORDS, INTS):
        agree("ai.onnx.ml::CategoryMapper", [x], cats_int64s=[3, 1], cats_strings=["a", "b"], default_int64=-5)


@pytest.mark.parametrize("x", [X, INTS, X.astype(np.float64), INTS[0]])
def test_one_hot_encoder(x: Any) -> None:
    agree("ai.onnx.ml::OneHotEncoder", [x], cats_int64s=[0, 2, 3], symbolic=True)


def test_one_hot_encoder_of_strings() -> None:
    agree("ai.onnx.ml::OneHotEncoder", [WORDS], cats_strings=["b", "a"])
    agree("ai.onnx.ml::OneHotEncoder", [WORDS[1]], cats_strings=["b", "a"], zeros=0)
    with pytest.raises(AtcError, match="zeros = 0"):
        ours(model("ai.onnx.ml::OneHotEncoder", [WORDS], {"cats_strings": ["a"], "zeros": 0}), {"x0": WORDS})


# -- dictionaries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [5, 6, 7]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_zip_map(labels: dict[str, Any]) -> None:
    for x in (X, X[0], X[:0]):
        agree("ai.onnx.ml::ZipMap", [x], **labels)
    agree("ai.onnx.ml::ZipMap", [X], symbolic=True, **labels)


def test_dict_vectorizer() -> None:
    agree("ai.onnx.ml::DictVectorizer", [{"a": 1.5, "z": 2.0}], string_vocabulary=["z", "y", "a"])
    agree("ai.onnx.ml::DictVectorizer", [{3: 1.5, 4: 2.0}], int64_vocabulary=[4, 5])


@pytest.mark.parametrize("to", ["TO_FLOAT", "TO_STRING", "TO_INT64"])
def test_cast_map(to: str) -> None:
    entries = {3: 1.5, 1: -2.25, 9: 1e20 if to != "TO_INT64" else 7.0}
    agree("ai.onnx.ml::CastMap", [entries], cast_to=to)
    agree("ai.onnx.ml::CastMap", [entries], cast_to=to, map_form="SPARSE", max_map=4)


def test_unknown_rank() -> None:
    """An operator whose input's rank nobody knows is bound when it runs."""
    proto = model("ai.onnx.ml::Scaler", [X], {"scale": [2.0], "offset": [1.0]})
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    want = expected(proto, {"x0": X})
    same(ours(proto, {"x0": X}), want)
