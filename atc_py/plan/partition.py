"""The PLAN_TABLE partition: where blobs lie in WEIGHTS_DATA, and the packed plans (one a device).

8 B  "ATCPLAN1"
u32  blobs B          u32  plans P
u64  base: offset in WEIGHTS_DATA of the WEIGHTS space's byte 0
B × { u64 offset, u64 nbytes }          in WEIGHTS_DATA
P × { u64 offset, u64 nbytes }          in this partition, 8-byte aligned
the plans
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from atc_py.errors import AtcError, error

MAGIC = b"ATCPLAN1"
_HEAD = struct.Struct("<8sIIQ")
_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True)
class PlanPartition:
    """The partition's parts; places are (offset, nbytes) in WEIGHTS_DATA, plans are packed tables."""

    base: int
    blobs: tuple[tuple[int, int], ...]
    plans: tuple[memoryview, ...]


def pack(base: int, blobs: Sequence[tuple[int, int]], plans: Sequence[bytes]) -> bytes:
    """The partition's bytes."""
    start = _HEAD.size + _PLACE.size * (len(blobs) + len(plans))
    start = -(-start // 8) * 8
    places, body, end = [], [], start
    for plan in plans:
        places.append((end, len(plan)))
        padding = -len(plan) % 8
        body += [plan, bytes(padding)]
        end += len(plan) + padding
    head = _HEAD.pack(MAGIC, len(blobs), len(plans), base)
    table = b"".join(_PLACE.pack(*p) for p in [*blobs, *places])
    head += table
    return b"".join([head, bytes(start - len(head)), *body])


def unpack(data: memoryview, weights_nbytes: int) -> PlanPartition:
    """The parts of a partition; `weights_nbytes` is the size of WEIGHTS_DATA. Raises `AtcError` E30010."""
    if data.nbytes < _HEAD.size:
        raise _broken(0, f"has {data.nbytes} bytes, its head takes {_HEAD.size}")
    magic, n_blobs, n_plans, base = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _broken(0, "does not start with its mark")
    if base > weights_nbytes:
        raise _broken(16, f"puts the weights at {base} of {weights_nbytes} bytes")
    if _HEAD.size + _PLACE.size * (n_blobs + n_plans) > data.nbytes:
        raise _broken(8, f"announces {n_blobs} blobs and {n_plans} plans in {data.nbytes} bytes")
    places = [_PLACE.unpack_from(data, _HEAD.size + _PLACE.size * i) for i in range(n_blobs + n_plans)]
    for i, (offset, nbytes) in enumerate(places):
        limit = weights_nbytes if i < n_blobs else data.nbytes
        if offset + nbytes > limit:
            cause = f"has [{offset}, {offset + nbytes}) in a space of {limit} bytes"
            raise _broken(_HEAD.size + _PLACE.size * i, cause)
    plans = tuple(data[o : o + n] for o, n in places[n_blobs:])
    return PlanPartition(base, tuple(places[:n_blobs]), plans)


def _broken(at: int, cause: str) -> AtcError:
    return error("E30010", f"plan partition +0x{at:x}", f"the partition {cause}", "convert the model again")
