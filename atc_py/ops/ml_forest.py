"""Tree ensembles as flat tables, walked by all rows and all trees at once.

    node 0:  x[1] ≤ 0.5 ?  → 1 : 2          nodes   feature [1, 0, 0]   split [0.5, ·, ·]
    node 1:  leaf, 3.0                              yes     [1, 1, 2]   no    [2, 1, 2]
    node 2:  leaf, 7.0                              leaves point at themselves

    at = roots of every row and tree;   repeat: at = yes[at] where x[row, feature[at]] passes, else no[at]

until no place changes: as many rounds as the deepest tree is high. A set membership becomes a chain of equalities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from atc_py.ops.base import Array, InferError

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""Comparisons in the order in which TreeEnsemble numbers them."""
_MEMBER = MODES.index("MEMBER")
_PASSES = np.array(
    # less, equal, greater, NaN
    [[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0]],
    np.bool_,
)
"""Whether a comparison passes; NaN follows `missing` instead."""
_BLOCK = 1 << 17
"""Places (rows times trees) that are walked at once, so that the few arrays of a round stay in the cache."""
_SIMPLE = {0: np.less_equal, 1: np.less, 2: np.greater_equal, 3: np.greater}


@dataclass(frozen=True)
class Forest:
    """`weights` is [nodes, targets], `given` says which of them a leaf gives (None: every leaf gives all)."""

    feature: Array
    split: Array
    mode: Array
    missing: Array
    yes: Array
    no: Array
    roots: Array
    weights: Array
    given: Array | None
    depth: int

    @cached_property
    def _simple(self) -> Any:
        """The comparison that all nodes make, where they do."""
        return _SIMPLE.get(int(self.mode[0])) if self.mode.size and (self.mode == self.mode[0]).all() else None

    @cached_property
    def _tracks(self) -> bool:
        return bool(self.missing.any())

    @cached_property
    def features(self) -> int:
        """The least number of features that an input must have."""
        inner = self.yes != np.arange(len(self.yes))
        return int(self.feature[inner].max(initial=-1)) + 1

    def places(self, x: Array) -> Array:
        """The leaf that each row of `x` reaches in each tree: [trees, rows]."""
        at = np.repeat(self.roots[:, None], len(x), axis=1)
        row = np.arange(len(x))
        simple, track = self._simple, self._tracks
        for _ in range(self.depth):
            value = x[row, self.feature[at]]
            split = self.split[at]
            if simple is not None:
                passed: Array = simple(value, split)
            else:
                order = np.where(value < split, 0, np.where(value == split, 1, np.where(value > split, 2, 3)))
                passed = _PASSES[self.mode[at], order]
            if track:
                passed = passed | (np.isnan(value) & self.missing[at])
            at = np.where(passed, self.yes[at], self.no[at])
        return at

    def scores(self, x: Array, how: str, dtype: Any) -> Array:
        """The aggregate (`SUM`, `AVERAGE`, `MIN`, `MAX`) of the leaves' weights: [rows, targets].

        Trees are added one after the other, as other runtimes do: a tie stays a tie.
        """
        out = np.zeros((len(x), self.weights.shape[1]), dtype)
        step = max(1, _BLOCK // max(1, len(self.roots)))
        for start in range(0, len(x), step):
            part = out[start : start + step]
            at = self.places(x[start : start + step])
            leaves = self.weights[at].astype(dtype, copy=False)
            if how in ("SUM", "AVERAGE"):
                np.add.reduce(leaves, axis=0, out=part)
                if how == "AVERAGE" and len(self.roots):
                    np.divide(part, dtype(len(self.roots)), out=part)
                continue
            fold, start_value = (np.minimum, np.inf) if how == "MIN" else (np.maximum, -np.inf)
            if self.given is not None:
                leaves = np.where(self.given[at], leaves, dtype(start_value))
            fold.reduce(leaves, axis=0, out=part, initial=start_value)
            part[part == start_value] = 0  # a target that no leaf gives
        return out


def _depth(yes: Array, no: Array, roots: Array) -> int:
    """Rounds until every place is a leaf; raises `InferError` for a tree that runs in a circle."""
    front, depth = np.unique(roots), 0
    while True:
        inner = front[(yes[front] != front) | (no[front] != front)]
        if not inner.size:
            return depth
        depth += 1
        if depth > len(yes):
            raise InferError("the trees' nodes form a circle")
        front = np.unique(np.concatenate([yes[inner], no[inner]]))


def forest(
    tables: Mapping[str, Array], roots: Array, weights: Array, given: Array | None, members: Sequence[Array] = ()
) -> Forest:
    """A forest of node tables `feature split mode missing yes no`; `members` are the sets of MEMBER nodes, in order."""
    t = {name: np.asarray(array) for name, array in tables.items()}
    count = len(t["yes"])
    for name in ("yes", "no"):
        if t[name].size and not (t[name].min() >= 0 and t[name].max() < count):
            raise InferError(f"a node's branch leads outside of the {count} nodes")
    if (t["mode"] == _MEMBER).any():
        t, weights, given = _chains(t, weights, given, members)
    depth = _depth(t["yes"], t["no"], roots)
    return Forest(
        t["feature"].astype(np.int64), t["split"], t["mode"].astype(np.int64), t["missing"].astype(np.bool_),
        t["yes"].astype(np.int64), t["no"].astype(np.int64), roots.astype(np.int64), weights, given, depth,
    )  # fmt: skip


def _chains(
    t: dict[str, Array], weights: Array, given: Array | None, members: Sequence[Array]
) -> tuple[dict[str, Array], Array, Array | None]:
    """Replace each set membership by equalities, tried one after the other."""
    where = np.flatnonzero(t["mode"] == _MEMBER)
    if len(where) != len(members):
        raise InferError(f"{len(where)} nodes test a set membership, but {len(members)} sets are given")
    t = {name: array.copy() for name, array in t.items()}
    extra: dict[str, list[Array]] = {name: [] for name in t}
    count = len(t["yes"])
    t["split"] = t["split"].astype(np.result_type(t["split"], *members))
    for node, values in zip(where.tolist(), members, strict=True):
        t["mode"][node] = MODES.index("EQ")
        if not len(values):
            # Nothing equals NaN, so an empty set sends every value the other way.
            t["split"][node] = np.nan
            continue
        t["split"][node] = values[0]
        more = len(values) - 1
        if not more:
            continue
        chain = np.arange(count, count + more)
        rest = {
            "feature": t["feature"][node], "mode": t["mode"][node], "missing": t["missing"][node],
            "yes": t["yes"][node], "no": t["no"][node], "split": 0,
        }  # fmt: skip
        for name, value in rest.items():
            extra[name].append(np.full(more, value, t[name].dtype))
        extra["split"][-1][:] = values[1:]
        extra["no"][-1][:-1] = chain[1:]
        t["no"][node] = chain[0]
        count += more
    t = {name: np.concatenate([array, *extra[name]]) for name, array in t.items()}
    pad = count - len(weights)
    weights = np.concatenate([weights, np.zeros((pad, weights.shape[1]), weights.dtype)])
    if given is not None:
        given = np.concatenate([given, np.zeros((pad, given.shape[1]), np.bool_)])
    return t, weights, given
