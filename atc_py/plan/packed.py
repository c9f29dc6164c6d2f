"""The plan's storage: `encode` makes the packed table, `decode` (of `unpacked`) reads it; `records` has the layout.

Strings, types, expressions and operands are stored once. Regions are words in preorder, lists with their counts:

    Static   0  tasks                     Host  1
    If       2  predicate  outputs…  origins…  then  else                       (counts of child regions)
    Loop     3  trips  condition  counter  condition in the body  next  and as a Scan from carried… on
    Scan     4  sliced…  carried…  collected…  outputs…  origins…  body
    Gears    5  symbols…  gears…  bodies…

The tasks of Static and Host regions follow one another in section `tasks`. Same plan, same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from itertools import starmap
from typing import Any

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.dims import Dim, Size
from atc_py.ir.graph import Graph
from atc_py.ir.text import BlobTable, GraphPrinter, print_attrs, print_const
from atc_py.ir.types import Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.plan import records as r
from atc_py.plan.types import (
    Carried,
    Collected,
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Port,
    Region,
    Static,
    Task,
    children,
)
from atc_py.plan.unpacked import decode

__all__ = ["decode", "encode"]


def encode(plan: Plan, blobs: BlobTable) -> bytes:
    """The packed table of a plan; the bytes of its larger constants go into `blobs`.

    Raises `AtcError` E30011 for what has no place in it: numbers beyond their field, regions that nest too deep.
    """
    return _Encoder(plan, blobs).run()


def _refuse(cause: str) -> AtcError:
    return error("E30011", "plan", f"cannot be stored: {cause}")


_CODES = {"<u1": "B", "|u1": "B", "<u4": "I", "<i4": "i", "<i8": "q"}


def _packed(rows: list[Any], dtype: np.dtype[Any]) -> bytes:
    """The rows of a section in their bytes; `struct.error` for a number beyond its field."""
    if dtype.fields is None:
        return struct.pack(f"<{len(rows)}{_CODES[dtype.str]}", *rows)
    codes = "".join([_CODES[field[0].str] for field in dtype.fields.values()])
    return b"".join(starmap(struct.Struct("<" + codes).pack, rows))


class _Strings(dict[str, int]):
    """The numbers of strings, each stored when it is first asked for; `words` are their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[bytes] = []

    def __missing__(self, text: str) -> int:
        try:
            raw = text.encode()
        except UnicodeEncodeError as e:
            raise _refuse(str(e)) from None
        number = self[text] = len(self.words)
        self.words.append(raw)
        return number


