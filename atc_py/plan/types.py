"""The Plan's types: tasks over buffers in memory spaces, in a tree of regions. Sizes are ints or Dims.

    input x ──▶ task 0 Conv ──▶ arena buffer 2 ──▶ task 1 Softmax ──▶ output y

    Plan.buffers   0: weights +0      1: input 0      2: arena [0, 401408)      3: output 0
    task 0         reads  operand(value 0, buffer 1), operand(value 1, buffer 0); writes operand(value 2, buffer 2)
    task 1         reads  operand(value 2, buffer 2); writes operand(value 3, buffer 3)
    Plan.initial   (0, 0): buffer 0 holds the constant, value 0, before anything runs

Regions run one after another: all streams join at the end of a region, and at the end of each iteration of a loop.
Streams run side by side only inside one `Static`; events order them there, and are recorded and waited for there.

A plan is a template: order, streams, events and kernels are fixed; `atc_py.memory.bind` evaluates the sizes under the
symbols' values and gives each arena buffer its offset. A plan without symbols is bound once, when it is made.

Nothing of a plan is changed once it has been made. Buffers, operands, tasks and aliases are not frozen all the same:
there are many, and to make a frozen object takes three times as long.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from atc_py.ir.constants import Constant
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import Type

NO_VALUE = -1
"""What a workspace holds instead of a value of the graph."""


class Space(enum.Enum):
    """Memory spaces. Buffers of different spaces never overlap.

    WEIGHTS: bytes of the file, then what is derived from them at bind. ARENA: the planned feature-map memory. INPUT
    and OUTPUT: the caller's buffers, one space a port. HOST: numbered slots (strings, sequences, optionals, maps).
    DYNAMIC: buffers whose size is known when their producer has run. VARIABLE: kept across runs.
    """

    WEIGHTS = "weights"
    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    HOST = "host"
    DYNAMIC = "dynamic"
    VARIABLE = "variable"

    __hash__ = object.__hash__  # there is one object for each: Enum would hash its name, in Python

    def __repr__(self) -> str:
        return self.value


class Access(enum.Enum):
    """What a task does with an operand's bytes."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"

    def __repr__(self) -> str:
        return self.value


@dataclass(slots=True, unsafe_hash=True)
class Buffer:
    """A piece of one space.

    `nbytes` is its size (slots of HOST: 1 a slot). `offset` is its address in bytes: fixed in WEIGHTS and VARIABLE,
    planned in ARENA (None in a template with symbols: `bind` gives it), 0 in INPUT and OUTPUT, the slot number in
    HOST. `index` is the port number (INPUT, OUTPUT) or the number of the constant in `Plan.constants` (WEIGHTS).
    `first` and `last` are the positions of the first and the last task that need its content (ARENA; -1: not said).
    Positions count the tasks in the plan's order, and one more where an If, Loop or Scan begins and where it ends.
    """

    id: int
    space: Space
    nbytes: Size
    offset: int | None = None
    index: int = -1
    first: int = -1
    last: int = -1


@dataclass(slots=True, unsafe_hash=True)
class Operand:
    """A view of a buffer that a task reads, writes or updates.

    `value` is the value's id in the lowered graph (of a workspace `NO_VALUE`). The view starts `delta` bytes into the
    buffer and has the type's storage shape; `strides` are in bytes, None for a C-ordered array (a stride of 0 repeats
    one element).
    """

    value: int
    access: Access
    buffer: int
    type: Type
    delta: Size = 0
    strides: tuple[Size, ...] | None = None


