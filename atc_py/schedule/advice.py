"""Which tasks to look at, and why: what a profile says about where time could be saved.

    12.4 %   3 tasks on AI CPU            NonZero, …          no AI Core kernel; each costs a hand-over
     8.1 %   conversions of format        TransData, …        operators that take other formats stand side by side
     6.0 %   launch-bound tasks           Add, Mul, …         they take longer to launch than to run: fuse or batch

An item names its tasks, the microseconds that they take, and what can be done. Nothing is advised without a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from atc_py.schedule.profile import ASSUMED, Profile, Row

LEAST = 0.02
"""The share of the latency below which nothing is said."""
PADDED = 1.5
"""A cube that does so much more than its products need works on padding or leaves cores idle."""


@dataclass(frozen=True)
class Item:
    """One piece of advice: its title, the tasks by name, the microseconds at stake, why, and what to do."""

    title: str
    tasks: tuple[str, ...]
    microseconds: float
    share: float
    why: str
    what: str


@dataclass(frozen=True)
class _Kind:
    title: str
    concerns: Callable[[Row], bool]
    stake: Callable[[Row], float]
    why: str
    what: str


_KINDS = (
    _Kind(
        "tasks on AI CPU",
        lambda r: r.engine == "aicpu",
        lambda r: r.total,
        "AI Core has no kernel for these operators or dtypes; each is handed over, and its vector rate is far lower",
        "replace the operator, or its dtype (float64 and int64 data), in the model",
    ),
    _Kind(
        "tasks on the host",
        lambda r: r.engine == "host",
        lambda r: r.total,
        "sizes that depend on data, strings and sequences are the host's; the device waits",
        "give fixed shapes with --input-shape, or move this work out of the model",
    ),
    _Kind(
        "conversions of format and dtype",
        lambda r: r.kernel in ("TransData", "Cast", ASSUMED),
        lambda r: r.total,
        "neighbours want other formats or dtypes",
        "'atc explain' shows which operators ask for what; a precision mode with fewer borders has fewer Casts",
    ),
    _Kind(
        "launch-bound tasks",
        lambda r: r.engine == "aicore" and r.bound_by == "launch" and r.kernel not in ("TransData", "Cast", ASSUMED),
        lambda r: r.launch * r.times,
        "they take longer to launch than to run",
        "'atc explain' says what keeps them from being fused; a larger batch shares the launch",
    ),
    _Kind(
        "cubes that work on padding",
        lambda r: r.bound_by == "cube" and r.padded >= PADDED,
        lambda r: r.cube * (1 - 1 / r.padded) * r.times,
        "rows, depth or columns are no multiples of the cube's blocks, or too few to fill all cores",
        "choose channels that are multiples of 16 (32 for int8), or a larger batch",
    ),
    _Kind(
        "memory-bound tasks",
        lambda r: r.engine == "aicore" and r.bound_by == "memory" and r.kernel not in ("TransData", "Cast", ASSUMED),
        lambda r: max(0.0, r.memory - max(r.cube, r.vector)) * r.times,
        "moving their operands takes longer than computing",
        "float16 halves the bytes (--precision-mode fp16); fusing with a neighbour saves a trip",
    ),
    _Kind(
        "waits for other streams",
        lambda r: r.wait > 0,
        lambda r: r.wait * r.times,
        "a task's input, or the cores that it needs, are still in use",
        "--single-stream compares; see the trace for who waits for whom",
    ),
)


def advice(profile: Profile) -> list[Item]:
    """What to look at, the greatest stake first."""
    latency = profile.latency
    found = [item for kind in _KINDS if (item := _item(kind, profile.rows, latency)) is not None]
    if latency and profile.held / latency >= LEAST:
        found.append(_held(profile))
    launch = profile.target.rates.model_us
    if latency and launch / latency >= 0.3:
        why = f"a model's launch takes {launch:.0f} us, whatever it does"
        what = "a larger batch shares it"
        found.append(Item("the launch of the model", (), launch, launch / latency, why, what))
    return sorted(found, key=lambda item: -item.microseconds)


def _held(profile: Profile) -> Item:
    """The device stands still while the host hands over the next part of the model, or finds out what comes next."""
    handed, held = profile.handing, profile.held
    counted = f"launches: {handed.launches}, waits: {handed.synchronisations}"
    each = f"most take the host {profile.target.rates.host_task_us:.0f} us, and the device stands still"
    what = (
        "the trace shows what the host waits for: sizes that depend on data (NonZero, Unique, ...), conditions, its "
        "own tasks; --sink graph hands over as much at once as can be"
    )
    return Item("launches and waits of the host", (), held, held / profile.latency, f"{counted}; {each}", what)


def _item(kind: _Kind, rows: Sequence[Row], latency: float) -> Item | None:
    concerned = sorted((r for r in rows if kind.concerns(r) and kind.stake(r)), key=lambda r: (-kind.stake(r), r.task))
    stake = sum(map(kind.stake, concerned))
    if not latency or stake / latency < LEAST:
        return None
    return Item(kind.title, tuple(_names(concerned)), stake, stake / latency, kind.why, kind.what)


def _names(rows: Sequence[Row]) -> Iterator[str]:
    yield from dict.fromkeys(r.name for r in rows)
