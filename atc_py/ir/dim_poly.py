"""Symbolic sizes as polynomials over atoms: the `Dim` object, its interning, its sums and products, its text.

Worked example: with N and S symbols, (N + 1)*(N - 1) + S is the terms ((N**2, 1), (S, 1), (1, -1)), printed
'N**2 + S - 1'. Terms are in graded lexicographic order, factors of a monomial in the order of their text; so
a polynomial has one form, and since forms are interned, one object. Public use goes through `atc_py.ir.dims`.
"""

from __future__ import annotations

import json
import operator
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

MAX_WEIGHT = 512  # atoms and terms of an expression, nested ones included
MAX_DEPTH = 32  # atoms inside atoms; bounds every recursion of this module
MAX_DEGREE = 64
MAX_BITS = 128  # of a coefficient
MAX_ARGS = 32  # of a min or max
MAX_NAME = 256  # characters of a symbol's name
_CACHE = 1 << 15

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class DimOverflow(ValueError):
    """An expression that is too large to be worth keeping: use a fresh symbol in its place."""


class Atom:
    """A factor of a monomial: 'symbol' (name), 'floordiv' (args: x, divisor), 'min' or 'max' (args)."""

    __slots__ = ("__weakref__", "args", "depth", "kind", "name", "text", "weight")

    def __init__(self, kind: str, name: str, args: tuple[Size, ...]) -> None:
        self.kind, self.name, self.args = kind, name, args
        inner = [arg for arg in args if isinstance(arg, Dim)]
        self.weight = 1 + sum(arg.weight for arg in inner)
        self.depth = 1 + max((arg.depth for arg in inner), default=0)
        if self.depth > MAX_DEPTH:
            raise DimOverflow(f"a dimension nests divisions, min and max more than {MAX_DEPTH} deep")
        if kind == "symbol":
            self.text = _quote(name)
        elif kind == "floordiv":
            self.text = f"{_operand(args[0])}//{_operand(args[1])}"
        else:
            self.text = f"{kind}({', '.join(map(str, args))})"


class Dim:
    """An integer expression that is not constant. Immutable, hashable, interned: `==` compares normal forms.

    `terms` is ((monomial, coefficient), ...), highest degree first, a monomial ((atom, power), ...). It has
    no truth value and no order (TypeError): ask `bounds`, `definitely_le` and their kin.
    """

    __slots__ = ("__weakref__", "_symbols", "_text", "depth", "terms", "weight")
    terms: Terms
    weight: int
    depth: int
    _text: str | None
    _symbols: tuple[str, ...] | None

    def __init__(self) -> None:
        raise TypeError("a Dim is made by symbol(), parse_dim() or arithmetic")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Dim is immutable")

    def __reduce__(self) -> tuple[Callable[[str], Size], tuple[str]]:
        from atc_py.ir.dim_text import parse_dim

        return parse_dim, (str(self),)

    def __str__(self) -> str:
        if self._text is None:
            object.__setattr__(self, "_text", _render(self))
        return self._text or ""

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __bool__(self) -> bool:
        raise TypeError(f"the dimension {self} is symbolic: it has no truth value; use bounds() or definitely_*()")

    def _no_order(self, other: object) -> bool:
        raise TypeError(f"the dimension {self} is symbolic: it has no order; use definitely_le(), dmin(), dmax()")

    __lt__ = __le__ = __gt__ = __ge__ = _no_order

    def __add__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else combine(self, value, 1)

    def __sub__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else combine(self, value, -1)

    def __rsub__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else combine(value, self, -1)

    def __mul__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else multiply(self, value)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return multiply(self, -1)

    def __pos__(self) -> Dim:
        return self

    def __pow__(self, power: int) -> Size:
        if not 0 <= operator.index(power) <= MAX_DEGREE:
            raise DimOverflow(f"a dimension's power must be between 0 and {MAX_DEGREE}, not {power}")
        return product([self] * operator.index(power))

    def __floordiv__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else _rules().floordiv(self, value)

    def __rfloordiv__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else _rules().floordiv(value, self)

    def __mod__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else _rules().mod(self, value)

    def __rmod__(self, other: Size) -> Size:
        return NotImplemented if (value := as_size(other)) is None else _rules().mod(value, self)


Size = int | Dim
Monomial = tuple[tuple[Atom, int], ...]
Terms = tuple[tuple[Monomial, int], ...]

_LOCK = threading.RLock()
_ATOMS: WeakValueDictionary[tuple[str, str, tuple[Size, ...]], Atom] = WeakValueDictionary()
_DIMS: WeakValueDictionary[Terms, Dim] = WeakValueDictionary()


def as_size(value: Any) -> Size | None:
    """`value` as a Size (numpy integers become int), or None where it is no integer."""
    if type(value) is int or type(value) is Dim:
        return value
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def checked(value: Any) -> Size:
    """`value` as a Size; TypeError where it is no integer."""
    size = as_size(value)
    if size is None:
        raise TypeError(f"a size is an int or a Dim, not {type(value).__name__}")
    return size


def single_atom(kind: str, name: str, args: tuple[Size, ...]) -> Dim:
    """The Dim that consists of this one atom."""
    with _LOCK:
        atom = _ATOMS.get((kind, name, args))
        if atom is None:
            atom = _ATOMS[kind, name, args] = Atom(kind, name, args)
    return _intern(((((atom, 1),), 1),))