@dataclass(slots=True)
class Task:
    """One launch of a device kernel.

    `inputs` has None where an optional input is absent. `host_values` are the inputs that the host reads to launch
    the task (shapes, axes): input position → constant number in `Plan.constants`. `body` is the tile program of a
    fused task. `workspace` is scratch memory: its content means nothing before and after. `waits` and `records` are
    event ids; a wait is for the last record of its event before it in the region. `binds` are the symbols that become
    known when the task has run: (symbol, output position, axis). `cost` is in cycles of the target, 0 while no clock
    exists.
    """

    id: int
    kernel: str
    name: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    body: Graph | None = None
    workspace: Operand | None = None
    host_values: Mapping[int, int] = field(default_factory=dict)
    stream: int = 0
    waits: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    engine: str = "aicore"
    priority: int = 0
    cost: int = 0
    origin: tuple[str, ...] = ()
    binds: tuple[tuple[str, int, int], ...] = ()

    def operands(self) -> Iterator[Operand]:
        """All operands: inputs that are there, outputs, workspace."""
        return filter(None, (*self.inputs, *self.outputs, self.workspace))


@dataclass(slots=True, unsafe_hash=True)
class Alias:
    """`value` has no bytes of its own: its first element lies `delta` bytes into those of `source`.

    `strides` are in bytes, None for C order, as in its operands. Reshape (r = Reshape(x)): Alias(r, x). A part of a
    value that is split by views: Alias(part, whole, delta, strides of the whole). Inputs of a Concat that are produced
    into its output: Alias(input, output, delta, strides of the output). What leaves a branch of an If as its
    output: Alias(inner, outer); a loop's output: Alias(outer, state). A value has at most one source; sources chain.
    """

    value: int
    source: int
    delta: Size = 0
    strides: tuple[Size, ...] | None = None


@dataclass(frozen=True)
class Static:
    """One sunk list of tasks. What its tasks bind, the host reads when the list is done: none of them needs it."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Host:
    """A task by itself whose results bind fresh symbols; the host waits for it before what follows is bound."""

    task: Task


@dataclass(frozen=True)
class If:
    """Runs one of two lists of regions; both write the same output buffers, those of `outputs`."""

    predicate: Operand
    then_branch: tuple[Region, ...]
    else_branch: tuple[Region, ...]
    origin: tuple[str, ...] = ()
    outputs: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Carried:
    """A loop-carried value: `initial` is read before the first iteration; `result`, what an iteration leaves, is
    moved to `state`, what the next one reads; after the loop `state` is the loop's output."""

    initial: Operand
    state: Operand
    result: Operand


@dataclass(frozen=True)
class Collected:
    """A value of which each iteration's `item` is appended to `stack` along `axis`, or put in front of it."""

    item: Operand
    stack: Operand
    axis: int = 0
    reverse: bool = False


@dataclass(frozen=True)
class Loop:
    """ONNX's Loop: at most `trips` iterations while `condition` holds.

    Before the first iteration the `initial` operands are moved to the `state` operands, in order. An iteration writes
    `counter` and `state_condition` (what the body sees of the condition), runs `body`, reads `next_condition`, appends
    each `item` to its `stack`, and moves each `result` to its `state`, in order. `outputs` are the states and stacks
    under the numbers that they have outside.
    """

    trips: Operand | None
    condition: Operand | None
    counter: Operand | None
    next_condition: Operand | None
    carried: tuple[Carried, ...]
    collected: tuple[Collected, ...]
    body: tuple[Region, ...]
    origin: tuple[str, ...] = ()
    outputs: tuple[Operand, ...] = ()
    state_condition: Operand | None = None


@dataclass(frozen=True)
class Scan:
    """ONNX's Scan: one iteration a slice of each of `sliced` (whole operand, slice operand, axis, reverse).

    An iteration moves the next slice of each whole operand to its slice operand, runs `body`, and ends as a Loop's
    does.
    """

    sliced: tuple[tuple[Operand, Operand, int, bool], ...]
    carried: tuple[Carried, ...]
    collected: tuple[Collected, ...]
    body: tuple[Region, ...]
    origin: tuple[str, ...] = ()
    outputs: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Gears:
    """One list of regions for each combination of symbol values in `gears`; the one that the binding names is run.

    Each was planned for its values: its buffers have their offsets, and `Plan.arena` is the most that one of them
    needs. What gears have in common are ports, constants and streams, and the values of inputs and outputs (see
    `atc_py.plan.gears`).
    """

    symbols: tuple[str, ...]
    gears: tuple[tuple[int, ...], ...]
    bodies: tuple[tuple[Region, ...], ...]


