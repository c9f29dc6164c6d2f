"""Formats that the clock assumes where a graph has not been given any.

    x: float32 [1, 3, 224, 224] ─ Conv ─ c ─ Relu ─ r ─ Flatten, Gemm ─ y          prefers NC1HWC0, float16

    x   plain, as the caller gives it         a conversion to float16 in blocks of 16 channels comes before the Conv
    c   blocked, r too: Relu takes what it gets
    r   plain before the Gemm                 a conversion comes before it
    y   float16                               a conversion to float32 comes last

Feature maps that an operator needs in blocks are blocked (`Layout.needs` of its declaration), and so are those that
operators which take either form connect with them. A tensor that somebody needs in the other form is converted once.
A program whose tensors have storage formats has its own conversions, and none is assumed; they also make the caller's
float32 what the units take, and back. Where values have the dtypes that they are computed in, nothing changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from atc_py.ir.types import DType, Format, lanes
from atc_py.ops.formats import TRANS_DATA
from atc_py.schedule.jobs import Job, Program, Touch
from atc_py.target import Target
from atc_py.target.cost import Work


def with_formats(program: Program, target: Target) -> Program:
    """The program with the formats that the target prefers, and the conversions that they need."""
    given = any(t.stored and not t.constant for job in program.jobs for t in (*job.reads, *job.writes))
    blocks = target.prefers is Format.NC1HWC0 and not given
    return _Formats(program.jobs, blocks).run(program.outputs)


@dataclass
class _Formats:
    jobs: Sequence[Job]
    blocks: bool
    parent: dict[Hashable, Hashable] = field(default_factory=dict)
    made: set[Hashable] = field(default_factory=set)
    out: list[Job] = field(default_factory=list)
    converted: dict[tuple[Hashable, bool], Touch] = field(default_factory=dict)
    left: dict[Hashable, Touch] = field(default_factory=dict)

    def run(self, outputs: Sequence[Touch]) -> Program:
        """The program with formats; what the caller gets is converted at the end."""
        seeds: list[Hashable] = []
        for job in self.jobs:
            images = [t.key for t in (*job.reads, *job.writes) if _image(t)]
            if self.blocks and images and _takes(job):
                for key in images:
                    self._join(key, images[0])
                if job.layout is not None and job.layout.needs:
                    seeds.append(images[0])
        blocked = {self._find(key) for key in seeds}
        leaves = {t.key for t in outputs}
        for job in self.jobs:
            takes = _takes(job)
            reads = tuple(self._read(job, t, takes and self._find(t.key) in blocked) for t in job.reads)
            writes = tuple(self._written(t, takes and self._find(t.key) in blocked) for t in job.writes)
            if job.kernel == TRANS_DATA:
                writes = tuple(self._leaving(t) if t.key in leaves else t for t in writes)
            same = reads == job.reads and writes == job.writes
            self.out.append(job if same else replace(job, reads=reads, writes=writes))
        given = tuple(map(self._output, outputs))
        return Program(tuple(self.out), given)

    def _output(self, touch: Touch) -> Touch:
        """What the caller gets, plain and in the dtype that the model declares."""
        if touch.key in self.left:
            return self.left[touch.key]
        native = self.converted.get((touch.key, True))
        if touch.key not in self.made or (native is None and not touch.narrowed):
            return touch
        wanted = replace(touch, key=("out", touch.key), nbytes=_given(touch))
        return self._convert(touch.key, native or touch, wanted, times=1)

    def _find(self, key: Hashable) -> Hashable:
        root = key
        while (up := self.parent.get(root, root)) != root:
            root = up
        while (up := self.parent.get(key, key)) != root:
            self.parent[key], key = root, up
        return root

    def _join(self, a: Hashable, b: Hashable) -> None:
        self.parent[self._find(a)] = self._find(b)

    def _written(self, touch: Touch, blocked: bool) -> Touch:
        """A result in the form in which its job makes it."""
        self.made.add(touch.key)
        blocked = blocked and _image(touch)
        if blocked:
            touch = _blocked(touch)
        self.converted[touch.key, blocked] = touch
        return touch

    def _leaving(self, touch: Touch) -> Touch:
        """What a conversion of the program gives the caller, in the dtype that the model declares."""
        self.left[touch.key] = replace(touch, nbytes=_given(touch), narrowed=False)
        return self.left[touch.key]

    def _read(self, job: Job, touch: Touch, blocked: bool) -> Touch:
        """An operand in the form in which its job takes it; converted before if it is in the other one."""
        if touch.constant or touch.stored:
            return touch
        if job.kernel == TRANS_DATA and touch.key not in self.made:
            return replace(touch, nbytes=_given(touch))
        blocked = blocked and _image(touch)
        found = self.converted.get((touch.key, blocked))
        if found is None:
            other = self.converted.get((touch.key, not blocked))
            if touch.key in self.made and other is None:
                return touch
            wanted = _blocked(touch) if blocked else touch
            source = other or replace(touch, nbytes=_given(touch))
            if source.nbytes == wanted.nbytes and not blocked and other is None:
                found = touch  # an input that is taken as it comes
            else:
                found = self._convert(touch.key, source, replace(wanted, key=(blocked, touch.key)), job.times)
            self.converted[touch.key, blocked] = found
        if touch.partial:
            return replace(found, nbytes=min(found.nbytes, touch.nbytes))
        return touch if (found.key, found.nbytes) == (touch.key, touch.nbytes) else found

    def _convert(self, key: Hashable, source: Touch, wanted: Touch, times: int) -> Touch:
        dtype = DType.FLOAT16 if wanted.narrowed else DType.FLOAT32
        work = Work(vector=prod(wanted.shape), run=lanes(dtype))
        self.out.append(Job(-1, f"convert {key}", TRANS_DATA, "aicore", work, dtype, (source,), (wanted,), times))
        return wanted


def _takes(job: Job) -> bool:
    """Whether the job works on blocked channels."""
    return job.layout is not None and bool(job.layout.maps)


def _image(touch: Touch) -> bool:
    return len(touch.shape) == 4 and not touch.constant and not touch.stored and touch.floating


def _blocked(touch: Touch) -> Touch:
    channels = touch.shape[1]
    if not channels:
        return touch
    return replace(touch, nbytes=touch.nbytes * ceil(channels / 16) * 16 // channels)


def _given(touch: Touch) -> int:
    """Bytes in the dtype that the model declares."""
    return touch.nbytes * (2 if touch.narrowed else 1)