def _intern(terms: Terms) -> Dim:
    found = _DIMS.get(terms)
    if found is not None:
        return found
    weight = depth = 0
    for mono, coefficient in terms:
        weight += sum([atom.weight for atom, _ in mono]) or 1
        depth = max([depth, *[atom.depth for atom, _ in mono]])
        if coefficient.bit_length() > MAX_BITS:
            raise DimOverflow(f"a dimension has a coefficient of more than {MAX_BITS} bits")
        if sum([power for _, power in mono]) > MAX_DEGREE:
            raise DimOverflow(f"a dimension has a degree of more than {MAX_DEGREE}")
    if weight > MAX_WEIGHT:
        raise DimOverflow(f"a dimension has {weight} terms and atoms; the limit is {MAX_WEIGHT}")
    with _LOCK:
        found = _DIMS.get(terms)
        if found is None:
            found = object.__new__(Dim)
            for slot, value in (("terms", terms), ("weight", weight), ("depth", depth), ("_text", None)):
                object.__setattr__(found, slot, value)
            object.__setattr__(found, "_symbols", None)
            _DIMS[terms] = found
    return found


@lru_cache(_CACHE)
def order(mono: Monomial) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Sort key, largest first: graded lexicographic, which agrees with multiplication, as division needs."""
    return -sum([power for _, power in mono]), tuple([(atom.text, -power) for atom, power in mono])


def _term_order(term: tuple[Monomial, int]) -> tuple[int, tuple[tuple[str, int], ...]]:
    return order(term[0])


def build(terms: Mapping[Monomial, int]) -> Size:
    """The size of these terms, in any order, zeros allowed."""
    kept = sorted([term for term in terms.items() if term[1]], key=_term_order)
    if not kept:
        return 0
    return kept[0][1] if not kept[0][0] else _intern(tuple(kept))


def terms_of(size: Size) -> Terms:
    """The terms of a size; a constant other than 0 is one term with the empty monomial."""
    if isinstance(size, Dim):
        return size.terms
    return (((), size),) if size else ()


def single(mono: Monomial) -> Size:
    """The monomial as a size."""
    return _intern(((mono, 1),)) if mono else 1


@lru_cache(_CACHE)
def combine(a: Size, b: Size, times: int) -> Size:
    """a + times * b"""
    terms = dict(terms_of(a))
    for mono, coefficient in terms_of(b):
        terms[mono] = terms.get(mono, 0) + times * coefficient
    return build(terms)


@lru_cache(_CACHE)
def multiply(a: Size, b: Size) -> Size:
    """a * b"""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    left, right = terms_of(a), terms_of(b)
    if len(left) * len(right) > 8 * MAX_WEIGHT:
        raise DimOverflow(f"a product of dimensions has {len(left) * len(right)} terms")
    terms: dict[Monomial, int] = {}
    for x, p in left:
        for y, q in right:
            mono = mono_mul(x, y)
            terms[mono] = terms.get(mono, 0) + p * q
    return build(terms)


def product(sizes: Iterable[Size]) -> Size:
    """The product of the sizes; 1 of none."""
    total: Size = 1
    for size in sizes:
        total = total * size if type(total) is type(size) is int else multiply(total, size)
    return total


@lru_cache(_CACHE)
def mono_mul(a: Monomial, b: Monomial) -> Monomial:
    """a * b"""
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda factor: factor[0].text))


def mono_div(a: Monomial, b: Monomial) -> Monomial | None:
    """a / b, or None where b does not divide a."""
    powers = dict(a)
    for atom, power in b:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    return tuple([(atom, power) for atom, power in powers.items() if power])


def mono_gcd(a: Monomial, b: Monomial) -> Monomial:
    """The largest monomial that divides both."""
    other = dict(b)
    return tuple([(atom, min(power, other[atom])) for atom, power in a if atom in other])


def _rules() -> Any:
    """The module of the divisions, which stands on this one: imported when a Dim is first divided."""
    from atc_py.ir import dim_rules

    return dim_rules


def symbol(name: str) -> Dim:
    """The size named `name` (any non-empty string of at most 256 characters; longer raises DimOverflow)."""
    if not name:
        raise ValueError("a symbol needs a name")
    if len(name) > MAX_NAME:
        raise DimOverflow(f"a symbol's name has {len(name)} characters; the limit is {MAX_NAME}")
    return single_atom("symbol", name, ())


def _quote(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) and name not in ("min", "max") else json.dumps(name, ensure_ascii=False)


def _render(dim: Dim) -> str:
    parts: list[str] = []
    for mono, coefficient in dim.terms:
        bare = len(mono) == 1 and (coefficient == 1 or (coefficient == -1 and bool(parts)))
        factors = [] if mono and abs(coefficient) == 1 else [str(abs(coefficient))]
        for atom, power in mono:
            closed = atom.kind != "floordiv" or (bare and power == 1)
            text = atom.text if closed else f"({atom.text})"
            factors.append(text if power == 1 else f"{text}**{power}")
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(sign + "*".join(factors))
    return "".join(parts)


def _operand(size: Size) -> str:
    """The text of a dividend or divisor."""
    text = str(size)
    if isinstance(size, int):
        return text if size >= 0 else f"({text})"
    mono, coefficient = size.terms[0]
    lone = len(size.terms) == 1 and coefficient == 1 and len(mono) == 1 and mono[0][1] == 1
    return text if lone and mono[0][0].kind != "floordiv" else f"({text})"
