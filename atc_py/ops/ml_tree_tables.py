"""Tree ensembles' attributes as the tables of a forest, checked.

TreeEnsembleClassifier and TreeEnsembleRegressor name a node by (tree id, node id) and keep leaves among the nodes;
TreeEnsemble names nodes by place and keeps leaves in a list of their own:

    nodes_truenodeids [1, 0]  nodes_trueleafs [0, 1]   →   node 0 leads to node 1, node 1 to leaf 0, which is node 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ops.base import Array, InferError
from atc_py.ops.ml_forest import MODES, Forest, forest
from atc_py.ops.shape_values import constant_array


def tree_numbers(attrs: Mapping[str, Any], name: str, dtype: np.dtype[Any]) -> Array | None:
    """A list of floats, or the tensor that replaces it; the tensor's own type where it is wider than `dtype`."""
    tensor = attrs[f"{name}_as_tensor"]
    if tensor is not None:
        found = constant_array(tensor).reshape(-1)
        return found.astype(np.result_type(found.dtype, dtype))
    return None if attrs[name] is None else np.array(attrs[name], dtype)


def _same_length(attrs: Mapping[str, Any], names: Sequence[str]) -> int:
    lengths = {len(attrs[n]) for n in names}
    if len(lengths) != 1:
        shown = ", ".join(f"{n} {len(attrs[n])}" for n in names)
        raise InferError(f"attributes that describe the same nodes differ in length: {shown}")
    return lengths.pop()


_BY_ID = ("nodeids", "treeids", "modes", "featureids", "truenodeids", "falsenodeids")
_BY_PLACE = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")


def check_lengths(attrs: Mapping[str, Any], kind: str = "") -> int:
    """The number of nodes; raises `InferError` where lists that describe the same nodes or leaves differ in length."""
    if kind:
        _same_length(attrs, [f"{kind}_{n}" for n in ("ids", "nodeids", "treeids")])
    return _same_length(attrs, [f"nodes_{n}" for n in (_BY_ID if kind else _BY_PLACE)])


def by_id(attrs: Mapping[str, Any], kind: str, targets: int, dtype: np.dtype[Any]) -> Forest:
    """The forest of the older two operators."""
    count = check_lengths(attrs, kind)
    trees, nodes = (np.array(attrs[f"nodes_{n}"], np.int64) for n in ("treeids", "nodeids"))
    find = _Places(trees, nodes)
    leaf = np.array([m == "LEAF" for m in attrs["nodes_modes"]], np.bool_)
    own = np.arange(count)
    yes, no = (
        np.where(leaf, own, find(trees, np.where(leaf, nodes, np.array(attrs[f"nodes_{n}"]))))
        for n in ("truenodeids", "falsenodeids")
    )
    if (yes < 0).any() or (no < 0).any():
        raise InferError("a branch leads to a node that its tree does not have")
    splits = tree_numbers(attrs, "nodes_values", dtype)
    tables = {
        "feature": np.where(leaf, 0, np.array(attrs["nodes_featureids"], np.int64)),
        "split": np.zeros(count, dtype) if splits is None else splits,
        "mode": np.array([_mode(m) for m in attrs["nodes_modes"]], np.int64),
        "missing": np.array(attrs["nodes_missing_value_tracks_true"] or [0] * count, np.bool_),
        "yes": yes,
        "no": no,
    }
    # Leaves take the comparison of the first inner node: a forest of one comparison then walks on a fast path.
    inner = tables["mode"][~leaf]
    tables["mode"][leaf] = inner[0] if inner.size else 0
    weights, given = _weights(attrs, kind, find, count, targets, dtype)
    return forest(tables, _roots(trees, yes, no, leaf), weights, given)


def _mode(name: str) -> int:
    plain = name.removeprefix("BRANCH_")
    if name == "LEAF":
        return 0
    if plain not in MODES[:-1]:
        raise InferError(f"attribute 'nodes_modes' names '{name}', which is no comparison")
    return MODES.index(plain)


