"""The order of tasks on one stream: a low memory peak, found in few steps.

    a ─┬─ b (large) ─ c (small) ─┐           canonical   a  d  e  b  c  f      e waits while b is made: 9 MiB
       └─ d (large) ─ e (middle) ┴─ f        found       a  b  c  d  e  f      c is smaller: 8 MiB

The canonical order is depth first, and near the best for most graphs. Where branches meet, others are tried: first the
depth-first one that goes, of what a task needs, first where the most memory is freed (R. Sethi and J. Ullman's rule for
expressions, with sizes: J. Liu, "An application of generalized tree pebbling to sparse matrix factorization"); then,
between points through which every way leads and only where the peak lies, a beam search over what is live. All of it
is bounded by counted steps. A chain is left alone. What is counted is what tasks make: inputs, constants and results
of the graph have their own places, a task that may work in place on what it reads last makes nothing new; a workspace
is made and gone with its task.

A `priority` on a node says more than that: among the tasks that are ready the one of the highest priority comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from atc_py.ir.graph import ABSENT, STRUCTURAL, Node
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.schedule.frames import Frame, Step
from atc_py.schedule.jobs import Sizes
from atc_py.schedule.workspace import workspace_of

STEPS_A_TASK, STEPS = 4, 400
"""The beam search may look at STEPS_A_TASK * n + STEPS successors in a graph of n tasks."""
WIDTH = 16
"""States that the beam keeps at the most."""
LARGE = 40
"""Where the peak lies in a segment of more tasks, the beam is narrow, and the depth-first order is tried too."""


@dataclass
class _Net:
    """Tasks and the values that they make, by index, in the canonical order.

    `reads` and `makes` are values by task, `readers` tasks by value. `size` is bytes, of what leaves the graph 0.
    `over` is the value that a task may overwrite if it reads it last.
    """

    tasks: list[Step]
    reads: list[list[int]] = field(default_factory=list)
    makes: list[range] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    maker: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)

    def before(self, task: int) -> list[int]:
        """The tasks that make what a task reads."""
        return [self.maker[v] for v in self.reads[task]]


def low_order(frame: Frame, sizes: Sizes) -> list[Node]:
    """The nodes of one graph in an order with a low peak; the frame's own list where that order is as good."""
    order, tasks = frame.nodes, list(frame.steps.values())
    if any(s.node.priority for s in tasks):
        net = _net(frame, tasks, sizes)
        return with_views(frame, [tasks[i].node for i in _by_priority(net)])
    if len(tasks) < 4 or _without_branches(frame):
        return order
    net = _net(frame, tasks, sizes)
    if max(map(len, net.reads)) < 2 and max(map(len, net.readers), default=0) < 2:
        return order
    canonical = list(range(len(tasks)))
    during, after = _profile(net, canonical)
    peak = max(during)
    if any(d == peak == _alone(net, i) for i, d in enumerate(during)):
        return order
    best, segment = _searched(net, canonical, during, after)
    if segment > LARGE:
        best = min(best, _by_need(net), key=lambda found: max(_profile(net, found)[0]))
    if best is canonical or max(_profile(net, best)[0]) >= peak:
        return order
    return with_views(frame, [tasks[i].node for i in best])


def _without_branches(frame: Frame) -> bool:
    """Whether no value that is made is used twice, and no node uses two of them."""
    values = frame.graph.values
    made: set[int] = set()
    for node in frame.nodes:
        if node.op in STRUCTURAL:
            continue
        if sum([v in made for v in node.inputs]) > 1:
            return False
        for value in node.outputs:
            if len(values[value].uses) > 1:
                return False
            made.add(value)
    return True


def _alone(net: _Net, task: int) -> int:
    """Bytes that a task needs by itself, at the most those while it runs: in no order is there a lower peak."""
    over = net.over[task]
    needed = sum([net.size[v] for v in net.reads[task]]) + sum([net.size[v] for v in net.makes[task]])
    return needed - (net.size[over] if over >= 0 else 0)


def with_views(frame: Frame, tasks: Sequence[Node]) -> list[Node]:
    """All nodes, the tasks in the order given, inputs first, other nodes before the first task that reads them."""
    order, nodes = frame.nodes, frame.graph.nodes
    result = [n for n in order if n.op == "Data"]
    done = {n.id for n in result} | {n.id for n in tasks}
    for task in tasks:
        stack = _unready(frame, task, done)
        while stack:
            at = stack[-1]
            missing = [] if at in done else _unready(frame, nodes[at], done)
            if missing:
                stack += missing
                continue
            stack.pop()
            if at not in done:
                done.add(at)
                result.append(nodes[at])
        result.append(task)
    return result + [n for n in order if n.id not in done]


def _unready(frame: Frame, node: Node, done: set[int]) -> list[int]:
    """The producers of a node's inputs that are not there yet, the first input's last."""
    values = frame.graph.values
    return [p for v in reversed(node.inputs) if v != ABSENT and (p := values[v].producer) not in done]


