"""The exact search: is there a plan within a capacity? Depth first, with backtracking, over canonical plans only.

In a canonical plan each block lies at 0 or directly on a block that is live with it: every plan can be pushed down
into one. Time is cut into sections at the starts and ends of lifetimes. For each section the search knows a floor,
below which nothing more can go (sections that hold no more than another one are left out):

    floor      3 ┤    ┌──┐            section 1 has floor 3, the others 2. In section 0 either one of the blocks that
               2 ┤────┘  └──── ...    can lie at 2 does, or none does; then its floor rises to the least place where
    section      0    1    2          one of its blocks can rest. Both are tried, nothing else is possible.

What is derived after each step (spatial inference):

- a block lies at or above the highest floor of its sections;
- a section's floor is at least the lowest such place among its blocks;
- a section is dead when some of its blocks, those that cannot lie below x, have more bytes than capacity - x;

and the section to look at next is the one with the fewest choices for the trouble that it has made so far, among
those whose possible blocks would lie flat: below them nothing can come later. A section with the lowest floor of all
is always among them.

A run that meets many dead ends was unlucky early on, so it starts again with other preferences among the choices and
with what it knows about the sections' trouble; how many dead ends a run may meet follows Luby's sequence 1 1 2 1 1 2 4
… (Luby, Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993), so that a long one comes too and can
be exhaustive. Every other run prefers for each block the place that it had when most blocks were placed in any run so
far: the parts of the problem that went well need not be found again ("phase saving": Pipatsrisawat and Darwiche, "A
lightweight component caching scheme for satisfiability solvers", SAT 2007).

Canonical plans, inference over sections, and the dominance of equal blocks follow Moffitt, "MiniMalloc: A Lightweight
Memory Allocator for Hardware-Accelerated Machine Learning" (ASPLOS 2023), which branches on blocks in order of
offset; branching on the floor of one section and counting its trouble ("dom/wdeg", Boussemart et al., ECAI 2004) is
this module's way.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from atc_py.memory.cliques import bits_of, members
from atc_py.memory.problem import Block, Budget

RUN = 16
"""Dead ends of the shortest run."""

FRESH = 4
"""Steps for what is derived of a section however few blocks it has."""

NONE = -1
"""The choice that no block lies at the floor."""


@dataclass
class _Undo:
    """What a step changed: (section, floor, choices before) and (block, lowest place before)."""

    sections: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    placed: int = NONE


@dataclass
class _Frame:
    """A section to decide, its choices (blocks, and NONE), and the step being tried."""

    section: int
    choices: list[int]
    undo: _Undo | None = None


def search(
    sizes: Sequence[int], sections: Sequence[Sequence[int]], capacity: int, budget: Budget
) -> tuple[list[int] | None, bool]:
    """Offsets within `capacity` or None; and whether that is certain (False: the budget ended the search).

    `sections` lists blocks that are all live at once; any two that must not share bytes are in one together. Nothing
    else is asked of it, so it may also be the cliques of a conflict graph. Sizes are above 0.
    """
    budget.used += sum(map(len, sections))
    if budget.left <= 0:
        return None, False
    state = _State(sizes, sections, capacity, budget)
    run = 0
    while budget.left > 0:
        run += 1
        state.restart(run)
        if not state.begin():
            return None, True
        found = _run(state, RUN * _luby(run))
        if found is not None:
            return (state.offsets if found else None), True
    return None, False


def sections_of(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks that are live at once, for each time from a start to the next end: no other set holds more."""
    events = sorted([(b.lower, 1, i) for i, b in enumerate(blocks)] + [(b.upper, 0, i) for i, b in enumerate(blocks)])
    live: dict[int, None] = {}
    found: list[list[int]] = []
    started = False
    for _, begins, i in events:
        if begins:
            live[i] = None
        else:
            if started:
                found.append(list(live))
            del live[i]
        started = bool(begins)
    return found


