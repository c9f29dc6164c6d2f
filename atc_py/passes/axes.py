"""A Transpose beside Reshapes moves axes that are parts of what it says: said directly, a Reshape goes.

    x: [b, 12, s, 8] ─ Reshape [12b, s, 8] ─ Transpose(0, 2, 1) ─ Reshape [b, 12, 8, s]
                                                              →    x ─ Transpose(0, 1, 3, 2)
    x: [b, 36, 1, 172] ─ Transpose(0, 2, 3, 1) ─ Reshape [b, 172, 36, 1]
                                                              →    x ─ Transpose(0, 3, 1, 2)
    x: [64, b, 32] ─ Reshape [64, 4b, 8] ─ Transpose(1, 0, 2) ─ Reshape [b, 4, 64, 8]
                                                              →    x ─ Reshape [64, b, 4, 8] ─ Transpose(1, 2, 0, 3)

Law: axes of shapes of one tensor in C order are products of the same *atoms*, of which 4b · 8 = b · 32 has b, 4, 8; a
Transpose of products is the Transpose of their atoms. The first Reshape goes where the atoms of each axis of x stay
together, the second one where those of each axis of the result do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from atc_py.ir.dims import DimOverflow, Size, floordiv
from atc_py.ir.graph import Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, known_at_start
from atc_py.passes.lineage import Lineage
from atc_py.passes.rewriting import become, shaped, sweep
from atc_py.passes.transposes import perm_of

Dims = tuple[Size, ...]
Plan = tuple[Dims, tuple[int, ...], Dims]
Planner = Callable[[Dims, Dims, tuple[int, ...], Dims], "Plan | None"]
"""`plan`, which remembers what it has been asked."""


def merge_axes(graph: Graph, ctx: PassContext) -> int:
    """Remove Reshapes around Transposes; returns how many went."""
    changed = 0
    planned = cache(plan)
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op in ("Reshape", "Transpose")]:
            before = graph.producer(node.inputs[0])
            if len(graph.values[node.inputs[0]].uses) != 1:
                continue
            if node.op == "Transpose":
                if before.op == "Reshape":
                    changed += _merge(graph, lineage, planned, before, node, None)
            elif before.op == "Transpose":
                first = graph.producer(before.inputs[0])
                changed += _merge(graph, lineage, planned, first if first.op == "Reshape" else None, before, node)
    return changed


def _merge(
    graph: Graph, lineage: Lineage, planned: Planner, first: Node | None, transpose: Node, last: Node | None
) -> int:
    """Of a Transpose with a Reshape before it, after it or both, take away what can go."""
    end = last or transpose
    x = (first or transpose).inputs[0]
    a, c = dims_of(graph, x), dims_of(graph, end.outputs[0])
    b, perm = dims_of(graph, transpose.inputs[0]), perm_of(graph, transpose)
    if a is None or b is None or c is None or perm is None or not known_at_start(graph, (*a, *c)):
        return 0
    found = planned(a, b, perm, c)
    if found is None or ((first is None or last is None) and found[2] != c):
        return 0
    before, order, after = found
    if (first is None or last is None) and before != a:
        return 0
    source = shaped(graph, x, before, end)
    if after == c:
        become(graph, end, "Transpose", [source], {"perm": order})
        sweep(graph, lineage, end, [n for n in (transpose, first) if n is not None and n is not end])
        return 1
    graph.set_input(transpose, 0, source)
    transpose.attrs = {"perm": order}
    value = graph.values[transpose.outputs[0]]
    value.type = value.tensor.with_shape(after)
    if first is not None and lineage.drop(first):
        lineage.inherit(transpose, first)
    return 1


# -- atoms -------------------------------------------------------------------------------------------------------


def plan(a: Dims, b: Dims, perm: Sequence[int], c: Dims) -> Plan | None:
    """(shape, permutation, its result) with which [a → b, perm, → c] takes a Reshape less; None: it does not.

    The shape is a itself, or the result is c.
    """
    try:
        atoms = _atoms(a, b, perm, c)
    except DimOverflow:
        return None
    if atoms is None:
        return None
    sizes, order, by_a, by_c = atoms
    whole = _together(by_a, order)
    if whole is not None:
        return _from_source(a, whole, c, [_product(sizes, g) for g in by_a])
    whole = _together(by_c, list(range(len(sizes))))
    if whole is None:
        return None
    return _to_result(c, whole)


def through(a: Dims, perm: Sequence[int], c: Dims) -> tuple[Dims, tuple[int, ...]] | None:
    """(shape, permutation) with which a transposed by `perm` and reshaped to c is a reshaped, then transposed."""
    try:
        atoms = _atoms(a, a, perm, c)
    except DimOverflow:
        return None
    whole = None if atoms is None else _together(atoms[3], list(range(len(atoms[0]))))
    return None if whole is None else _to_result(c, whole)[:2]


def _atoms(
    a: Dims, b: Dims, perm: Sequence[int], c: Dims
) -> tuple[list[Size], list[int], list[list[int]], list[list[int]]] | None:
    """Atoms in the order of a; the order in which the result has them; the atoms of each axis of a, and of c.

    Axes of size 1 have none.
    """
    one = refine(_proper(a), _proper(b))
    if one is None:
        return None
    sizes, by_a, by_b = one
    places = {axis: i for i, axis in enumerate(i for i, d in enumerate(b) if d != 1)}
    order = [atom for axis in perm if axis in places for atom in by_b[places[axis]]]
    two = refine([sizes[i] for i in order], _proper(c))
    if two is None:
        return None
    finer, parts, by_c = two
    # Atoms that c cuts further are cut everywhere: number the parts in the order of a.
    numbers: dict[int, int] = {}
    new_sizes: list[Size] = []
    new_by_a: list[list[int]] = []
    position = {atom: at for at, atom in enumerate(order)}
    for group in by_a:
        new_by_a.append([])
        for atom in group:
            for part in parts[position[atom]]:
                numbers[part] = len(new_sizes)
                new_by_a[-1].append(len(new_sizes))
                new_sizes.append(finer[part])
    return new_sizes, [numbers[i] for i in range(len(finer))], new_by_a, [[numbers[i] for i in g] for g in by_c]


def _proper(dims: Dims) -> list[Size]:
    return [d for d in dims if d != 1]


def refine(a: Sequence[Size], b: Sequence[Size]) -> tuple[list[Size], list[list[int]], list[list[int]]] | None:
    """The atoms of two shapes of one tensor without axes of size 1: sizes, and the atoms of each axis of a and of b.

    [b, 32] and [4b, 8] have the atoms b, 4, 8. None where one size does not divide the other.
    """
    sizes: list[Size] = []
    groups: tuple[list[list[int]], list[list[int]]] = ([[]], [[]])
    left, right = list(a), list(b)
    while left and right:
        x, y = left[0], right[0]
        atom: Size | None = x if x == y or _times(y, x) is not None else y if _times(x, y) is not None else None
        if atom is None:
            return None
        for rest, group in ((left, groups[0]), (right, groups[1])):
            group[-1].append(len(sizes))
            if rest[0] == atom:
                rest.pop(0)
                group.append([])
            else:
                quotient = _times(rest[0], atom)
                assert quotient is not None
                rest[0] = quotient
        sizes.append(atom)
    if left or right:
        return None
    return sizes, groups[0][:-1], groups[1][:-1]


def _times(product: Size, factor: Size) -> Size | None:
    """product / factor where that is exact, else None."""
    if type(product) is int and type(factor) is int:
        return product // factor if factor and product and product % factor == 0 else None
    if product == 0 or factor == 0:
        return None
    quotient = floordiv(product, factor)
    return quotient if quotient != 0 and quotient * factor == product else None


def _product(sizes: Sequence[Size], group: Sequence[int]) -> Size:
    total: Size = 1
    for i in group:
        total = total * sizes[i]
    return total


def _together(groups: Sequence[Sequence[int]], order: Sequence[int]) -> list[int] | None:
    """The order of whole groups in `order` where each group stays together, else None."""
    starts = {group[0]: i for i, group in enumerate(groups)}
    found: list[int] = []
    at = 0
    while at < len(order):
        i = starts.get(order[at])
        if i is None or list(order[at : at + len(groups[i])]) != list(groups[i]):
            return None
        found.append(i)
        at += len(groups[i])
    return found


def _from_source(a: Dims, whole: list[int], c: Dims, sizes: list[Size]) -> tuple[Dims, tuple[int, ...], Dims]:
    """The axes of a permuted; those of size 1 where c has them, if it has as many."""
    proper = [i for i, d in enumerate(a) if d != 1]
    ones = [i for i, d in enumerate(a) if d == 1]
    moved = [proper[i] for i in whole]
    if [a[i] for i in moved] == _proper(c) and len(ones) == len(c) - len(moved):
        spare = iter(ones)
        queue = iter(moved)
        order = [next(spare) if d == 1 else next(queue) for d in c]
    else:
        order = [*ones, *moved]
    return a, tuple(order), tuple([a[i] for i in order])


def _to_result(c: Dims, whole: list[int]) -> tuple[Dims, tuple[int, ...], Dims]:
    """The shape whose permutation is c: its axes in the order of x, those of size 1 where c has them.

    An axis of size 1 stays where it is, so that the permutation is the one of the same axes of a larger size.
    """
    proper = [i for i, d in enumerate(c) if d != 1]
    queue = iter([proper[i] for i in whole])
    lies = [i if d == 1 else next(queue) for i, d in enumerate(c)]
    back = {axis: at for at, axis in enumerate(lies)}
    return tuple([c[i] for i in lies]), tuple([back[i] for i in range(len(c))]), c
