"""Symbolic sizes: integer expressions over named symbols in one normal form.

Worked example: a convolution of stride 2 and a pooling of stride 2 over an image of symbolic height H::

    >>> h = symbol("H")
    >>> conv = (h + 2 - 3) // 2 + 1           # pad 1, kernel 3
    >>> str(conv)
    '(H + 1)//2'
    >>> str(ceildiv(conv, 2))                  # the two divisions became one
    '(H + 3)//4'
    >>> evaluate(ceildiv(conv, 2), {"H": 224}), bounds(conv, {"H": (1, 64)})
    (56, (1, 32))

A `Dim` is a polynomial: terms (monomial, coefficient) in graded lexicographic order, a monomial being a
product of powers of atoms. An atom is a symbol, a floor division that nothing simplified, or a min / max.
Every operation builds this form and interns it, so equal forms are one object and `==` is identity. A
constant is always an int.

Rules: a symbol is a size, hence >= 0. A divisor is never 0 (so `2*N*S // N` is `2*S`); evaluation raises
ZeroDivisionError for a divisor of 0 where the division is still there. `//` and `%` are Python's (floor);
truncated division is the same where both sides are >= 0.

Equal forms mean equal values. The converse holds for polynomials and the usual divisions only, for no normal
form decides all of integer arithmetic: a != b does not mean that the values differ; `definitely_different`
does.

What grows beyond the limits (of `dim_poly`: 512 terms and atoms, 32 levels) raises `DimOverflow`, a
ValueError; the caller then takes a fresh symbol instead.

The modules: `dim_poly` (the object, polynomials, printing), `dim_bounds` (ranges), `dim_rules` (division, min
and max), `dim_text` (the parser); this one is the interface, and evaluates.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from atc_py.ir import dim_rules
from atc_py.ir.dim_bounds import Range, bounds, definitely_different, definitely_equal, definitely_le
from atc_py.ir.dim_poly import Atom, Dim, DimOverflow, Monomial, Size, checked, product, symbol
from atc_py.ir.dim_rules import extreme
from atc_py.ir.dim_text import parse_dim

__all__ = [
    "Atom",
    "Dim",
    "DimOverflow",
    "Range",
    "Size",
    "UnboundSymbol",
    "bounds",
    "ceildiv",
    "compile_sizes",
    "definitely_different",
    "definitely_equal",
    "definitely_le",
    "dmax",
    "dmin",
    "evaluate",
    "floordiv",
    "is_const",
    "mod",
    "parse_dim",
    "prod",
    "substitute",
    "symbol",
    "symbols_of",
]


class UnboundSymbol(KeyError):
    """A symbol without a value in the environment; `name` is the symbol's name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no value is given for the symbol {self.name!r}"


def is_const(size: Size) -> bool:
    """Whether the size is a plain integer."""
    return not isinstance(size, Dim)


def floordiv(a: Size, b: Size) -> Size:
    """a // b, rounded down."""
    return dim_rules.floordiv(checked(a), checked(b))


def ceildiv(a: Size, b: Size) -> Size:
    """a / b rounded up, for b > 0: (a + b - 1) // b."""
    if type(a) is int and type(b) is int and b:
        return (a + b - 1) // b
    b = checked(b)
    return dim_rules.floordiv(checked(a) + b - 1, b)


def mod(a: Size, b: Size) -> Size:
    """a - b * (a // b), Python's remainder."""
    return dim_rules.mod(checked(a), checked(b))


def dmin(*args: Size) -> Size:
    """The smallest of the sizes (at least one)."""
    return _extreme_of("min", args)


def dmax(*args: Size) -> Size:
    """The largest of the sizes (at least one)."""
    return _extreme_of("max", args)


def _extreme_of(kind: str, args: tuple[Size, ...]) -> Size:
    if not args:
        raise ValueError(f"{kind} of no dimensions")
    return extreme(kind, tuple([checked(arg) for arg in args]))


def prod(sizes: Iterable[Size]) -> Size:
    """The product of the sizes; 1 of none."""
    return product([size if type(size) is int else checked(size) for size in sizes])


def symbols_of(size: Size) -> tuple[str, ...]:
    """The names of the symbols in the size, sorted."""
    if not isinstance(size, Dim):
        return ()
    if size._symbols is None:
        names: dict[str, None] = {}
        for mono, _ in size.terms:
            for atom, _ in mono:
                if atom.kind == "symbol":
                    names[atom.name] = None
                for arg in atom.args:
                    names.update(dict.fromkeys(symbols_of(arg)))
        object.__setattr__(size, "_symbols", tuple(sorted(names)))
    return size._symbols or ()


