"""Every interleaving of a small plan, run on a shadow memory that tags each byte with its writer: is the plan harmful?

    task 0 (stream 0) writes %1 to [0, 8)     task 1 (stream 1) reads %1 there, with no event
    begin 1, …                                task 1 reads bytes that nobody has written: harmful
    begin 0, begin 1, …                       task 1 reads bytes that are torn, for task 0 is writing them: harmful

A task is two steps. Where it begins, what it reads must be there, and what it writes is torn from then on; where it
ends, its inputs must still be there (but for those that it overwrites), and what it writes must bear its mark. So two
tasks in each other's way are found, although all would be well if each of them ran in one instant. Streams are queues
in the order of the list. A wait is for the last record of its event before it in the list; a record stays set until all
its waits have been served (for ever where there are none). A wait that finds another record than its own, and a record
of an event that is still set, are harmful as they are. Bytes that all operands treat alike are one place here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product

from atc_py.ir.types import Tensor
from atc_py.plan.types import Access, Operand, Plan, Space, Static

Tag = tuple[object, int]  # whose byte, and which one of it
Place = tuple[int, Tag]  # a place, and what it should hold
# Half-steps done on each stream; what each place holds; the record that each event holds, and its waits to come.
State = tuple[tuple[int, ...], tuple[Tag, ...], tuple[tuple[int, int], ...]]
UNSET = (-1, 0)


class Harm(Exception):
    """Why a plan is harmful."""


def harm(plan: Plan) -> str:
    """Why a plan of one `Static` region is wrong in some interleaving; '' when it is right in all."""
    try:
        _Machine(plan).explore()
    except Harm as e:
        return str(e)
    return ""


def elements(plan: Plan, o: Operand) -> list[tuple[object, int, int]]:
    """The bytes of each element of an operand in C order: area, first address, last address (excluded)."""
    b, steps = plan.buffers[o.buffer], o.strides
    assert isinstance(o.type, Tensor) and b.offset is not None
    shape, size = [int(str(d)) for d in o.type.dims], o.type.dtype.itemsize
    if steps is None:
        steps = (size,)
        for d in shape[:0:-1]:
            steps = (int(str(steps[0])) * d, *steps)
    area, first = (b.space.value, b.index * (b.space in (Space.INPUT, Space.OUTPUT))), b.offset + int(str(o.delta))
    at = [first + sum(int(str(s)) * i for s, i in zip(steps, index)) for index in product(*map(range, shape))]
    return [(area, a, a + size) for a in at]


class _Machine:
    def __init__(self, plan: Plan) -> None:
        (region,) = plan.regions
        assert isinstance(region, Static)
        self.plan, self.tasks, self.above = plan, region.tasks, {a.value: a for a in plan.aliases}
        streams = sorted({t.stream for t in self.tasks})
        self.queues = [[j for j, t in enumerate(self.tasks) if t.stream == s] for s in streams]
        ports = [Operand(p.value, Access.READ, p.buffer, p.type) for p in (*plan.inputs, *plan.outputs)]
        given, wanted = ports[: len(plan.inputs)], ports[len(plan.inputs) :]
        self.constant = dict(plan.initial)
        self.elements = {id(o): elements(plan, o) for o in (*ports, *(o for t in self.tasks for o in t.operands()))}
        self.cuts: dict[object, list[int]] = {}
        for area in {e[0] for found in self.elements.values() for e in found}:
            each = [[e for e in found if e[0] == area] for found in self.elements.values()]
            self.cuts[area] = sorted(set().union(*({a for _, a, _ in m} ^ {z for _, _, z in m} for m in each)))
        self.number = {key: k for k, key in enumerate((area, a) for area, c in self.cuts.items() for a in c)}
        self.start: list[Tag] = [("nobody", 0)] * len(self.number)
        for b in [plan.buffers[number] for _, number in plan.initial]:
            for (area, a), k in self.number.items():
                if area == (b.space.value, 0) and 0 <= a - int(str(b.offset)) < int(str(b.nbytes)):
                    self.start[k] = (("constant", b.id), a - int(str(b.offset)))
        for k, tag in (p for o in given for p in self._places(o)):
            self.start[k] = tag
        self.wanted = [p for o in wanted for p in self._places(o)]
        self.reads = [[p for o in t.inputs if o is not None for p in self._places(o)] for t in self.tasks]
        self.writes = [[p for o in t.outputs for p in self._places(o)] for t in self.tasks]
        for t, mine in zip(self.tasks, self.writes):
            mine += [(p, ("scratch", 0)) for p, _ in self._places(t.workspace)] if t.workspace else []
        last: dict[int, int] = {}  # the record that each wait is for, and how many waits each record serves
        self.meant: list[dict[int, int]] = []
        self.serves: dict[tuple[int, int], int] = {}
        for j, t in enumerate(self.tasks):
            if any(e not in last for e in t.waits):
                raise Harm(f"{t.name} waits for an event that nothing before it records: it waits for ever")
            self.meant.append({e: last[e] for e in t.waits})
            for e, i in self.meant[j].items():
                self.serves[i, e] = self.serves.get((i, e), 0) + 1
            last.update(dict.fromkeys(t.records, j))

    def _places(self, o: Operand) -> list[Place]:
        """The places of an operand with the tags that it means: bytes of the value that is no alias."""
        root, b = o.value, self.plan.buffers[o.buffer]
        first = int(str(b.offset)) + int(str(o.delta))
        while root in self.above:
            first, root = first - int(str(self.above[root].delta)), self.above[root].source
        whose = ("constant", self.constant[root]) if root in self.constant else root
        at = {(g, a) for g, s, z in self.elements[id(o)] for a in self.cuts[g][bisect_left(self.cuts[g], s) :] if a < z}
        return [(self.number[key], (whose, key[1] - first)) for key in at]

    def explore(self) -> None:
        """Take every step from every state that can be reached, each state once."""
        first: State = ((0,) * len(self.queues), tuple(self.start), (UNSET,) * self.plan.events)
        seen, stack = {first}, [first]
        while stack:
            state = stack.pop()
            later = [s for k, q in enumerate(self.queues) if state[0][k] < 2 * len(q) for s in self._step(state, k)]
            if not later:
                stuck = [q[n // 2] for q, n in zip(self.queues, state[0]) if n < 2 * len(q)]
                if stuck:
                    raise Harm(f"a deadlock: {', '.join(self.tasks[j].name for j in stuck)}")
                self._expect("an output", state[1], self.wanted)
            stack += [s for s in later if s not in seen]
            seen.update(later)

    def _step(self, state: State, k: int) -> list[State]:
        """The next half-step of stream `k`; none where it waits."""
        progress, memory, events = state
        j = self.queues[k][progress[k] // 2]
        now, flags, task = list(memory), list(events), self.tasks[j]
        torn: list[Place] = [(p, ("torn by", j)) for p, _ in self.writes[j]]
        if progress[k] % 2 == 0:  # it begins
            if any(flags[e] not in (UNSET, (i, flags[e][1])) for e, i in self.meant[j].items()):
                raise Harm(f"{task.name} finds another record of its event than its own")
            if UNSET in [flags[e] for e in self.meant[j]]:
                return []
            for e, i in self.meant[j].items():
                flags[e] = (i, flags[e][1] - 1) if flags[e][1] > 1 else UNSET
            self._expect(task.name, now, self.reads[j])
        else:
            written = dict(torn)
            self._expect(task.name, now, [p for p in self.reads[j] if p[0] not in written] + torn)
            if any(flags[e] != UNSET for e in task.records):
                raise Harm(f"{task.name} records an event that is still set")
            for e in task.records:
                flags[e] = (j, self.serves.get((j, e), 1))
        for p, tag in self.writes[j] if progress[k] % 2 else torn:
            now[p] = tag
        return [((*progress[:k], progress[k] + 1, *progress[k + 1 :]), tuple(now), tuple(flags))]

    def _expect(self, who: str, memory: Sequence[Tag], places: Sequence[Place]) -> None:
        for p, tag in places:
            if memory[p] != tag:
                raise Harm(f"{who} needs {tag} where {memory[p]} is")
