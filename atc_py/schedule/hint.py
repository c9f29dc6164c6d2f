"""The hint: a value for each symbol, at which figures that need numbers are evaluated.

What the user gives stands. Otherwise a batch (axis 0 of an input) is 1 and any other symbol 16, clipped to its range.
Where the model then has no meaning (a requirement is violated: a height that must be 48, a signal shorter than its
window), the symbols of the violated requirements are tried at other sizes, alone and in pairs, in a fixed order; then
equalities are solved for one of their symbols and the rest is climbed to.

    requires (H + 15)//48 = 1, hint {N: 1, H: 16}   →   {N: 1, H: 33}: the first size tried that satisfies it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

from atc_py.ir.dims import evaluate, symbols_of
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import Tensor
from atc_py.plan.live import dead_branches, meets, violated
from atc_py.plan.types import Plan, Requirement
from atc_py.schedule.frames import lay_out
from atc_py.schedule.requirements import requirements

SIZES = (32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 4096, 8192, 16000, 16384)
"""Sizes to try, smallest first, before the odd ones."""
SMALL = (1, 2, 4, 8)
ODD = tuple(range(1, 513))
ROUNDS = 8
STEPS = 4_000
"""How many combinations are tried at the most."""


def default_hint(graph: Graph, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """The hint before any requirement is looked at."""
    given = given or {}
    batch = {
        s for v in graph.inputs if isinstance(t := graph.type(v), Tensor) and t.shape for s in symbols_of(t.shape[0])
    }
    return {
        name: _clipped(given.get(name, 1 if name in batch else 16), range_)
        for name, range_ in graph.symbols.items()
        if not range_.runtime
    }


def _clipped(value: int, range_: Range) -> int:
    return max(range_.lo, value if range_.hi is None else min(value, range_.hi))


def fitting_hint(
    hint: Mapping[str, int], requirements: Sequence[Requirement], symbols: Mapping[str, Range], given: Sequence[str]
) -> dict[str, int]:
    """The hint, with the symbols that are not `given` moved so that every requirement holds, if that can be found."""
    wrong = violated(requirements, hint)
    if not wrong:
        return dict(hint)
    for env in _candidates(hint, _movable(wrong, hint, given), symbols):
        # Most sizes fail what was wrong, which is quickly seen.
        if all(meets(r, env) for r in wrong) and not violated(requirements, env):
            return env
    for starting in (_tied(hint, requirements, symbols, given), hint):
        env = _climbed(starting, requirements, symbols, given)
        if not violated(requirements, env):
            return env
    return dict(hint)


def _tied(
    hint: Mapping[str, int], requirements: Sequence[Requirement], symbols: Mapping[str, Range], given: Sequence[str]
) -> dict[str, int]:
    """The hint after each equality has been solved for one of its symbols, where it is linear in it.

    What broadcasts is taken to be equal. The equalities are gone through until they hold, a bounded number of times.
    """
    env = dict(hint)
    equalities = [r for r in requirements if r.relation in ("==", "~")]
    for _ in range(ROUNDS):
        for r in equalities:
            if not meets(r, env):
                _solve(env, r, symbols, given)
        if all(meets(r, env) for r in equalities):
            break
    return env


def _solve(env: dict[str, int], r: Requirement, symbols: Mapping[str, Range], given: Sequence[str]) -> None:
    """Move one symbol of an equality so that both sides agree: the last one in which the difference is linear."""
    for name in reversed(_movable([r], env, given)):
        try:
            at = [evaluate(r.left, {**env, name: k}) - evaluate(r.right, {**env, name: k}) for k in (0, 1)]
        except ZeroDivisionError:
            continue
        slope = at[1] - at[0]
        if not slope or at[0] % slope or -at[0] // slope < 0:
            continue
        moved = {**env, name: _clipped(-at[0] // slope, symbols[name])}
        if meets(r, moved) and moved[name] > 0:
            env[name] = moved[name]
            return


def _movable(requirements: Sequence[Requirement], hint: Mapping[str, int], given: Sequence[str]) -> list[str]:
    """The symbols of the requirements that may take other values, each once, in order."""
    sides = (side for r in requirements for side in (r.left, r.right))
    return list(dict.fromkeys(s for side in sides for s in symbols_of(side) if s in hint and s not in given))


def _climbed(
    hint: Mapping[str, int], requirements: Sequence[Requirement], symbols: Mapping[str, Range], given: Sequence[str]
) -> dict[str, int]:
    """One symbol after the other moved to the first size that leaves fewer requirements violated, while one does.

    This finds what many symbols must do at once (each of ten sizes a multiple of 3), which no search in pairs does.
    """
    env, wrong = dict(hint), violated(requirements, hint)
    while wrong:
        better = _step(env, wrong, requirements, symbols, given)
        if better is None:
            break
        env, wrong = better, violated(requirements, better)
    return env


def _step(
    env: Mapping[str, int], wrong: Sequence[Requirement], requirements: Sequence[Requirement],
    symbols: Mapping[str, Range], given: Sequence[str],
) -> dict[str, int] | None:  # fmt: skip
    for requirement in wrong:
        for name in _movable([requirement], env, given):
            for size in (*SIZES, *SMALL, *ODD, 0):
                moved = {**env, name: _clipped(size, symbols[name])}
                # Most sizes fail the requirement itself, which is quickly seen.
                if meets(requirement, moved) and len(violated(requirements, moved)) < len(wrong):
                    return moved
    return None


def graph_hint(graph: Graph, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """The hint of a graph that is not lowered yet: what passes count with is what figures are evaluated at."""
    hint = default_hint(graph, given)
    return plan_hint(hint, requirements(lay_out(graph)), graph.symbols, tuple(given or {})) if hint else hint


def plan_hint(
    hint: Mapping[str, int], requirements: Sequence[Requirement], symbols: Mapping[str, Range], given: Sequence[str]
) -> dict[str, int]:
    """The hint for a plan: what always holds is met, and of each If at least one branch is alive where possible."""
    needs = [r for r in requirements if r.branch < 0]
    found = fitting_hint(hint, needs, symbols, given)
    dead = {r.branch for r in violated(requirements, found)}
    for first in sorted(b for b in dead if b >= 0 and b % 2 == 0 and b + 1 in dead):
        if not {first, first + 1} <= {r.branch for r in violated(requirements, found)}:
            continue
        for branch in (first, first + 1):
            wanted = needs + [r for r in requirements if r.branch == branch]
            env = fitting_hint(found, wanted, symbols, given)
            if not violated(wanted, env):
                needs, found = wanted, env
                break
    return found


def live_hints(plan: Plan) -> list[dict[str, int]]:
    """For each branch that is dead under the plan's hint, values under which it is alive, where they are found."""
    hint = dict(plan.hint or {})
    found: list[dict[str, int]] = []
    for branch in sorted(dead_branches(plan, hint)):
        needs = [r for r in plan.requirements if r.branch in (-1, branch)]
        env = fitting_hint(hint, needs, plan.symbols, ())
        if not violated(needs, env) and env not in found:
            found.append(env)
    return found


def _candidates(
    hint: Mapping[str, int], names: Sequence[str], symbols: Mapping[str, Range]
) -> Iterator[dict[str, int]]:
    steps = 0
    for count, sizes in ((1, SIZES + SMALL), (2, SIZES + SMALL), (1, ODD), (3, SIZES)):
        for chosen in combinations(names, count):
            for values in product(sizes, repeat=count):
                env = {**hint, **{s: _clipped(v, symbols[s]) for s, v in zip(chosen, values, strict=True)}}
                steps += 1
                if steps > STEPS:
                    return
                yield env