Region: TypeAlias = Static | Host | If | Loop | Scan | Gears


@dataclass(frozen=True)
class Port:
    """An input or output of the model: its name, its type as the model declares it, its buffer, and the value's id.

    `value` is what the buffer holds: an input's before the first task, an output's after the last (-1: not said).
    """

    name: str
    type: Type
    buffer: int
    value: int = -1


@dataclass(frozen=True)
class Requirement:
    """What symbol values must satisfy, or the model has no meaning: a relation between two sizes.

    `place` names the node that asks for it: a Reshape whose element counts must agree, a convolution whose output
    would have a negative size. `branch` is -1 when it always holds, else the number of the branch of an If in which it
    does: 2k for the then_branch of the k-th If of the plan (in the order of `walk`), 2k + 1 for its else_branch.
    `relation` is `==`, `>=`, or `~` (the two sizes broadcast: equal, or one of them 1). `why` says it for people where
    the formula would not: "the window of 7 to fit into L".
    """

    left: Size
    right: Size
    place: str
    relation: str = "=="
    branch: int = -1
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return self.why
        if self.relation == "~":
            return f"{self.left} = {self.right}, or one of them 1"
        return f"{self.left} {'=' if self.relation == '==' else '≥'} {self.right}"


@dataclass(frozen=True)
class Plan:
    """See the module's page.

    `weights_nbytes` is how many bytes of WEIGHTS lie in the file; constants that are derived at bind follow behind.
    `arena` is the peak in bytes (None in a template with symbols). `hint` are the symbol values at which the figures
    of a template were evaluated. `aliases` are the values without bytes of their own. `initial` are the (value, buffer)
    pairs of the values that lie in WEIGHTS and VARIABLE buffers before the first task. Both serve the verifier.
    `requirements` are checked by each `bind`.
    """

    target: str
    symbols: Mapping[str, Range]
    buffers: tuple[Buffer, ...]
    constants: tuple[Constant, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    regions: tuple[Region, ...]
    weights_nbytes: int = 0
    arena: int | None = None
    streams: int = 1
    events: int = 0
    hint: Mapping[str, int] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[Alias, ...] = ()
    initial: tuple[tuple[int, int], ...] = ()
    requirements: tuple[Requirement, ...] = ()

    @property
    def static(self) -> bool:
        """Whether the plan has no symbols that the inputs' shapes bind."""
        return all(r.runtime for r in self.symbols.values())

    def tasks(self) -> Iterator[Task]:
        """All tasks in order, those of child regions included (then before else)."""
        for region in walk(self.regions):
            if isinstance(region, Static):
                yield from region.tasks
            elif isinstance(region, Host):
                yield region.task


def children(region: Region) -> tuple[tuple[Region, ...], ...]:
    """The lists of regions inside a region."""
    if isinstance(region, If):
        return (region.then_branch, region.else_branch)
    if isinstance(region, (Loop, Scan)):
        return (region.body,)
    if isinstance(region, Gears):
        return region.bodies
    return ()


def walk(regions: tuple[Region, ...]) -> Iterator[Region]:
    """All regions, outer ones first."""
    stack: list[Region] = list(reversed(regions))
    while stack:
        region = stack.pop()
        yield region
        stack.extend(reversed([r for child in children(region) for r in child]))


def own_operands(region: Region) -> list[Operand]:
    """The operands of a region itself: what the device reads and moves to run an If, a Loop or a Scan."""
    if isinstance(region, If):
        return [region.predicate, *region.outputs]
    if not isinstance(region, (Loop, Scan)):
        return []
    found: list[Operand | None] = []
    if isinstance(region, Loop):
        found += [region.trips, region.condition, region.counter, region.state_condition, region.next_condition]
    else:
        found += [o for whole, part, _, _ in region.sliced for o in (whole, part)]
    found += [o for c in region.carried for o in (c.initial, c.state, c.result)]
    found += [o for c in region.collected for o in (c.item, c.stack)]
    found += region.outputs
    return [o for o in found if o is not None]
