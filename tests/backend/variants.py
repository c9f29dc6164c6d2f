"""The node tests in other forms that must give the same outputs.

plain       x: [2, 3], w: [3, 4]  ─ MatMul ─ y: [2, 4]
constants                           Const, Const ─ MatMul ─ y       everything can be folded
weights     x: [2, 3]                      Const ─ MatMul ─ y       what is prepared at bind time is
symbolic    x: [x_0, x_1], w: [w_0, w_1]         ─ MatMul ─ y       sizes are known only when it is run
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from atc_py import Options
from tests.backend.onnx_tests import Loaded, run

UNLIMITED = Options(fold_limit=1 << 40)


def sampled(variant: str, name: str) -> bool:
    """Whether the quick tests run this test in this form: every third does, the same ones everywhere."""
    return zlib.crc32(f"{variant}:{name}".encode()) % 3 == 0


def plain(loaded: Loaded) -> Iterator[tuple[Loaded, Options]]:
    """The test as onnx has it."""
    yield loaded, Options()


def constants(loaded: Loaded) -> Iterator[tuple[Loaded, Options]]:
    """Every input a constant, and no limit to what may be folded."""
    yield from ((_fixed(loaded, i, 0), UNLIMITED) for i in range(len(loaded.data_sets)))


def weights(loaded: Loaded) -> Iterator[tuple[Loaded, Options]]:
    """Every input but the first a constant."""
    yield from ((_fixed(loaded, i, 1), Options()) for i in range(len(loaded.data_sets)))


def symbolic(loaded: Loaded) -> Iterator[tuple[Loaded, Options]]:
    """Each dim of an input that is above 1 a symbol of its own; the outputs' shapes not declared."""
    model = _copy(loaded.model)
    for value in model.graph.input:
        for axis, dim in enumerate(_dims(value.type)):
            if dim.dim_value > 1:
                dim.dim_param = f"{value.name}_{axis}"
    for value in model.graph.output:
        _forget(value.type)
    del model.graph.value_info[:]
    yield replace(loaded, model=model), Options()


VARIANTS: dict[str, Callable[[Loaded], Iterator[tuple[Loaded, Options]]]] = {
    "plain": plain,
    "constants": constants,
    "weights": weights,
    "symbolic": symbolic,
}


def run_variant(variant: str, loaded: Loaded) -> list[str]:
    """Run a test in one form; raises `AssertionError` when anything differs from the expected outputs."""
    found: list[str] = []
    for form, options in VARIANTS[variant](loaded):
        found += run(form, options)
    return found


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _dims(type_: onnx.TypeProto) -> Sequence[Any]:
    """The dims of a tensor, or of the tensors in a sequence or an optional."""
    while (kind := type_.WhichOneof("value")) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    return type_.tensor_type.shape.dim if kind == "tensor_type" else ()


def _forget(type_: onnx.TypeProto) -> None:
    while (kind := type_.WhichOneof("value")) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    if kind == "tensor_type":
        type_.tensor_type.ClearField("shape")


def _fixed(loaded: Loaded, at: int, first: int) -> Loaded:
    """The test with the values of data set `at` written into the model, but for the first `first` inputs."""
    model = _copy(loaded.model)
    inputs, outputs = loaded.data_sets[at]
    graph = model.graph
    model.ir_version = max(model.ir_version, 4)  # from there on initializers need not be inputs
    made: list[onnx.NodeProto] = []
    for info, value in list(zip(graph.input, inputs, strict=True))[first:]:
        _write(graph, made, info, value)
    kept = list(graph.input)[:first]
    nodes = [*made, *graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend(kept)
    graph.node.extend(nodes)
    return replace(loaded, model=model, data_sets=[(inputs[:first], outputs)])


def _write(graph: onnx.GraphProto, made: list[onnx.NodeProto], info: onnx.ValueInfoProto, value: Any) -> None:
    """A constant value in place of an input: an initializer, or a node that makes a sequence or an optional."""
    type_, name = info.type, info.name
    if type_.HasField("tensor_type"):
        graph.initializer.append(_tensor(value, name, type_.tensor_type.elem_type))
        return
    if type_.HasField("optional_type"):
        inner = type_.optional_type.elem_type
        if value is None:
            made.append(helper.make_node("Optional", [], [name], type=inner))
            return
        _write(graph, made, onnx.ValueInfoProto(name=f"{name}_content", type=inner), value)
        made.append(helper.make_node("Optional", [f"{name}_content"], [name]))
        return
    element = type_.sequence_type.elem_type
    if not value:
        made.append(helper.make_node("SequenceEmpty", [], [name], dtype=element.tensor_type.elem_type))
        return
    parts = [f"{name}_{i}" for i in range(len(value))]
    for part, item in zip(parts, value, strict=True):
        graph.initializer.append(_tensor(item, part, element.tensor_type.elem_type))
    made.append(helper.make_node("SequenceConstruct", parts, [name]))


def _tensor(value: Any, name: str, kind: int) -> onnx.TensorProto:
    array = np.asarray(value)
    if kind == onnx.TensorProto.STRING:
        texts: Any = [x if isinstance(x, bytes) else str(x).encode() for x in array.flat]
        return helper.make_tensor(name, kind, array.shape, texts)
    return numpy_helper.from_array(array, name)
