"""Reading a plan from its text; `text` shows the form.

Each line is one statement: its first word chooses a pattern and a method. Blocks that are not closed yet lie on a
stack, so nothing recurses. What is wrong is said with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from atc_py.errors import AtcError, error
from atc_py.ir.constants import Constant
from atc_py.ir.graph import Range
from atc_py.ir.lexer import BRACKET, NAME, OPERATOR, STRING, Mistake, integer, named, size, sizes, words
from atc_py.ir.text import parse_attrs, parse_const, parse_graph, parse_type
from atc_py.plan.records import MAX_NESTING
from atc_py.plan.types import (
    Access,
    Alias,
    Buffer,
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
    Requirement,
    Scan,
    Space,
    Static,
    Task,
)

_INT = r"-?[0-9]{1,40}"
_INTS = rf"{_INT}(?:, {_INT})*"
_WORD = rf"(?:{NAME}|{STRING})"
_LIST = rf"{STRING}(?:, {STRING})*"
_FROM = rf"(?: from ({_LIST}))?"
_VALUE = r"%(-?[0-9]{1,10})"

_PLAN = re.compile(rf"plan ({STRING}) streams ({_INT}) events ({_INT}) weights ({_INT})(?: arena ({_INT}))?")
_OPERAND = re.compile(rf"(read|write|update) {_VALUE} in ([0-9]{{1,9}})(?: \+ {BRACKET})?(?: strides {BRACKET})?: (.+)")
_TASK = re.compile(
    rf"task ({_INT}) ({OPERATOR}|{STRING}) ({STRING}) @({_WORD}) stream ({_INT})(?: waits ({_INTS}))?"
    rf"(?: records ({_INTS}))?(?: priority ({_INT}))?(?: cost ({_INT}))?{_FROM}"
)
_DIRECTED = re.compile(r"axis (-?[0-9]{1,9}) (forward|backward) (.+)")
_OPENING = {
    "static": re.compile(r"static \{"),
    "host": re.compile(r"host \{"),
    "if": re.compile(rf"if{_FROM} \{{"),
    "loop": re.compile(rf"loop{_FROM} \{{"),
    "scan": re.compile(rf"scan{_FROM} \{{"),
    "gears": re.compile(rf"gears(?: ({_WORD}(?:, {_WORD})*))? \{{"),
}
_BODIES = {
    "then": ("if", re.compile(r"then \{")),
    "else": ("if", re.compile(r"else \{")),
    "body": ("loop scan", re.compile(r"body \{")),
    "gear": ("gears", re.compile(rf"gear(?: ({_INTS}))? \{{")),
}
_ROLES = {
    "predicate": "if",
    "trips": "loop",
    "condition": "loop",
    "counter": "loop",
    "inside": "loop",
    "next": "loop",
    "yields": "if loop scan",
    "slice": "scan",
    "carried": "loop scan",
    "state": "loop scan",
    "result": "loop scan",
    "stack": "loop scan",
}
"""Statements that name one operand of a region, and the regions that have them."""


@dataclass
class _Block:
    """A block that is not closed yet: a region, or one of the lists of regions inside of it."""

    kind: str
    line: int
    regions: list[Region] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    operands: dict[str, list[Operand]] = field(default_factory=dict)
    bodies: dict[str, tuple[Region, ...]] = field(default_factory=dict)
    gears: list[tuple[tuple[int, ...], tuple[Region, ...]]] = field(default_factory=list)
    axes: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    origin: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    gear: tuple[int, ...] = ()


def parse_plan(text: str, blobs: Sequence[memoryview] = ()) -> Plan:
    """The plan that `text` denotes; `blob K` is `blobs[K]`. Raises `AtcError` E30012 with the line."""
    return _Parser(blobs).run(text)


class _Parser:
    def __init__(self, blobs: Sequence[memoryview]) -> None:
        self.blobs = blobs
        self.line = 0
        self.head: re.Match[str] | None = None
        self.symbols: dict[str, Range] = {}
        self.hint: dict[str, int] | None = None
        self.options: dict[str, str] = {}
        self.constants: list[Constant] = []
        self.buffers: list[Buffer] = []
        self.ports: dict[str, list[Port]] = {"input": [], "output": []}
        self.initial: list[tuple[int, int]] = []
        self.aliases: list[Alias] = []
        self.requirements: list[Requirement] = []
        self.blocks = [_Block("plan", 0)]
        self.graph: list[str] | None = None

    def run(self, text: str) -> Plan:
        """The plan of the whole text."""
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip(" \t\r")
            if line and not line.startswith("//"):
                self.line = number
                self._guarded(line)
        self._guarded("")
        if self.head is None or len(self.blocks) > 1:
            self.wrong("the text ends before its plan does")
        target, streams, events, weights, arena = self.head.groups()
        return Plan(
            target=named(target),
            symbols=self.symbols,
            buffers=tuple(self.buffers),
            constants=tuple(self.constants),
            inputs=tuple(self.ports["input"]),
            outputs=tuple(self.ports["output"]),
            regions=tuple(self.blocks[0].regions),
            weights_nbytes=integer(weights),
            arena=None if arena is None else integer(arena),
            streams=integer(streams),
            events=integer(events),
            hint=self.hint,
            options=self.options,
            aliases=tuple(self.aliases),
            initial=tuple(self.initial),
            requirements=tuple(self.requirements),
        )

    def wrong(self, cause: str) -> NoReturn:
        """Raise the error of the current line."""
        raise error("E30012", f"plan text, line {self.line}", cause, "the text is damaged, or of another version")

    def _guarded(self, line: str) -> None:
        """One line; the errors of the IR's text get the line's number."""
        try:
            if self.graph is not None and line.startswith("|"):
                self.graph.append(line[1:])
                return
            if self.graph is not None:
                self._last_task()["body"] = parse_graph("\n".join(self.graph), self.blobs)
                self.graph = None
            if line:
                self._read(line)
        except Mistake as e:
            self.wrong(e.cause)
        except AtcError as e:
            if e.code == "E30012":
                raise
            self.wrong(f"{e.problems[0].place}: {e.problems[0].cause}")

    def _read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        top = self.blocks[-1]
        if self.head is None:
            self.head = self._match(_PLAN, line, "the line of the plan")
        elif line == "}":
            self._close()
        elif top.kind in ("static", "host") and (word in _IN_TASK or word == "task"):
            self._in_task(word, rest, line)
        elif word in _BODIES and top.kind in _BODIES[word][0].split():
            match = self._match(_BODIES[word][1], line, f"'{word} {{'")
            gear = _ints(match[1]) if word == "gear" else ()
            self.blocks.append(_Block(word, self.line, gear=gear))
        elif word in _ROLES and top.kind in _ROLES[word].split():
            top.operands.setdefault(word, []).append(self._operand(rest))
        elif (word == "sliced" and top.kind == "scan") or (word == "item" and top.kind in ("loop", "scan")):
            match = self._match(_DIRECTED, rest, "an axis, a direction and an operand")
            top.axes.setdefault(word, []).append((int(match[1]), match[2] == "backward"))
            top.operands.setdefault(word, []).append(self._operand(match[3]))
        elif word in _OPENING and top.kind in ("plan", "then", "else", "body", "gear"):
            self._open(word, line)
        elif word in _IN_PLAN and top.kind == "plan":
            _IN_PLAN[word](self, rest)
        else:
            self.wrong(f"'{word[:40]}' is not expected in '{top.kind}'")

    def _match(self, pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
        match = pattern.fullmatch(text)
        if match is None:
            self.wrong(f"expected {what}, found '{text[:80]}'")
        return match

    # -- tables ------------------------------------------------------------------------------------------------

    def _symbol(self, rest: str) -> None:
        match = self._match(_SYMBOL, rest, "'NAME in [LOW, HIGH]'")
        name = named(match[1])
        if name in self.symbols:
            self.wrong(f"symbol '{name}' is declared twice")
        high = None if match[3] is None else integer(match[3])
        self.symbols[name] = Range(integer(match[2]), high, match[4] is not None)

    def _hint(self, rest: str) -> None:
        self.hint = {} if self.hint is None else self.hint
        if rest:
            match = self._match(_HINT, rest, "'NAME = NUMBER'")
            self.hint[named(match[1])] = integer(match[2])

    def _option(self, rest: str) -> None:
        match = self._match(_OPTION, rest, '\'"NAME" = "VALUE"\'')
        self.options[named(match[1])] = named(match[2])

    def _constant(self, rest: str) -> None:
        match = self._match(_CONSTANT, rest, "'NUMBER = CONSTANT'")
        if int(match[1]) != len(self.constants):
            self.wrong(f"constant {match[1]} comes where {len(self.constants)} is expected")
        self.constants.append(parse_const(match[2], self.blobs))

    def _buffer(self, rest: str) -> None:
        match = self._match(_BUFFER, rest, "'NUMBER SPACE [SIZE]'")
        number, space, nbytes, offset, index, first, last = match.groups()
        if int(number) != len(self.buffers) or space not in _SPACES:
            self.wrong(f"buffer {number} in '{space}' comes where {len(self.buffers)} is expected")
        self.buffers.append(
            Buffer(
                int(number),
                _SPACES[space],
                size(nbytes),
                None if offset is None else integer(offset),
                -1 if index is None else integer(index),
                -1 if first is None else integer(first),
                -1 if last is None else integer(last),
            )
        )

    def _port(self, kind: str, rest: str) -> None:
        match = self._match(_PORT, rest, "'\"NAME\" %VALUE in BUFFER: TYPE'")
        self.ports[kind].append(Port(named(match[1]), parse_type(match[4]), int(match[3]), int(match[2])))

    def _input(self, rest: str) -> None:
        self._port("input", rest)

    def _output(self, rest: str) -> None:
        self._port("output", rest)

    def _initial(self, rest: str) -> None:
        match = self._match(_INITIAL, rest, "'%VALUE in BUFFER'")
        self.initial.append((int(match[1]), int(match[2])))

    def _alias(self, rest: str) -> None:
        match = self._match(_ALIAS, rest, "'%VALUE = %SOURCE + [DELTA]'")
        strides = None if match[4] is None else sizes(match[4])
        self.aliases.append(Alias(int(match[1]), int(match[2]), size(match[3]), strides))

    def _require(self, rest: str) -> None:
        match = self._match(_REQUIRE, rest, "'[SIZE] == [SIZE] at \"NODE\"'")
        left, relation, right, place, branch, why = match.groups()
        self.requirements.append(
            Requirement(
                size(left),
                size(right),
                named(place),
                relation,
                integer(branch or "-1"),
                named(why) if why else "",
            )
        )

    # -- tasks -------------------------------------------------------------------------------------------------

    def _operand(self, text: str) -> Operand:
        match = self._match(_OPERAND, text, "an operand, as in 'read %1 in 0: float32[2]'")
        access, value, buffer, delta, strides, type_ = match.groups()
        return Operand(
            int(value),
            Access(access),
            int(buffer),
            parse_type(type_),
            0 if delta is None else size(delta),
            None if strides is None else sizes(strides),
        )

    def _last_task(self) -> dict[str, Any]:
        tasks = self.blocks[-1].tasks
        if not tasks:
            self.wrong("a task is expected first")
        return tasks[-1]

    def _in_task(self, word: str, rest: str, line: str) -> None:
        """A task's first line, or one of those that follow it."""
        if word == "task":
            self._task(line)
            return
        task = self._last_task()
        if word == "body":
            self.graph = []
        elif word == "attrs":
            task["attrs"] = parse_attrs(rest, self.blobs)
        elif word == "scratch":
            task["workspace"] = self._operand(rest)
        elif word == "host":
            match = self._match(_HOST_VALUE, rest, "'INPUT constant NUMBER'")
            task["host_values"][int(match[1])] = int(match[2])
        elif word == "bind":
            match = self._match(_BIND, rest, "'\"SYMBOL\" output NUMBER axis NUMBER'")
            task["binds"] += ((named(match[1]), int(match[2]), int(match[3])),)
        else:
            operand = None if rest == "none" and word == "input" else self._operand(rest)
            task[f"{word}s"] += (operand,)

    def _task(self, line: str) -> None:
        match = self._match(_TASK, line, "'task ID KERNEL \"NAME\" @ENGINE stream NUMBER'")
        id_, kernel, name, engine, stream, waits, records, priority, cost, origin = match.groups()
        self.blocks[-1].tasks.append(
            {
                "id": integer(id_),
                "kernel": named(kernel),
                "name": named(name),
                "engine": named(engine),
                "stream": integer(stream),
                "waits": _ints(waits),
                "records": _ints(records),
                "priority": integer(priority or "0"),
                "cost": integer(cost or "0"),
                "origin": tuple(words(origin or "")),
                "inputs": (),
                "outputs": (),
                "host_values": {},
                "binds": (),
            }
        )

    # -- regions -----------------------------------------------------------------------------------------------

    def _open(self, kind: str, line: str) -> None:
        match = self._match(_OPENING[kind], line, f"'{kind} {{'")
        if len(self.blocks) > 2 * MAX_NESTING:
            self.wrong(f"regions nest more than {MAX_NESTING} deep")
        block = _Block(kind, self.line)
        names = tuple(words(match[1] or "")) if match.re.groups else ()
        if kind == "gears":
            block.symbols = names
        else:
            block.origin = names
        self.blocks.append(block)

    def _close(self) -> None:
        if len(self.blocks) == 1:
            self.wrong("there is nothing to close")
        done = self.blocks.pop()
        if done.kind == "gear":
            self.blocks[-1].gears.append((done.gear, tuple(done.regions)))
        elif done.kind in _BODIES:
            if done.kind in self.blocks[-1].bodies:
                self.wrong(f"a second '{done.kind}'")
            self.blocks[-1].bodies[done.kind] = tuple(done.regions)
        else:
            self.blocks[-1].regions.append(self._region(done))

    def _region(self, b: _Block) -> Region:
        """The region of a block that is complete."""
        if b.kind == "static":
            return Static(tuple([Task(**t) for t in b.tasks]))
        if b.kind == "host":
            if len(b.tasks) != 1:
                self.wrong(f"a host step has {len(b.tasks)} tasks, expected 1")
            return Host(Task(**b.tasks[0]))
        if b.kind == "gears":
            if any(len(values) != len(b.symbols) for values, _ in b.gears):
                self.wrong("a gear has not one value for each symbol")
            return Gears(b.symbols, tuple([g for g, _ in b.gears]), tuple([body for _, body in b.gears]))
        outputs = tuple(b.operands.get("yields", ()))
        if b.kind == "if":
            predicate = self._single(b, "predicate")
            if predicate is None or len(b.bodies) != 2:
                self.wrong("an if has a predicate, 'then' and 'else'")
            return If(predicate, b.bodies["then"], b.bodies["else"], b.origin, outputs)
        carried = tuple([Carried(*c) for c in self._together(b, "carried", "state", "result")])
        collected = tuple([Collected(item, stack, *d) for (item, stack), d in self._directed(b, "item", "stack")])
        if "body" not in b.bodies:
            self.wrong(f"the {b.kind} of line {b.line} has no body")
        body = b.bodies["body"]
        if b.kind == "scan":
            sliced = tuple([(whole, part, *d) for (whole, part), d in self._directed(b, "sliced", "slice")])
            return Scan(sliced, carried, collected, body, b.origin, outputs)
        own = [self._single(b, word) for word in ("trips", "condition", "counter", "next", "inside")]
        return Loop(own[0], own[1], own[2], own[3], carried, collected, body, b.origin, outputs, own[4])

    def _directed(self, b: _Block, first: str, second: str) -> list[tuple[tuple[Operand, ...], tuple[int, bool]]]:
        """Pairs of operands, the first one with an axis and a direction."""
        return list(zip(self._together(b, first, second), b.axes.get(first, ())))

    def _single(self, b: _Block, word: str) -> Operand | None:
        found = b.operands.get(word, [])
        if len(found) > 1:
            self.wrong(f"'{word}' comes {len(found)} times in the {b.kind} of line {b.line}")
        return found[0] if found else None

    def _together(self, b: _Block, *roles: str) -> list[tuple[Operand, ...]]:
        lists = [b.operands.get(role, []) for role in roles]
        if len({len(found) for found in lists}) > 1:
            self.wrong(f"the {b.kind} of line {b.line} has not as many of each of {', '.join(roles)}")
        return list(zip(*lists))


