"""Where each value lives: which values share one buffer, and in which space it is.

    x (input) ─ Reshape ─▶ r ─ Conv ─▶ c ─ Relu ─▶ y ─ Flatten ─▶ f (output)

    {x, r}      share input port 0: Reshape moves no byte
    {c, y, f}   share output port 0: Relu overwrites c at its last use, Flatten is a view, the caller's buffer is
                written where it lies

Values that share a buffer form a group. A captured value is its outer value; what leaves a branch of an If is written
where the If's output lies; a loop's carried value, inside and as the loop's result, is one buffer, its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import definitely_equal, symbols_of
from atc_py.ir.graph import ABSENT, Node
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.build import lookup
from atc_py.plan.types import Alias, Space
from atc_py.schedule.frames import Frame, Step, all_frames, captured, roots


@dataclass
class Group:
    """Values of one buffer: its space, its port or constant, and the positions at which it is needed."""

    space: Space
    values: list[int] = field(default_factory=list)
    index: int = -1
    first: int = -1
    last: int = -1


@dataclass
class Target:
    """Where a value that leaves its graph has to be: an output port, or the group of an outer value."""

    space: Space
    index: int = -1
    group: int = -1
    outer: int = ABSENT


@dataclass
class Places:
    """The group of each value, and what is known of values as a whole."""

    groups: list[Group] = field(default_factory=list)
    of: dict[int, int] = field(default_factory=dict)
    types: dict[int, Type] = field(default_factory=dict)
    constants: dict[int, Constant] = field(default_factory=dict)
    aliases: list[Alias] = field(default_factory=list)
    deltas: dict[int, int] = field(default_factory=dict)
    """Where a value begins in its buffer, in bytes, where that is not 0."""

    def new(self, space: Space, value: int, index: int = -1) -> Group:
        """A new group with one value."""
        self.of[value] = len(self.groups)
        self.groups.append(Group(space, [value], index))
        return self.groups[-1]

    def join(self, value: int, other: int) -> Group:
        """Put `value` into the group of `other`."""
        self.of[value] = self.of[other]
        group = self.groups[self.of[other]]
        group.values.append(value)
        return group

    def group(self, value: int) -> Group:
        """The value's group."""
        return self.groups[self.of[value]]

    def alias(self, value: int, source: int, delta: int = 0) -> None:
        """Put `value` into the group of `source`, whose bytes it names from the `delta`-th on."""
        self.join(value, source)
        if delta or source in self.deltas:
            self.deltas[value] = self.deltas.get(source, 0) + delta
        self.aliases.append(Alias(value, source, delta))


Before = Callable[[int, int], bool]
"""Whether what happens at one position is done when what happens at another one begins."""


def place(root: Frame, before: Before | None = None) -> Places:
    """Place every value of the frame and of the frames inside it.

    On several streams `before` says what is done when; then a value takes over another one's bytes only where every
    reader of them is done for certain.
    """
    placer = _Placer(root, before)
    ports = roots(root.graph, root.nodes, root.views)
    targets = {ports[v]: Target(Space.OUTPUT, i) for i, v in enumerate(root.graph.outputs)}
    placer.frame(root, targets)
    placer.lifetimes()
    return placer.places


