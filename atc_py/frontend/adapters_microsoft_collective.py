"""onnxruntime's collectives, under the names of this NPU's.

com.microsoft::AllReduce(x)                          →   HcomAllReduce(x)         the group is all devices of the run
com.microsoft::AllGather(x) {axis, group_size}       →   HcomAllGather(x) {axis, rank_size}
com.microsoft::AllToAll(x) {group_size}              →   HcomAllToAll(x) {rank_size}

Each takes any number of tensors, which are one collective after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atc_py.frontend.adapters_microsoft import MS
from atc_py.frontend.draft import Draft
from atc_py.frontend.extensions import extension
from atc_py.ir.graph import ABSENT
from atc_py.ops.base import Attr

_GROUP = {"group_size": Attr("int", 1)}


def _each(d: Draft, op: str, attrs: Mapping[str, Any]) -> list[int]:
    """The collective of each tensor."""
    if len(d.inputs) != d.outputs or ABSENT in d.inputs:
        d.fail(f"it has {len(d.inputs)} inputs and {d.outputs} outputs", "each tensor has one result")
    made = []
    for k, value in enumerate(d.inputs):
        name = d.label if len(d.inputs) == 1 else f"{d.label}/{k}"
        names = (d.names[k] if k < len(d.names) else "", "")
        made.append(d.scope.emit(op, [value], attrs, outputs=2, name=name, origin=(d.label,), names=names)[0])
    return made


def _ranks(d: Draft) -> int:
    size: int = d.attrs["group_size"]
    if size < 1:
        d.fail(f"attribute 'group_size' is {size}", "a group has at least one device")
    return size


@extension(f"{MS}AllReduce", inputs="input*", outputs="output*")
def _all_reduce(d: Draft) -> list[int]:
    return _each(d, "HcomAllReduce", {})


@extension(f"{MS}AllGather", inputs="input*", outputs="output*", attrs={"axis": Attr("int", 1), **_GROUP})
def _all_gather(d: Draft) -> list[int]:
    return _each(d, "HcomAllGather", {"axis": d.attrs["axis"], "rank_size": _ranks(d)})


@extension(f"{MS}AllToAll", inputs="input*", outputs="output*", attrs=_GROUP)
def _all_to_all(d: Draft) -> list[int]:
    return _each(d, "HcomAllToAll", {"rank_size": _ranks(d)})
