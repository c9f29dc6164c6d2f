"""The rules that bring floor division, remainder, min and max of symbolic sizes to normal form.

Worked example: (6*N + H + 7)//4. The part divisible by 4 leaves (6*N is 4*N + 2*N, 7 is 4 + 3), which gives
N + 1 + (2*N + H + 3)//4. Nothing divides the rest, its range says nothing, so it becomes an atom. And of
((H + 1)//2 + 1)//2 the inner division joins the outer one: (H + 1 + 2)//4.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache, reduce
from math import gcd

from atc_py.ir.dim_bounds import bounds, nonnegative
from atc_py.ir.dim_poly import (
    MAX_ARGS,
    MAX_WEIGHT,
    Dim,
    DimOverflow,
    Monomial,
    Size,
    build,
    combine,
    mono_div,
    mono_gcd,
    mono_mul,
    multiply,
    order,
    single,
    single_atom,
    terms_of,
)

__all__ = ["extreme", "floordiv", "mod"]

_CACHE = 1 << 15


@lru_cache(_CACHE)
def floordiv(a: Size, b: Size) -> Size:
    """a // b. Each step is an identity of floor division wherever b is not 0; repeated until none applies."""
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError(f"the dimension {a} is divided by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if terms_of(b)[0][1] < 0:
        a, b = multiply(a, -1), multiply(b, -1)
    reduced = _cancel(a, b)
    if reduced != (a, b):
        return floordiv(*reduced)
    if (isinstance(a, int) and a == 0) or (isinstance(b, int) and b == 1):
        return a
    quotient, rest = _divide(a, b)
    if isinstance(quotient, Dim) or quotient:
        return combine(quotient, floordiv(rest, b), 1)
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _irreducible(a, b)


def _cancel(num: Size, den: Size) -> tuple[Size, Size]:
    """Divide both by their common factors: (4*x + 2)//6 is (2*x + 1)//3, and so is (4*x + 3)//6."""
    top, bottom = terms_of(num), terms_of(den)
    shared = reduce(mono_gcd, [mono for mono, _ in top + bottom])
    common = gcd(*[c for mono, c in top if mono], *[c for _, c in bottom])
    constant = top[-1][1] if top and not top[-1][0] else 0
    if constant % common and not _positive(den):  # rounding the constant down needs the divisor's sign
        common = gcd(common, constant)
    if common == 1 and not shared:
        return num, den
    return (
        build({mono_div(mono, shared) or (): c // common for mono, c in top}),
        build({mono_div(mono, shared) or (): c // common for mono, c in bottom}),
    )


def _divide(num: Size, den: Size) -> tuple[Size, Size]:
    """(q, r) with num == q*den + r, r's coefficients reduced to [0, leading coefficient of den).

    With a divisor of several terms q is 0 unless the division leaves fewer terms than there were.
    """
    if isinstance(den, int):
        return build({m: c // den for m, c in terms_of(num)}), build({m: c % den for m, c in terms_of(num)})
    lead, scale = den.terms[0]
    work = dict(terms_of(num))
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for _ in range(4 * MAX_WEIGHT):
        if not work:
            break
        mono = min(work, key=order)  # the largest
        part = mono_div(mono, lead)
        times = work[mono] // scale if part is not None else 0
        if part is not None and times:
            quotient[part] = times
            for factor, coefficient in den.terms:
                target = mono_mul(factor, part)
                work[target] = work.get(target, 0) - times * coefficient
        rest[mono] = work.pop(mono)
        work = {m: c for m, c in work.items() if c}
    remains = sum(1 for c in rest.values() if c)
    if work or (len(den.terms) > 1 and remains >= len(terms_of(num))):
        return 0, num
    return build(quotient), build(rest)


def _irreducible(num: Size, den: Size) -> Size:
    """num // den once nothing cancels or divides: by a division inside, by its range, or an atom."""
    if _positive(den):
        inner = [mono[0][0] for mono, c in terms_of(num) if c == 1 and len(mono) == 1 and mono[0][1] == 1]
        inner = [atom for atom in inner if atom.kind == "floordiv"]
        if len(inner) == 1:  # (x//d + y)//den == (x + d*y)//(d*den)
            x, d = inner[0].args
            y = combine(num, single(((inner[0], 1),)), -1)
            with suppress(DimOverflow):  # then it stays two divisions
                return floordiv(combine(x, multiply(d, y), 1), multiply(d, den))
        if isinstance(den, int):
            low, high = bounds(num)
            if low is not None and high is not None and low // den == high // den:
                return low // den
        elif nonnegative(num) and nonnegative(den - 1 - num):
            return 0
        elif nonnegative(-1 - num) and (num == -1 or nonnegative(num + den)):
            return -1
    return single_atom("floordiv", "", (num, den))


def _positive(den: Size) -> bool:
    """Whether a divisor (never 0) is surely > 0."""
    return den > 0 if isinstance(den, int) else nonnegative(den)


def mod(a: Size, b: Size) -> Size:
    """a - b * (a // b), Python's remainder."""
    return combine(a, multiply(b, floordiv(a, b)), -1)


@lru_cache(_CACHE)
def extreme(kind: str, args: tuple[Size, ...]) -> Size:
    """min or max of the args: the common summand and factor outside, flat, without dominated ones."""
    args = tuple(dict.fromkeys(args))
    if len(args) == 1:
        return args[0]
    rows = [dict(terms_of(arg)) for arg in args]
    # Per monomial the smallest coefficient goes outside: whatever is added to all arguments, it is one atom.
    monos = dict.fromkeys(mono for row in rows for mono in row)
    shift = build({mono: min([row.get(mono, 0) for row in rows]) for mono in monos})
    moved = [combine(arg, shift, -1) for arg in args]
    common = gcd(*[c for arg in moved for _, c in terms_of(arg)])
    if isinstance(shift, Dim) or shift or common > 1:
        inner = tuple([build({mono: c // common for mono, c in terms_of(arg)}) for arg in moved])
        return combine(shift, extreme(kind, inner), common)
    sign = 1 if kind == "min" else -1
    kept: list[Size] = []
    for arg in _flatten(kind, args):
        if not any(nonnegative((arg - other) * sign) for other in kept):
            kept = [other for other in kept if not nonnegative((other - arg) * sign)] + [arg]
    return single_atom(kind, "", args) if tuple(kept) == args else extreme(kind, tuple(kept))


def _flatten(kind: str, args: tuple[Size, ...]) -> list[Size]:
    """The arguments with inner ones of the same kind spread, once each; symbolic ones by text, then ints.

    min(c*min(a, b) + r, z) is min(c*a + r, c*b + r, z) for c > 0. A sum of two minima is left as it is.
    """
    flat: dict[Size, None] = {}
    todo = list(args)
    while todo:
        arg = todo.pop()
        lone = [(mono[0][0], c) for mono, c in terms_of(arg) if len(mono) == 1 and mono[0][1] == 1 and c > 0]
        inner = [(atom, c) for atom, c in lone if atom.kind == kind]
        if len(inner) == 1:
            atom, c = inner[0]
            rest = combine(arg, single(((atom, 1),)), -c)
            todo.extend(combine(rest, each, c) for each in atom.args)
        else:
            flat[arg] = None
        if len(flat) + len(todo) > MAX_ARGS:
            raise DimOverflow(f"a {kind} of dimensions has more than {MAX_ARGS} arguments")
    return sorted(flat, key=lambda arg: (isinstance(arg, int), str(arg)))