class _Encoder:
    def __init__(self, plan: Plan, blobs: BlobTable) -> None:
        self.plan, self.blobs = plan, blobs
        self.rows: dict[str, list[Any]] = {name: [] for name, _ in r.SECTIONS}
        self.strings = _Strings()
        self.printer = GraphPrinter(blobs)
        self._expressions: dict[Dim, int] = {}
        self._types: dict[Type, int] = {}
        self._type_ids: dict[int, int] = {}
        self._operands: dict[Hashable, int] = {}
        self._bodies: dict[int, int] = {}

    def run(self) -> bytes:
        """The table's bytes."""
        plan = self.plan
        for name, range_ in plan.symbols.items():
            flags = (r.HAS_HI if range_.hi is not None else 0) | (r.RUNTIME if range_.runtime else 0)
            self.rows["symbols"].append((self.strings[name], flags, range_.lo, range_.hi or 0))
        self.rows["constants"] = [self.strings[print_const(c, self.blobs)] for c in plan.constants]
        for k, b in enumerate(plan.buffers):
            if b.id != k or (b.offset is not None and b.offset < 0):
                raise _refuse(f"buffer {k} is numbered {b.id}, its offset is {b.offset}")
            offset = -1 if b.offset is None else b.offset
            row = (r.SPACES.index(b.space), b.index, self.size(b.nbytes), offset, b.first, b.last)
            self.rows["buffers"].append(row)
        self._ports(plan.inputs)
        self._ports(plan.outputs)
        self._regions(plan.regions)
        for a in plan.aliases:
            count = -1 if a.strides is None else len(a.strides)
            self.rows["aliases"].append((a.value, a.source, self.size(a.delta), count))
            self.rows["view_strides"] += [self.size(s) for s in a.strides or ()]
        for q in plan.requirements:
            sides = (self.size(q.left), self.size(q.right))
            said = (self.strings[q.place], r.RELATIONS.index(q.relation), q.branch, self.strings[q.why], 0)
            self.rows["requirements"].append((*sides, *said))
        self.rows["initial"] = list(plan.initial)
        self.rows["hint"] = [(self.strings[s], 0, v) for s, v in (plan.hint or {}).items()]
        self.rows["options"] = [(self.strings[k], self.strings[v]) for k, v in plan.options.items()]
        arena = r.NO_ARENA if plan.arena is None else plan.arena
        head = (self.strings[plan.target], len(plan.inputs), plan.weights_nbytes, arena, plan.streams, plan.events)
        self.rows["plan"].append((*head, plan.hint is not None))
        self.rows["strings"] = [*map(len, self.strings.words)]
        return self._assemble()

    def _assemble(self) -> bytes:
        start = r.HEAD.itemsize + r.ENTRY.itemsize * len(r.SECTIONS)
        entries, parts = [], []
        for name, dtype in r.SECTIONS:
            try:
                raw = b"".join(self.strings.words) if name == "text" else _packed(self.rows[name], dtype)
            except struct.error as e:
                raise _refuse(f"{name}: {e}") from None
            entries.append((dtype.itemsize, 0, len(raw) // dtype.itemsize, start))
            raw += bytes(-len(raw) % r.ALIGNMENT)
            parts.append(raw)
            start += len(raw)
        head = np.array([(r.MAGIC, r.VERSION, len(r.SECTIONS), start)], r.HEAD)
        return b"".join([head.tobytes(), np.array(entries, r.ENTRY).tobytes(), *parts])

    # -- what is stored once -----------------------------------------------------------------------------------

    def size(self, size: Size) -> int:
        """A size as one number."""
        if isinstance(size, Dim):
            number = self._expressions.get(size)
            if number is None:
                self.rows["expressions"].append(self.strings[str(size)])
                number = self._expressions[size] = len(self._expressions)
            return r.SMALLEST_EXPRESSION + number
        if not -r.NUMBER_LIMIT < size < r.NUMBER_LIMIT:
            raise _refuse(f"the size {size} is too large")
        return size

    def type(self, type_: Type) -> int:
        """The number of a type."""
        number = self._type_ids.get(id(type_))
        if number is None:
            number = self._types.get(type_)
            if number is None:
                row = self._new_type(type_)  # which may add the types inside first
                number = self._types[type_] = len(self._types)
                self.rows["types"].append(row)
            self._type_ids[id(type_)] = number
        return number

    def _new_type(self, type_: Type) -> tuple[int, ...]:
        if isinstance(type_, Tensor):
            storage = r.NONE if type_.storage is None else r.FORMATS.index(type_.storage)
            rank = -1 if type_.shape is None else len(type_.shape)
            row = (r.TENSOR, r.DTYPES.index(type_.dtype), r.FORMATS.index(type_.format), storage, rank, -1)
            self.rows["dims"] += [self.size(d) for d in type_.shape or ()]
        elif isinstance(type_, Map):
            row = (r.MAP, r.DTYPES.index(type_.key), r.NONE, r.NONE, -1, self.type(type_.value))
        else:
            assert isinstance(type_, (SequenceType, Optional))
            kind = r.SEQUENCE if isinstance(type_, SequenceType) else r.OPTIONAL
            row = (kind, r.NONE, r.NONE, r.NONE, -1, self.type(type_.element))
        return row

    def operand(self, o: Operand | None) -> int:
        """The number of an operand, -1 for none."""
        if o is None:
            return -1
        strides = None if o.strides is None else tuple(map(self.size, o.strides))
        type_ = self._type_ids.get(id(o.type))
        type_ = self.type(o.type) if type_ is None else type_
        delta = o.delta if type(o.delta) is int and not o.delta else self.size(o.delta)
        rank = -1 if strides is None else len(strides)
        row = (o.value, r.ACCESSES.index(o.access), o.buffer, type_, delta, rank)
        key = row if strides is None else (row, strides)
        number = self._operands.get(key)
        if number is None:
            number = self._operands[key] = len(self._operands)
            self.rows["strides"] += strides or ()
            self.rows["operands"].append(row)
        return number

    def _ports(self, ports: Sequence[Port]) -> None:
        self.rows["ports"] += [(self.strings[p.name], self.type(p.type), p.buffer, p.value) for p in ports]

    # -- tasks and regions -------------------------------------------------------------------------------------

    def task(self, t: Task) -> None:
        """Add a task."""
        rows, strings = self.rows, self.strings
        inputs, outputs = [*map(self.operand, t.inputs)], [*map(self.operand, t.outputs)]
        rows["inputs"] += inputs
        rows["outputs"] += outputs
        if t.host_values:
            rows["host_values"] += t.host_values.items()
        if t.waits or t.records:
            rows["waits"] += t.waits
            rows["records"] += t.records
        rows["origins"] += [strings[s] for s in t.origin]
        if t.binds:
            rows["binds"] += [(strings[s], output, axis) for s, output, axis in t.binds]
        words = (strings[t.kernel], strings[t.name], strings[t.engine], strings[print_attrs(t.attrs, self.blobs)])
        own = (-1 if t.body is None else self._body(t.body), -1 if t.workspace is None else self.operand(t.workspace))
        ordered = (len(t.host_values), len(t.waits), len(t.records), len(t.origin), len(t.binds))
        row = (t.id, t.cost, t.priority, t.stream, *words, *own, len(inputs), len(outputs), *ordered)
        rows["tasks"].append(row)

    def _body(self, body: Graph) -> int:
        number = self._bodies.get(id(body))
        if number is None:
            number = self._bodies[id(body)] = self.strings[self.printer.text(body)]
        return number

    def _regions(self, regions: Sequence[Region]) -> None:
        words = self.rows["regions"]
        words.append(len(regions))
        stack = [(region, 1) for region in reversed(regions)]
        while stack:
            region, depth = stack.pop()
            if depth > r.MAX_NESTING:
                raise _refuse(f"its regions nest more than {r.MAX_NESTING} deep")
            words += self._region(region)
            inner = [child for body in children(region) for child in body]
            stack += [(child, depth + 1) for child in reversed(inner)]

    def _region(self, region: Region) -> list[int]:
        if isinstance(region, Static):
            for t in region.tasks:
                self.task(t)
            return [r.STATIC, len(region.tasks)]
        if isinstance(region, Host):
            self.task(region.task)
            return [r.HOST]
        if isinstance(region, Gears):
            if any(len(gear) != len(region.symbols) for gear in region.gears):
                raise _refuse("a gear has not one value for each symbol")
            if len(region.gears) != len(region.bodies) or (len(region.gears) > 1 and not region.symbols):
                raise _refuse(f"{len(region.gears)} gears, {len(region.bodies)} bodies, {len(region.symbols)} symbols")
            symbols = [self.strings[s] for s in region.symbols]
            values = [self.size(v) for gear in region.gears for v in gear]
            return [r.GEARS, *_counted(symbols), len(region.gears), *values, *_counted(map(len, region.bodies))]
        left = [*_counted(self.operand(o) for o in region.outputs), *_counted(self.strings[s] for s in region.origin)]
        if isinstance(region, If):
            counts = [len(region.then_branch), len(region.else_branch)]
            return [r.IF, self.operand(region.predicate), *left, *counts]
        moved = [*self._carried(region.carried), *self._collected(region.collected), *left, len(region.body)]
        if isinstance(region, Loop):
            own = (region.trips, region.condition, region.counter, region.state_condition, region.next_condition)
            return [r.LOOP, *(self.operand(o) for o in own), *moved]
        sliced: list[int] = []
        for whole, part, axis, reverse in region.sliced:
            sliced += [self.operand(whole), self.operand(part), axis, int(reverse)]
        return [r.SCAN, len(region.sliced), *sliced, *moved]

    def _carried(self, carried: Sequence[Carried]) -> list[int]:
        words = [self.operand(o) for c in carried for o in (c.initial, c.state, c.result)]
        return [len(carried), *words]

    def _collected(self, collected: Sequence[Collected]) -> list[int]:
        words = [len(collected)]
        for k in collected:
            words += [self.operand(k.item), self.operand(k.stack), k.axis, int(k.reverse)]
        return words


def _counted(numbers: Iterable[int]) -> list[int]:
    words = list(numbers)
    return [len(words), *words]
