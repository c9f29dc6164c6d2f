"""Random plans that say all that a plan can say: every region, type, constant and field. They need not make sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat, blob
from atc_py.ir.dims import Size, ceildiv, dmin, symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.text import print_graph
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type
from atc_py.ir.validate import ENGINES
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
    children,
)

N, M, ODD = symbol("N"), symbol("NonZero3.count"), symbol('odd "name", [x]')
SYMBOLS = {"N": Range(1, 64), "NonZero3.count": Range(0, None, True), 'odd "name", [x]': Range(0, None)}
SIZES: list[Size] = [0, 1, 3, 512, (1 << 62) - 1, N, 4 * N * M, ceildiv(N + 3, 2), dmin(N, ODD, 7), ODD * 2]
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.sampled_from(["Conv", "com.microsoft::Gelu", "_", "relu 1", "", "ünï", 'say "hi"\n', "a.b/c"]) | WORDS
COUNTS = st.integers(0, 5)
STRIDES = st.none() | st.lists(st.sampled_from([0, -4, 16, N * 4]), max_size=3).map(tuple)


def tensors() -> st.SearchStrategy[Tensor]:
    """Tensor types, blocked storage only with a rank that it takes."""
    dims = st.sampled_from(SIZES)
    plain = st.builds(
        Tensor,
        st.sampled_from(DType),
        st.none() | st.lists(dims, max_size=4).map(tuple),
        st.sampled_from(Format),
        st.none() | st.sampled_from([Format.ND, Format.NHWC]),
    )
    blocked = st.builds(
        Tensor,
        st.sampled_from([DType.FLOAT16, DType.INT8]),
        st.tuples(dims, st.just(3), dims, st.just(5)),
        st.just(Format.NCHW),
        st.sampled_from([Format.NC1HWC0, Format.FRACTAL_Z, Format.FRACTAL_NZ]),
    )
    return plain | blocked


def types() -> st.SearchStrategy[Type]:
    """All types."""
    inner = st.recursive(
        tensors(),
        lambda t: st.builds(Sequence, t) | st.builds(Optional, t) | st.builds(Map, st.sampled_from(DType), t),
        max_leaves=4,
    )
    return tensors() | inner


def constants() -> st.SearchStrategy[Constant]:
    """All constants."""
    small = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(lambda x: blob(np.array(x, np.float32)))
    large = st.integers(0, 3).map(lambda k: blob(np.arange(k, k + 40, dtype=np.int32).reshape(8, 5)))
    words = st.lists(WORDS, max_size=2).map(lambda w: blob(np.array(w, object)))
    leaves: list[st.SearchStrategy[Constant]] = [
        small,
        large,
        words,
        st.builds(Splat, st.just(DType.FLOAT16), st.tuples(st.sampled_from(SIZES)), st.just(np.float16(0.5))),
        st.lists(st.sampled_from(SIZES), max_size=3).map(lambda e: DimVec(DType.INT64, (len(e),), tuple(e))),
    ]
    leaf = st.one_of(leaves)
    recipe = st.builds(
        Derived,
        st.just(DType.FLOAT32),
        st.just((2,)),
        st.sampled_from(["Cast", "com.microsoft::Pack"]),
        st.lists(leaf, max_size=2).map(tuple),
        st.just({"to": DType.FLOAT32}),
    )
    return leaf | recipe


ATTRS = st.dictionaries(
    NAMES,
    st.integers() | st.booleans() | st.just(0.1) | WORDS | st.binary(max_size=3) | st.none() | st.just((1, -2))
    | st.just(DType.INT8) | st.just(N * 2),
    max_size=3,
)  # fmt: skip


def body(large: bool) -> Graph:
    """A tile program, with a constant that the text holds or one that lies beside it."""
    graph = Graph("tile")
    x = graph.add_input("x", Tensor(DType.FLOAT32, (N, 4)))
    w = graph.add_const(blob(np.ones((40 if large else 2,), np.float32)), "w")
    y = graph.add("Add", [x, w], [Tensor(DType.FLOAT32, (N, 4))], {"k": 1}, origin=("a", "b"))
    graph.set_outputs(y.outputs, ["y"])
    return graph


def operands(buffers: int) -> st.SearchStrategy[Operand]:
    """Operands; strides only where the rank is known."""

    def strided(o: Operand) -> st.SearchStrategy[Operand]:
        if not isinstance(o.type, Tensor) or o.type.shape is None:
            return st.just(o)
        rank = len(o.type.storage_shape)
        some = st.lists(st.sampled_from([0, -4, 16, N * 4]), min_size=rank, max_size=rank)
        return (st.none() | some.map(tuple)).map(lambda s: replace(o, strides=s))

    plain = st.builds(
        Operand,
        st.integers(-1, 40),
        st.sampled_from(Access),
        st.integers(0, buffers - 1),
        types(),
        st.sampled_from([0, 0, 0, *SIZES]),
    )
    return plain.flatmap(strided)


@st.composite
def tasks(draw: Any, pool: list[Operand], n_constants: int) -> Task:
    """Tasks over operands of a pool."""
    one = st.sampled_from(pool)
    outputs = tuple(draw(st.lists(one, max_size=2)))
    binds: list[tuple[str, int, int]] = []
    if outputs:
        bind = st.tuples(NAMES, st.integers(0, len(outputs) - 1), st.integers(0, 3))
        binds = draw(st.lists(bind, max_size=2))
    return Task(
        id=draw(st.integers(-5, 1 << 40)),
        kernel=draw(NAMES),
        name=draw(NAMES),
        inputs=tuple(draw(st.lists(st.none() | one, max_size=3))),
        outputs=outputs,
        attrs=draw(ATTRS),
        body=draw(st.none() | st.booleans().map(body)),
        workspace=draw(st.none() | one),
        host_values=draw(st.dictionaries(COUNTS, st.integers(0, n_constants - 1), max_size=2)) if n_constants else {},
        stream=draw(COUNTS),
        waits=tuple(draw(st.lists(COUNTS, max_size=2))),
        records=tuple(draw(st.lists(COUNTS, max_size=2))),
        engine=draw(st.sampled_from(ENGINES)),
        priority=draw(st.integers(-3, 3)),
        cost=draw(st.integers(0, 1 << 50)),
        origin=tuple(draw(st.lists(NAMES, max_size=2))),
        binds=tuple(binds),
    )


def regions(pool: list[Operand], n_constants: int, kind: type | None) -> st.SearchStrategy[Region]:
    """Trees of regions, the outermost one of the given kind."""
    one, maybe = st.sampled_from(pool), st.none() | st.sampled_from(pool)
    task = tasks(pool, n_constants)
    axis, origin = st.integers(-2, 3), st.lists(NAMES, max_size=1).map(tuple)
    outputs = st.lists(one, max_size=2).map(tuple)
    carried = st.lists(st.builds(Carried, one, one, one), max_size=2).map(tuple)
    collected = st.lists(st.builds(Collected, one, one, axis, st.booleans()), max_size=2).map(tuple)
    sliced = st.lists(st.tuples(one, one, axis, st.booleans()), max_size=2).map(tuple)

    def outer(some: st.SearchStrategy[tuple[Region, ...]]) -> dict[type, st.SearchStrategy[Region]]:
        """Each kind of region, with `some` regions inside."""
        gears = st.integers(1, 2).flatmap(
            lambda n: st.builds(
                Gears,
                st.just(("N", "odd name")),
                st.lists(st.tuples(COUNTS, COUNTS), min_size=n, max_size=n).map(tuple),
                st.lists(some, min_size=n, max_size=n).map(tuple),
            )
        )
        return {
            Static: st.builds(Static, st.lists(task, max_size=2).map(tuple)),
            Host: st.builds(Host, task),
            If: st.builds(If, one, some, some, origin, outputs),
            Loop: st.builds(Loop, maybe, maybe, maybe, maybe, carried, collected, some, origin, outputs, maybe),
            Scan: st.builds(Scan, sliced, carried, collected, some, origin, outputs),
            Gears: gears,
        }

    def lists(inner: dict[type, st.SearchStrategy[Region]]) -> st.SearchStrategy[tuple[Region, ...]]:
        return st.lists(st.one_of(*inner.values()), max_size=2).map(tuple)

    nested = outer(lists(outer(lists({k: v for k, v in outer(st.just(())).items() if k in (Static, Host)}))))
    return st.one_of(*nested.values()) if kind is None else nested[kind]


@st.composite
def buffers(draw: Any, k: int, n_constants: int, n_inputs: int, n_outputs: int) -> Buffer:
    """Buffer `k`."""
    spaces = [Space.ARENA, Space.WORKSPACE, Space.HOST, Space.DYNAMIC, Space.VARIABLE]
    limits = {Space.WEIGHTS: n_constants, Space.INPUT: n_inputs, Space.OUTPUT: n_outputs}
    spaces += [s for s, n in limits.items() if n]
    space = draw(st.sampled_from(spaces))
    first = draw(st.integers(-1, 5))
    fixed = space in (Space.WEIGHTS, Space.VARIABLE, Space.HOST)
    return Buffer(
        k,
        space,
        draw(st.integers(0, 1 << 40)) if fixed else draw(st.sampled_from(SIZES)),
        0 if space is Space.HOST else draw(st.integers(0, 1 << 40) if fixed else st.none() | st.integers(0, 1 << 40)),
        draw(st.integers(0, limits[space] - 1)) if space in limits else -1,
        first,
        draw(st.integers(first, 9)),
    )


@st.composite
def plans(draw: Any, kind: type | None = None) -> Plan:
    """Whole plans; one of the regions is of the given kind."""
    held = tuple(draw(st.lists(constants(), max_size=3)))
    n_inputs, n_outputs = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    count = draw(st.integers(1, 4))
    pieces = tuple(draw(buffers(k, len(held), n_inputs, n_outputs)) for k in range(count))
    pool = draw(st.lists(operands(count), min_size=1, max_size=4))
    some = st.sampled_from(SIZES)
    relation = st.sampled_from(["==", ">=", "~"])
    requirement = st.builds(Requirement, some, some, NAMES, relation, st.integers(-1, 1), NAMES)
    port = st.builds(Port, NAMES, types(), st.integers(0, count - 1), st.integers(-1, 9))
    return Plan(
        target=draw(NAMES),
        symbols=SYMBOLS,
        buffers=pieces,
        constants=held,
        inputs=tuple(draw(port) for _ in range(n_inputs)),
        outputs=tuple(draw(port) for _ in range(n_outputs)),
        regions=tuple(draw(st.lists(regions(pool, len(held), kind), min_size=kind is not None, max_size=2))),
        weights_nbytes=draw(st.integers(0, 1 << 40)),
        arena=draw(st.none() | st.integers(0, 1 << 40)),
        streams=draw(COUNTS),
        events=draw(COUNTS),
        hint=draw(st.none() | st.dictionaries(st.sampled_from(["N", "odd"]), st.integers(-1, 99))),
        options=draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        requirements=tuple(draw(st.lists(requirement, max_size=2))),
        aliases=tuple(draw(st.lists(st.builds(Alias, COUNTS, COUNTS, st.sampled_from(SIZES), STRIDES), max_size=2))),
        initial=tuple(draw(st.lists(st.tuples(COUNTS, st.integers(0, count - 1)), max_size=2))),
    )


def _bare(region: Region) -> Region:
    """The region with its tile programs taken out."""
    if isinstance(region, Static):
        return Static(tuple(replace(t, body=None) for t in region.tasks))
    if isinstance(region, Host):
        return Host(replace(region.task, body=None))
    lists = [tuple(_bare(r) for r in body) for body in children(region)]
    if isinstance(region, If):
        return replace(region, then_branch=lists[0], else_branch=lists[1])
    return replace(region, bodies=tuple(lists)) if isinstance(region, Gears) else replace(region, body=lists[0])


def assert_same(a: Plan, b: Plan) -> None:
    """Plans are equal: everything by `==`, constants by content, tile programs by their text."""
    assert [c.digest for c in a.constants] == [c.digest for c in b.constants]
    assert [type(c) for c in a.constants] == [type(c) for c in b.constants]
    pairs = zip(a.constants, b.constants, strict=True)
    assert all(bytes(c.data) == bytes(d.data) for c, d in pairs if isinstance(c, Blob) and isinstance(d, Blob))
    texts = [[None if t.body is None else print_graph(t.body) for t in plan.tasks()] for plan in (a, b)]
    assert texts[0] == texts[1]
    bare = [replace(p, constants=(), regions=tuple(_bare(r) for r in p.regions)) for p in (a, b)]
    assert bare[0] == bare[1]
    assert repr(bare[0]) == repr(bare[1])  # Python types too: 1 is not True


REGION_TYPES = (Static, Host, If, Loop, Scan, Gears)
