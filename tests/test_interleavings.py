"""Plans run in random interleavings: no result changes by a bit, nor with a changed plan that the verifier lets pass.

    Session(om, debug_memory=True, shuffle=7)      each run draws another order that streams and events allow

Of larger plans not all interleavings can be run, as `tests/plan/interleavings.py` does; these are samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atc_py import Session
from atc_py.compiler import Options, compile_model, prove
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.plan.types import Plan
from atc_py.runtime.loader import Loaded, load
from models import catalog
from tests.conftest import CorpusModel
from tests.plan.mutants import KINDS

SMALL = [name for name, entry in catalog.load_manifest().items() if entry.kind == "repo"]
OTHERS = [name for name, entry in catalog.load_manifest().items() if entry.kind != "repo" and entry.bytes < 1 << 20]
QUICK = ["small_transformer", "yolo_raw", "centernet_topk", "bigru_text", "loop_while_if", "moe_nonzero", "scan_rnn"]
TIMES = 20
Get = Callable[[str], CorpusModel]


def same(one: Any, other: Any) -> bool:
    """Whether two results agree in every bit."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()


def unchanged(loaded: Loaded, feeds: dict[str, Any], want: list[Any], runs: int, seed: int) -> bool:
    """Whether so many runs of the plan, each in an order of its own, give what is wanted."""
    session = Session(loaded, debug_memory=True, shuffle=seed)
    return all(same(session.run(None, feeds), want) for _ in range(runs))


def shuffled_runs(model: CorpusModel, runs: int) -> None:
    feeds = dict(model.inputs())
    for level in (0, 2):
        loaded = load(om_bytes(compile_model(model.source, Options(opt_level=level))))
        assert unchanged(loaded, feeds, Session(loaded).run(None, feeds), runs, seed=level)


@pytest.mark.parametrize("name", SMALL)
def test_shuffled_runs_give_the_same_bits(name: str, corpus_model: Get) -> None:
    shuffled_runs(corpus_model(name), 5 if name in QUICK else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_hundred_shuffled_runs_give_the_same_bits(name: str, corpus_model: Get) -> None:
    shuffled_runs(corpus_model(name), 100)


# -- changed plans -------------------------------------------------------------------------------------------------


def fixed(model: CorpusModel, level: int) -> Loaded:
    """The model for the shapes of its inputs, so that its plan has addresses; its buffers say nothing of lifetimes.

    What they said would no longer be true of a changed order, and the verifier would mind.
    """
    shapes = {name: np.shape(array) for name, array in model.inputs().items() if isinstance(array, np.ndarray)}
    loaded = load(om_bytes(compile_model(model.source, Options(opt_level=level, input_shapes=shapes))))
    assert all(r.runtime for r in loaded.plan.symbols.values())
    return replace(loaded, plans=(replace(loaded.plan, buffers=_unsaid(loaded.plan)),))


def _unsaid(plan: Plan) -> Any:
    return tuple(replace(b, first=-1, last=-1) for b in plan.buffers)


def passes(plan: Plan) -> bool:
    """Whether the verifier finds nothing."""
    try:
        prove(plan)
    except AtcError:
        return False
    return True


def several_orders(plan: Plan) -> bool:
    """Whether streams leave any choice: the tasks of one stream have one order, and all shuffled runs would be one."""
    return len({task.stream for task in plan.tasks()}) > 1


def mutants_that_pass(model: CorpusModel, level: int, each: int) -> dict[str, int]:
    """(kind → how many passed and gave the same bits) of `each` mutants of each kind."""
    loaded, feeds = fixed(model, level), dict(model.inputs())
    assert passes(loaded.plan), "no alarm for the plan itself"
    want = Session(loaded).run(None, feeds)
    rng = random.Random(f"{model.entry.id} {level}")
    found = dict.fromkeys(KINDS, 0)
    for kind, mutate in KINDS.items():
        for k in range(each):
            mutant = mutate(rng, loaded.plan)
            if mutant is None or not passes(mutant):
                continue
            runs = TIMES if several_orders(mutant) else 1
            assert unchanged(replace(loaded, plans=(mutant,)), feeds, want, runs, seed=k), f"{kind}, number {k}"
            found[kind] += 1
    return found


@pytest.mark.parametrize("name", QUICK)
def test_changed_plans_that_pass_give_the_same_bits(name: str, corpus_model: Get) -> None:
    mutants_that_pass(corpus_model(name), 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(n, marks=pytest.mark.needs_models) for n in OTHERS)])
def test_more_changed_plans_that_pass_give_the_same_bits(name: str, level: int, corpus_model: Get) -> None:
    mutants_that_pass(corpus_model(name), level, 12)


def test_some_changed_plans_pass(corpus_model: Get) -> None:
    """Or the tests above would show nothing."""
    rng, plan = random.Random(1), fixed(corpus_model("yolo_raw"), 0).plan
    found = {kind: [m for _ in range(20) if (m := mutate(rng, plan)) is not None] for kind, mutate in KINDS.items()}
    passing = {kind: sum(map(passes, mutants)) for kind, mutants in found.items()}
    assert all(found.values()), found
    assert passing["move an address"] and passing["swap two tasks"], passing
    assert all(passing[kind] < len(found[kind]) for kind in KINDS), passing