class _Places:
    """Finds nodes by (tree id, node id)."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self._trees, self._nodes = trees, nodes
        self._order = np.lexsort((nodes, trees))
        self._base = int(min(nodes.min(initial=0), 0))
        self._span = int(nodes.max(initial=0)) - self._base + 1
        self._known = np.unique(trees)
        self._keys = self._key(trees, nodes)[self._order]

    def _key(self, trees: Array, nodes: Array) -> Array:
        return np.asarray(np.searchsorted(self._known, trees) * self._span + (nodes - self._base))

    def __call__(self, trees: Array, nodes: Array) -> Array:
        """The places of nodes, -1 for those that do not exist."""
        inside = (nodes >= self._base) & (nodes < self._base + self._span)
        known = np.minimum(np.searchsorted(self._known, trees), max(0, len(self._known) - 1))
        inside &= self._known[known] == trees if len(self._known) else False
        key = self._key(trees, nodes)
        at = np.minimum(np.searchsorted(self._keys, key), max(0, len(self._keys) - 1))
        return np.asarray(np.where(inside & (self._keys[at] == key), self._order[at], -1))


def _roots(trees: Array, yes: Array, no: Array, leaf: Array) -> Array:
    """Each tree's node that no branch of it leads to; trees in the order of the model."""
    led = np.zeros(len(trees), np.bool_)
    led[yes[~leaf]] = True
    led[no[~leaf]] = True
    free = np.flatnonzero(~led)
    _, first = np.unique(trees[free], return_index=True)
    roots = free[np.sort(first)]
    if len(roots) != len(np.unique(trees)):
        raise InferError("a tree has no root: its nodes form a circle")
    return roots


def _weights(
    attrs: Mapping[str, Any], kind: str, find: _Places, count: int, targets: int, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """The weight that each node gives to each target, and whether it gives one."""
    ids, nodes, trees = (np.array(attrs[f"{kind}_{n}"], np.int64) for n in ("ids", "nodeids", "treeids"))
    values = tree_numbers(attrs, f"{kind}_weights", dtype)
    if values is None or len(values) != len(ids):
        raise InferError(f"attribute '{kind}_weights' must have {len(ids)} values")
    if ids.size and not (ids.min() >= 0 and ids.max() < targets):
        raise InferError(f"attribute '{kind}_ids' must lie in [0, {targets})")
    at = find(trees, nodes)
    if (at < 0).any():
        raise InferError(f"attribute '{kind}_nodeids' names a node that does not exist")
    weights = np.zeros((count, targets), values.dtype)
    np.add.at(weights, (at, ids), values)
    given = np.zeros((count, targets), np.bool_)
    given[at, ids] = True
    return weights, given


def by_place(attrs: Mapping[str, Any]) -> Forest:
    """The forest of TreeEnsemble: leaf k is node `count + k`."""
    count = check_lengths(attrs)
    modes = constant_array(attrs["nodes_modes"]).reshape(-1).astype(np.int64)
    splits = constant_array(attrs["nodes_splits"]).reshape(-1)
    leaf_weights = constant_array(attrs["leaf_weights"]).reshape(-1)
    leaves, targets = len(leaf_weights), np.array(attrs["leaf_targetids"], np.int64)
    if len(targets) != leaves or len(modes) != count or len(splits) != count:
        raise InferError("attributes that describe the same nodes or leaves differ in length")
    own = np.arange(count, count + leaves)
    given = {n: np.array(attrs[f"nodes_{n}"], np.int64) for n in _BY_PLACE}
    ends = {
        side: np.concatenate([np.where(given[f"{side}leafs"] != 0, count, 0) + given[f"{side}nodeids"], own])
        for side in ("true", "false")
    }
    missing = np.array(attrs["nodes_missing_value_tracks_true"] or [0] * count, np.bool_)
    first = modes[0] if count else 0
    tables = {
        "feature": np.concatenate([given["featureids"], np.zeros(leaves, np.int64)]),
        "split": np.concatenate([splits, np.zeros(leaves, splits.dtype)]),
        "mode": np.concatenate([modes, np.full(leaves, first if first != MODES.index("MEMBER") else 0, np.int64)]),
        "missing": np.concatenate([missing, np.zeros(leaves, np.bool_)]),
        "yes": ends["true"],
        "no": ends["false"],
    }
    weights = np.zeros((count + leaves, attrs["n_targets"]), leaf_weights.dtype)
    weights[own, targets] = leaf_weights
    has = np.zeros(weights.shape, np.bool_)
    has[own, targets] = True
    return forest(tables, np.array(attrs["tree_roots"], np.int64), weights, has, _members(attrs))


def _members(attrs: Mapping[str, Any]) -> list[Array]:
    """The sets of the MEMBER nodes, which NaN separates."""
    if attrs["membership_values"] is None:
        return []
    values = constant_array(attrs["membership_values"]).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else np.array([], np.int64)
    return [values[a:b] for a, b in zip(starts.tolist(), ends.tolist())]
