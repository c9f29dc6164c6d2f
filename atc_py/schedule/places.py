"""Where each value lives: which values share one buffer, and in which space it is.

    x (input) ─ Reshape ─▶ r ─ Conv ─▶ c ─ Relu ─▶ y ─ Flatten ─▶ f (output)

    {x, r}      share input port 0: Reshape moves no byte
    {c, y, f}   share output port 0: Relu overwrites c at its last use, Flatten is a view, the caller's buffer is
                written where it lies

Values that share a buffer form a group. A captured value is its outer value; what leaves a branch of an If is written
where the If's output lies; a loop's carried value, inside and as the loop's result, is one buffer, its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import ABSENT, Node
from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.plan.types import Alias, Space
from atc_py.schedule.frames import Frame, Step, all_frames, captured, root_of
from atc_py.schedule.reads import Readers, last_reads
from atc_py.schedule.streams import Streams
from atc_py.schedule.workspace import workspace_of


@dataclass(slots=True)
class Group:
    """Values of one buffer: its space, its port or constant, and the positions at which it is needed."""

    space: Space
    values: list[int]
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
    """The group of each value (by its number; -1: none yet), and what is known of values as a whole."""

    of: list[int]
    types: Mapping[int, Type]
    groups: list[Group] = field(default_factory=list)
    constants: dict[int, Constant] = field(default_factory=dict)
    aliases: list[Alias] = field(default_factory=list)
    deltas: dict[int, int] = field(default_factory=dict)
    """Where a value begins in its buffer, in bytes, where that is not 0."""
    workspaces: dict[int, tuple[Space, Tensor]] = field(default_factory=dict)
    """By the positions of the tasks that take one: where the workspace lies, and its bytes as a tensor."""

    def group(self, value: int) -> Group:
        """The value's group."""
        return self.groups[self.of[value]]


def place(root: Frame, streams: Streams | None = None) -> Places:
    """Place every value of the frame and of the frames inside it.

    `streams` says what is done when; then a value takes over another one's bytes only where every reader of them is
    done for certain. Without it, that is so for all that comes before.
    """
    placer = _Placer(root, streams)
    targets = {_viewed(root, v): Target(Space.OUTPUT, i) for i, v in enumerate(root.graph.outputs)}
    placer.frame(root, targets)
    for group in placer.places.groups:
        group.first = max(group.first, 0)
        group.last = max(group.first, group.last)
    return placer.places


