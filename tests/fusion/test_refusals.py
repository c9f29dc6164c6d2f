"""For each constraint a graph that is made to miss by it alone, and the refusal that names it, with its numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from atc_py.fusion import RULES, Rule, fuse
from atc_py.fusion.chains import DEEPEST
from atc_py.fusion.constraints import ENGINE, KNOWN
from atc_py.fusion.engine import MOST
from atc_py.fusion.places import REACH
from atc_py.ir.dims import Size, symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.passes import LowerOptions, lower
from atc_py.target import load
from tests.fusion.making import PLAIN, TARGET, rand
from tests.passes.interp import Builder

Made = Callable[[Builder], tuple[int, ...]]


def told(graph: Graph, rule: str, target: str = "Ascend310P3") -> list[str]:
    """What a rule was refused, as the report has it."""
    report = lower(graph, load(target), LowerOptions(disabled=PLAIN, debug=True))
    return [d.reason for d in report.declined if d.rule == rule]


def conv(b: Builder, dtype: DType = DType.FLOAT32) -> int:
    x = b.input("x", (1, 4, 6, 6), dtype)
    return b.op("Conv", x, b.const(rand(4, 4, 1, 1, dtype=np.dtype(dtype.value))))


def double(b: Builder) -> tuple[int, ...]:
    return (b.op("Relu", conv(b, DType.FLOAT64)),)


def wider(b: Builder) -> tuple[int, ...]:
    return (b.op("Add", conv(b), b.input("r", (2, 4, 6, 6))),)


def no_rank(b: Builder) -> tuple[int, ...]:
    r = b.op("Reshape", b.input("v", (24,)), b.input("s", (4,), DType.INT64))
    b.graph.values[r].type = b.graph.tensor(r).with_shape(None)
    x = b.op("MatMul", r, b.const(rand(4, 4)))
    return (b.op("Relu", x),)


def labelled(b: Builder) -> tuple[int, ...]:
    r = b.op("Relu", conv(b))
    b.graph.producer(r).stream = "side"
    return (r,)


def comes_back(b: Builder) -> tuple[int, ...]:
    c = conv(b)
    return (b.op("Add", b.op("CumSum", c, b.const(1)), c),)


def other_operator(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (6, 8))
    return b.op("MatMul", x, b.const(rand(8, 8))), b.op("Gemm", x, b.const(rand(8, 8)))


def computed_weights(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (8, 8))
    return b.op("MatMul", x, b.const(rand(8, 8))), b.op("MatMul", x, b.input("w", (8, 8)))


def right_operand(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (8, 8))
    return b.op("MatMul", x, b.const(rand(8, 8))), b.op("MatMul", b.const(rand(8, 8)), x)


def other_rows(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (1, 4, 8, 8))
    return b.op("Conv", x, b.const(rand(4, 4, 1, 1))), b.op("Conv", x, b.const(rand(4, 4, 3, 3)))


def prepared_weights(b: Builder) -> tuple[int, ...]:
    return (b.op("MatMul", b.input("x", (8, 8)), b.op("Relu", b.input("w", (8, 8)))),)


def computed_table(b: Builder) -> tuple[int, ...]:
    ids = b.input("ids", (5,), DType.INT64)
    one = b.op("Gather", b.const(rand(9, 8)), ids, axis=0)
    two = b.op("Gather", b.input("table", (9, 8)), ids, axis=0)
    return (b.op("Add", one, two),)


def columns(b: Builder) -> tuple[int, ...]:
    one = b.op("Gather", b.const(rand(9, 4)), b.input("ids", (5,), DType.INT64), axis=0)
    two = b.op("Gather", b.const(rand(5, 9)), b.input("picked", (4,), DType.INT64), axis=1)
    return (b.op("Add", one, two),)


def expanded(b: Builder) -> tuple[int, ...]:
    x = b.op("Add", b.input("x", (1, 1, 6, 6)), b.input("y", (1, 4, 1, 1)))
    return (b.op("Conv", x, b.const(rand(4, 4, 1, 1))),)


def endless_rows(b: Builder) -> tuple[int, ...]:
    b.graph.symbols["S"] = Range(1)
    x = b.input("x", (4, symbol("S")))
    return (b.op("Softmax", b.op("Neg", x), axis=-1),)


def wide_rows(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (4, 200_000))
    return (b.op("Softmax", b.op("Neg", x), axis=-1),)


def many_channels(b: Builder) -> tuple[int, ...]:
    x = b.input("x", (1, 512, 7, 7))
    v = b.op("Conv", x, b.const(rand(512, 512, 1, 1)))
    return (b.op("Conv", v, b.const(rand(512, 512, 3, 3)), pads=(1, 1, 1, 1)),)


def read_twice(b: Builder) -> tuple[int, ...]:
    v = b.op("Conv", b.input("x", (1, 8, 20, 20)), b.const(rand(8, 8, 1, 1)))
    return b.op("Conv", v, b.const(rand(8, 8, 1, 1))), b.op("CumSum", v, b.const(1))


def deep(b: Builder) -> tuple[int, ...]:
    v = b.input("x", (1, 8, 40, 40))
    for _ in range(DEEPEST + 1):
        v = b.op("Conv", v, b.const(rand(8, 8, 1, 1)))
    return (v,)


def given_wide(b: Builder) -> tuple[int, ...]:
    x = b.op("Cast", b.input("x", (1, 4, 6, 6)), to=DType.FLOAT16)
    return (b.op("Conv", x, b.const(rand(4, 4, 1, 1, dtype=np.dtype("float16")))),)


def taken_wide(b: Builder) -> tuple[int, ...]:
    return (b.op("Cast", conv(b, DType.FLOAT16), to=DType.FLOAT32),)


CASES: list[tuple[str, Made, str, str]] = [
    ("conv_epilogue", double, "engine", "Conv runs on aicpu, not on aicore"),
    ("conv_epilogue", wider, "shape", "the shape changes from [1, 4, 6, 6] to [2, 4, 6, 6]"),
    ("conv_epilogue", no_rank, "known shape", "is known only at run time"),
    ("conv_epilogue", labelled, "stream", "it has the stream label 'side', Conv has ''"),
    ("conv_epilogue", comes_back, "convex", "a path leaves the task and comes back through CumSum 'n1'"),
    ("conv_epilogue", taken_wide, "border", "it makes the model's output: the conversion of format casts"),
    ("prologue", given_wide, "border", "it reads the model's input: the conversion of format casts"),
    ("conv_chain", many_channels, "profit", "in two tasks the work takes"),
    ("conv_chain", read_twice, "readers", "its result is read by 1 more: CumSum 'n2'"),
    ("conv_chain", deep, "depth", f"the task has {DEEPEST} convolutions"),
    ("horizontal", other_operator, "operator", "it is no"),
    ("horizontal", computed_weights, "weights", "its operand 'w' is computed"),
    ("horizontal", right_operand, "left operand", "'x' is input 1 of MatMul"),
    ("horizontal", other_rows, "rows", "the results have shapes"),
    ("prologue", prepared_weights, "left operand", "is input 1 of MatMul"),
    ("prologue", expanded, "shape", "its shape changes from [1, 1, 6, 6] to [1, 4, 6, 6]"),
    ("embedding", computed_table, "table", "its table 'table' is computed"),
    ("embedding", columns, "table", "it picks along axis 1, not rows"),
    ("vector_chain", endless_rows, "symbol", "needs the whole of S, which has no upper bound"),
    ("vector_chain", wide_rows, "UB", "of UB, has 256.0 KiB and may take 70%"),
]


@pytest.mark.parametrize(("rule", "make", "name", "reason"), CASES, ids=lambda c: getattr(c, "__name__", None))
def test_the_refusal_names_the_constraint(rule: str, make: Made, name: str, reason: str) -> None:
    b = Builder()
    graph = b.done(*make(b))
    refusals = told(graph, rule)
    assert refusals and all(r.startswith(f"{name}: ") for r in refusals), refusals
    assert any(reason in r for r in refusals), refusals


def test_attention_whose_tile_does_not_fit() -> None:
    b = Builder()
    q, k, v = (b.input(name, (1, 2, 8, 5000)) for name in "qkv")
    [refusal] = told(b.done(b.op("Attention", q, k, v)), "flash_attention")
    assert refusal.startswith("UB: Attention 'n0' is not fused: needs ") and "of UB, has 256.0 KiB" in refusal


def test_attention_that_stores_its_scores() -> None:
    b = Builder()
    q, k, v = (b.input(name, (1, 2, 8, 16)) for name in "qkv")
    outputs = b.ops("Attention", q, k, v, outputs=4)
    [refusal] = told(b.done(outputs[0], outputs[3]), "flash_attention")
    assert refusal == "scores: Attention 'n0' is not fused: its output of scores has to be stored"


SIDE = Rule(
    name="side",
    doc="a product, and whatever its epilogue reads",
    anchors=frozenset({"MatMul"}),
    followers=lambda op: op.name == "Add",
    producers=lambda op: op.name in ("Gelu", "Tanh"),
    constraints=(KNOWN,),
)


def beside(size: Size) -> Graph:
    """A product and a branch of the vector unit that do not depend on each other meet in an Add."""
    b = Builder()
    if not isinstance(size, int):
        b.graph.symbols["S"] = Range(1, 1 << 20)
    x = b.input("x", (size, 512), DType.FLOAT16)
    product = b.op("MatMul", x, b.const(rand(512, 512, dtype=np.float16)))
    side = b.op("Gelu", b.input("y", (size, 512), DType.FLOAT16))
    return b.done(b.op("Add", product, side))


def test_branches_that_could_run_beside_each_other() -> None:
    [refusal] = [r for r in fuse(beside(1 << 16), (SIDE,), TARGET).refused if r.constraint == "critical path"]
    assert refusal.reason.startswith("Gelu 'n1' is not fused: as one task the two branches take ")
    numbers = [float(w) for w in refusal.reason.replace(",", "").split() if w.replace(".", "").isdigit()]
    assert len(numbers) == 2 and numbers[0] > numbers[1]
    # Where the branches are short, one launch less is worth more.
    assert fuse(beside(64), (SIDE,), TARGET).refused == []


@pytest.mark.parametrize(("hint", "refused"), [({}, False), ({"S": 64}, False), ({"S": 1 << 16}, True)])
def test_symbols_count_as_the_hint_says(hint: dict[str, int], refused: bool) -> None:
    graph = beside(symbol("S"))
    ours = frozenset(r.name for r in RULES)
    options = LowerOptions(disabled=PLAIN | ours, rules=(SIDE,), input_hint=hint)
    told = [d.reason for d in lower(graph, TARGET, options).declined if d.rule == "side"]
    assert any(r.startswith("critical path: Gelu") for r in told) is refused


def test_a_task_has_at_most_so_many_operators() -> None:
    b = Builder()
    v = b.input("x", (4,))
    for _ in range(MOST + 1):
        v = b.op("Sin", v)
    assert told(b.done(v), "vector_chain") == [f"size: Sin 'n0' is not fused: the task has {MOST} operators"]


def test_members_that_are_too_far_apart() -> None:
    rule = Rule(
        name="far",
        doc="Sin, and an Add of it",
        anchors=frozenset({"Sin"}),
        followers=lambda op: op.name == "Add",
        constraints=(KNOWN,),
    )
    b = Builder()
    near = b.op("Sin", b.input("x", (4,)))
    v = b.op("CumSum", b.input("y", (4,)), b.const(0))
    for _ in range(REACH + 1):
        v = b.op("CumSum", v, b.const(0))
    [refusal] = fuse(b.done(b.op("Add", near, v)), (rule,), TARGET).refused
    assert refusal.constraint == "convex" and f"more than {REACH}" in refusal.reason


def test_no_kernel_for_this_shape() -> None:
    """A user's rule may refuse for what only its author knows."""
    from atc_py.fusion import Constraint, Join

    def kernel(join: Join) -> str | None:
        size = join.graph.tensor(join.value).dims[-1]
        return None if size == 64 else f"no kernel for this shape: rows of {size}, there is one for 64"

    rule = Rule(
        name="ours",
        doc="Softmax of scaled rows",
        anchors=frozenset({"Softmax"}),
        producers=lambda op: op.name == "Mul",
        constraints=(Constraint("kernel", kernel),),
    )
    for size, made in ((64, 1), (48, 0)):
        b = Builder()
        x = b.op("Mul", b.input("x", (4, size)), b.const(2.0, np.float32))
        result = fuse(b.done(b.op("Softmax", x)), (rule,), TARGET)
        reasons = [] if made else ["Mul 'n0' is not fused: no kernel for this shape: rows of 48, there is one for 64"]
        assert result.made == made and [r.reason for r in result.refused] == reasons
    assert ENGINE.name == "engine"
