"""Formats that the clock assumes where a graph has not been given any.

    x: float32 [1, 3, 224, 224] ─ Conv ─ c ─ Relu ─ r ─ Flatten, Gemm ─ y          prefers NC1HWC0, float16

    x   plain, as the caller gives it         a conversion to float16 in blocks of 16 channels comes before the Conv
    c   blocked, r too: Relu takes what it gets
    r   plain before the Gemm                 a conversion comes before it
    y   float16                               a conversion to float32 comes last

Feature maps that an operator needs in blocks are blocked (`Layout.needs` of its declaration), and so are those that
operators which take either form connect with them. A tensor that somebody needs in the other form is converted once;
a Cast between two forms converts as it casts. A program whose tensors have storage formats has its own conversions, and
none is assumed but for volumes, to which a plan gives no formats (on the chip: NDC1HWC0); they also make the caller's
float32 what the units take, and back. Where values have the dtypes that they are computed in, nothing changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from atc_py.ir.types import DType, Format, lanes
from atc_py.ops.formats import TRANS_DATA
from atc_py.schedule.jobs import VOLUME, Form, Job, Program, Touch
from atc_py.target import Target
from atc_py.target.cost import Work

CAST = "Cast"


def with_formats(program: Program, target: Target) -> Program:
    """The program with the formats that the target prefers, and the conversions that they need."""
    forms = {t.form for job in program.jobs for t in (*job.reads, *job.writes)}
    given = any(form.stored and not form.constant for form in forms)
    ranks = () if target.prefers is not Format.NC1HWC0 else (VOLUME,) if given else (4, VOLUME)
    return _Formats(program.jobs, ranks).run(program.outputs)


@dataclass
class _Formats:
    """`ranks` are those of the maps that may lie in blocks, without having been given a format."""

    jobs: Sequence[Job]
    ranks: tuple[int, ...]
    parent: dict[Hashable, Hashable] = field(default_factory=dict)
    written: set[Hashable] = field(default_factory=set)
    out: list[Job] = field(default_factory=list)
    made: tuple[dict[Hashable, Touch], dict[Hashable, Touch]] = field(default_factory=lambda: ({}, {}))
    """What there is of each buffer: plain, and in blocks."""
    left: dict[Hashable, Touch] = field(default_factory=dict)

    def run(self, outputs: Sequence[Touch]) -> Program:
        """The program with formats; what the caller gets is converted at the end."""
        blocked = self._blocked() if self.ranks else frozenset()
        leaves = {t.key for t in outputs}
        for job in self.jobs:
            some = blocked if blocked and _takes(job) else frozenset()
            reads = tuple([t if t.form.fixed else self._read(job, t, t.key in some) for t in job.reads])
            writes = tuple([self._written(t, t.key in some) for t in job.writes])
            if job.kernel == TRANS_DATA:
                writes = tuple([self._leaving(t) if t.key in leaves else t for t in writes])
            if job.kernel == CAST and len({t.key in some for t in (*job.reads, *job.writes)}) > 1:
                job = replace(job, work=replace(job.work, run=lanes(job.dtype)))  # it moves blocks of channels
            same = reads == job.reads and writes == job.writes
            self.out.append(job if same else _with(job, reads, writes))
        count = len(self.out)
        given = tuple(map(self._output, outputs))
        at = _behind(self.out[:count], [t.key for job in self.out[count:] for t in job.reads])
        return Program((*self.out[:at], *self.out[count:], *self.out[at:count]), given)

    def _blocked(self) -> frozenset[Hashable]:
        """The feature maps that lie in blocks of channels: those that an operator needs so, and what goes with them."""
        seeds: list[Hashable] = []
        if not any(job.layout is not None and job.layout.needs for job in self.jobs):
            return frozenset()
        for job in self.jobs:
            if not _takes(job):
                continue
            images = [t.key for t in (*job.reads, *job.writes) if self._image(t.form)]
            if images and job.kernel != CAST:
                first = self._find(images[0])
                self.parent[first] = first
                for key in images[1:]:
                    self.parent[self._find(key)] = first
                if job.layout is not None and job.layout.needs:
                    seeds.append(first)
        roots = {self._find(key) for key in seeds}
        return frozenset([key for key in [*self.parent] if self._find(key) in roots])

    def _image(self, form: Form) -> bool:
        return form.image and len(form.shape) in self.ranks

    def _output(self, touch: Touch) -> Touch:
        """What the caller gets, plain and in the dtype that the model declares."""
        if touch.key in self.left:
            return self.left[touch.key]
        native = self.made[True].get(touch.key)
        if touch.key not in self.written or (native is None and not touch.form.narrowed):
            return touch
        wanted = Touch(("out", touch.key), _given(touch), touch.form, touch.partial)
        return self._convert(touch.key, native or touch, wanted, times=1)

    def _find(self, key: Hashable) -> Hashable:
        parent = self.parent
        while (up := parent.get(key, key)) != key:
            parent[key] = key = parent[up]
        return key

    def _written(self, touch: Touch, blocked: bool) -> Touch:
        """A result in the form in which its job makes it."""
        self.written.add(touch.key)
        blocked = blocked and self._image(touch.form)
        if blocked:
            touch = _blocked(touch, touch.key)
        self.made[blocked][touch.key] = touch
        return touch

    def _leaving(self, touch: Touch) -> Touch:
        """What a conversion of the program gives the caller, in the dtype that the model declares."""
        self.left[touch.key] = Touch(touch.key, _given(touch), replace(touch.form, narrowed=False), touch.partial)
        return self.left[touch.key]

    def _read(self, job: Job, touch: Touch, blocked: bool) -> Touch:
        """An operand in the form in which its job takes it; converted before if it is in the other one."""
        key, form = touch.key, touch.form
        if job.kernel == TRANS_DATA and key not in self.written:
            return Touch(key, _given(touch), form, touch.partial)
        blocked = blocked and self._image(form)
        found = self.made[blocked].get(key)
        if found is None:
            other = self.made[not blocked].get(key)
            if other is None and key in self.written:
                return touch
            source = other or Touch(key, _given(touch), form, touch.partial)
            if source.nbytes == touch.nbytes and not blocked and other is None:
                found = touch  # an input that is taken as it comes
            else:
                other_key = (blocked, key)
                wanted = _blocked(touch, other_key) if blocked else Touch(other_key, touch.nbytes, form, touch.partial)
                found = self._convert(key, source, wanted, job.times)
            self.made[blocked][key] = found
        if touch.partial:
            return Touch(found.key, min(found.nbytes, touch.nbytes), found.form, found.partial)
        return touch if found.nbytes == touch.nbytes and found.key == key else found

    def _convert(self, key: Hashable, source: Touch, wanted: Touch, times: int) -> Touch:
        dtype = DType.FLOAT16 if wanted.form.narrowed else DType.FLOAT32
        work = Work(vector=prod(wanted.form.shape), run=lanes(dtype))
        self.out.append(Job(-1, f"convert {key}", TRANS_DATA, "aicore", work, dtype, (source,), (wanted,), times))
        return wanted


def _behind(jobs: Sequence[Job], keys: Sequence[Hashable]) -> int:
    """Where jobs come that are done once and read these buffers: behind the last one that is done once.

    Behind all where what they read is written later, in a loop.
    """
    at = max((i + 1 for i, job in enumerate(jobs) if job.times == 1), default=len(jobs))
    later = {t.key for job in jobs[at:] for t in job.writes}
    return len(jobs) if later.intersection(keys) else at


def _takes(job: Job) -> bool:
    """Whether the job works on blocked channels."""
    return job.layout is not None and bool(job.layout.maps)


def _with(job: Job, reads: tuple[Touch, ...], writes: tuple[Touch, ...]) -> Job:
    """The same job on other buffers."""
    work = job.work
    if work.gemms and work.gemms[0].left and reads[0].nbytes != job.reads[0].nbytes:
        first = work.gemms[0]  # its left operand has grown by the channels that fill its blocks
        first = replace(first, left=first.left * reads[0].nbytes // job.reads[0].nbytes)
        work = replace(work, gemms=(first, *work.gemms[1:]))
    return Job(job.place, job.name, job.kernel, job.engine, work, job.dtype, reads, writes, job.times, job.layout)


def _blocked(touch: Touch, key: Hashable) -> Touch:
    """A feature map in blocks of 16 channels, as another buffer or the same one."""
    channels, nbytes = touch.form.shape[1], touch.nbytes
    if channels:
        nbytes = nbytes * ceil(channels / 16) * 16 // channels
    return Touch(key, nbytes, touch.form, touch.partial)


def _given(touch: Touch) -> int:
    """Bytes in the dtype that the model declares."""
    return touch.nbytes * (2 if touch.form.narrowed else 1)