def rearranged(frame: Frame, chosen: Mapping[int, tuple[int, int]]) -> list[Node]:
    """The order with the tasks of each segment by the ranks that `chosen` gives them (by identity), others in place."""
    tasks = [step.node for step in frame.steps.values()]
    if not any(id(n) in chosen for n in tasks):
        return frame.nodes
    result: list[Node] = []
    run: list[Node] = []
    for node in tasks:
        if id(node) in chosen:
            run.append(node)
            continue
        result += [*sorted(run, key=lambda n: chosen[id(n)][0]), node]
        run = []
    result += sorted(run, key=lambda n: chosen[id(n)][0])
    return with_views(frame, result)


def _net(frame: Frame, tasks: list[Step], sizes: Sizes) -> _Net:
    """The graph's tasks; a value that is made in parts is these."""
    net = _Net(tasks)
    values, size, readers = frame.graph.values, net.size, net.readers
    leaving = set(frame.graph.outputs)
    of: dict[int, Sequence[int]] = {}  # a value's bytes, as the values that tasks make
    for node in frame.nodes:
        step = frame.steps.get(node.id)
        if step is None:
            if node.op not in STRUCTURAL:
                _passed(frame, node, of, leaving, net)
            continue
        i = len(net.reads)
        reads = [r for v in node.inputs for r in of.get(v, ())]
        reads = list(dict.fromkeys(reads)) if len(reads) > 1 else reads
        net.reads.append(reads)
        for r in reads:
            readers[r].append(i)
        first = len(size)
        for value in node.outputs:
            of[value] = (len(size),)
            net.maker.append(i)
            size.append(0 if value in leaving else _nbytes(values[value].type, sizes))
            readers.append([])
        scratch = workspace_of(frame.graph, node, step.op, frame.graph.const)
        if scratch is not None:  # as a result that nobody reads
            net.maker.append(i)
            size.append(_nbytes(scratch[1], sizes))
            readers.append([])
        net.makes.append(range(first, len(size)))
        net.over.append(_overwrites(step, of, net))
    return net


def _passed(frame: Frame, node: Node, of: dict[int, Sequence[int]], leaving: set[int], net: _Net) -> None:
    """What a node that is no task passes on."""
    passed = list(dict.fromkeys(r for v in frame.views.sources(node) for r in of.get(v, ())))
    of.update(dict.fromkeys(node.outputs, passed))
    if not leaving.isdisjoint(node.outputs):
        for r in passed:
            net.size[r] = 0


def _nbytes(type_: Type, sizes: Sizes) -> int:
    if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
        return 0
    return sizes.nbytes(type_)


def _overwrites(step: Step, of: Mapping[int, Sequence[int]], net: _Net) -> int:
    """The value that a task may overwrite with its first result (-1: none)."""
    made, inputs = net.makes[-1], step.node.inputs
    for i in step.op.flags.inplace if made else ():
        source = of.get(inputs[i], ()) if i < len(inputs) else ()
        if len(source) == 1 and net.size[source[0]] == net.size[made[0]] > 0:
            return source[0]
    return -1


