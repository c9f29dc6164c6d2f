"""onnxruntime takes and gives numpy's own element types only: others go as float32, with casts in the model.

    x: bfloat16 ─ Neg ─ y: bfloat16        →        x_float: float32 ─ Cast ─ x ─ Neg ─ y ─ Cast ─ y_float: float32

Every bfloat16, float8, float4, 2-bit and 4-bit number is a float32 number, so nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from atc_py.ir.types import DType

SUFFIX = "_float"


def _elem_types() -> dict[str, int]:
    """onnxruntime's name of a type → onnx's number, for the types that numpy has not."""
    narrow = [d for d in DType if d is not DType.STRING and d.numpy.isbuiltin != 1]
    known = {d.value.replace("_", "").lower(): d for d in narrow}
    numbers = {name.replace("_", "").lower(): number for name, number in TensorProto.DataType.items()}
    return {f"tensor({name})": numbers[name] for name in known if name in numbers}


ELEM_TYPES = _elem_types()


def narrow(ports: Sequence[Any]) -> dict[str, int]:
    """The inputs or outputs of an onnxruntime session whose types numpy has not: name → onnx's element type."""
    return {p.name: ELEM_TYPES[p.type] for p in ports if p.type in ELEM_TYPES}


def with_casts(proto: onnx.ModelProto, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> onnx.ModelProto:
    """The model with float32 in place of the given inputs and outputs, whose names get `SUFFIX`."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    graph = wide.graph
    before = [helper.make_node("Cast", [name + SUFFIX], [name], to=code) for name, code in inputs.items()]
    after = [helper.make_node("Cast", [name], [name + SUFFIX], to=TensorProto.FLOAT) for name in outputs]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    for ports, names in ((graph.input, inputs), (graph.output, outputs)):
        for port in ports:
            if port.name in names:
                port.name += SUFFIX
                port.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide


class Casting:
    """A session of a model `with_casts` that is used like one of the model itself."""

    def __init__(self, session: Any, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        self.session, self.inputs, self.outputs = session, inputs, outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs, in their own element types."""
        given = {
            n + SUFFIX if n in self.inputs else n: np.asarray(v, np.float32) if n in self.inputs else v
            for n, v in feeds.items()
        }
        found = self.session.run([n + SUFFIX if n in self.outputs else n for n in names], given)
        return [self._own(n, v) for n, v in zip(names, found, strict=True)]

    def _own(self, name: str, value: Any) -> Any:
        if name not in self.outputs:
            return value
        return value.astype(helper.tensor_dtype_to_np_dtype(self.outputs[name]))


def casting(session: Any, proto: onnx.ModelProto, make: Callable[[onnx.ModelProto], Any]) -> Any:
    """`session` itself where numpy has all of its types, else a `Casting` of a session that `make` makes."""
    inputs, outputs = narrow(session.get_inputs()), narrow(session.get_outputs())
    if not inputs and not outputs:
        return session
    return Casting(make(with_casts(proto, inputs, outputs)), inputs, outputs)
