"""The pass `layouts`: which values lie in blocks, where conversions are, and that nothing else changes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py import Options, Session, compile_model
from atc_py.emit import Om, om_bytes
from atc_py.ir.clone import clone
from atc_py.ir.constants import Derived
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType, Format, Tensor
from atc_py.ir.validate import validate
from atc_py.memory import bind
from atc_py.passes import LowerOptions, lower
from atc_py.passes.layout_cut import BLOCKS, FREE, PLAIN, Labelling
from atc_py.plan.types import Space
from atc_py.target import load
from models import catalog
from tests.making import BOOL, FLOAT, body_attribute, model, node
from tests.making import graph as onnx_graph
from tests.passes.interp import Builder, assert_same, interpret, random_inputs

P3, GENERIC = load("Ascend310P3"), load("Generic")


def lowered(
    graph: Graph, target: Any = P3, *, disabled: frozenset[str] = frozenset({"fusion"}), level: int = 2
) -> Graph:
    """Lower a copy, node by node; prove that it computes the same and is at rest."""
    options: dict[str, Any] = {"disabled": disabled, "level": level}
    env = {s: max(r.lo, 3) for s, r in graph.symbols.items() if not r.runtime}
    inputs = random_inputs(graph, env)
    want = interpret(graph, inputs, env)
    copy = clone(graph)
    assert lower(copy, target, LowerOptions(debug=True, **options)).settled
    validate(copy, "lower")
    assert_same(interpret(copy, inputs, env), want)
    assert lower(clone(copy), target, LowerOptions(**options)).changed == 0
    return copy


def conversions(graph: Graph) -> list[str]:
    """`source → target` of each TransData, in order."""
    return [f"{n.attrs['src_format']} → {n.attrs['dst_format']}" for n in graph.order() if n.op == "TransData"]


def storage(graph: Graph, op: str) -> list[str]:
    """The formats of the results of one operator's nodes."""
    found = [graph.tensor(n.outputs[0]) for n in graph.order() if n.op == op]
    return [t.storage_format.value for t in found]


INTO, BACK = "NCHW → NC1HWC0", "NC1HWC0 → NCHW"


