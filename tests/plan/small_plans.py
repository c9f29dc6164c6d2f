"""Plans of a few tasks that are good: drawn at random, or what the scheduler makes of random graphs.

good_plan(rng, 12)       t0 Relu (stream 1) → t1 Concat (stream 0) waits 0 → …
scheduled_plan(rng)      towers of small operators, cross-linked and joined, as O0 or O2 schedules them
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from atc_py.compiler import Options, compile_graph
from atc_py.graph import Builder
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from atc_py.memory import Block, plan_memory
from atc_py.plan.types import Access, Alias, Buffer, Operand, Plan, Port, Space, Static, Task
from tests.plan.oracle import bytes_of

MOST_TASKS = 12
"""Of larger plans not all interleavings can be run."""


def good_plan(rng: random.Random, most: int = 6) -> Plan:
    """A chain of 2 to `most` tasks: some reuse, work in place, views, scratch memory, and streams that events order."""
    streams, count = rng.choice([1, 2, 3]), rng.randint(2, most)
    shapes = [(rng.randint(1, 3), rng.randint(1, 4)) for _ in range(count + 1)]
    shapes[1:] = [shapes[0] if rng.random() < 0.6 else s for s in shapes[1:]]
    types = [Tensor(DType.FLOAT32, s) for s in shapes]
    reads = [rng.choices(range(k), k=rng.choice([1, 1, 2])) for k in range(1, count + 1)]
    last = {v: k for k, r in enumerate(reads) for v in r}
    where = {0: 0, count: 1}
    in_place: dict[int, bool] = {}
    blocks: list[Block] = []
    owner: list[int] = []
    for k, r in enumerate(reads):
        v = k + 1
        source = r[0]
        merge = len(r) == 1 and v != count and where[source] > 1 and last[source] == k and types[v] == types[source]
        in_place[v] = merge and rng.random() < 0.7
        if v == count:
            continue
        if in_place[v]:
            where[v] = where[source]
            b = blocks[where[v] - 2]
            blocks[where[v] - 2] = replace(b, upper=max(b.upper, last.get(v, k) + 1))
        else:
            where[v] = len(blocks) + 2
            nbytes = 4 * shapes[v][0] * shapes[v][1]
            blocks.append(Block(k, last.get(v, k) + 1, -(-nbytes // 512) * 512))
            owner.append(v)
    planned = plan_memory(blocks)
    offsets, peak = planned.offsets, planned.peak
    sizes = [types[v].nbytes for v in (0, count, *owner)]
    buffers = [Buffer(0, Space.INPUT, sizes[0], 0, 0), Buffer(1, Space.OUTPUT, sizes[1], 0, 0)]
    buffers += [Buffer(k + 2, Space.ARENA, sizes[k + 2], offset) for k, offset in enumerate(offsets)]
    aliases = [Alias(100 + v, v) for v in range(count) if rng.random() < 0.3]
    named = {a.source: a.value for a in aliases}
    tasks = []
    for k, r in enumerate(reads):
        ids = [named[v] if v in named and rng.random() < 0.5 else v for v in r]
        inputs = tuple(Operand(i, Access.READ, where[v], types[v]) for i, v in zip(ids, r))
        output = Operand(k + 1, Access.WRITE, where[k + 1], types[k + 1])
        kernel = "Relu" if len(r) == 1 else "Concat"
        tasks.append(Task(k, kernel, f"t{k}", inputs, (output,), stream=rng.randrange(streams)))
    ports = ((Port("x", types[0], 0, 0),), (Port("y", types[count], 1, count),))
    plan = Plan("t", {}, tuple(buffers), (), *ports, (), 0, peak, streams, count, aliases=tuple(aliases))
    plan, tasks = _with_scratch(rng, plan, tasks)
    return with_tasks(plan, synchronised(plan, tasks))


def _with_scratch(rng: random.Random, plan: Plan, tasks: list[Task]) -> tuple[Plan, list[Task]]:
    """Some of the tasks have a workspace, all of them at one address."""
    assert plan.arena is not None
    buffer = Buffer(len(plan.buffers), Space.ARENA, 24, plan.arena)
    workspace = Operand(-1, Access.WRITE, buffer.id, Tensor(DType.UINT8, (24,)))
    tasks = [replace(t, workspace=workspace) if rng.random() < 0.2 else t for t in tasks]
    return replace(plan, buffers=(*plan.buffers, buffer), arena=plan.arena + 512), tasks


def synchronised(plan: Plan, tasks: list[Task]) -> list[Task]:
    """Every task records an event and waits for those that it shares bytes with on other streams."""
    touched = [{e for o in t.operands() for e in bytes_of(plan, o)} for t in tasks]
    found = []
    for k, t in enumerate(tasks):
        waits = [i for i in range(k) if tasks[i].stream != t.stream and touched[i] & touched[k]]
        found.append(replace(t, waits=tuple(waits), records=(k,)))
    return found


def with_tasks(plan: Plan, tasks: list[Task]) -> Plan:
    return replace(plan, regions=(Static(tuple(tasks)),))


def scheduled_plan(rng: random.Random) -> Plan:
    """What the scheduler makes of a random graph of a few towers: one `Static` region of at most `MOST_TASKS` tasks.

    The buffers say nothing of their lifetimes, which a mutant would no longer keep: all else is what an OM holds.
    """
    while True:
        level = rng.choice([0, 0, 2])
        options = Options(opt_level=level, stream_num=3, disabled_passes=frozenset({"fusion"} if level else ()))
        plan = compile_graph(_graph(rng), options).plan
        if [type(r) for r in plan.regions] == [Static] and 3 <= len(list(plan.tasks())) <= MOST_TASKS:
            return replace(plan, buffers=tuple(replace(b, first=-1, last=-1) for b in plan.buffers))


def _graph(rng: random.Random) -> Graph:
    b = Builder("small")
    values = [b.data("x", "float32", (4, 4)), b.data("z", "float32", (4, 4))]
    weight = b.const(np.eye(4, dtype=np.float32))
    for _ in range(rng.randint(3, 9)):
        one, other = rng.choice(values), rng.choice(values[-3:])
        kind = rng.choice(["Sigmoid", "Neg", "Softmax", "Tanh", "MatMul", "Add", "Mul", "Concat", "Split", "Reshape"])
        if kind in ("Add", "Mul"):
            values.append(b.op(kind, one, other))
        elif kind == "MatMul":
            values.append(b.op(kind, one, weight))
        elif kind == "Concat":
            joined = b.op("Softmax", b.op("Concat", one, other, axis=0))
            values += b.op("Split", joined, outputs=2, axis=0, num_outputs=2)
        elif kind == "Split":
            left, right = b.op("Split", one, outputs=2, axis=0, num_outputs=2)
            values.append(b.op("Concat", right, left, axis=0))
        elif kind == "Reshape":
            flat = b.op("Reshape", one, b.const(np.array([2, 8])))
            values.append(b.op("Reshape", b.op("Neg", flat), b.const(np.array([4, 4]))))
        else:
            values.append(b.op(kind, one))
    ends = [b.op("Add", rng.choice(values), values[-1]), *rng.sample(values[2:], rng.choice([0, 0, 1]))]
    return b.build(**{f"y{k}": v for k, v in enumerate(ends)})