def _run(state: _State, dead_ends: int) -> bool | None:
    """One search from the beginning: whether there is a plan; None after so many dead ends or at the budget's end."""
    frames: list[_Frame] = []
    while state.left:
        if dead_ends <= 0 or state.budget.left <= 0:
            return None
        frames.append(state.decide())
        while not state.advance(frames[-1]):
            dead_ends -= 1
            frames.pop()
            if not frames:
                return False
        state.remember()
    return True


def _luby(run: int) -> int:
    """1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 … for `run` from 1."""
    bits = run.bit_length()
    return 1 << (bits - 1) if run == (1 << bits) - 1 else _luby(run - (1 << (bits - 1)) + 1)


def _together(spans: Sequence[Sequence[int]], sections: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each block the others that are in one of its sections."""
    sets = [bits_of(inside, len(spans)) for inside in sections]
    near: list[list[int]] = []
    for i, span in enumerate(spans):
        found = 0
        for t in span:
            found |= sets[t]
        near.append(list(members(found & ~(1 << i))))
    return near


class _State:
    """Floors, lowest places and the blocks placed so far."""

    def __init__(self, sizes: Sequence[int], sections: Sequence[Sequence[int]], capacity: int, budget: Budget) -> None:
        self.capacity, self.budget = capacity, budget
        self.size, self.members = list(sizes), sections
        self.spans: list[list[int]] = [[] for _ in sizes]
        for t, inside in enumerate(sections):
            for i in inside:
                self.spans[i].append(t)
        self.near = _together(self.spans, sections)
        budget.used += sum(map(len, self.near))
        self.kinds = list(zip(map(tuple, self.spans), self.size, strict=True))
        self.trouble = [1] * len(sections)
        self.most, self.saved = 0, [NONE] * len(sizes)
        """How many blocks were placed at best, and where they then lay."""
        self.restart(1)

    def restart(self, run: int) -> None:
        """Forget all places but the saved ones, which even runs prefer.

        Else the run's number says what blocks are preferred by: area, size or lifetime, and chance.
        """
        self.guided = run % 2 == 0
        count = len(self.members)
        self.floor, self.choices = [0] * count, [0] * count
        self.pending = [sum(self.size[i] for i in m) for m in self.members]
        self.waiting = [list(m) for m in self.members]
        """For each section the blocks without a place, and their bytes in `pending`."""
        self.left = len(self.size)
        self.lowest, self.offsets = [0] * self.left, [NONE] * self.left
        rng = random.Random(run)
        self.appeal: list[float] = []
        for size, span in zip(self.size, self.spans, strict=True):
            worth = (size * len(span), size, len(span))[(run - 1) % 3]
            self.appeal.append(worth * (1.0 if run == 1 else 2 * rng.random()))

    def remember(self) -> None:
        """Save the places if there are more than ever."""
        placed = len(self.size) - self.left
        if placed > self.most:
            self.most, self.saved = placed, self.offsets.copy()

    def begin(self) -> bool:
        """Derive what holds before anything is placed; False when there is no plan."""
        undo = _Undo()
        return all(self._refresh(t, undo) for t in range(len(self.floor)))

    def decide(self) -> _Frame:
        """A section that is due and has the fewest choices for its trouble; its choices, the most appealing first."""
        keys = []
        for t, count in enumerate(self.choices):
            if count:
                room = self.capacity - self.floor[t] - self.pending[t]
                keys.append(((count + 0.5 * (room > 0)) / self.trouble[t], room, t))
        self.budget.used += len(self.choices)
        best = min(keys)[2]
        if not self._due(best):
            best = next(t for _, _, t in sorted(keys) if self._due(t))
        floor, seen, choices = self.floor[best], set(), []
        for i in self.waiting[best]:
            if self.lowest[i] == floor and self.kinds[i] not in seen:
                seen.add(self.kinds[i])  # equal blocks can change places: one of them stands for all
                choices.append(i)
        choices.sort(key=lambda i: (self.guided and self.saved[i] != floor, -self.appeal[i], i))
        return _Frame(best, [*choices, NONE])

    def _due(self, t: int) -> bool:
        """Whether the blocks that can lie at the floor of section `t` lie flat: nothing can come below them later."""
        floor = self.floor[t]
        possible = [i for i in self.waiting[t] if self.lowest[i] == floor]
        return not any(self.floor[u] < floor for i in possible for u in self.spans[i])

    def advance(self, frame: _Frame) -> bool:
        """Take back the frame's last step and make its next one that leaves hope; False when there is none."""
        if frame.undo is not None:
            self._take_back(frame.undo)
            frame.undo = None
        while frame.choices:
            choice = frame.choices.pop(0)
            undo = _Undo(placed=choice)
            possible = self._rise(frame.section, undo) if choice == NONE else self._place(choice, undo)
            if possible:
                frame.undo = undo
                return True
            self._take_back(undo)
        self.trouble[frame.section] += 1
        return False

    def _place(self, i: int, undo: _Undo) -> bool:
        """Put block `i` at its lowest place."""
        offset = self.offsets[i] = self.lowest[i]
        self.left -= 1
        top, span = offset + self.size[i], self.spans[i]
        for t in span:
            undo.sections.append((t, self.floor[t], self.choices[t]))
            self.floor[t] = top
            self.pending[t] -= self.size[i]
            self.waiting[t].remove(i)
        return self._lift(self.near[i], top, set(span), undo)

    def _rise(self, t: int, undo: _Undo) -> bool:
        """Let nothing lie at the floor of section `t`: raise it to where its next block can rest."""
        floor, least, members = self.floor[t], self.capacity + 1, set(self.members[t])
        for i in self.waiting[t]:
            if self.lowest[i] > floor:
                least = min(least, self.lowest[i])
                continue
            self.budget.used += len(self.near[i])
            for j in self.near[i]:
                if self.offsets[j] < 0 and j not in members:
                    least = min(least, max(self.lowest[j] + self.size[j], floor + 1))
        if least + self.pending[t] > self.capacity:
            return False
        undo.sections.append((t, floor, self.choices[t]))
        self.floor[t] = least
        return self._lift(self.members[t], least, {t}, undo)

    def _lift(self, blocks: Sequence[int], top: int, changed: set[int], undo: _Undo) -> bool:
        """Raise the lowest places of `blocks` to `top` and derive what follows; False for a dead section."""
        for i in blocks:
            if self.offsets[i] < 0 and self.lowest[i] < top:
                undo.blocks.append((i, self.lowest[i]))
                self.lowest[i] = top
                changed.update(self.spans[i])
        for t in sorted(changed):
            if not self._refresh(t, undo):
                self.trouble[t] += 1
                return False
        return True

    def _refresh(self, t: int, undo: _Undo) -> bool:
        """Floor and number of choices of section `t` from its blocks' lowest places; False when it is dead."""
        waiting, lowest = self.waiting[t], self.lowest
        self.budget.used += len(waiting) + FRESH
        undo.sections.append((t, self.floor[t], self.choices[t]))
        if not waiting:
            self.choices[t] = 0
            return True
        places = [lowest[i] for i in waiting]
        if max(places) + self.pending[t] > self.capacity:  # else all fits on top of the highest of them
            room = self.capacity
            for place, size in sorted(zip(places, map(self.size.__getitem__, waiting), strict=True), reverse=True):
                room -= size
                if place > room:
                    return False
        floor = self.floor[t] = max(self.floor[t], min(places))
        self.choices[t] = places.count(floor)
        return True

    def _take_back(self, undo: _Undo) -> None:
        """Restore what a step changed."""
        for t, floor, choices in reversed(undo.sections):
            self.floor[t], self.choices[t] = floor, choices
        for i, place in reversed(undo.blocks):
            self.lowest[i] = place
        if undo.placed != NONE:
            i = undo.placed
            self.offsets[i] = NONE
            self.left += 1
            for t in self.spans[i]:
                self.pending[t] += self.size[i]
                self.waiting[t].append(i)