_SYMBOL = re.compile(rf"({_WORD}) in \[({_INT}), (?:({_INT})|inf)\]( runtime)?")
_HINT = re.compile(rf"({_WORD}) = ({_INT})")
_OPTION = re.compile(rf"({STRING}) = ({STRING})")
_CONSTANT = re.compile(r"([0-9]{1,9}) = (.+)")
_BUFFER = re.compile(
    rf"([0-9]{{1,9}}) ([a-z]+) {BRACKET}(?: at ({_INT}))?(?: index ({_INT}))?(?: kept ({_INT})\.\.({_INT}))?"
)
_PORT = re.compile(rf"({STRING}) {_VALUE} in ([0-9]{{1,9}}): (.+)")
_INITIAL = re.compile(rf"{_VALUE} in ([0-9]{{1,9}})")
_ALIAS = re.compile(rf"{_VALUE} = {_VALUE} \+ {BRACKET}(?: strides {BRACKET})?")
_REQUIRE = re.compile(rf"{BRACKET} (==|>=|~) {BRACKET} at ({STRING})(?: branch ({_INT}))?(?: why ({STRING}))?")
_HOST_VALUE = re.compile(r"([0-9]{1,9}) constant ([0-9]{1,9})")
_BIND = re.compile(rf"({STRING}) output ([0-9]{{1,9}}) axis ([0-9]{{1,9}})")
_SPACES = {s.value: s for s in Space}
_IN_TASK = frozenset({"input", "output", "scratch", "attrs", "host", "bind", "body"})
_IN_PLAN: dict[str, Callable[[_Parser, str], None]] = {
    "symbol": _Parser._symbol,
    "hint": _Parser._hint,
    "option": _Parser._option,
    "constant": _Parser._constant,
    "buffer": _Parser._buffer,
    "input": _Parser._input,
    "output": _Parser._output,
    "initial": _Parser._initial,
    "alias": _Parser._alias,
    "require": _Parser._require,
}


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple([integer(word) for word in text.split(", ")]) if text else ()
