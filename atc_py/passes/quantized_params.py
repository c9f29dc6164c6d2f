"""What quantising and dequantising nodes say: the bytes, their scale and their zero point.

    x: int8 ─ DequantizeLinear(0.02, 3) ─ v         dequantized(v)   →  bytes x, scale 0.02, zero point 3, one for all
    w: int8 [64, 3, 7, 7] ─ DequantizeLinear([64 scales], axis 0)    →  bytes w, 64 scales along axis 0

Only what is known at conversion counts: scales and zero points that are constants, scales that are positive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, Splat, blob
from atc_py.ir.dims import prod
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array
from atc_py.ops.evaluate import evaluate
from atc_py.passes.known import given

BYTES = (DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class Scaled:
    """Quantised numbers: real = (bytes - zero point) · scale.

    `value` holds the integers, `scale` and `zero` are the values of the parameters (`zero` may be ABSENT), `scales` and
    `zeros` their numbers. `axis` is None where one scale serves the whole tensor. `moves` are nodes after the
    DequantizeLinear that only move elements; `axis` is that after them.
    """

    node: Node
    value: int
    scale: int
    zero: int
    scales: Array
    zeros: Array
    dtype: DType
    axis: int | None
    moves: tuple[Node, ...] = ()

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest integer."""
        info = np.iinfo(self.dtype.numpy)
        return int(info.min), int(info.max)

    def same(self, other: Scaled) -> bool:
        """Whether the same integers mean the same numbers."""
        return (
            self.dtype is other.dtype
            and self.axis == other.axis
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self.zeros, other.zeros)
        )

    def quantize(self, number: float) -> int:
        """The integer that stands for a number; for tensors with one scale."""
        low, high = self.limits
        with np.errstate(all="ignore"):
            step = np.rint(np.float32(number) / self.scales[0]) + np.float32(self.zeros[0])
        return int(min(max(float(step), low), high))


def dequantized(graph: Graph, value: int) -> Scaled | None:
    """The quantised numbers behind a value that a DequantizeLinear makes; None where it is anything else."""
    if value == ABSENT or graph.producer(value).op != "DequantizeLinear":
        return None
    node = graph.producer(value)
    if graph.tensor(value).dtype is not DType.FLOAT32:
        return None
    return _scaled(graph, node, node.inputs[0], graph.tensor(node.inputs[0]))


def quantizing(graph: Graph, node: Node) -> Scaled | None:
    """The quantised numbers that a QuantizeLinear of a float32 makes: bytes, with one scale."""
    source = graph.type(node.inputs[0])
    if node.attrs.get("precision") is not None or not isinstance(source, Tensor) or source.dtype is not DType.FLOAT32:
        return None
    found = _scaled(graph, node, node.outputs[0], graph.tensor(node.outputs[0]))
    return found if found is not None and found.axis is None and found.dtype in BYTES else None


def _scaled(graph: Graph, node: Node, value: int, type_: Tensor) -> Scaled | None:
    scale, zero = node.inputs[1], node.inputs[2] if given(node, 2) else ABSENT
    scales = array_of(graph.const(scale))
    zeros = np.zeros(1, np.int64) if zero == ABSENT else array_of(graph.const(zero))
    if scales is None or zeros is None or node.attrs.get("block_size") or scales.dtype != np.float32:
        return None
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        return None
    flat = scales.reshape(-1)
    axis = None
    if flat.size != 1:
        if type_.shape is None:
            return None
        axis = node.attrs["axis"] % len(type_.shape)
    return Scaled(node, value, scale, zero, flat, zeros.reshape(-1).astype(np.int64), type_.dtype, axis)


def array_of(constant: Constant | None) -> Array | None:
    """The content of a constant that is known at conversion and of moderate size."""
    if isinstance(constant, Blob):
        return evaluate(constant)
    if isinstance(constant, Splat) and constant.dtype is not DType.STRING:
        count = prod(constant.shape)
        return evaluate(constant) if type(count) is int and count <= 1 << 20 else None
    return None


def constant(graph: Graph, array: Any, heir: Node) -> int:
    """A new constant that stands for what `heir` stands for."""
    return graph.add_const(blob(np.asarray(array)), "", heir.origin)


def zero_point(graph: Graph, scaled: Scaled, heir: Node) -> int:
    """The value of the zero point, also where the node leaves it out."""
    return scaled.zero if scaled.zero != ABSENT else constant(graph, np.zeros((), scaled.dtype.numpy), heir)
