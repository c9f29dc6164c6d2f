"""The plan's stable text form: `print_plan` and its inverse, `parse_plan`.

    plan "Ascend310P3" streams 1 events 0 weights 256 arena 1024
      symbol N in [1, 64]
      hint N = 1
      option "precision_mode" = "origin"
      constant 0 = blob 0: float32[8, 8]
      buffer 0 weights [256] at 0 index 0
      buffer 1 input [32*N] at 0 index 0 kept 0..0
      buffer 2 arena [32*N] kept 0..1
      buffer 3 output [32*N] at 0 index 0 kept 1..2
      input "x" %0 in 1: float32[N, 8]
      output "y" %4 in 3: float32[N, 8]
      initial %1 in 0
      alias %3 = %2 + [0]
      static {
        task 0 MatMul "fc" @aicore stream 0 cost 120 from "fc", "fc_bias"
          input read %0 in 1: float32[N, 8]
          input read %1 in 0: float32[8, 8]
          output write %2 in 2: float32[N, 8]
        task 1 Softmax "prob" @aicore stream 0 waits 0 records 1, 2
          input read %3 in 2 + [0] strides [32, 4]: float32[N, 8]
          input none
          host 2 constant 0
          attrs {axis = -1}
          output write %4 in 3: float32[N, 8]
          scratch write %-1 in 2: uint8[512]
          body
            | graph "fused" {
            | …
      }
      host { task … }       a step that the host waits for; its task has lines `bind "NonZero3.count" output 0 axis 1`
      if from "if_1" { predicate read … ; yields write … ; then { … } ; else { … } }
      loop from "loop_1" { trips … ; condition … ; counter … ; inside … ; next … ;
                           carried read … ; state … ; result … ;
                           item axis 0 forward read … ; stack … ; yields … ; body { … } }
      scan { sliced axis 0 backward read … ; slice … ; carried … ; body { … } }
      gears N, M { gear 1, 16 { … } ; gear 2, 16 { … } }

One statement is one line (`;` above stands for a line break); blanks before it and lines that begin with `//` mean
nothing. An operand is access, value, buffer, and where they are not 0 and C-ordered its delta and strides. Types,
attributes, constants and graphs are as in `atc_py.ir.text`. What is parsed is what was printed, plan and all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atc_py.errors import error
from atc_py.ir.lexer import name_text, operator_text, quote, sizes_text, words_text
from atc_py.ir.text import BlobTable, print_attrs, print_const, print_graph, print_type
from atc_py.plan.records import MAX_NESTING
from atc_py.plan.text_reader import parse_plan
from atc_py.plan.types import (
    Buffer,
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Port,
    Region,
    Scan,
    Static,
    Task,
    children,
)

__all__ = ["parse_plan", "print_plan"]


def print_plan(plan: Plan, blobs: BlobTable | None = None) -> str:
    """The text of a plan; ends with a line break.

    Blobs of more than 32 bytes go into `blobs`; without a table they are written as `blob ?`, which can be read but
    not parsed. Raises `AtcError` E30011 for regions that nest too deep.
    """
    return "\n".join(_Printer(blobs).plan(plan)) + "\n"


def print_operand(o: Operand) -> str:
    """The text of an operand."""
    text = f"{o.access.value} %{o.value} in {o.buffer}"
    if not isinstance(o.delta, int) or o.delta:
        text += f" + [{o.delta}]"
    if o.strides is not None:
        text += f" strides [{sizes_text(o.strides)}]"
    return f"{text}: {print_type(o.type)}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}"


class _Printer:
    def __init__(self, blobs: BlobTable | None) -> None:
        self.blobs = blobs

    def plan(self, plan: Plan) -> Iterator[str]:
        """All lines."""
        arena = "" if plan.arena is None else f" arena {plan.arena}"
        numbers = f"streams {plan.streams} events {plan.events} weights {plan.weights_nbytes}{arena}"
        yield f"plan {quote(plan.target)} {numbers}"
        yield from _indented(self._tables(plan))
        for region in plan.regions:
            yield from _indented(self._region(region, 1))

    def _tables(self, plan: Plan) -> Iterator[str]:
        for name, s in plan.symbols.items():
            hi = "inf" if s.hi is None else s.hi
            yield f"symbol {name_text(name)} in [{s.lo}, {hi}]{' runtime' if s.runtime else ''}"
        if plan.hint is not None and not plan.hint:
            yield "hint"
        yield from (f"hint {name_text(name)} = {value}" for name, value in (plan.hint or {}).items())
        yield from (f"option {quote(name)} = {quote(value)}" for name, value in plan.options.items())
        for k, constant in enumerate(plan.constants):
            yield f"constant {k} = {print_const(constant, self.blobs)}"
        yield from (self._buffer(b) for b in plan.buffers)
        yield from (f"input {self._port(p)}" for p in plan.inputs)
        yield from (f"output {self._port(p)}" for p in plan.outputs)
        yield from (f"initial %{value} in {buffer}" for value, buffer in plan.initial)
        for q in plan.requirements:
            branch = "" if q.branch < 0 else f" branch {q.branch}"
            why = f" why {quote(q.why)}" if q.why else ""
            yield f"require [{q.left}] {q.relation} [{q.right}] at {quote(q.place)}{branch}{why}"
        for a in plan.aliases:
            strides = "" if a.strides is None else f" strides [{sizes_text(a.strides)}]"
            yield f"alias %{a.value} = %{a.source} + [{a.delta}]{strides}"

    @staticmethod
    def _buffer(b: Buffer) -> str:
        text = f"buffer {b.id} {b.space.value} [{b.nbytes}]"
        text += "" if b.offset is None else f" at {b.offset}"
        text += "" if b.index == -1 else f" index {b.index}"
        return text if b.first == b.last == -1 else f"{text} kept {b.first}..{b.last}"

    @staticmethod
    def _port(p: Port) -> str:
        return f"{quote(p.name)} %{p.value} in {p.buffer}: {print_type(p.type)}"

    def _task(self, t: Task) -> Iterator[str]:
        head = f"task {t.id} {operator_text(t.kernel)} {quote(t.name)} @{name_text(t.engine)} stream {t.stream}"
        head += f" waits {', '.join(map(str, t.waits))}" if t.waits else ""
        head += f" records {', '.join(map(str, t.records))}" if t.records else ""
        head += f" priority {t.priority}" if t.priority else ""
        head += f" cost {t.cost}" if t.cost else ""
        yield head + (f" from {words_text(t.origin)}" if t.origin else "")
        for o in t.inputs:
            yield "  input none" if o is None else f"  input {print_operand(o)}"
        yield from (f"  host {i} constant {k}" for i, k in t.host_values.items())
        if t.attrs:
            yield f"  attrs {print_attrs(t.attrs, self.blobs)}"
        yield from (f"  output {print_operand(o)}" for o in t.outputs)
        if t.workspace is not None:
            yield f"  scratch {print_operand(t.workspace)}"
        yield from (f"  bind {quote(s)} output {output} axis {axis}" for s, output, axis in t.binds)
        if t.body is not None:
            yield "  body"
            yield from (f"    | {line}" for line in print_graph(t.body, self.blobs).splitlines())

    def _region(self, region: Region, depth: int) -> Iterator[str]:
        if depth > MAX_NESTING:
            raise error("E30011", "plan", f"its regions nest more than {MAX_NESTING} deep")
        origin = getattr(region, "origin", ())
        head = type(region).__name__.lower() + (f" from {words_text(origin)}" if origin else "")
        if isinstance(region, Gears):
            head += "".join(f"{', ' if k else ' '}{name_text(s)}" for k, s in enumerate(region.symbols))
        yield f"{head} {{"
        yield from _indented(self._own(region))
        for title, body in zip(_titles(region), children(region), strict=True):
            yield f"  {title} {{"
            for child in body:
                yield from _indented(_indented(self._region(child, depth + 1)))
            yield "  }"
        yield "}"

    def _own(self, region: Region) -> Iterator[str]:
        """The lines of a region before those of its children."""
        if isinstance(region, Static):
            for t in region.tasks:
                yield from self._task(t)
        elif isinstance(region, Host):
            yield from self._task(region.task)
        elif isinstance(region, If):
            yield f"predicate {print_operand(region.predicate)}"
        elif isinstance(region, Loop):
            own = (region.trips, region.condition, region.counter, region.state_condition, region.next_condition)
            for word, o in zip(("trips", "condition", "counter", "inside", "next"), own, strict=True):
                if o is not None:
                    yield f"{word} {print_operand(o)}"
        elif isinstance(region, Scan):
            for whole, part, axis, reverse in region.sliced:
                yield f"sliced {_direction(axis, reverse)} {print_operand(whole)}"
                yield f"slice {print_operand(part)}"
        if isinstance(region, (Loop, Scan)):
            for c in region.carried:
                yield f"carried {print_operand(c.initial)}"
                yield f"state {print_operand(c.state)}"
                yield f"result {print_operand(c.result)}"
            for k in region.collected:
                yield f"item {_direction(k.axis, k.reverse)} {print_operand(k.item)}"
                yield f"stack {print_operand(k.stack)}"
        if isinstance(region, (If, Loop, Scan)):
            yield from (f"yields {print_operand(o)}" for o in region.outputs)


def _direction(axis: int, reverse: bool) -> str:
    return f"axis {axis} {'backward' if reverse else 'forward'}"


def _titles(region: Region) -> list[str]:
    if isinstance(region, If):
        return ["then", "else"]
    if isinstance(region, Gears):
        return [f"gear {', '.join(map(str, gear))}".rstrip() for gear in region.gears]
    return ["body"] if isinstance(region, (Loop, Scan)) else []