def _profile(net: _Net, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """(bytes while each task runs, number of values that are live after it)."""
    size, left = net.size, [len(r) for r in net.readers]
    live = count = 0
    during: list[int] = []
    after: list[int] = []
    for i in order:
        makes, over = net.makes[i], net.over[i]
        for v in makes:
            live += size[v]
        count += len(makes)
        during.append(live - size[over] if over >= 0 and left[over] == 1 else live)
        for v in net.reads[i]:
            left[v] -= 1
            if not left[v]:
                live -= size[v]
                count -= 1
        for v in makes:
            if not left[v]:
                live -= size[v]
                count -= 1
        after.append(count)
    return during, after


def _by_priority(net: _Net) -> list[int]:
    """Of the tasks that are ready the one of the highest priority first, then the canonical order."""
    missing = [len(set(net.before(i))) for i in range(len(net.tasks))]
    ready = [(-net.tasks[i].node.priority, i) for i, m in enumerate(missing) if not m]
    heapify(ready)
    result: list[int] = []
    while ready:
        _, i = heappop(ready)
        result.append(i)
        for j in sorted({j for v in net.makes[i] for j in net.readers[v]}):
            missing[j] -= 1
            if not missing[j]:
                heappush(ready, (-net.tasks[j].node.priority, j))
    return result


def _by_need(net: _Net) -> list[int]:
    """Depth first; of what a task needs, first what needs the most beyond what it leaves."""
    need, children = [0] * len(net.tasks), []
    for i in range(len(net.tasks)):
        held = {p: sum([net.size[v] for v in net.reads[i] if net.maker[v] == p]) for p in net.before(i)}
        found = sorted(held, key=lambda p: (held[p] - need[p], p))
        kept = 0
        for p in found:
            need[i] = max(need[i], kept + need[p])
            kept += held[p]
        new = sum([net.size[v] for v in net.makes[i]]) - (net.size[net.over[i]] if net.over[i] >= 0 else 0)
        need[i] = max(need[i], kept + new)
        children.append(found)
    result: list[int] = []
    done = [False] * len(net.tasks)
    for root in range(len(net.tasks)):
        stack = [] if any(net.readers[v] for v in net.makes[root]) else [root]
        while stack:
            i = stack[-1]
            missing = [p for p in reversed(children[i]) if not done[p]] if not done[i] else []
            if missing:
                stack.append(missing[-1])
                continue
            stack.pop()
            if not done[i]:
                done[i] = True
                result.append(i)
    return result


def _searched(net: _Net, order: list[int], during: list[int], after: list[int]) -> tuple[list[int], int]:
    """(the order with its segments around the peak searched, the length of the segment with the peak).

    The segment with the highest peak comes first, then the next one, while that helps.
    """
    budget = STEPS_A_TASK * len(order) + STEPS
    source = max(k for k, i in enumerate(order) if not net.reads[i])
    sink = min(k for k, i in enumerate(order) if not any(net.readers[v] for v in net.makes[i]))
    # After the last task that begins a branch, before the first that ends one, a value live alone is on every way.
    cuts = [-1] + [k for k, n in enumerate(after) if n == 1 and source <= k < sink]
    if cuts[-1] != len(order) - 1:
        cuts.append(len(order) - 1)
    spans = sorted(((-max(during[a + 1 : b + 1]), a + 1, b + 1) for a, b in pairwise(cuts)))
    result = order
    for peak, a, b in spans:
        found = _Beam(net, order[a:b], -peak).run(budget) if b - a > 3 and budget > 0 else None
        if found is None:
            break  # this segment keeps its peak, and no other one has a higher
        result = [*result[:a], *found[0], *result[b:]]
        budget -= found[1]
    return result, spans[0][2] - spans[0][1]


class _Beam:
    """Orders of one segment, a task at a time; of the states with the same tasks done the one with the lower peak."""

    def __init__(self, net: _Net, tasks: list[int], peak: int) -> None:
        self.net, self.tasks, self.peak = net, tasks, peak
        self.inside = {t: 1 << k for k, t in enumerate(tasks)}
        self.mask = {
            v: sum(self.inside.get(r, 1 << len(tasks)) for r in dict.fromkeys(net.readers[v]))
            for t in tasks
            for v in (*net.makes[t], *net.reads[t])
        }
        self.needs = {t: sum({self.inside[p] for p in net.before(t) if p in self.inside}) for t in tasks}

    def run(self, budget: int) -> tuple[list[int], int] | None:
        """(a better order, steps used), or None."""
        ready = tuple(t for t in self.tasks if not self.needs[t])
        begin = {v for t in self.tasks for v in self.net.reads[t] if self.net.maker[v] not in self.inside}
        states: dict[int, tuple[int, int, tuple[int, ...], object]] = {}
        states[0] = (0, sum(self.net.size[v] for v in begin), ready, None)
        used = 0
        for level in range(len(self.tasks)):
            grown: dict[int, tuple[int, int, tuple[int, ...], object]] = {}
            for done, state in states.items():
                for task in state[2]:
                    used += 1
                    at, new = self._after(done, state, task)
                    old = grown.get(at)
                    if new[0] < self.peak and (old is None or new[:2] < old[:2]):
                        grown[at] = new
            # What is left of the budget is for the levels that are left, a few successors a state.
            width = max(1, min(WIDTH, (budget - used) // (3 * (len(self.tasks) - level))))
            states = dict(sorted(grown.items(), key=lambda item: (item[1][:2], item[0]))[:width])
        for state in states.values():
            return _path(state[3]), used
        return None

    def _after(
        self, done: int, state: tuple[int, int, tuple[int, ...], object], task: int
    ) -> tuple[int, tuple[int, int, tuple[int, ...], object]]:
        peak, live, ready, path = state
        net, at = self.net, done | self.inside[task]
        during = live + sum([net.size[v] for v in net.makes[task]])
        over = net.over[task]
        last = over >= 0 and not self.mask[over] & ~at
        live = during - sum([net.size[v] for v in net.reads[task] if not self.mask[v] & ~at])
        live -= sum([net.size[v] for v in net.makes[task] if not self.mask[v]])
        opened = dict.fromkeys(
            j for v in net.makes[task] for j in net.readers[v] if j in self.inside and not self.needs[j] & ~at
        )
        waiting = (*(t for t in ready if t != task), *opened)
        return at, (max(peak, during - (net.size[over] if last else 0)), live, waiting, (path, task))


def _path(link: object) -> list[int]:
    """The tasks of a chain of (earlier links, task)."""
    found: list[int] = []
    while isinstance(link, tuple):
        link, task = link
        found.append(task)
    return found[::-1]
