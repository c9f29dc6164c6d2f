"""The arena's need as a formula over the symbols.

    live together at some task: 4096*N and 2*N*S   or   1000*N*S
    bound: max(2*N*S + 4096*N + 1022, 1000*N*S + 511)

For every shape the formula is at least the arena's lower bound, and above it by less than the arena's alignment for
each buffer that is live. Sums that another one dominates for all symbol values are left out; when more than a handful
remain, the last ones are merged into one that dominates them all (coefficient by coefficient).
"""

from __future__ import annotations

from atc_py.ir.dim_poly import DimOverflow, Monomial, build, terms_of
from atc_py.memory.allocate import ALIGNMENT
from atc_py.plan.types import Buffer, Plan, Space

TERMS = 6
"""How many sums the formula names at the most."""

_Sum = dict[Monomial, int]
"""A polynomial: monomial → coefficient."""


def bound_formula(plan: Plan) -> str:
    """The formula's text."""
    sums: list[_Sum] = []
    for members in _maximal(tuple(b for b in plan.buffers if b.space is Space.ARENA)):
        _add(sums, _sum(members))
    sums.sort(key=_text)
    while len(sums) > TERMS:
        last, before = sums.pop(), sums.pop()
        sums.append({m: max(last.get(m, 0), before.get(m, 0)) for m in {**before, **last}})
    texts = [_text(s) for s in sums] or ["0"]
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _maximal(buffers: tuple[Buffer, ...]) -> list[tuple[Buffer, ...]]:
    """The sets of buffers that are live together, those contained in another left out."""
    starts = sorted(buffers, key=lambda b: (b.first, b.id))
    found: list[tuple[Buffer, ...]] = []
    live: list[Buffer] = []
    for i, b in enumerate(starts):
        live = [o for o in live if o.last >= b.first] + [b]
        following = starts[i + 1] if i + 1 < len(starts) else None
        if following is None or any(o.last < following.first for o in live):
            found.append(tuple(live))
    return found


def _sum(members: tuple[Buffer, ...]) -> _Sum:
    total: _Sum = {}
    for b in members:
        for monomial, coefficient in terms_of(b.nbytes):
            total[monomial] = total.get(monomial, 0) + coefficient
    total[()] = total.get((), 0) + (ALIGNMENT - 1) * len(members)
    return total


def _add(sums: list[_Sum], new: _Sum) -> None:
    """Add a sum unless another dominates it; drop those that it dominates."""
    if any(_dominates(s, new) for s in sums):
        return
    sums[:] = [s for s in sums if not _dominates(new, s)]
    sums.append(new)


def _dominates(a: _Sum, b: _Sum) -> bool:
    return all(a.get(m, 0) >= c for m, c in b.items()) and all(c >= b.get(m, 0) for m, c in a.items())


def _text(total: _Sum) -> str:
    try:
        return str(build(total))
    except DimOverflow:
        return " + ".join(f"{c}*({build({m: 1})})" for m, c in total.items())