def substitute(size: Size, env: Mapping[str, Size]) -> Size:
    """The size with symbols replaced, all at once; symbols that `env` lacks stay."""
    if not isinstance(size, Dim) or not any(name in env for name in symbols_of(size)):
        return size
    total: Size = 0
    for mono, coefficient in size.terms:
        term: Size = coefficient
        for atom, power in mono:
            term = term * _replaced(atom, env) ** power
        total = total + term
    return total


def _replaced(atom: Atom, env: Mapping[str, Size]) -> Size:
    if atom.kind == "symbol":
        return checked(env[atom.name]) if atom.name in env else symbol(atom.name)
    args = tuple([substitute(arg, env) for arg in atom.args])
    return dim_rules.floordiv(*args) if atom.kind == "floordiv" else extreme(atom.kind, args)


_CONST, _FLOORDIV, _MIN, _MAX, _PRODUCT, _SUM = range(6)


def evaluate(size: Size, env: Mapping[str, int]) -> int:
    """The size's value with the symbols' values in `env`.

    Raises UnboundSymbol (a KeyError) for a symbol without a value, ZeroDivisionError for a divisor that is 0.
    """
    return size if isinstance(size, int) else _compiled(size)(env)[0]


@lru_cache(4096)
def _compiled(size: Dim) -> Callable[[Mapping[str, int]], list[int]]:
    return compile_sizes((size,))


def compile_sizes(sizes: Sequence[Size]) -> Callable[[Mapping[str, int]], list[int]]:
    """A function from an environment to the values of all `sizes`, each shared subexpression computed once.

    The function raises what `evaluate` raises. It is a list of steps over registers, one register a step.
    """
    program = _Program(sizes)
    names, steps, results = program.names, tuple(program.steps), program.results

    def run(env: Mapping[str, int]) -> list[int]:
        slots: list[int] = []
        for name in names:
            try:
                slots.append(operator.index(env[name]))
            except KeyError:
                raise UnboundSymbol(name) from None
        for code, first, rest in steps:
            if code == _SUM:
                for coefficient, slot in rest:
                    first += coefficient * slots[slot]
                slots.append(first)
            elif code == _PRODUCT:
                first = 1
                for slot, power in rest:
                    first *= slots[slot] ** power
                slots.append(first)
            elif code == _CONST:
                slots.append(first)
            elif code == _FLOORDIV:
                (a, b) = rest[0]
                slots.append(slots[a] // slots[b])
            else:
                values = [slots[slot] for slot, _ in rest]
                slots.append(min(values) if code == _MIN else max(values))
        return [slots[slot] for slot in results]

    return run


class _Program:
    """Steps (code, integer, pairs); a step's register is the number of symbols plus the step's number."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        self.names = sorted({name for size in sizes for name in symbols_of(size)})
        self.steps: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
        self.slots: dict[object, int] = {}  # by int, Dim, Monomial or Atom
        self.symbols = {name: slot for slot, name in enumerate(self.names)}
        self.results = [self.size(size) for size in sizes]

    def step(self, key: object, code: int, first: int, rest: tuple[tuple[int, int], ...] = ()) -> int:
        self.steps.append((code, first, rest))
        self.slots[key] = len(self.names) + len(self.steps) - 1
        return self.slots[key]

    def size(self, size: Size) -> int:
        if size in self.slots:
            return self.slots[size]
        if isinstance(size, int):
            return self.step(size, _CONST, size)
        if len(size.terms) == 1 and size.terms[0][1] == 1:
            return self.monomial(size.terms[0][0])
        constant = sum([coefficient for mono, coefficient in size.terms if not mono])
        parts = tuple([(coefficient, self.monomial(mono)) for mono, coefficient in size.terms if mono])
        return self.step(size, _SUM, constant, parts)

    def monomial(self, mono: Monomial) -> int:
        if mono in self.slots:
            return self.slots[mono]
        if len(mono) == 1 and mono[0][1] == 1:
            return self.atom(mono[0][0])
        return self.step(mono, _PRODUCT, 1, tuple([(self.atom(atom), power) for atom, power in mono]))

    def atom(self, atom: Atom) -> int:
        if atom.kind == "symbol":
            return self.symbols[atom.name]
        if atom in self.slots:
            return self.slots[atom]
        args = [self.size(arg) for arg in atom.args]
        if atom.kind == "floordiv":
            return self.step(atom, _FLOORDIV, 0, ((args[0], args[1]),))
        return self.step(atom, _MIN if atom.kind == "min" else _MAX, 0, tuple([(arg, 0) for arg in args]))
