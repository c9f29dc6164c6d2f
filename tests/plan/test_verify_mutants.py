"""The verifier against all interleavings: on mutants of small plans the two must say the same, in both directions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from atc_py.errors import AtcError
from atc_py.memory import bind
from atc_py.plan.text import print_plan
from atc_py.plan.types import Plan
from atc_py.plan.verify import verify
from tests.plan.mutants import KINDS
from tests.plan.oracle import Rejected, judge_bytes
from tests.plan.small_plans import MOST_TASKS, good_plan, scheduled_plan

Count = Counter[tuple[str, str]]


def verified(plan: Plan) -> str:
    """What the verifier finds wrong; '' for nothing."""
    binding = bind(plan)
    try:
        verify(plan, binding.offsets, binding.sizes, binding.env)
    except AtcError as e:
        return str(e)
    return ""


def judged(plan: Plan) -> str:
    """What the oracle finds wrong; '' for nothing."""
    try:
        judge_bytes(plan)
    except Rejected as e:
        return str(e)
    return ""


def compare(plan: Plan, kind: str = "") -> bool:
    """Whether the plan is harmful; fails unless both agree."""
    mine, theirs = verified(plan), judged(plan)
    assert bool(mine) == bool(theirs), f"{kind}\nverifier: {mine}\noracle: {theirs}\n{print_plan(plan)}"
    return bool(theirs)


def tried(each: int, seed: int, of_one: int = 3) -> Count:
    """(kind, what) → how many, for at least `each` mutants of each kind; half of them of plans of the scheduler's."""
    rng = random.Random(seed)
    count: Count = Counter()
    turn = 0
    while any(count[kind, "mutants"] < each for kind in KINDS):
        scheduled = turn % 2 == 1
        plan = scheduled_plan(rng) if scheduled else good_plan(rng, MOST_TASKS)
        turn += 1
        assert not compare(plan), "the plan itself is good"
        for kind, mutate in KINDS.items():
            for _ in range(of_one if count[kind, "mutants"] < each else 0):
                mutant = mutate(rng, plan)
                if mutant is None:
                    continue
                count[kind, "mutants"] += 1
                count[kind, "scheduled"] += scheduled
                count[kind, "harmful"] += compare(mutant, kind)
    return count


def table(count: Count) -> str:
    """The counts as people read them."""
    lines = [f"{'kind':24}{'mutants':>9}{'harmful':>9}{'harmless':>10}{'scheduled':>11}"]
    for kind in (*KINDS, "all"):
        row = [sum(count[k, what] for k in KINDS if kind in ("all", k)) for what in ("mutants", "harmful", "scheduled")]
        lines.append(f"{kind:24}{row[0]:9,}{row[1]:9,}{row[0] - row[1]:10,}{row[2]:11,}")
    return "\n".join(lines)


def check(count: Count, each: int) -> None:
    for kind in KINDS:
        assert count[kind, "mutants"] >= each and count[kind, "scheduled"] >= each // 10
        assert each / 20 < count[kind, "harmful"] < count[kind, "mutants"], "both are there"


def test_verifier_and_oracle_agree() -> None:
    check(tried(190, seed=1), 190)


@pytest.mark.slow
def test_verifier_and_oracle_agree_on_ten_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    count = tried(1300, seed=2)
    with capsys.disabled():
        print(f"\n{table(count)}")
    check(count, 1300)
