"""Sound bounds of symbolic sizes from the ranges of their symbols.

Worked example: N - 8*(N//8), which is N mod 8. Interval arithmetic alone knows N >= 0 and -8*(N//8) <= 0,
hence nothing. But 8*(N//8) <= N and 8*(N//8) >= N - 7, and with that in its place N cancels: the value is in
[0, 7].

`lower` takes the best of three: interval arithmetic term by term; the same after moving every symbol to its
smallest value (N*S - N with S >= 1 is N*(S - 1) >= 0); and what remains when one atom gives way to a linear
bound (a division) or to its arguments (min and max). The number of such steps in a query is bounded by
`_FUEL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd, inf

from atc_py.ir.dim_poly import (
    Atom,
    Dim,
    DimOverflow,
    Monomial,
    Size,
    combine,
    mono_div,
    multiply,
    single,
    terms_of,
)

__all__ = ["Range", "bounds", "definitely_different", "definitely_equal", "definitely_le", "nonnegative"]

Range = tuple[int, int | None]
_Bound = int | float  # a float is an infinity
_Interval = tuple[_Bound, _Bound]
_FUEL = 48


def bounds(size: Size, ranges: Mapping[str, Range] | None = None) -> tuple[int | None, int | None]:
    """The smallest and largest value the size can have, None where unbounded; sound, not always tight.

    `ranges` maps a symbol to its (smallest, largest or None); a symbol without an entry is (0, None).
    """
    low, high = _Bounder(ranges or {}).interval(size)
    return (low if isinstance(low, int) else None), (high if isinstance(high, int) else None)


def definitely_equal(a: Size, b: Size) -> bool:
    """Whether a and b are equal for all symbols: they have one normal form."""
    return a == b


def definitely_different(a: Size, b: Size, ranges: Mapping[str, Range] | None = None) -> bool:
    """Whether a and b differ for all values of the symbols: by range or by divisibility."""
    try:
        difference = combine(a, b, -1)
    except DimOverflow:
        return False
    if isinstance(difference, int):
        return difference != 0
    constant = difference.terms[-1][1] if not difference.terms[-1][0] else 0
    if constant % gcd(*[c for mono, c in difference.terms if mono]):
        return True
    low, high = bounds(difference, ranges)
    return (low is not None and low > 0) or (high is not None and high < 0)


def definitely_le(a: Size, b: Size, ranges: Mapping[str, Range] | None = None) -> bool:
    """Whether a <= b for all values of the symbols in their ranges."""
    try:
        low = bounds(combine(b, a, -1), ranges)[0]
    except DimOverflow:
        return False
    return low is not None and low >= 0


def nonnegative(size: Size) -> bool:
    """Whether the size is >= 0 wherever its symbols are."""
    return size >= 0 if isinstance(size, int) else _nonnegative(size)


@lru_cache(1 << 15)
def _nonnegative(size: Dim) -> bool:
    return _Bounder({}).lower(size, ()) >= 0


class _Bounder:
    """One query: the ranges, what is known of each atom, and the steps that are left."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = ranges
        self.fuel = _FUEL
        self.known: dict[Atom, _Interval] = {}

    def interval(self, size: Size) -> _Interval:
        if isinstance(size, int):
            return size, size
        return self.lower(size, ()), -self.lower(multiply(size, -1), ())

    def lower(self, size: Size, skip: tuple[Atom, ...]) -> _Bound:
        """A lower bound; the atoms in `skip` are not to be relaxed again."""
        if isinstance(size, int):
            return size
        best = self.naive(size, moved=False)
        if self.fuel <= 0 or all(c > 0 for mono, c in size.terms if mono):
            return best
        self.fuel -= 1
        atoms = dict.fromkeys(atom for mono, _ in size.terms for atom, _ in mono)
        try:
            if any(self.least(atom) for atom in atoms):
                best = max(best, self.naive(self.shifted(size), moved=True))
            atom = next((atom for atom in atoms if atom.kind != "symbol" and atom not in skip), None)
            if atom is not None:
                best = max(best, self.relaxed(size, atom, skip))
        except DimOverflow:
            pass  # an intermediate form was too large: what is known by now holds
        return best

    def naive(self, size: Size, moved: bool) -> _Bound:
        """The sum of the terms' lower bounds. `moved`: symbols are less their smallest value."""
        total: _Bound = 0
        for mono, coefficient in terms_of(size):
            low, high = self.monomial(mono, moved)
            total = _plus(total, _times(coefficient, low if coefficient > 0 else high))
        return total

    def monomial(self, mono: Monomial, moved: bool = False) -> _Interval:
        total: _Interval = 1, 1
        for atom, power in mono:
            low, high = self.atom(atom)
            if moved and (least := self.least(atom)):
                low, high = 0, _plus(high, -least)
            factor: _Interval = 1, 1
            for _ in range(power):
                factor = _product(factor, (low, high))
            total = _product(total, (max(factor[0], 0) if power % 2 == 0 else factor[0], factor[1]))
        return total

    def least(self, atom: Atom) -> int:
        return self.ranges[atom.name][0] if atom.kind == "symbol" and atom.name in self.ranges else 0

    def atom(self, atom: Atom) -> _Interval:
        if atom not in self.known:
            self.known[atom] = self.atom_interval(atom)
        return self.known[atom]

    def atom_interval(self, atom: Atom) -> _Interval:
        if atom.kind == "symbol":
            low, high = self.ranges.get(atom.name, (0, None))
            return low, inf if high is None else high
        parts = [self.interval(arg) for arg in atom.args]
        if atom.kind == "floordiv":
            return _quotient(parts[0], parts[1])
        pick = min if atom.kind == "min" else max
        return pick(low for low, _ in parts), pick(high for _, high in parts)

    def shifted(self, size: Dim) -> Size:
        """The size with every symbol N of its terms written as N + (N's smallest value)."""
        total: Size = 0
        for mono, coefficient in size.terms:
            product: Size = coefficient
            for atom, power in mono:
                product = product * (single(((atom, 1),)) + self.least(atom)) ** power
            total = total + product
        return total

    def relaxed(self, size: Dim, atom: Atom, skip: tuple[Atom, ...]) -> _Bound:
        """A lower bound of the size by what is known of `atom`'s relation to its arguments."""
        if atom.kind == "floordiv":
            scaled, scale = self.linear(size, atom)
            low = self.lower(scaled, (*skip, atom))
            low = -(-low // scale) if isinstance(low, int) else low
            return max(low, self.lower(size, (*skip, atom)))
        # min(a, b) <= a, so where it only ever counts negatively each argument gives a lower bound, and the
        # best one may be taken. Otherwise it is one of its arguments, and the worst one counts. Likewise for
        # max.
        sign = -1 if atom.kind == "min" else 1
        one_sided = all(
            c * sign > 0 and dict(mono)[atom] == 1 and self.monomial(mono_div(mono, ((atom, 1),)) or ())[0] >= 0
            for mono, c in size.terms
            if atom in dict(mono)
        )
        lows = [self.lower(_replace(size, atom, arg), skip) for arg in atom.args]
        return max(lows) if one_sided else min(lows)

    def linear(self, size: Dim, atom: Atom) -> tuple[Size, int]:
        """(p, k) with p <= k * size, where p has x - d + 1 or x in the place of d*(x//d)."""
        x, d = atom.args
        if isinstance(d, Dim) and (len(d.terms) > 1 or self.monomial(d.terms[0][0])[0] < 0):
            return size, 1
        mono_d, k = d.terms[0] if isinstance(d, Dim) else ((), d)
        total: Size = 0
        for mono, c in size.terms:
            rest = mono_div(mono, ((atom, 1), *mono_d))
            if rest is not None and atom not in dict(rest) and self.monomial(rest)[0] >= 0:
                term = multiply(multiply(c, single(rest)), x if c < 0 else x - d + 1)
            else:
                term = multiply(k * c, single(mono))
            total = total + term
        return total, k


def _replace(size: Dim, atom: Atom, value: Size) -> Size:
    total: Size = 0
    for mono, coefficient in size.terms:
        power = dict(mono).get(atom, 0)
        rest = mono_div(mono, ((atom, power),)) if power else mono
        total = total + multiply(multiply(coefficient, single(rest or ())), value**power)
    return total


# Large integers and infinities do not mix in Python's own arithmetic (10**400 * inf overflows), hence these.


def _times(a: _Bound, b: _Bound) -> _Bound:
    if a == 0 or b == 0:
        return 0
    if isinstance(a, float) or isinstance(b, float):
        return inf if (a > 0) == (b > 0) else -inf
    return a * b


def _plus(a: _Bound, b: _Bound) -> _Bound:
    """a + b; never called with opposite infinities."""
    return a if isinstance(a, float) else b if isinstance(b, float) else a + b


def _product(a: _Interval, b: _Interval) -> _Interval:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _quotient(num: _Interval, den: _Interval) -> _Interval:
    """num // den for a divisor that is not 0."""
    low, high = den
    if low < 0 and high <= 0:
        low, high, num = -high, -low, (-num[1], -num[0])
    if low < 0:  # the divisor may have either sign
        most = max(abs(num[0]), abs(num[1]))
        return -most, most
    low = max(low, 1)
    high = max(high, low)  # a divisor that can only be 0 has no quotient: any interval is true of it
    return _floor(num[0], high if num[0] >= 0 else low), _floor(num[1], low if num[1] >= 0 else high)


def _floor(a: _Bound, b: _Bound) -> _Bound:
    """a // b for b >= 1."""
    if isinstance(a, float):
        return a
    if isinstance(b, float):
        return 0 if a >= 0 else -1
    return a // b