class _Placer:
    def __init__(self, root: Frame, before: Before | None) -> None:
        self.places = Places()
        self.root = root
        self.before = before
        self.reads = {} if before is None else all_reads(root)
        self.last = last_reads(root)
        self._latest: dict[int, tuple[int, int]] = {}
        self.made: dict[int, int] = {}
        self.late = _late_values(root)

    def frame(self, frame: Frame, targets: dict[int, Target]) -> None:
        """Place the values of one graph; `targets` by value. A body's `Data` values have been placed by its owner."""
        for node in frame.nodes:
            for i, value in enumerate(node.outputs):
                vid = frame.vid(value)
                self.places.types[vid] = frame.graph.type(value)
                if vid not in self.places.of:
                    self._value(frame, node, i, value, targets)
                step = frame.steps.get(node.id)
                self.made.setdefault(vid, step.start if step else -1)
                if step is not None and step.bodies:  # also what nobody reads is written at the region's end
                    self._needed_until(vid, step.end)
            if node.id in frame.steps and frame.steps[node.id].bodies:
                self._region(frame, frame.steps[node.id])

    def _value(self, frame: Frame, node: Node, index: int, value: int, targets: dict[int, Target]) -> None:
        vid, type_, target = frame.vid(value), frame.graph.type(value), targets.get(value)
        if node.op == "Data":
            self.places.new(Space.INPUT, vid, frame.graph.inputs.index(value))
        elif node.op == "Const":
            assert node.const is not None
            self.places.constants[vid] = node.const
            self.places.new(Space.WEIGHTS, vid)
        elif node.id in frame.views.cuts:
            self.places.alias(vid, frame.vid(node.inputs[0]), frame.views.cuts[node.id][index])
        elif node.id in frame.views.aliases and index == 0:
            self.places.alias(vid, frame.vid(node.inputs[0]))
        elif value in frame.views.parts:
            whole, delta = frame.views.parts[value]
            self._whole(frame, whole, targets)
            self.places.alias(vid, frame.vid(whole), delta)
        elif target is not None and target.group >= 0:
            self.places.of[vid] = target.group
            self.places.groups[target.group].values.append(vid)
            self.places.aliases.append(Alias(vid, target.outer))
        elif on_host(type_):
            self.places.new(Space.HOST, vid)
        elif vid in self.late:
            self.places.new(Space.DYNAMIC, vid)
        elif (taken := self._overwritten(frame, node, index, value, target)) is not None:
            group = self.places.join(vid, taken)
            if taken in self.places.deltas:
                self.places.deltas[vid] = self.places.deltas[taken]
            if target is not None:
                group.space, group.index = target.space, target.index
        else:
            self.places.new(target.space if target else Space.ARENA, vid, target.index if target else -1)

    def _whole(self, frame: Frame, whole: int, targets: dict[int, Target]) -> None:
        """Place a join's result before its parts, and before that the join's that it is a part of itself."""
        chain = [whole]
        while chain[-1] in frame.views.parts:
            chain.append(frame.views.parts[chain[-1]][0])
        for value in reversed(chain):
            vid = frame.vid(value)
            if vid not in self.places.of:
                self.places.types[vid] = frame.graph.type(value)
                self._value(frame, frame.graph.producer(value), 0, value, targets)

    def _overwritten(self, frame: Frame, node: Node, index: int, value: int, target: Target | None) -> int | None:
        """The input whose buffer the output may take over: read here for the last time, same shape and dtype."""
        step = frame.steps.get(node.id)
        if index or step is None or step.bodies:
            return None
        for i in lookup(node.op, node.attrs).flags.inplace:
            if i >= len(node.inputs) or node.inputs[i] == ABSENT:
                continue
            source = frame.vid(node.inputs[i])
            group = self.places.group(source)
            if target is not None and any(v in self.places.deltas for v in group.values):
                continue  # what leaves has a buffer of its own, and exactly of its size
            in_place = group.space is Space.ARENA or (
                group.space is Space.OUTPUT and target is not None and group.index == target.index
            )
            if (
                in_place
                and self._last_read(self.places.of[source]) <= step.start
                and self._all_read(group, step.start)
                and self._read_elementwise(frame, node, source)
                and _same(frame.graph.type(value), frame.graph.type(node.inputs[i]))
            ):
                return source
        return None

    def _last_read(self, number: int) -> int:
        """When a group is read for the last time, as far as its values are known; they only become more."""
        values = self.places.groups[number].values
        seen, latest = self._latest.get(number, (0, -1))
        latest = max([latest, *[self.last[v] for v in values[seen:]]])
        self._latest[number] = len(values), latest
        return latest

    def _needed_until(self, vid: int, position: int) -> None:
        """A value is needed at a position too."""
        self.last[vid] = max(self.last[vid], position)
        self._latest.pop(self.places.of[vid], None)

    def _all_read(self, group: Group, position: int) -> bool:
        """Whether every other reader of the group is done for certain when the step at `position` begins."""
        if self.before is None:
            return True
        return all(r == position or self.before(r, position) for v in group.values for r in self.reads[v])

    def _read_elementwise(self, frame: Frame, node: Node, source: int) -> bool:
        """Whether every input of the node that reads the buffer of `source` may be overwritten.

        Where the buffer is one of parts, none but `source` may read of it.
        """
        allowed, deltas = lookup(node.op, node.attrs).flags.inplace, self.places.deltas
        vids = [(i, frame.vid(value)) for i, value in enumerate(node.inputs) if value != ABSENT]
        same = [(i, v) for i, v in vids if self.places.of[v] == self.places.of[source]]
        parts = source in deltas or any(v in deltas for _, v in same)
        return all(i in allowed and (v == source or not parts) for i, v in same)

    # -- regions -----------------------------------------------------------------------------------------------

    def _region(self, frame: Frame, step: Step) -> None:
        for body in step.bodies.values():
            for position, inner in captured(step, body):
                self._captured(frame, step, position, body, inner)
            targets = self._branch_targets(frame, step, body) if step.node.op == "If" else {}
            if step.loops:
                self._formals(frame, step, body)
            self.frame(body, targets)

    def _captured(self, frame: Frame, step: Step, position: int, body: Frame, inner: int) -> None:
        vid, outer = body.vid(inner), frame.vid(step.node.inputs[position])
        self.places.alias(vid, outer)
        self.made[vid] = step.start
        if outer in self.places.constants:
            self.places.constants[vid] = self.places.constants[outer]

    def _branch_targets(self, frame: Frame, step: Step, body: Frame) -> dict[int, Target]:
        found = roots(body.graph, body.nodes, body.views)
        targets = {}
        for outer, inner in zip(step.node.outputs, body.graph.outputs, strict=True):
            vid = frame.vid(outer)
            group = self.places.of[vid]
            targets[found[inner]] = Target(self.places.groups[group].space, -1, group, vid)
        return targets

    def _formals(self, frame: Frame, step: Step, body: Frame) -> None:
        """A loop's own inputs: the carried ones are the states, the others get buffers for the whole loop."""
        states = carried(step, body)
        for outer, inner in states:
            self.places.alias(body.vid(inner), frame.vid(outer))
        own = body.graph.inputs[: len(body.graph.inputs) - step.node.captures]
        for inner in own:
            vid = body.vid(inner)
            if vid not in self.places.of:
                late = Space.DYNAMIC if vid in self.late else Space.ARENA
                self.places.new(Space.HOST if on_host(body.graph.type(inner)) else late, vid)
            self.made[vid] = step.start
            self._needed_until(vid, step.end)

    def lifetimes(self) -> None:
        """The positions at which each group is needed."""
        for group in self.places.groups:
            group.first = min((m for v in group.values if (m := self.made[v]) >= 0), default=0)
            group.last = max(group.first, *(self.last[v] for v in group.values))