class Net(Builder):
    """A graph with convolutions in a line."""

    def conv(self, x: int, channels: int, *, group: int = 1, size: int = 3, seed: int = 0) -> int:
        width = self.graph.tensor(x).dims[1]
        assert type(width) is int
        w = np.random.default_rng(seed).standard_normal((channels, width // group, size, size)) / (size * width)
        pads = (size // 2,) * 4
        return self.op("Conv", x, self.const(w, np.float32), kernel_shape=(size, size), pads=pads, group=group)


# -- the cut -----------------------------------------------------------------------------------------------------


@st.composite
def problems(draw: Any) -> Labelling:
    p = Labelling()
    count = draw(st.integers(1, 9))
    for _ in range(count):
        p.node(draw(st.sampled_from([FREE, FREE, FREE, FREE, PLAIN, BLOCKS])), draw(st.integers(-4, 6)))
    for _ in range(draw(st.integers(0, 9))):
        p.value(draw(st.integers(0, 5)), draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)))
    return p


@settings(max_examples=300)
@given(problems())
def test_no_labelling_costs_less(p: Labelling) -> None:
    """Against all labellings; of equal ones the one with most nodes in blocks."""
    free = [i for i, label in enumerate(p.labels) if label == FREE]
    best: tuple[tuple[int, int], list[int]] | None = None
    for chosen in itertools.product((PLAIN, BLOCKS), repeat=len(free)):
        labels = list(p.labels)
        for i, label in zip(free, chosen, strict=True):
            labels[i] = label
        key = (p.cost(labels), -sum(labels))
        if best is None or key < best[0]:
            best = key, labels
    assert best is not None and p.solve() == best[1]


def test_a_large_problem_takes_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the budget the better uniform labelling is taken."""
    monkeypatch.setattr("atc_py.passes.layout_cut.STEPS", 0)
    p = Labelling()
    rng = random.Random(1)
    ends = p.node(PLAIN), p.node(BLOCKS)
    inner = [p.node(FREE, rng.randint(-2, 2)) for _ in range(200)]
    for a, b in itertools.pairwise([ends[0], *inner, ends[1]]):
        p.value(3, (a, b))
    labels = p.solve()
    uniform = [[PLAIN, BLOCKS] + [label] * 200 for label in (PLAIN, BLOCKS)]
    assert p.cost(labels) <= min(map(p.cost, uniform))


# -- small graphs ------------------------------------------------------------------------------------------------


def test_a_chain_is_in_blocks_between_its_ends() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    y = b.op("Exp", b.conv(b.op("Sin", b.conv(x, 32)), 20))
    pooled = b.op("MaxPool", y, kernel_shape=(2, 2), strides=(2, 2))
    flat = b.op("Flatten", pooled, axis=1)
    g = lowered(b.done(b.op("Gemm", flat, b.const(np.ones((320, 48)), np.float32))))
    assert conversions(g) == [INTO, BACK]
    assert storage(g, "MaxPool") == ["NC1HWC0"] and storage(g, "Flatten") == ["ND"]
    formats = Counter(g.tensor(v).storage for v in g.values if g.const(v) is not None)
    assert formats[Format.FRACTAL_Z] == 2 and formats[Format.FRACTAL_NZ] == 1


def test_the_conversion_is_where_it_costs_least() -> None:
    """Three channels take a block of 16: what can be done before is done plain, also where it branches."""
    b = Net()
    x = b.input("x", (1, 3, 32, 32))
    s = b.op("Sin", x)
    g = lowered(b.done(b.conv(b.op("Add", b.op("Exp", s), b.op("Cos", s)), 32)))
    assert conversions(g) == [INTO, BACK]
    assert storage(g, "Sin") == storage(g, "Exp") == storage(g, "Cos") == ["ND"]


def test_what_is_read_by_many_is_converted_once() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    shared = b.op("Transpose", x, perm=(0, 1, 3, 2))
    outs = [b.conv(shared, 16, seed=i) for i in range(3)]
    g = lowered(b.done(*outs, b.op("Softmax", shared, axis=1)))
    assert conversions(g).count(INTO) == 1 and conversions(g).count(BACK) == 3


def test_a_cast_at_a_border_converts() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8), DType.FLOAT16)
    y = b.conv(b.op("Cast", x, to=DType.FLOAT32), 16)
    g = lowered(b.done(b.op("Cast", y, to=DType.FLOAT16)))
    assert conversions(g) == [INTO, BACK] and storage(g, "Cast") == []
    assert [n.attrs["to"] for n in g.order() if n.op == "TransData"] == [DType.FLOAT32, DType.FLOAT16]


@pytest.mark.parametrize("channels", [1, 3, 16, 40])
@pytest.mark.parametrize("disabled", [frozenset({"fusion"}), frozenset()], ids=["nodes", "fused"])
def test_casts_of_the_models_own_input_and_output_are_the_conversions(channels: int, disabled: frozenset[str]) -> None:
    b = Net()
    x = b.input("x", (1, channels, 9, 9))
    v = b.op("Cast", x, to=DType.FLOAT16)
    weight = b.const(np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype(np.float16))
    y = b.op("Relu", b.op("Conv", v, weight, pads=(1, 1, 1, 1)))
    g = lowered(b.done(b.op("Cast", y, to=DType.FLOAT32)), disabled=disabled)
    assert conversions(g) == [INTO, BACK]
    inner = [n.op for n in g.order() if n.op not in ("Data", "Const", "NetOutput", "TransData")]
    assert inner == (["Conv", "Relu"] if disabled else ["Fused"])
    bodies = [n.subgraphs["body"] for n in g.order() if n.op == "Fused"]
    assert not any(n.op == "Cast" for body in bodies for n in body.nodes.values())


def test_a_transpose_at_a_border_converts() -> None:
    b = Net()
    x = b.input("x", (1, 8, 8, 32))
    y = b.conv(b.op("Transpose", x, perm=(0, 3, 1, 2)), 16)
    g = lowered(b.done(b.op("Transpose", y, perm=(0, 2, 3, 1))))
    assert conversions(g) == ["NHWC → NC1HWC0", "NC1HWC0 → NHWC"] and storage(g, "Transpose") == []


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("first", ["hwnc", "nhwc", "hnwc", "whnc"])
@pytest.mark.parametrize("last", ["hwnc", "nhwc", "whnc"])
def test_axes_of_one_element_do_not_matter_to_a_transpose_at_a_border(batch: int, first: str, last: str) -> None:
    b, size = Net(), {"n": batch, "h": 6, "w": 8, "c": 32}
    x = b.input("x", tuple(size[a] for a in first))
    y = b.conv(b.op("Transpose", x, perm=tuple(first.index(a) for a in "nchw")), 16)
    g = lowered(b.done(b.op("Transpose", y, perm=tuple("nchw".index(a) for a in last))))
    turned = [[a for a in order if size[a] != 1] != [a for a in "nhwc" if size[a] != 1] for order in (first, last)]
    assert storage(g, "Transpose") == ["ND"] * sum(turned) and storage(g, "TransData") == ["NC1HWC0", "ND"]
    assert conversions(g) == [INTO if turned[0] else "NHWC → NC1HWC0", BACK if turned[1] else "NC1HWC0 → NHWC"]


@pytest.mark.parametrize(("parts", "whole"), [((32, 24), True), ((24, 32), False)])
def test_channels_are_joined_at_the_ends_of_blocks(parts: tuple[int, int], whole: bool) -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    y = b.op("Concat", *(b.conv(x, c, seed=c) for c in parts), axis=1)
    g = lowered(b.done(b.conv(y, 16)))
    assert (storage(g, "Concat") == ["NC1HWC0"]) is whole


@pytest.mark.parametrize(
    ("op", "constants", "attrs", "blocked"),
    [
        ("Slice", ([0], [16], [1]), {}, True),
        ("Slice", ([8], [24], [1]), {}, False),
        ("Slice", ([1], [7], [2]), {}, True),
        ("Pad", ([0, 0, 1, 1, 0, 0, 1, 1],), {}, True),
        ("Pad", ([0, 16, 0, 0, 0, 0, 0, 0],), {}, True),
        ("Pad", ([0, 1, 0, 0, 0, 0, 0, 0],), {}, False),
        ("ReduceMean", ([2, 3],), {"keepdims": 1}, True),
        ("ReduceMax", ([1],), {"keepdims": 1}, True),
        ("Softmax", (), {"axis": 1}, False),
        ("Resize", (), {}, True),
        ("InstanceNormalization", (), {}, True),
    ],
)
def test_operators_work_in_blocks_where_they_say(op: str, constants: Any, attrs: Any, blocked: bool) -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    c = b.conv(x, 32)
    extra = [b.const(k, np.int64) for k in constants]
    if op == "Resize":
        extra = [-1, b.const([1, 1, 2, 2], np.float32)]
    elif op == "InstanceNormalization":
        extra = [b.const(np.ones(32), np.float32), b.const(np.zeros(32), np.float32)]
    y = b.op(op, c, *extra, **attrs)
    g = lowered(b.done(b.conv(y, 16)))
    assert (storage(g, op) == ["NC1HWC0"]) is blocked


def test_pixels_are_reduced_where_they_lie() -> None:
    """The map is not converted for a result of one number a channel."""
    b = Net()
    c = b.conv(b.input("x", (2, 32, 8, 8)), 20)
    pooled = b.op("ReduceMean", c, b.const([2, 3], np.int64), keepdims=0)
    g = lowered(b.done(b.op("Gemm", pooled, b.const(np.ones((20, 16)), np.float32))))
    assert conversions(g) == [INTO] and storage(g, "ReduceMean") == ["ND"] and storage(g, "Conv") == ["NC1HWC0"]


def test_indices_of_a_pooling_count_a_plain_map() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    y, indices = b.ops("MaxPool", b.conv(x, 32), outputs=2, kernel_shape=(2, 2), strides=(2, 2))
    g = lowered(b.done(y, indices))
    assert storage(g, "MaxPool") == ["ND"]


def test_grouped_weights_stay_as_they_are() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    g = lowered(b.done(b.conv(b.conv(x, 32, group=32), 16, size=1)))
    assert Counter(g.tensor(v).storage for v in g.values if g.const(v) is not None) == {None: 1, Format.FRACTAL_Z: 1}


def test_a_weight_that_others_read_too_has_one_form() -> None:
    """A tied embedding is looked up by rows and multiplied by: it stays plain."""
    b = Net()
    table = b.const(np.random.default_rng(0).standard_normal((64, 32)), np.float32)
    i = b.input("i", (4,), DType.INT64)
    g = lowered(b.done(b.op("Gemm", b.op("Gather", table, i), table, transB=1)))
    assert [t for v in g.values if (t := g.tensor(v).storage)] == []


def test_narrow_weights_are_not_padded_to_many_times_their_size() -> None:
    b = Net()
    x = b.input("x", (4, 64))
    g = lowered(b.done(b.op("MatMul", x, b.const(np.ones((64, 1)), np.float32))))
    assert not any(g.tensor(v).storage for v in g.values)


def test_packed_weights_are_recipes_over_the_bytes_of_the_model() -> None:
    b = Net()
    x = b.input("x", (4, 64))
    graph = b.done(b.op("MatMul", x, b.const(np.ones((64, 48)), np.float32)))
    [source] = [n.const for n in graph.nodes.values() if n.const is not None]
    [made] = [n.const for n in lowered(graph).nodes.values() if n.const is not None]
    assert isinstance(made, Derived) and made.inputs[0].digest == source.digest and made.nbytes == 0


def test_sizes_may_be_symbols() -> None:
    b = Net(N=Range(1), H=Range(8))
    n, h = symbol("N"), symbol("H")
    x = b.input("x", (n, 20, h, h))
    g = lowered(b.done(b.op("Sin", b.conv(b.op("Exp", b.conv(x, 20)), 20))))
    [exp] = [g.tensor(v) for v in g.values if g.tensor(v).storage is Format.NC1HWC0][:1]
    assert exp.storage_shape == (n, 2, h, h, 16) and exp.dims == (n, 20, h, h)


def test_other_engines_read_plain_maps() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    y = b.op("Cast", b.conv(x, 32), to=DType.FLOAT64)
    g = lowered(b.done(b.op("Exp", y)))
    assert conversions(g) == [INTO, BACK]
    assert all(g.tensor(n.outputs[0]).storage is None for n in g.nodes.values() if n.engine == "aicpu")


@pytest.mark.parametrize("options", [{"disabled": frozenset({"layouts", "fusion"})}, {"level": 0}])
def test_it_can_be_left_out(options: Any) -> None:
    b = Net()
    g = lowered(b.done(b.conv(b.input("x", (1, 32, 8, 8)), 32)), **options)
    assert not conversions(g) and all(g.tensor(v).storage is None for v in g.values)


def test_a_target_that_takes_rows_of_pixels_needs_none() -> None:
    b = Net()
    x = b.conv(b.input("x", (1, 32, 8, 8)), 32)
    g = lowered(b.done(b.op("Gemm", b.op("Flatten", x), b.const(np.ones((2048, 16)), np.float32))), GENERIC)
    assert not conversions(g) and all(g.tensor(v).storage is None for v in g.values)


def test_a_fused_task_works_in_blocks_where_its_whole_body_can() -> None:
    b = Net()
    x = b.input("x", (1, 32, 8, 8))
    y = b.op("Relu", b.op("Add", b.conv(x, 32), b.conv(x, 32, seed=1)))
    g = lowered(b.done(b.conv(y, 16)), disabled=frozenset())
    assert "Fused" in [n.op for n in g.nodes.values()] and conversions(g) == [INTO, BACK]
    assert set(storage(g, "Fused")) == {"NC1HWC0"}
    bodies = [n.subgraphs["body"] for n in g.nodes.values() if n.op == "Fused"]
    assert all(t.storage is None for body in bodies for v in body.values if isinstance(t := body.type(v), Tensor))


# -- whole models --------------------------------------------------------------------------------------------------


def run_both(proto: Any, feeds: dict[str, Any], target: str) -> Om:
    """Convert with and without the pass, for a target, and compare what the two compute."""
    om = compile_model(proto, Options(soc_version=target))
    plain = compile_model(proto, Options(soc_version=target, disabled_passes=frozenset({"layouts"})))
    for a, b in zip(Session(om_bytes(om)).run(None, feeds), Session(om_bytes(plain)).run(None, feeds), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind == "f":
            scale = float(np.abs(b[np.isfinite(b)]).max(initial=1))
            np.testing.assert_allclose(a, b, 1e-4, 1e-5 * scale)
        else:
            np.testing.assert_array_equal(a, b)
    return om


def test_branches_and_loops_take_plain_maps() -> None:
    w = np.random.default_rng(0).standard_normal((20, 20, 1, 1)).astype(np.float32)
    then = onnx_graph([node("Conv", ["c", "w"], ["t"])], {}, ["t"])
    other = onnx_graph([node("Exp", ["c"], ["e"])], {}, ["e"])
    branch = node("If", ["p"], ["i"])
    branch.attribute.extend([body_attribute(then, "then_branch"), body_attribute(other, "else_branch")])
    nodes = [node("Conv", ["x", "w"], ["c"]), branch, node("Conv", ["i", "w"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [1, 20, 4, 4]), "p": (BOOL, [])}, ["y"], {"w": w})
    x = np.random.default_rng(1).standard_normal((1, 20, 4, 4)).astype(np.float32)
    for p in (True, False):
        om = run_both(proto, {"x": x, "p": np.array(p)}, "Ascend310P3")
    assert sum(t.kernel == "TransData" for t in om.plan.tasks()) >= 4


def small() -> list[str]:
    return [name for name, entry in catalog.load_manifest().items() if entry.kind == "repo"]


@pytest.mark.parametrize("target", ["Ascend310P3", "Ascend310", "Ascend910B1", "Generic"])
@pytest.mark.parametrize("name", small())
def test_repo_models_compute_the_same(name: str, target: str, corpus_model: Callable[[str], Any]) -> None:
    found = corpus_model(name)
    om = run_both(found.path, found.inputs(), target)
    if target == "Generic":
        assert not any(t.kernel == "TransData" for t in om.plan.tasks())


def share_in_blocks(om: Om) -> float:
    """The share of the bytes of feature maps in the arena that lie as NC1HWC0: of the buffers that tasks write."""
    binding = bind(om.plan, om.plan.hint or {})
    sizes: dict[int, tuple[int, bool]] = {}
    for task in om.plan.tasks():
        for o in task.outputs:
            if om.plan.buffers[o.buffer].space is Space.ARENA and isinstance(o.type, Tensor):
                stored = o.type.storage is Format.NC1HWC0
                sizes[o.value] = (binding.sizes[o.buffer], stored)
    whole = sum(n for n, _ in sizes.values())
    return sum(n for n, stored in sizes.values() if stored) / whole


def count(om: Om) -> int:
    return sum(t.kernel == "TransData" for t in om.plan.tasks())


def products(om: Om) -> list[str]:
    """The format of the constant right operand of each matrix product, those inside fused tasks too."""
    found = []
    for node_ in om.lowered.order():
        inside = [n.op for n in node_.subgraphs["body"].nodes.values()] if node_.op == "Fused" else [node_.op]
        if {"MatMul", "Gemm"} & set(inside):
            types = [om.lowered.tensor(v) for v in node_.inputs if v >= 0 and om.lowered.const(v) is not None]
            found += [t.storage_format.value for t in types if t.rank == 2]
    return found


def test_a_small_network_lies_in_blocks(corpus_model: Callable[[str], Any]) -> None:
    om = compile_model(corpus_model("small_cnn").path, Options())
    assert share_in_blocks(om) >= 0.95 and count(om) == 2
    assert om.summary["trans_data"] == 2
    om = compile_model(corpus_model("small_cnn").path, Options(soc_version="Generic"))
    assert count(om) == 0


def test_a_small_transformer_multiplies_by_fractals(corpus_model: Callable[[str], Any]) -> None:
    om = compile_model(corpus_model("small_transformer").path, Options())
    assert count(om) == 0 and set(products(om)) == {"FRACTAL_NZ"}


@pytest.mark.needs_models
def test_resnet_50_lies_in_blocks(corpus_model: Callable[[str], Any]) -> None:
    path = corpus_model("light_resnet50").path
    om = compile_model(path, Options())
    assert share_in_blocks(om) >= 0.95 and count(om) <= 2
    assert count(compile_model(path, Options(soc_version="Generic"))) == 0


@pytest.mark.needs_models
def test_bert_multiplies_by_fractals(corpus_model: Callable[[str], Any]) -> None:
    path = corpus_model("hf_bert_ts").path
    om = compile_model(path, Options())
    assert count(om) == 0 and set(products(om)) == {"FRACTAL_NZ"} and len(products(om)) >= 72
    assert count(compile_model(path, Options(soc_version="Generic"))) == 0
