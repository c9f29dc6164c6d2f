"""Symbolic sizes: the values of Python's integers, one normal form, text that reads back, sound bounds."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from atc_py.ir import dims
from atc_py.ir.dims import (
    Dim,
    DimOverflow,
    Size,
    bounds,
    ceildiv,
    dmax,
    dmin,
    evaluate,
    mod,
    parse_dim,
    symbol,
)

NAMES = ("H", "N", "S")
H, N, S = (symbol(name) for name in NAMES)

# An expression is an int, a name, or (operator, operand, ...); it is read twice: with Dims and with ints.
Tree = Any
OPERATORS = ("+", "-", "*", "//", "%", "ceil", "min", "max")
TREES = st.recursive(
    st.one_of(st.integers(-9, 9), st.sampled_from(NAMES)),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner),
    max_leaves=9,
)
ENVS = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})


def symbolic(tree: Tree) -> Size:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return symbol(tree)
    a, b = symbolic(tree[1]), symbolic(tree[2])
    table = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
    }
    table |= {"ceil": lambda: ceildiv(a, b), "min": lambda: dmin(a, b), "max": lambda: dmax(a, b)}
    return table[tree[0]]()


def concrete(tree: Tree, env: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return env[tree]
    a, b = concrete(tree[1], env), concrete(tree[2], env)
    table = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
    }
    table |= {"ceil": lambda: (a + b - 1) // b, "min": lambda: min(a, b), "max": lambda: max(a, b)}
    return table[tree[0]]()


def built(tree: Tree) -> Size:
    """The tree as a size; a tree with a division by the constant 0 is not one."""
    try:
        return symbolic(tree)
    except ZeroDivisionError:
        assume(False)
        raise


def value_of(tree: Tree, env: dict[str, int]) -> int:
    try:
        return concrete(tree, env)
    except ZeroDivisionError:
        assume(False)
        raise


@settings(max_examples=600, deadline=None)
@given(TREES, st.lists(ENVS, min_size=1, max_size=4))
@example(("//", ("-", "N", "S"), ("-", "H", 3)), [{"H": 1, "N": 5, "S": 2}])
def test_the_value_is_pythons(tree: Tree, envs: list[dict[str, int]]) -> None:
    size = built(tree)
    for env in envs:
        expected = value_of(tree, env)
        assert evaluate(size, env) == expected


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_text_reads_back(tree: Tree) -> None:
    size = built(tree)
    again = parse_dim(str(size))
    assert again == size and type(again) is type(size)


@settings(max_examples=300, deadline=None)
@given(
    TREES,
    st.fixed_dictionaries({n: st.tuples(st.integers(0, 12), st.integers(0, 9)) for n in NAMES}),
    st.data(),
)
def test_bounds_are_sound(tree: Tree, spans: dict[str, tuple[int, int]], data: st.DataObject) -> None:
    size = built(tree)
    open_end = data.draw(st.sets(st.sampled_from(NAMES)))
    ranges = {n: (low, None if n in open_end else low + more) for n, (low, more) in spans.items()}
    low, high = bounds(size, ranges)
    for _ in range(4):
        env = {n: spans[n][0] + data.draw(st.integers(0, 99 if n in open_end else spans[n][1])) for n in NAMES}
        value = value_of(tree, env)
        assert low is None or low <= value
        assert high is None or value <= high


@settings(max_examples=200, deadline=None)
@given(TREES, st.dictionaries(st.sampled_from(NAMES), TREES, max_size=2), ENVS)
def test_substitution_commutes_with_evaluation(tree: Tree, new: dict[str, Tree], env: dict[str, int]) -> None:
    inner = {name: value_of(sub, env) for name, sub in new.items()}
    assume(all(value >= 0 for value in inner.values()))  # a symbol is a size
    expected = value_of(tree, {**env, **inner})
    try:
        size = dims.substitute(built(tree), {name: built(sub) for name, sub in new.items()})
        assert evaluate(size, env) == expected
    except (ZeroDivisionError, DimOverflow):
        assume(False)


@settings(max_examples=100, deadline=None)
@given(st.lists(TREES, max_size=5), ENVS)
def test_a_compiled_list_evaluates_as_its_members(trees: list[Tree], env: dict[str, int]) -> None:
    sizes = [built(tree) for tree in trees]
    values = [value_of(tree, env) for tree in trees]
    assert dims.compile_sizes(sizes)(env) == values


@settings(max_examples=200, deadline=None)
@given(TREES, TREES, TREES)
def test_algebra_holds_by_form(x: Tree, y: Tree, z: Tree) -> None:
    a, b, c = built(x), built(y), built(z)
    try:
        assert a + b == b + a and a * b == b * a
        assert (a + b) + c == a + (b + c) and (a * b) * c == a * (b * c) and a * (b + c) == a * b + a * c
        assert a - a == 0 and 0 - (0 - a) == a and a - b == a + (-b)
        assert dmin(a, b, c) == dmin(c, b, a, b) and dmax(a, a) == a
        assert dmin(a + c, b + c) == dmin(a, b) + c and dmax(3 * a, 3 * b) == 3 * dmax(a, b)
        assert (7 * a + 3) // 7 == a and (a + 5 * b) // 5 == a // 5 + b
        if not isinstance(b, int) or b != 0:
            assert a * b // b == a and a * b % b == 0
            assert (a * b + c) // b == a + c // b or len(getattr(b, "terms", ())) > 1
    except DimOverflow:
        assume(False)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2 * N * S + H // 2 + 1, "2*N*S + H//2 + 1"),
        ((H + 2 - 3) // 2 + 1, "(H + 1)//2"),
        ((4 * N + 2) // 6, "(2*N + 1)//3"),
        ((4 * N + 3) // 6, "(2*N + 1)//3"),
        ((N // 4) // 8, "N//32"),
        (ceildiv(ceildiv(N, 4), 8), "(N + 31)//32"),
        (ceildiv(ceildiv(N, S), H), "(N - 1)//(H*S) + 1"),
        ((2 * N * S) // N, "2*S"),
        ((N * S + N) // (S + 1), "N"),
        ((N * N - 1) // (N + 1), "N - 1"),
        (ceildiv(N * S, S), "N"),
        (N % 4, "N - 4*(N//4)"),
        ((N % 4) // 4, "0"),
        ((8 * N) % 4, "0"),
        (N // -2, "-N + N//2"),
        (dmin(N, 4), "min(N, 4)"),
        (dmin(N, 4, N + 1, dmin(S, 9)), "min(N, S, 4)"),
        (dmin(dmin(N, 4) + 1, S), "min(N + 1, S, 5)"),
        (dmax(N, 0), "N"),
        (dmax(N - 3, 0), "max(N, 3) - 3"),
        (dmax(N, N // 2), "N"),
        (dmin(2 * N, 6), "2*min(N, 3)"),
        (-dmax(N, S), "-max(N, S)"),
        (-(N // 2) * 3, "-3*(N//2)"),
        ((N // 2) ** 2 * S, "(N//2)**2*S"),
        (1 // (2 * N), "0"),
        ((2 * N + 1) // (4 * N), "0"),
        (7 // N, "7//N"),
        (-7 // N, "(-7)//N"),
        (N // (2 * S), "N//(2*S)"),
        (-1 // N, "-1"),
        (5 // (N + 6), "0"),
        (symbol("p2o.DynamicDimension.0") + symbol("batch size"), '"batch size" + p2o.DynamicDimension.0'),
        (symbol("min") * symbol("été\n"), '"min"*"été\\n"'),
        (symbol('a"b\\') - 1, '"a\\"b\\\\" - 1'),
    ],
)
def test_normal_form_and_text(size: Size, text: str) -> None:
    assert str(size) == text
    assert parse_dim(text) == size


def test_the_stride_chain_of_a_network_is_one_division() -> None:
    size: Size = H
    for _ in range(5):  # kernel 3, stride 2, padding 1
        size = (size + 2 - 3) // 2 + 1
    assert str(size) == "(H + 31)//32"


def test_the_order_of_terms_and_arguments_is_stable() -> None:
    assert str(1 + H // 2 + 2 * N * S) == "2*N*S + H//2 + 1"
    assert str(S - N) == "-N + S"
    assert str(dmax(4, S, N)) == "max(N, S, 4)"


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=12))
@example("\ud800")
@example("min")
@example("1x")
@example('"')
@example("\\u0041")
def test_any_name_is_a_symbol(name: str) -> None:
    size = 3 * symbol(name) + 1
    assert parse_dim(str(size)) is size and dims.symbols_of(size) == (name,)
    assert evaluate(size, {name: 2}) == 7


def test_results_without_symbols_are_ints() -> None:
    for value in (N - N, N * 0, N // N, 0 // N, dmin(3, N - N), N % 1, dmax(2, 5), dims.prod([]), N**0):
        assert type(value) is int
    seven: Any = np.int64(7)
    assert type(mod(seven, 4)) is int and dims.is_const(N - N) and not dims.is_const(N)


def test_equal_forms_are_one_object() -> None:
    a, b = (N + S) * 2 // 3, (S * 2 + 2 * N) // 3
    assert a is b and hash(a) == hash(b) and {a: 1}[b] == 1
    assert a not in (3, "N") and N != S
    assert pickle.loads(pickle.dumps(a)) is a and copy.deepcopy([a])[0] is a


def test_a_dim_is_immutable_and_has_no_truth_value_and_no_order() -> None:
    with pytest.raises(AttributeError):
        N.terms = ()
    with pytest.raises(TypeError, match="symbolic"):
        bool(N)
    for compare in (lambda: N < S, lambda: N <= 3, lambda: N < 3, lambda: N >= S, lambda: sorted([N, S])):
        with pytest.raises(TypeError, match="definitely_le"):
            compare()
    for mixed in (lambda: N + 1.5, lambda: "a" * N, lambda: dmin(N, 1.0)):  # type: ignore[arg-type, operator]
        with pytest.raises(TypeError):
            mixed()


def test_numpy_object_arrays() -> None:
    a, b = np.array([N, 3, S], dtype=object), np.array([2, N, S], dtype=object)
    assert list(np.add(a, b)) == [N + 2, N + 3, 2 * S]
    assert list(np.multiply(a, b)) == [2 * N, 3 * N, S * S]
    assert list(np.floor_divide(a, b)) == [N // 2, 3 // N, 1]
    assert list(np.subtract(a, b)) == [N - 2, 3 - N, 0] and list(-a) == [-N, -3, -S]
    assert list(np.remainder(a, 2)) == [mod(N, 2), 1, mod(S, 2)]
    two: Any = np.int64(2)
    assert two * N == 2 * N and N - two == N - 2 and list(N + a) == [2 * N, N + 3, N + S]
    assert a.prod() == 3 * N * S and list(a == b) == [False, False, True]


def test_an_unbound_symbol_is_named() -> None:
    for run in (lambda: evaluate(N * S, {"N": 2}), lambda: dims.compile_sizes([N, S])({"N": 2})):
        with pytest.raises(dims.UnboundSymbol, match="'S'") as caught:
            run()
        assert isinstance(caught.value, KeyError) and caught.value.name == "S"


def test_division_by_zero_is_an_error() -> None:
    wrong: list[Callable[[], Size]] = [
        lambda: N // 0,
        lambda: N % (S - S),
        lambda: evaluate(N // S, {"N": 4, "S": 0}),
    ]
    for run in wrong:
        with pytest.raises(ZeroDivisionError):
            run()


def test_shared_parts_are_computed_once() -> None:
    class Counting(dict[str, int]):
        reads = 0

        def __getitem__(self, name: str) -> int:
            self.reads += 1
            return super().__getitem__(name)

    env = Counting(N=7, S=3)
    run = dims.compile_sizes([N * S, N * S + 1, 4, N // 2, (N // 2) * S, 4, N * S])
    assert run(env) == [21, 22, 4, 3, 9, 4, 21] and env.reads == 2


@pytest.mark.parametrize(
    ("size", "ranges", "expected"),
    [
        (N % 8, {}, (0, 7)),
        (N % S, {"S": (1, 9)}, (0, 8)),
        (ceildiv(N, 8) * 8 - N, {}, (0, 7)),
        (S * (N % 8), {"S": (2, 3)}, (0, 21)),
        (N - dmin(N, 4), {}, (0, None)),
        (dmax(N, S) - S, {"N": (0, 5)}, (0, 5)),
        (dmin(N - S, 4), {"N": (10, 20), "S": (0, 5)}, (4, 4)),
        ((N - S) // 2, {"N": (10, 20), "S": (0, 5)}, (2, 10)),
        (N * S - N, {"S": (1, None)}, (0, None)),
        (100 // N, {"N": (0, None)}, (0, 100)),
        (N * S, {"N": (2, 3), "S": (4, None)}, (8, None)),
        (3 - N * N, {"N": (2, 4)}, (-13, -1)),
        (10**30 * N, {"N": (1, 10**400)}, (10**30, 10**430)),
        (5, {}, (5, 5)),
        (S // N, {"N": (0, 0)}, (0, None)),
    ],
)
def test_bounds_are_tight_where_sizes_need_it(size: Size, ranges: Any, expected: tuple[Any, Any]) -> None:
    assert bounds(size, ranges) == expected


def test_comparisons() -> None:
    assert dims.definitely_equal(2 * (N + 1), 2 * N + 2) and not dims.definitely_equal(N, S)
    assert dims.definitely_different(N, N + 1) and dims.definitely_different(2 * N, 4 * S + 1)
    assert not dims.definitely_different(N, S) and dims.definitely_different(3, 4)
    assert dims.definitely_different(N, S, {"N": (1, 4), "S": (5, None)})
    assert dims.definitely_le(N, ceildiv(N, 16) * 16) and dims.definitely_le(N // 3, N, {})
    assert not dims.definitely_le(N, N * S) and dims.definitely_le(N, N * S, {"S": (1, None)})


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("N +", 3),
        ("N + * 2", 4),
        ("(N", 2),
        ("N)", 1),
        ("N 2", 2),
        ("min(N, )", 7),
        ("min N", 0),
        ("min()", 4),
        ("N, 2", 1),
        ("(N, 2)", 2),
        ("N // (S - S)", 12),
        ("N ** S", 2),
        ("N ** 65", 2),
        ("9" * 41, 0),
        ('N + "a', 4),
        ('"\\q"', 0),
        ('""', 0),
        ("N / 2", 2),
        ("N + \u00e9", 4),
        ("(" * 200 + "N" + ")" * 200, 128),
        ("((9**40)**64)**64", 8),
    ],
)
def test_malformed_text_is_an_error_with_its_place(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"at position {position} "):
        parse_dim(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='NS0123456789+-*/%(),. "\\minax', max_size=30))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        size = parse_dim(text)
    except ValueError:
        return
    assert parse_dim(str(size)) == size


@pytest.mark.slow
def test_hostile_text_ends_soon() -> None:
    start = time.perf_counter()
    many = "+".join(f"x{i}" for i in range(40))
    texts = ["-" * 100_000 + "N", "(" * 100_000, "+".join(["N"] * 100_000), f"({many})**4", "N" * 100_000]
    texts += [
        "x" * (1 << 22),
        "min(" + ",".join(f"x{i}*y" for i in range(40)) + ")",
        "(" * 40 + "x+y" + ")**9" * 40,
    ]
    for text in texts:
        with pytest.raises(ValueError):
            parse_dim(text)
    assert time.perf_counter() - start < 2


def test_what_grows_too_large_overflows() -> None:
    def many_terms() -> Size:
        return dims.prod(symbol(f"a{i}") + symbol(f"b{i}") for i in range(12))

    def deep() -> Size:
        size: Size = N
        for i in range(100):
            size = dmin(size // 2 * 3 + i, symbol(f"d{i}"))
        return size

    growing: list[Callable[[], Size]] = [many_terms, deep, lambda: N**65, lambda: dims.prod([N] * 65)]
    growing.append(lambda: N * (1 << 130))
    for grow in growing:
        with pytest.raises(DimOverflow):
            grow()
    assert issubclass(DimOverflow, ValueError)


@pytest.mark.slow
def test_operations_are_fast() -> None:
    start = time.perf_counter()
    for i in range(50_000):
        assert isinstance(N * (i + 2) + S, Dim)
    assert time.perf_counter() - start < 3  # 1 s and less on an idle machine
