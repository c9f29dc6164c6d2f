"""What of a plan has a meaning under given symbol values.

A requirement that always holds must be met, or the shapes are refused. One inside a branch of an If says only that this
branch cannot be taken: a network for two sample rates is right for one of them at a time. The branch is then *dead*: it
is not bound, the verifier looks at the other one, and taking it at run time is an error. Of gears only the one that the
values name is alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atc_py.ir.dims import UnboundSymbol, evaluate
from atc_py.plan.gears import in_gear
from atc_py.plan.types import Gears, If, Loop, Plan, Region, Requirement, Scan, Space, children, own_operands, walk


def meets(requirement: Requirement, env: Mapping[str, int]) -> bool:
    """Whether the requirement holds under `env`; one that divides by zero does not.

    One with a symbol that only the run time binds is not held against the shapes.
    """
    try:
        left, right = evaluate(requirement.left, env), evaluate(requirement.right, env)
    except ZeroDivisionError:
        return False
    except UnboundSymbol:
        return True
    if requirement.relation == "~":
        return left == right or 1 in (left, right)
    return left == right if requirement.relation == "==" else left >= right


def violated(requirements: Sequence[Requirement], env: Mapping[str, int]) -> list[Requirement]:
    """The requirements that do not hold under `env`."""
    return [r for r in requirements if not meets(r, env)]


def dead_branches(plan: Plan, env: Mapping[str, int]) -> frozenset[int]:
    """The numbers of the branches whose requirements do not hold under `env`."""
    return frozenset(r.branch for r in violated([q for q in plan.requirements if q.branch >= 0], env))


def branch_numbers(regions: Sequence[Region]) -> dict[int, int]:
    """For each If, by identity, the number of its then_branch; its else_branch has the next one."""
    ifs = [r for r in walk(tuple(regions)) if isinstance(r, If)]
    return {id(r): 2 * k for k, r in enumerate(ifs)}


def live(plan: Plan, env: Mapping[str, int]) -> Plan:
    """The plan without its dead branches, an If with one of them being only the other branch, and dead gears."""
    dead, alive = dead_branches(plan, env), in_gear(plan, env)
    if not dead:
        return alive
    return replace(alive, regions=_live(alive.regions, branch_numbers(plan.regions), dead))


def unmet(plan: Plan, env: Mapping[str, int]) -> list[Requirement]:
    """Why the plan cannot be bound under `env`.

    Requirements that always hold, and those of an If that would be reached and has no live branch.
    """
    wrong = violated(plan.requirements, env)
    found = [r for r in wrong if r.branch < 0]
    dead = frozenset(r.branch for r in wrong if r.branch >= 0)
    if any(b % 2 == 0 and b + 1 in dead for b in dead):
        stuck = _stuck(plan.regions, branch_numbers(plan.regions), dead)
        found += [r for r in wrong if r.branch in stuck]
    return found


def _stuck(regions: Sequence[Region], numbers: Mapping[int, int], dead: frozenset[int]) -> set[int]:
    """The branches of every If that would be reached and has no live branch."""
    found: set[int] = set()
    stack = list(regions)
    while stack:
        region = stack.pop()
        if isinstance(region, If):
            first = numbers[id(region)]
            alive = [b for k, b in enumerate((region.then_branch, region.else_branch)) if first + k not in dead]
            found |= set() if alive else {first, first + 1}
            stack += [r for b in alive for r in b]
        else:
            stack += [r for body in children(region) for r in body]
    return found


def dead_buffers(plan: Plan, env: Mapping[str, int]) -> frozenset[int]:
    """The buffers that only dead branches and gears use: they need no memory under `env`."""
    alive = live(plan, env)
    if alive is plan:
        return frozenset()
    used = {o.buffer for t in alive.tasks() for o in t.operands()}
    used |= {o.buffer for r in walk(alive.regions) for o in own_operands(r)}
    used |= {p.buffer for p in (*plan.inputs, *plan.outputs)}
    planned = (Space.ARENA, Space.DYNAMIC, Space.WORKSPACE)
    return frozenset(b.id for b in plan.buffers if b.id not in used and b.space in planned)


def _live(regions: Sequence[Region], numbers: Mapping[int, int], dead: frozenset[int]) -> tuple[Region, ...]:
    found: list[Region] = []
    for region in regions:
        if isinstance(region, If):
            first = numbers[id(region)]
            branches = [_live(b, numbers, dead) for b in (region.then_branch, region.else_branch)]
            alive = [b for k, b in enumerate(branches) if first + k not in dead]
            if len(alive) == 2:
                found.append(replace(region, then_branch=alive[0], else_branch=alive[1]))
            else:
                found += alive[0] if alive else ()
        elif isinstance(region, (Loop, Scan)):
            found.append(replace(region, body=_live(region.body, numbers, dead)))
        elif isinstance(region, Gears):
            found.append(replace(region, bodies=tuple(_live(b, numbers, dead) for b in region.bodies)))
        else:
            found.append(region)
    return tuple(found)
