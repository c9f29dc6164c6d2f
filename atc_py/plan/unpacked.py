"""Reading a packed plan. The bytes are hostile: every number is checked, column by column, before it is used.

    operands.buffer   [0, 2, 7, 1]  of 5 buffers    →   E30010 plan table +0x5a8: operand 2: buffer 7 is not below 5

Counts are checked by their sums: all rows that own entries of a section must together own each entry once. So what is
built is never larger than what the file holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from atc_py.errors import AtcError
from atc_py.ir.constants import DimVec, Splat
from atc_py.ir.dims import Size, parse_dim, symbols_of
from atc_py.ir.graph import Graph, Range
from atc_py.ir.text import parse_attrs, parse_const, parse_graph
from atc_py.ir.types import Format, Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ir.validate import ENGINES
from atc_py.plan import records as r
from atc_py.plan.regions import read_regions
from atc_py.plan.table import Table
from atc_py.plan.types import Access, Alias, Buffer, Operand, Plan, Port, Requirement, Space, Task

T = TypeVar("T")
_INT32 = 1 << 31
_RANKS = {Format.NC1HWC0: (4, 4), Format.FRACTAL_Z: (4, 4), Format.FRACTAL_NZ: (2, r.MAX_RANK)}


def decode(data: memoryview, blobs: Sequence[memoryview]) -> Plan:
    """The plan of a packed table; `blobs` are the byte ranges that its constants refer to.

    Raises `AtcError` E30010, with the offset, for everything that is not as `encode` writes it.
    """
    return _Decoder(Table(data), blobs).run()


class _Decoder:
    """Builds the plan, from what refers to nothing upwards."""

    def __init__(self, table: Table, blobs: Sequence[memoryview]) -> None:
        self.table, self.blobs = table, blobs
        self.count = {name: len(rows) for name, rows in table.rows.items()}
        self._attrs: dict[int, dict[str, Any]] = {}
        self._bodies: dict[int, Graph] = {}

    def run(self) -> Plan:
        """The whole plan."""
        table = self.table
        if self.count["plan"] != 1:
            raise r.broken(table.offsets["plan"], f"a table has one plan, this one has {self.count['plan']}")
        head = table.rows["plan"][0]
        self.strings = self._strings()
        self.symbols = self._symbols()
        self.expressions = self._expressions()
        self.types = self._types()
        self.constants = tuple([self._constant(k, s) for k, s in enumerate(self._names("constants", ""))])
        inputs = table.numbers("plan", "inputs", 0, self.count["ports"] + 1)[0]
        self.buffers = self._buffers(inputs)
        self.operands = self._operands()
        regions = read_regions(table, self._tasks(), self.operands, self.strings)
        ports = self._ports()
        return Plan(
            target=self.strings[table.numbers("plan", "target", 0, self.count["strings"])[0]],
            symbols=self.symbols,
            buffers=self.buffers,
            constants=self.constants,
            inputs=ports[:inputs],
            outputs=ports[inputs:],
            regions=regions,
            weights_nbytes=table.numbers("plan", "weights_nbytes", 0, r.NUMBER_LIMIT)[0],
            arena=None if head["arena"] == r.NO_ARENA else table.numbers("plan", "arena", 0, r.NUMBER_LIMIT)[0],
            streams=table.numbers("plan", "streams", 0, _INT32)[0],
            events=table.numbers("plan", "events", 0, _INT32)[0],
            hint=self._hint() if table.numbers("plan", "hinted", 0, 2)[0] else None,
            options=self._mapping("options", self._names("options", "name"), self._names("options", "value")),
            aliases=self._aliases(),
            requirements=self._requirements(),
            initial=tuple(zip(self._values("initial", "value"), self._buffer_numbers("initial"))),
        )

    # -- strings, sizes, types ---------------------------------------------------------------------------------

    def _strings(self) -> list[str]:
        ends = self.table.entries("strings", "", "text")
        raw = self.table.rows["text"].tobytes()
        strings: list[str] = []
        for k in range(len(ends) - 1):
            try:
                strings.append(raw[ends[k] : ends[k + 1]].decode())
            except UnicodeDecodeError as e:
                raise r.broken(self.table.offsets["text"] + ends[k] + e.start, f"string {k}: {e.reason}") from None
        return strings

    def _names(self, section: str, field: str) -> list[int]:
        return self.table.numbers(section, field, 0, self.count["strings"])

    def _values(self, section: str, field: str) -> list[int]:
        return self.table.numbers(section, field, -1, _INT32)

    def _buffer_numbers(self, section: str) -> list[int]:
        return self.table.numbers(section, "buffer", 0, self.count["buffers"])

    def _text(self, section: str, row: int, string: int, parse: Callable[[str], T]) -> T:
        """What a parser makes of a string; its error becomes one of the row."""
        try:
            return parse(self.strings[string])
        except AtcError as e:
            problem = e.problems[0]
            raise self.table.wrong(section, row, f"{problem.place}: {problem.cause}") from None
        except ValueError as e:
            raise self.table.wrong(section, row, str(e)) from None

    def _mapping(self, section: str, names: list[int], values: list[int]) -> dict[str, str]:
        result = {self.strings[k]: self.strings[v] for k, v in zip(names, values)}
        if len(result) != len(names):
            raise r.broken(self.table.offsets[section], f"section '{section}' has a name twice")
        return result

    def _symbols(self) -> dict[str, Range]:
        flags = self.table.numbers("symbols", "flags", 0, 4)
        bounds = zip(self.table.column("symbols", "lo").tolist(), self.table.column("symbols", "hi").tolist())
        symbols: dict[str, Range] = {}
        for name, flag, (lo, hi) in zip(self._names("symbols", "name"), flags, bounds):
            symbols[self.strings[name]] = Range(lo, hi if flag & r.HAS_HI else None, bool(flag & r.RUNTIME))
        if len(symbols) != self.count["symbols"]:
            raise r.broken(self.table.offsets["symbols"], "a symbol is declared twice")
        return symbols

    def _expressions(self) -> list[Size]:
        found: list[Size] = []
        for k, s in enumerate(self._names("expressions", "")):
            size = self._text("expressions", k, s, parse_dim)
            self._known("expressions", k, size)
            found.append(size)
        return found

    def _known(self, section: str, row: int, size: Size) -> None:
        for name in symbols_of(size):
            if name not in self.symbols:
                raise self.table.wrong(section, row, f"the symbol '{name[:80]}' is not declared")

    def sizes(self, section: str, field: str, low: int = 1 - r.NUMBER_LIMIT) -> list[Size]:
        """A field of sizes; those that are numbers must not be below `low`."""
        column = self.table.column(section, field)
        end = r.SMALLEST_EXPRESSION + self.count["expressions"]
        plain = (column >= low) & (column < r.NUMBER_LIMIT)
        symbolic = column < end
        self.table.check(section, plain | symbolic, lambda i: f"{field or 'number'} {column[i]} is no size")
        found: list[Size] = column.tolist()
        for i in np.flatnonzero(symbolic).tolist():
            found[i] = self.expressions[int(column[i]) - r.SMALLEST_EXPRESSION]
        return found

    def _types(self) -> list[Type]:
        table = self.table
        dims, ends = self.sizes("dims", "", 0), table.entries("types", "rank", "dims")
        rows = zip(
            table.numbers("types", "kind", 0, 4),
            table.column("types", "dtype").tolist(),
            table.column("types", "format").tolist(),
            table.column("types", "storage").tolist(),
            table.numbers("types", "rank", -1, r.MAX_RANK + 1),
            table.numbers("types", "element", -1, self.count["types"]),
        )
        types: list[Type] = []
        depths: list[int] = []
        for k, (kind, dtype, format_, storage, rank, element) in enumerate(rows):
            depth = 0
            if kind == r.TENSOR:
                shape = None if rank < 0 else tuple(dims[ends[k] : ends[k + 1]])
                stored = None if storage == r.NONE else self._member(k, "storage", storage, r.FORMATS)
                meant = self._member(k, "format", format_, r.FORMATS)
                tensor = Tensor(self._member(k, "dtype", dtype, r.DTYPES), shape, meant, stored)
                low, high = _RANKS.get(stored or Format.ND, (0, r.MAX_RANK))
                if rank >= 0 and not low <= rank <= high:
                    raise table.wrong("types", k, f"a tensor of rank {rank} cannot be stored as {stored}")
                types.append(tensor)
            else:
                if not 0 <= element < k or rank >= 0:
                    raise table.wrong("types", k, f"its element is type {element}, its rank {rank}")
                depth = depths[element] + 1
                if depth > r.MAX_NESTING:
                    raise table.wrong("types", k, f"types nest more than {r.MAX_NESTING} deep")
                inner = types[element]
                if kind == r.MAP:
                    types.append(Map(self._member(k, "dtype", dtype, r.DTYPES), inner))
                else:
                    types.append(SequenceType(inner) if kind == r.SEQUENCE else Optional(inner))
            depths.append(depth)
        return types

    def _member(self, row: int, field: str, number: int, members: tuple[r.E, ...]) -> r.E:
        if number >= len(members):
            raise self.table.wrong("types", row, f"{field} {number} is not known")
        return members[number]

    def _constant(self, row: int, string: int) -> Any:
        constant = self._text("constants", row, string, lambda text: parse_const(text, self.blobs))
        sizes = constant.elements if isinstance(constant, DimVec) else constant.shape
        if isinstance(constant, (DimVec, Splat)):
            for size in sizes:
                self._known("constants", row, size)
        return constant

    # -- buffers, operands, tasks ------------------------------------------------------------------------------

    def _buffers(self, inputs: int) -> tuple[Buffer, ...]:
        table = self.table
        spaces: list[Space] = [r.SPACES[k] for k in table.numbers("buffers", "space", 0, len(r.SPACES))]
        limits = {
            Space.WEIGHTS: self.count["constants"],
            Space.INPUT: inputs,
            Space.OUTPUT: self.count["ports"] - inputs,
        }
        rows = zip(
            spaces,
            self.sizes("buffers", "nbytes", 0),
            table.numbers("buffers", "offset", -1, r.NUMBER_LIMIT),
            table.numbers("buffers", "index", -1, _INT32),
            table.numbers("buffers", "first", -1, _INT32),
            table.numbers("buffers", "last", -1, _INT32),
        )
        found: list[Buffer] = []
        for k, (space, nbytes, offset, index, first, last) in enumerate(rows):
            if space in limits and not 0 <= index < limits[space]:
                raise table.wrong("buffers", k, f"number {index} of {limits[space]} in {space.value}")
            if space in (Space.WEIGHTS, Space.VARIABLE) and (offset < 0 or not isinstance(nbytes, int)):
                raise table.wrong("buffers", k, f"has no place in {space.value}")
            if space is Space.HOST and not 0 <= offset < self.count["buffers"]:
                raise table.wrong("buffers", k, f"is host slot {offset} of at most {self.count['buffers']}")
            if space is Space.ARENA and first > last:
                raise table.wrong("buffers", k, f"is kept from {first} to {last}")
            found.append(Buffer(k, space, nbytes, None if offset < 0 else offset, index, first, last))
        return tuple(found)

    def _operands(self) -> list[Operand]:
        table = self.table
        strides, ends = self.sizes("strides", ""), table.entries("operands", "strides", "strides")
        counts = table.numbers("operands", "strides", -1, r.MAX_RANK + 1)
        accesses: list[Access] = [r.ACCESSES[k] for k in table.numbers("operands", "access", 0, len(r.ACCESSES))]
        rows = zip(
            self._values("operands", "value"),
            accesses,
            self._buffer_numbers("operands"),
            table.numbers("operands", "type", 0, self.count["types"]),
            self.sizes("operands", "delta", 0),
            counts,
        )
        found: list[Operand] = []
        types = self.types
        for k, (value, access, buffer, type_, delta, count) in enumerate(rows):
            stride = None if count < 0 else tuple(strides[ends[k] : ends[k + 1]])
            if stride is not None and not self._fits(types[type_], count):
                raise table.wrong("operands", k, f"has {count} strides, but its type has another rank")
            found.append(Operand(value, access, buffer, types[type_], delta, stride))
        return found

    @staticmethod
    def _fits(type_: Type, count: int) -> bool:
        return isinstance(type_, Tensor) and type_.shape is not None and len(type_.storage_shape) == count

    def _tasks(self) -> list[Task]:
        table, strings, operands = self.table, self.strings, [*self.operands, None]
        n = len(self.operands)
        lists: dict[str, list[Any]] = {
            "inputs": [operands[i] for i in table.numbers("inputs", "", -1, n)],
            "outputs": [operands[i] for i in table.numbers("outputs", "", 0, n)],
            "host_values": list(
                zip(
                    table.numbers("host_values", "input", 0, r.MAX_RANK * 1024),
                    table.numbers("host_values", "constant", 0, self.count["constants"]),
                )
            ),
            "waits": table.numbers("waits", "", 0, _INT32),
            "records": table.numbers("records", "", 0, _INT32),
            "origins": [strings[i] for i in table.numbers("origins", "", 0, len(strings))],
            "binds": list(
                zip(
                    [strings[i] for i in table.numbers("binds", "symbol", 0, len(strings))],
                    table.numbers("binds", "output", 0, _INT32),
                    table.numbers("binds", "axis", 0, r.MAX_RANK),
                )
            ),
        }
        ends = {name: table.entries("tasks", name, name) for name in r.TASK_LISTS}
        columns = [table.numbers("tasks", f, 0, len(strings)) for f in ("kernel", "name", "engine", "attrs")]
        self._check_engines(columns[2])
        columns.append(table.numbers("tasks", "body", -1, len(strings)))
        columns.append(table.numbers("tasks", "workspace", -1, n))
        columns += [table.column("tasks", f).tolist() for f in ("id", "cost", "priority")]
        columns.append(table.numbers("tasks", "stream", 0, _INT32))
        tasks: list[Task] = []
        for k, (kernel, name, engine, attrs, body, workspace, id_, cost, priority, stream) in enumerate(zip(*columns)):
            own = [lists[s][ends[s][k] : ends[s][k + 1]] for s in r.TASK_LISTS]
            inputs, outputs, host_values, waits, records, origins, binds = own
            hosted = dict(host_values) if host_values else {}
            if len(hosted) != len(host_values) or any(b[1] >= len(outputs) for b in binds):
                raise table.wrong("tasks", k, "an input has two values, or an output that is bound is not there")
            task = Task(
                id_,
                strings[kernel],
                strings[name],
                tuple(inputs),
                tuple(outputs),
                self._task_attrs(k, attrs),
                None if body < 0 else self._task_body(k, body),
                operands[workspace],
                hosted,
                stream,
                tuple(waits),
                tuple(records),
                strings[engine],
                priority,
                cost,
                tuple(origins),
                tuple(binds),
            )
            tasks.append(task)
        return tasks

    def _check_engines(self, names: list[int]) -> None:
        known = [name in ENGINES for name in self.strings]
        good = np.array([known[k] for k in names], bool)
        self.table.check("tasks", good, lambda row: f"engine '{self.strings[names[row]][:80]}' is not known")

    def _task_attrs(self, row: int, string: int) -> dict[str, Any]:
        found = self._attrs.get(string)
        if found is None:
            found = self._attrs[string] = self._text("tasks", row, string, lambda text: parse_attrs(text, self.blobs))
        return found

    def _task_body(self, row: int, string: int) -> Graph:
        found = self._bodies.get(string)
        if found is None:
            found = self._bodies[string] = self._text("tasks", row, string, lambda text: parse_graph(text, self.blobs))
        return found

    # -- the rest ----------------------------------------------------------------------------------------------

    def _ports(self) -> tuple[Port, ...]:
        rows = zip(
            self._names("ports", "name"),
            self.table.numbers("ports", "type", 0, self.count["types"]),
            self._buffer_numbers("ports"),
            self._values("ports", "value"),
        )
        return tuple([Port(self.strings[name], self.types[t], buffer, value) for name, t, buffer, value in rows])

    def _hint(self) -> dict[str, int]:
        self.table.numbers("hint", "zero", 0, 1)
        names = [self.strings[k] for k in self._names("hint", "name")]
        hint: dict[str, int] = dict(zip(names, self.table.column("hint", "value").tolist()))
        if len(hint) != len(names):
            raise r.broken(self.table.offsets["hint"], "a symbol has two values")
        return hint

    def _requirements(self) -> tuple[Requirement, ...]:
        rows = zip(
            self.sizes("requirements", "left"),
            self.sizes("requirements", "right"),
            self._names("requirements", "place"),
            self.table.numbers("requirements", "relation", 0, len(r.RELATIONS)),
            self.table.numbers("requirements", "branch", -1, 2 * self.count["regions"]),
            self._names("requirements", "why"),
        )
        s = self.strings
        return tuple([Requirement(a, b, s[p], r.RELATIONS[k], branch, s[w]) for a, b, p, k, branch, w in rows])

    def _aliases(self) -> tuple[Alias, ...]:
        ends = self.table.entries("aliases", "strides", "view_strides")
        strides = self.sizes("view_strides", "")
        rows = zip(
            self._values("aliases", "value"),
            self._values("aliases", "source"),
            self.sizes("aliases", "delta"),
            self.table.numbers("aliases", "strides", -1, r.MAX_RANK + 1),
        )
        found: list[Alias] = []
        for k, (value, source, delta, count) in enumerate(rows):
            stride = None if count < 0 else tuple(strides[ends[k] : ends[k + 1]])
            found.append(Alias(value, source, delta, stride))
        return tuple(found)