class _Placer:
    """Puts values into groups in the order of the nodes.

    `last` is the last read of each value; a group's `first` and `last` are those of the values that it has so far.
    """

    def __init__(self, root: Frame, streams: Streams | None) -> None:
        types = {f.base + v: value.type for f in all_frames(root) for v, value in f.graph.values.items()}
        self.places = Places([-1] * root.ceiling, types)
        self.last = last_reads(root)
        self.late = _late_values(root, types)
        self.readers = None if streams is None else Readers(root, streams)

    def new(self, space: Space, value: int, index: int = -1) -> None:
        """Put `value` into a group of its own."""
        self.places.of[value] = len(self.places.groups)
        self.places.groups.append(Group(space, [value], index, -1, self.last[value]))

    def join(self, value: int, number: int) -> Group:
        """Put `value` into a group."""
        self.places.of[value] = number
        group = self.places.groups[number]
        group.values.append(value)
        group.last = max(group.last, self.last[value])
        return group

    def alias(self, value: int, source: int, delta: int = 0) -> None:
        """Put `value` into the group of `source`, whose bytes it names from the `delta`-th on."""
        self.join(value, self.places.of[source])
        deltas = self.places.deltas
        if delta or source in deltas:
            deltas[value] = deltas.get(source, 0) + delta
        self.places.aliases.append(Alias(value, source, delta))

    def keep(self, value: int, first: int, last: int) -> None:
        """What has been placed is needed from one position to another."""
        group = self.places.group(value)
        if group.first < 0 or first < group.first:
            group.first = first
        if group.last < last:
            group.last = last

    def frame(self, frame: Frame, targets: Mapping[int, Target]) -> None:
        """Place the values of one graph; `targets` by value. A body's `Data` values have been placed by its owner."""
        base, steps, of = frame.base, frame.steps, self.places.of
        for node in frame.nodes:
            step = steps.get(node.id)
            if step is None:
                for i, value in enumerate(node.outputs):
                    if of[base + value] < 0:
                        self._view(frame, node, i, value, targets)
                continue
            for i, value in enumerate(node.outputs):
                if of[base + value] < 0:
                    self._value(frame, step, i, value, targets)
                self.keep(base + value, step.start, step.end)  # what nobody reads is written too
            self._workspace(frame, step)
            if step.bodies:
                self._region(frame, step)

    def _workspace(self, frame: Frame, step: Step) -> None:
        constants, base = self.places.constants, frame.base
        found = workspace_of(frame.graph, step.node, step.op, lambda v: constants.get(base + v))
        if found is not None:
            self.places.workspaces[step.start] = found

    def _view(self, frame: Frame, node: Node, index: int, value: int, targets: Mapping[int, Target]) -> None:
        """Place a value that no task makes."""
        vid, views = frame.base + value, frame.views
        if node.op == "Data":
            self.new(Space.INPUT, vid, frame.graph.inputs.index(value))
        elif node.op == "Const":
            assert node.const is not None
            self.places.constants[vid] = node.const
            self.new(Space.WEIGHTS, vid)
        elif node.id in views.cuts:
            self.alias(vid, frame.vid(node.inputs[0]), views.cuts[node.id][index])
        elif node.id in views.aliases and index == 0:
            self.alias(vid, frame.vid(node.inputs[0]))
        else:
            self._value(frame, None, index, value, targets)

    def _value(self, frame: Frame, step: Step | None, index: int, value: int, targets: Mapping[int, Target]) -> None:
        vid, target = frame.base + value, targets.get(value)
        type_, deltas = self.places.types[vid], self.places.deltas
        if value in frame.views.parts:
            whole, delta = frame.views.parts[value]
            self._whole(frame, whole, targets)
            self.alias(vid, frame.vid(whole), delta)
        elif target is not None and target.group >= 0:
            self.join(vid, target.group)
            self.places.aliases.append(Alias(vid, target.outer))
        elif on_host(type_):
            self.new(Space.HOST, vid)
        elif vid in self.late:
            self.new(Space.DYNAMIC, vid)
        elif not index and step is not None and (taken := self._overwritten(frame, step, type_, target)) is not None:
            group = self.join(vid, self.places.of[taken])
            if taken in deltas:
                deltas[vid] = deltas[taken]
            if target is not None:
                group.space, group.index = target.space, target.index
        elif target is not None:
            self.new(target.space, vid, target.index)
        else:
            self.new(Space.ARENA, vid)

    def _whole(self, frame: Frame, whole: int, targets: Mapping[int, Target]) -> None:
        """Place a join's result before its parts, and before that the join's that it is a part of itself."""
        chain = [whole]
        while chain[-1] in frame.views.parts:
            chain.append(frame.views.parts[chain[-1]][0])
        for value in reversed(chain):
            if self.places.of[frame.vid(value)] < 0:
                self._value(frame, None, 0, value, targets)

    def _overwritten(self, frame: Frame, step: Step, type_: Type, target: Target | None) -> int | None:
        """The input whose buffer output 0 may take over: read here for the last time, same shape and dtype."""
        places, inputs = self.places, step.node.inputs
        if step.bodies:
            return None
        for i in step.op.flags.inplace:
            if i >= len(inputs) or inputs[i] == ABSENT:
                continue
            source = frame.base + inputs[i]
            group = places.group(source)
            if group.last > step.start:
                continue
            if target is not None and any(v in places.deltas for v in group.values):
                continue  # what leaves has a buffer of its own, and exactly of its size
            in_place = group.space is Space.ARENA or (
                group.space is Space.OUTPUT and target is not None and group.index == target.index
            )
            if (
                in_place
                and _same(type_, places.types[source])
                and self._read_elementwise(frame, step, source)
                and (self.readers is None or self.readers.done(places.of[source], group.values, step.start))
            ):
                return source
        return None

    def _read_elementwise(self, frame: Frame, step: Step, source: int) -> bool:
        """Whether every input of the task that reads the buffer of `source` may be overwritten.

        Where the buffer is one of parts, none but `source` may read of it.
        """
        of, deltas, base = self.places.of, self.places.deltas, frame.base
        number = of[source]
        same = [(i, base + v) for i, v in enumerate(step.node.inputs) if v != ABSENT and of[base + v] == number]
        if len(same) == 1:
            return True
        parts = any(v in deltas for _, v in same)
        return all(i in step.op.flags.inplace and (v == source or not parts) for i, v in same)

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
        self.alias(vid, outer)
        self.keep(vid, step.start, -1)
        if outer in self.places.constants:
            self.places.constants[vid] = self.places.constants[outer]

    def _branch_targets(self, frame: Frame, step: Step, body: Frame) -> dict[int, Target]:
        targets = {}
        for outer, inner in zip(step.node.outputs, body.graph.outputs, strict=True):
            vid = frame.vid(outer)
            group = self.places.of[vid]
            targets[_viewed(body, inner)] = Target(self.places.groups[group].space, -1, group, vid)
        return targets

    def _formals(self, frame: Frame, step: Step, body: Frame) -> None:
        """A loop's own inputs: the carried ones are the states, the others get buffers for the whole loop."""
        states = carried(step, body)
        for outer, inner in states:
            self.alias(body.vid(inner), frame.vid(outer))
        own = body.graph.inputs[: len(body.graph.inputs) - step.node.captures]
        for inner in own:
            vid = body.vid(inner)
            if self.places.of[vid] < 0:
                late = Space.DYNAMIC if vid in self.late else Space.ARENA
                self.new(Space.HOST if on_host(body.graph.type(inner)) else late, vid)
            self.keep(vid, step.start, step.end)


def _viewed(frame: Frame, value: int) -> int:
    """The value whose bytes a value of the frame views."""
    return root_of(frame.graph, value, lambda node: node.id in frame.views.aliases)


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
    """Whether two types are tensors of one dtype, storage and known shape."""
    if a is not b and not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    return a.shape is not None and a.shape == b.shape and a.dtype is b.dtype and a.storage is b.storage


def _late_values(root: Frame, types: Mapping[int, Type]) -> set[int]:
    """Values whose size only the run time knows; a loop's state is late inside and outside, or not at all."""
    runtime = {s for s, r in root.graph.symbols.items() if r.runtime}
    late = {vid for vid, t in types.items() if isinstance(t, Tensor) and t.shape is None}
    if runtime:
        shapes = [(vid, t.shape or ()) for vid, t in types.items() if isinstance(t, Tensor)]
        late |= {vid for vid, shape in shapes if any(s in runtime for d in shape for s in symbols_of(d))}
    if not late:
        return late
    for frame in all_frames(root):
        for step in frame.regions:
            for body in step.bodies.values() if step.loops else ():
                for outer, inner in carried(step, body):
                    if {frame.vid(outer), body.vid(inner)} & late:
                        late |= {frame.vid(outer), body.vid(inner)}
    return late