def read_by_host(constant: Constant) -> bool:
    """Whether a constant has no bytes on the device: dims and strings."""
    return isinstance(constant, DimVec) or constant.dtype is DType.STRING


def carried(step: Step, body: Frame) -> list[tuple[int, int]]:
    """(the node's output, the body's input) of each carried value of a loop."""
    inputs, skip = carried_inputs(step)
    return [(step.node.outputs[i], body.graph.inputs[skip + i]) for i in range(len(inputs))]


def carried_inputs(step: Step) -> tuple[list[int], int]:
    """The input positions of a loop's carried values, and how many of the body's inputs come before theirs."""
    own = len(step.node.inputs) - step.node.captures
    if step.node.op == "Loop":
        return list(range(2, own)), 2
    return list(range(own - step.node.attrs["num_scan_inputs"])), 0


def _same(a: Type, b: Type) -> bool:
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.dtype is b.dtype
        and a.storage is b.storage
        and a.shape is not None
        and b.shape is not None
        and len(a.shape) == len(b.shape)
        and all(definitely_equal(p, q) for p, q in zip(a.shape, b.shape, strict=True))
    )


def _late_values(root: Frame) -> set[int]:
    """Values whose size only the run time knows; a loop's state is late inside and outside, or not at all."""
    runtime = {s for s, r in root.graph.symbols.items() if r.runtime}
    late: set[int] = set()
    frames = list(all_frames(root))
    for frame in frames:
        for value in frame.graph.values.values():
            t = value.type
            if isinstance(t, Tensor) and (
                t.shape is None or (runtime and any(s in runtime for d in t.shape for s in symbols_of(d)))
            ):
                late.add(frame.vid(value.id))
    for frame in frames:
        for step in frame.steps.values():
            for body in step.bodies.values() if step.loops else ():
                for outer, inner in carried(step, body):
                    if {frame.vid(outer), body.vid(inner)} & late:
                        late |= {frame.vid(outer), body.vid(inner)}
    return late


def last_reads(root: Frame) -> dict[int, int]:
    """For each value the last position at which it, or a view of it, is read (-1: never)."""
    last: dict[int, int] = {}
    for frame in reversed(list(all_frames(root))):
        for node in reversed(frame.nodes):
            for value in node.outputs:
                reads = [_read(frame, user, k, last) for user, k in frame.graph.values[value].uses]
                last[frame.vid(value)] = max(reads, default=-1)
    return last


def all_reads(root: Frame) -> dict[int, list[int]]:
    """For each value the positions at which tasks and regions read it, views not looked through."""
    found: dict[int, list[int]] = {}
    for frame in all_frames(root):
        for value in frame.graph.values.values():
            reads: list[int] = []
            for user, _ in value.uses:
                step = frame.steps.get(user)
                if step is not None:
                    reads += [step.start] if step.start == step.end else [step.start, step.end]
            found[frame.vid(value.id)] = reads
    return found


def _read(frame: Frame, user: int, position: int, last: dict[int, int]) -> int:
    """When a use reads: input `position` of node `user`."""
    node = frame.graph.nodes[user]
    if node.op == "NetOutput":
        return frame.end
    step = frame.steps.get(user)
    if step is None:
        passed = position == 0 or user in frame.views.joined
        return max(last[frame.vid(v)] for v in node.outputs) if passed else -1
    if not step.bodies:
        return step.start
    own = len(node.inputs) - node.captures
    if position < own:
        sliced = node.op == "Scan" and position >= own - node.attrs["num_scan_inputs"]
        return step.end if sliced else step.start
    inner = [last[body.vid(v)] for body in step.bodies.values() for p, v in captured(step, body) if p == position]
    read = max(inner, default=-1)
    return step.end if step.loops and read >= 0 else read
