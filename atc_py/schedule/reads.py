"""When values are read, by the positions of steps; and whether all readers of some bytes are done.

    position   0 a = Conv(x)   1 b = Relu(a)   2 v = Reshape(a), no step   2 c = MatMul(v, b)

Value a is read at 1, and through its view at 2, there for the last time. Value b is read at 2: before that, nothing may
take over its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc_py.ir.graph import ABSENT
from atc_py.schedule.frames import Frame, Step, all_frames, captured
from atc_py.schedule.streams import Streams


def last_reads(root: Frame) -> list[int]:
    """For each value the last position at which it, or a view of it, is read (-1: never)."""
    last = [-1] * root.ceiling
    for frame in reversed(list(all_frames(root))):
        base, views = frame.base, frame.views
        for step in frame.steps.values():  # in order: a later read replaces an earlier one
            if step.bodies:
                _read_by_region(frame, step, last)
                continue
            for value in step.node.inputs:
                if value != ABSENT:
                    last[base + value] = step.start
        for value in frame.graph.outputs:
            last[base + value] = frame.end
        for node in reversed(frame.nodes) if views.still else ():
            if node.id in views.still:
                read = max([last[base + v] for v in node.outputs])
                for value in views.sources(node):
                    last[base + value] = max(last[base + value], read)
    return last


def _read_by_region(frame: Frame, step: Step, last: list[int]) -> None:
    """What a region reads, at its beginning or at its end, and its bodies when they do; in a loop up to its end."""
    node = step.node
    own = len(node.inputs) - node.captures
    sliced = own - node.attrs["num_scan_inputs"] if node.op == "Scan" else own
    for position, value in enumerate(node.inputs[:own]):
        if value != ABSENT:
            read = step.end if position >= sliced else step.start
            last[frame.vid(value)] = max(last[frame.vid(value)], read)
    for body in step.bodies.values():
        for position, inner in captured(step, body):
            read = last[body.vid(inner)]
            outer = frame.vid(node.inputs[position])
            last[outer] = max(last[outer], step.end if step.loops and read >= 0 else read)


def all_reads(root: Frame) -> list[list[int]]:
    """For each value the positions at which tasks and regions read it, views not looked through."""
    found: list[list[int]] = [[] for _ in range(root.ceiling)]
    for frame in all_frames(root):
        for step in frame.steps.values():
            for value in step.node.inputs:
                if value != ABSENT:
                    found[frame.base + value] += (step.start,) if step.start == step.end else (step.start, step.end)
    return found


@dataclass(slots=True)
class _Latest:
    """The last readers of the first `seen` values of a group: of those in segments, by stream, in the last one."""

    seen: int
    segment: int
    clock: list[int]
    other: int


class Readers:
    """On several streams: whether all readers of a group of values, which only grows, are done when a task begins."""

    def __init__(self, root: Frame, streams: Streams) -> None:
        self.streams = streams
        self.reads = all_reads(root)
        self.latest: dict[int, _Latest] = {}

    def done(self, group: int, values: Sequence[int], position: int) -> bool:
        """Whether every other reader of a group is done for certain when the step at `position` begins.

        Nobody may read the group after that position; then what is after all readers in its own segment, or in a later
        one, is after all of them.
        """
        latest = self._counted(group, values)
        if latest.other > position:
            return False
        lane = self.streams.lanes.get(position)
        if lane is None or lane.region != latest.segment:
            return True
        start = self.streams.starts[lane.region]
        return all(r <= start + d for r, d in zip(latest.clock, self.streams.clocks[position]))

    def _counted(self, group: int, values: Sequence[int]) -> _Latest:
        """The last readers of a group; what has been counted is not looked at again."""
        latest = self.latest.setdefault(group, _Latest(0, -1, [], -1))
        for value in values[latest.seen :]:
            for read in self.reads[value]:
                lane = self.streams.lanes.get(read)
                if lane is None:
                    latest.other = max(latest.other, read)
                    continue
                if lane.region > latest.segment:
                    latest.segment, latest.clock = lane.region, [-1] * self.streams.streams
                if lane.region == latest.segment:
                    latest.clock[lane.stream] = max(latest.clock[lane.stream], read)
        latest.seen = len(values)
        return latest
