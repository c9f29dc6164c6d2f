"""What constants lose in a narrower float is said by name; and the two files of lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import AtcError, Options, compile_model
from atc_py.errors import Problem
from atc_py.ir.constants import Splat, blob
from atc_py.ir.types import DType
from atc_py.ops import get
from atc_py.ops.index import INDEX
from atc_py.passes.mixlist import Kind, PrecisionLists, check_nodes, kind_of, read_lists
from atc_py.passes.precision_weights import losses
from tests.making import FLOAT, model, node
from tests.passes.interp import Builder

F16, BF16 = DType.FLOAT16, DType.BFLOAT16


def said(array: Any, dtype: DType = F16) -> list[Problem]:
    return losses(blob(np.asarray(array, np.float32)), dtype, "w")


@pytest.mark.parametrize(
    ("values", "dtype", "lost"),
    [
        ([1.0, 65504.0, -65519.9], F16, 0),
        ([1.0, 65520.0, -7e4], F16, 2),
        ([np.inf, -np.inf, np.nan, 1.0], F16, 0),
        ([np.inf, 1e5, np.nan, 1.0], F16, 1),
        ([3.3e38, -1.0], BF16, 0),
        ([np.finfo(np.float32).min, -1.0], BF16, 1),
    ],
)
def test_overflow_is_counted_as_the_conversion_has_it(values: list[float], dtype: DType, lost: int) -> None:
    array = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        made = array.astype(dtype.numpy).astype(np.float32)
    assert int(np.sum(np.isinf(made) & np.isfinite(array))) == lost  # the truth
    found = said(values, dtype)
    assert [p.code for p in found] == ["W20041"] * (lost > 0)
    if lost:
        assert found[0].place == "tensor 'w'" and f"{lost} of {len(values)} values" in found[0].cause
        largest = np.abs(array[np.isfinite(array)]).max()
        assert f"the largest is {largest:.6g}" in found[0].cause and found[0].hint


def test_lost_range_is_counted_as_the_conversion_has_it() -> None:
    array = np.concatenate([np.full(90, 1e-9), np.full(7, 3e-6), np.zeros(50), np.ones(3)]).astype(np.float32)
    [problem] = said(array)
    assert problem.code == "W20042"
    assert "97 of 100 values that are not 0" in problem.cause
    assert "90 become 0, 7 keep fewer bits; the largest is 1" in problem.cause
    made = array.astype(np.float16)
    assert int(np.sum((made == 0) & (array != 0))) == 90


def test_a_few_small_values_are_no_warning() -> None:
    weights = (np.random.default_rng(0).standard_normal((256, 256)) * 0.02).astype(np.float32)
    assert np.sum(np.abs(weights) < 2.0**-14) > 0
    assert said(weights) == [] and said(weights * 1e-4) != []


def test_large_tensors_are_looked_at_to_the_end() -> None:
    array = np.ones((1 << 20) + 5, np.float32)
    array[-1] = 1e6
    [problem] = said(array)
    assert "1 of 1,048,581 values" in problem.cause


def test_splats_and_narrow_constants() -> None:
    assert [p.code for p in losses(Splat(DType.FLOAT32, (9, 9), np.float32(1e6)), F16, "s")] == ["W20041"]
    assert losses(blob(np.full(3, 65504, np.float16)), DType.FLOAT32, "h") == []


def upsampler(scale: float) -> Any:
    """ConvTranspose and Conv as in the neck of a segmentation model."""
    rng = np.random.default_rng(3)
    up, conv = rng.standard_normal((8, 8, 2, 2)), rng.standard_normal((4, 8, 3, 3))
    up[0, 0, 0, 0] = scale
    nodes = [
        node("ConvTranspose", ["x", "neck.up.weight"], ["u"], "neck/up", strides=[2, 2]),
        node("Conv", ["u", "neck.conv.weight"], ["y"], "neck/conv", pads=[1, 1, 1, 1]),
    ]
    constants = {"neck.up.weight": up.astype(np.float32), "neck.conv.weight": conv.astype(np.float32)}
    return model(nodes, {"x": (FLOAT, [1, 8, 4, 4])}, ["y"], constants)


@pytest.mark.parametrize("mode", ["fp16", "mixed_float16", "cube_fp16in_fp32out"])
def test_a_conversion_names_the_weights_that_overflow(mode: str) -> None:
    options = Options(precision_mode=mode)
    warnings = compile_model(upsampler(2e5), options).warnings
    assert [(w.code, w.place) for w in warnings if w.code.startswith("W2004")] == [
        ("W20041", "tensor 'neck.up.weight'")
    ]
    assert not [w for w in compile_model(upsampler(1.0), options).warnings if w.code.startswith("W2004")]
    kept = Options(precision_mode=mode, precision_lists=PrecisionLists(keep_nodes=frozenset({"neck/up"})))
    assert not [w for w in compile_model(upsampler(2e5), kept).warnings if w.code.startswith("W2004")]


def test_bfloat16_has_the_range() -> None:
    assert not compile_model(upsampler(2e5), Options(precision_mode="mixed_bfloat16")).warnings


# -- the files of lists ----------------------------------------------------------------------------------------------


def mixlist(folder: Path, content: Any) -> Path:
    path = folder / "mix.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def kept(folder: Path, content: str) -> Path:
    path = folder / "keep.cfg"
    path.write_text(content)
    return path


def test_a_mixlist_moves_operators(tmp_path: Path) -> None:
    content = {
        "black-list": {"to-add": ["Gelu"], "to-remove": ["Exp", "Relu"]},
        "white-list": {"to-add": ["Softmax"], "to-remove": ["Conv"]},
        "gray-list": {"to-add": ["MatMul"]},
    }
    lists = read_lists(mixlist(tmp_path, content))
    want = {"Gelu": Kind.BLACK, "Exp": Kind.GRAY, "Softmax": Kind.WHITE, "Conv": Kind.GRAY, "MatMul": Kind.GRAY}
    assert lists.kinds == want  # Relu was not on the black list
    for name, kind in want.items():
        op = get(name)
        assert op is not None and lists.kind(op) is kind and kind_of(op) is not kind
    assert PrecisionLists.from_json(json.loads(json.dumps(lists.to_json()))) == lists


def test_a_keep_file_has_nodes_and_operators(tmp_path: Path) -> None:
    lists = read_lists(None, kept(tmp_path, "a/MatMul_3\n\n  OpType::Softmax \nOpType:: LSTM\nb\n"))
    assert lists.keep_nodes == {"a/MatMul_3", "b"} and lists.keep_types == {"Softmax", "LSTM"}
    assert PrecisionLists.from_json(lists.to_json()) == lists


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ({"whitelist": {}}, "'whitelist'"),
        ({"white-list": ["Conv"]}, "'white-list'"),
        ({"white-list": {"add": ["Conv"]}}, "'add'"),
        ({"white-list": {"to-add": "Conv"}}, "'to-add'"),
        ({"white-list": {"to-add": ["Sofmax"]}}, "did you mean 'Softmax'?"),
        ({"white-list": {"to-add": ["Exp"]}, "black-list": {"to-add": ["Exp"]}}, "more than one list"),
        ({"white-list": {"to-add": ["Exp"], "to-remove": ["Exp"]}}, "removed from"),
    ],
)
def test_wrong_mixlists(content: Any, word: str, tmp_path: Path) -> None:
    with pytest.raises(AtcError) as caught:
        read_lists(mixlist(tmp_path, content))
    [problem] = caught.value.problems
    assert problem.code == "E20041" and word in str(problem) and problem.hint


def test_everything_wrong_with_both_files_is_said_at_once(tmp_path: Path) -> None:
    mix = mixlist(tmp_path, {"black-list": {"to-add": ["Gleu", "Convv"]}, "grey-list": {}})
    with pytest.raises(AtcError) as caught:
        read_lists(mix, kept(tmp_path, "OpType::Exq\n"))
    assert [p.code for p in caught.value.problems] == ["E20041", "E20041", "E20041", "E20042"]
    assert "line 1" in caught.value.problems[3].place
    with pytest.raises(AtcError) as caught:
        read_lists(tmp_path / "no.json", tmp_path / "no.cfg")
    assert [p.code for p in caught.value.problems] == ["E20041", "E20042"]


def test_nodes_that_the_model_has_not_are_said_with_near_names() -> None:
    b = Builder()
    graph = b.done(b.op("Relu", b.op("Tanh", b.input("x", (2,)))))
    check_nodes(PrecisionLists(keep_nodes=frozenset({"n0", "n1"})), graph)
    with pytest.raises(AtcError) as caught:
        check_nodes(PrecisionLists(keep_nodes=frozenset({"n00", "n1", "zzz"})), graph)
    assert [(p.code, p.place) for p in caught.value.problems] == [("E20042", "--keep-dtype")] * 2
    assert "did you mean 'n0'?" in caught.value.problems[0].hint


def test_the_lists_are_those_of_the_flags() -> None:
    kinds = {name: kind_of(op) for name in INDEX if (op := get(name)) is not None}
    for name in ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM"):
        assert kinds[name] is Kind.WHITE
    for name in (
        "Relu",
        "Add",
        "Softmax",
        "LayerNormalization",
        "MaxPool",
        "Concat",
        "ReduceMean",
        "BatchNormalization",
    ):
        assert kinds[name] is Kind.GRAY
    for name in ("Exp", "Log", "Pow", "ReduceSum", "ReduceSumSquare", "CumSum", "Loop", "If"):
        assert kinds[name] is Kind.BLACK
