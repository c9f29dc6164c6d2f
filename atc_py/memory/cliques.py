"""Conflict graphs as numbers: which blocks ride on others, which fit anyway, and the cliques that hold all conflicts.

    conflicts  a–b, b–c, c–d, d–b          b conflicts with a, c and d, all others may share
    a rides on c (or d): whatever conflicts with a conflicts with c too, c is no smaller, and a and c may share bytes,
    so a plan of the others leaves a place for a where c lies
    cliques    {b, c, d}

A set of blocks is an int with a bit for each; blocks are numbered by falling size, so the lowest bit is the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count

from atc_py.memory.problem import Budget


@dataclass
class Graph:
    """The blocks that are left, by number: `order[number]` is the block, `near[number]` the set of its conflicts."""

    order: list[int]
    size: list[int]
    near: list[int]


def graph_of(sizes: Sequence[int], conflicts: Sequence[Sequence[int]]) -> Graph:
    """The graph of the blocks that have a size."""
    order = sorted((i for i, s in enumerate(sizes) if s), key=lambda i: (-sizes[i], i))
    number = {i: k for k, i in enumerate(order)}
    near = [bits_of([number[j] for j in conflicts[i] if j in number], len(order)) for i in order]
    return Graph(order, [sizes[i] for i in order], near)


def bits_of(numbers: Sequence[int], count: int) -> int:
    """The set of these numbers, all below `count`.

    Of many numbers it is made as text in one go, for each `|=` copies all the bits.
    """
    if len(numbers) * 32 < count:
        bits = 0
        for k in numbers:
            bits |= 1 << k
        return bits
    digits = bytearray(b"0") * (count + 1)
    for k in numbers:
        digits[count - k] = 49  # "1"
    return int(digits, 2)


_TRUTH = bytes.maketrans(b"01", b"\0\1")


def members(bits: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    if bits.bit_count() << 4 < bits.bit_length():
        return _few(bits)
    return compress(count(), bin(bits)[:1:-1].encode().translate(_TRUTH))


def _few(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def ride(graph: Graph, budget: Budget) -> tuple[int, list[tuple[int, int]]]:
    """The set of blocks to place, and (block, on which it rides), in the order in which they come off."""
    alive = (1 << len(graph.order)) - 1
    rides: list[tuple[int, int]] = []
    changed = True
    while changed:
        changed = False
        for i in reversed(list(members(alive))):
            near = graph.near[i] & alive
            others = alive & ~near & ((1 << i) - 1)  # no smaller than i
            for j in members(near) if others else ():
                budget.used += 1
                others &= graph.near[j]
                if not others:
                    break
            if others:
                rides.append((i, (others & -others).bit_length() - 1))
                alive ^= 1 << i
                changed = True
    return alive, rides


def peel_graph(graph: Graph, alive: int, capacity: int) -> tuple[int, list[int]]:
    """The set of blocks to place first, and the others in the order in which they then fit (see `reduce`)."""
    size = graph.size
    near = {i: list(members(graph.near[i] & alive)) for i in members(alive)}
    nbytes = {i: sum([size[j] for j in others]) for i, others in near.items()}
    holes = {i: len(others) + 1 for i, others in near.items()}
    peeled: list[int] = []
    changed = True
    while changed:
        changed = False
        for i in members(alive):
            if nbytes[i] + holes[i] * (size[i] - 1) < capacity:
                alive ^= 1 << i
                peeled.append(i)
                changed = True
                for j in near[i]:
                    nbytes[j] -= size[i]
                    holes[j] -= 1
    return alive, peeled[::-1]


def cliques(graph: Graph, alive: int, known: Sequence[int] = ()) -> list[list[int]]:
    """Cliques in which each conflict of the set `alive` is found, and each of its blocks; large blocks attract.

    `known` are cliques that are among them, as sets.
    """
    open_ = [near & alive for near in graph.near]
    found: list[list[int]] = []
    for clique in known:
        found.append(list(members(clique & alive)))
        for j in found[-1]:
            open_[j] &= ~clique
    for i in members(alive):
        if not graph.near[i] & alive:
            found.append([i])
        while open_[i]:
            clique, common = 1 << i, graph.near[i] & alive
            while common:
                pick = common & open_[i] or common
                low = pick & -pick
                clique |= low
                common &= graph.near[low.bit_length() - 1]
            found.append(list(members(clique)))
            for j in found[-1]:
                open_[j] &= ~clique
    return found


def heaviest_clique(graph: Graph, alive: int, best: int, budget: Budget) -> int:
    """The most bytes of blocks that are all in conflict with each other: branch and bound from a clique of `best`.

    The bound of a branch are classes of blocks without conflicts: a clique has at most one of each.
    """
    stack: list[tuple[int, int]] = [(alive, 0)]
    while stack:
        candidates, total = stack.pop()
        best = max(best, total)
        if budget.left <= 0:
            continue
        branches: list[tuple[int, int]] = []
        rest, bound = candidates, total
        while rest:
            independent, heaviest = rest, 0
            while independent:
                low = independent & -independent
                i = low.bit_length() - 1
                heaviest = max(heaviest, graph.size[i])
                branches.append((i, bound + heaviest))
                independent &= ~(graph.near[i] | low)
                rest ^= low
                budget.used += 1
            bound += heaviest
        pending: list[tuple[int, int]] = []
        for i, most in reversed(branches):
            if most > best:
                pending.append((candidates & graph.near[i], total + graph.size[i]))
            candidates &= ~(1 << i)
        stack += pending[::-1]
    return best
