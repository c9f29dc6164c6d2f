"""Collectives: what a group of devices computes together, under the names that they have on this NPU (HCCL).

    HcomAllReduce   y = x of device 0 + x of device 1 + …                         [8, 64]  →  [8, 64]
    HcomAllGather   y = the x of all devices, one after the other along `axis`    [8, 64]  →  [16, 64]   two devices
    HcomAllToAll    part k of x goes to device k, in the place of its part        [8, 64]  →  [8, 64]

A collective ends when all devices of its group have come to it, so all have to come to their collectives in one order,
or two wait for each other for ever. The order lies in the data: the second result of each, `done`, is an empty tensor
which the next one takes as `after`. No pass, no fused task and no order of tasks can turn what the data says round.

`rank_size` is how many devices a group has; 0: all those on which the model is run. In a group of one a collective is a
copy. Devices move their parts in a ring (AllToAll: directly), which is what `sent` and `messages` of the cost count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.errors import error
from atc_py.ir.dims import Size
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, Op, Result, declare, elements

RANKS = 8
"""The devices of a group that counts all of them, for the clock: those of one server."""
DONE = Tensor(DType.UINT8, (0,))
"""What orders collectives."""
WORLD = "hccl_world_group"
"""HCCL's name of the group of all devices."""


def _collective(name: str, **attrs: Attr) -> Op:
    own = {"group": Attr("str", WORLD), "rank_size": Attr("int", 0), **attrs}
    flags = Flags(side_effects=True)
    op = declare(name, inputs="x after?", outputs="y done", attrs=own, flags=flags, engine=Engine.HCCL)
    op.prepare(_alone)
    op.kernel(_copy)
    return op


def _alone(call: Call) -> None:
    """Refuse a group that the simulator does not have."""
    size = call.attrs["rank_size"]
    if size > 1:
        cause = f"it is a collective of {size} devices, and the simulator has one"
        raise error("E40008", "", cause, "atc inspect, profile and verify work; run the OM on devices")


def _copy(call: Call, x: Array, after: Array | None = None) -> Any:
    y = call.into(0, x.shape, x.dtype)
    np.copyto(y, x)
    return y, call.into(1, (0,), np.uint8)


def _ranks(n: Infer) -> int:
    """The devices of the group, at least 0."""
    size: int = n.attrs["rank_size"]
    if size < 0:
        n.fail(f"a group of {size} devices")
    return size


all_reduce = _collective("HcomAllReduce", reduction=Attr("str", "sum"))
all_gather = _collective("HcomAllGather", axis=Attr("int", 0))
all_to_all = _collective("HcomAllToAll")


@all_reduce.infer
def _reduced(n: Infer) -> Result:
    _ranks(n)
    if n.attrs["reduction"] not in ("sum", "prod", "max", "min"):
        n.fail(f"the reduction '{n.attrs['reduction']}' is none of sum, prod, max and min")
    return n.tensor(0), DONE


@all_gather.infer
def _gathered(n: Infer) -> Result:
    x, axis, ranks = n.tensor(0), n.attrs["axis"], _ranks(n)
    if not ranks:
        n.fail("the size of the group must be known, for the result has the parts of all its devices")
    if x.shape is None:
        return Tensor(x.dtype, None), DONE
    if not -len(x.shape) <= axis < len(x.shape):
        n.fail(f"axis {axis} of a tensor of rank {len(x.shape)}")
    shape = list(x.shape)
    shape[axis] = shape[axis] * ranks
    return Tensor(x.dtype, tuple(shape)), DONE


@all_to_all.infer
def _exchanged(n: Infer) -> Result:
    x, ranks = n.tensor(0), _ranks(n)
    first = x.shape[0] if x.shape else None
    if x.shape == () or (ranks and isinstance(first, int) and first % ranks):
        n.fail(f"the first dim, {first}, has no equal part for each of {ranks} devices")
    return x, DONE


def _known(ranks: int) -> int:
    return ranks or RANKS


@all_reduce.cost
def _(n: Infer) -> Cost:
    """Each device sends every part but one, twice: to be added up, and to be told."""
    others = _known(_ranks(n)) - 1
    return Cost(sent=_share(2 * others * elements(n.types[0]), others + 1), messages=2 * others)


@all_gather.cost
def _(n: Infer) -> Cost:
    others = _known(_ranks(n)) - 1
    return Cost(sent=others * elements(n.types[0]), messages=others)


@all_to_all.cost
def _(n: Infer) -> Cost:
    others = _known(_ranks(n)) - 1
    return Cost(sent=_share(others * elements(n.types[0]), others + 1), messages=others)


def _share(amount: Size, parts: int) -> Size:
    return (amount + parts - 1) // parts
