"""The standard `onnx.backend` interface over the whole path: convert, bytes of an OM, load, run on the simulator.

import atc_py.backend as backend
[y] = backend.prepare(model).run([x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from atc_py.compiler import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.errors import error
from atc_py.runtime import Session


class AtcBackendRep(BackendRep):
    """A converted and loaded model."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs given by position, or by name in a dict; also addressable by name."""
        ports = self.session.get_inputs()
        if not isinstance(inputs, dict):
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            inputs = {p.name: v for p, v in zip(ports, values, strict=False)}
        outputs = self.session.run(None, inputs)
        names = [p.name for p in self.session.get_outputs()]
        try:
            return namedtupledict("Outputs", names)(*outputs)
        except ValueError:
            return tuple(outputs)


class AtcBackend(Backend):
    """The simulated NPU; its only device is called `CPU`, as onnx's test runner expects."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> AtcBackendRep:
        """Convert `model` (`options`: an `atc_py.Options`) and load the OM's bytes."""
        if not cls.supports_device(device):
            raise error(
                "E10001", f"device '{device}'", "there is only the simulated NPU, called 'CPU'", "use device='CPU'"
            )
        options = kwargs.get("options") or Options()
        return AtcBackendRep(Session(om_bytes(compile_model(model, options))))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """`prepare` and `run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node as a model of its own; the inputs' types come from the arrays."""
        import numpy as np
        from onnx import helper

        arrays = [np.asarray(v) for v in inputs]
        ins = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip((i for i in node.input if i), arrays, strict=True)
        ]
        outs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        model = helper.make_model(helper.make_graph([node], "node", ins, outs))
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is the one there is."""
        return device.split(":")[0] == "CPU"


prepare = AtcBackend.prepare
run_model = AtcBackend.run_model
run_node = AtcBackend.run_node
supports_device = AtcBackend.supports_device
is_compatible = AtcBackend.is_compatible
