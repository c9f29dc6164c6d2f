"""The jobs of graphs that are not laid out, each node a task: what the clock says before there is a plan.

    Add of float64, of a graph before `lower`     a job of AI CPU: its type forces it there
    Reshape                                       no job: it moves nothing
    an output that is an input                    a job: the copy that `insert_copies` will make

The jobs of graphs that are laid out are `plan_jobs`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from atc_py.ir.constants import Constant
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import on_host
from atc_py.ops.base import Engine, Op
from atc_py.ops.build import lookup
from atc_py.ops.engines import engine_by_type
from atc_py.schedule.frames import NO_ENDS, REGIONS, Ends, branch_ends, copied_outputs, is_alias
from atc_py.schedule.jobs import Call, Job, Maker, Program, Sizes, Touch, body_of


def graph_program(graph: Graph, sizes: Sizes) -> Program:
    """The jobs of a graph, each node a task, in its order; a buffer is a value with what names its bytes too."""
    jobs = _GraphJobs(graph, Maker(sizes))
    return Program(tuple(jobs.run(1)), tuple([jobs.read(v) for v in graph.outputs]))


class _GraphJobs:
    """Makes the jobs of one graph; `path` are the nodes it stands in, `ends` what they say of its outputs."""

    def __init__(self, graph: Graph, maker: Maker, path: tuple[int, ...] = (), ends: Ends = NO_ENDS) -> None:
        self.graph, self.maker, self.path, self.ends = graph, maker, path, ends
        self.views: dict[int, int] = {}
        self.constants: dict[int, Constant] = {}
        self.touches: dict[int, Touch] = {}

    def run(self, times: int) -> Iterator[Job]:
        """The jobs, each to be done so many times."""
        graph, maker = self.graph, self.maker
        for node in graph.order():
            if node.op in STRUCTURAL:
                if node.const is not None:
                    self.constants[node.outputs[0]] = node.const
                continue
            op = lookup(node.op, node.attrs)
            if op.flags.alias and is_alias(graph, node):
                source = node.inputs[0]
                self.views[node.outputs[0]] = self.views.get(source, source)
            elif node.op in REGIONS:
                name, count = body_of(graph, node, maker.sizes)
                ends = branch_ends(graph, node, self.ends)
                yield from _GraphJobs(node.subgraphs[name], maker, (*self.path, node.id), ends).run(times * count)
            else:
                yield self.job(node, op, times)
        yield from self.copies(times)

    def copies(self, times: int) -> Iterator[Job]:
        """The copies that `insert_copies` will make."""
        move = lookup("TensorMove", {})
        for i in copied_outputs(self.graph, self.ends):
            name, value = self.graph.output_names[i], self.graph.outputs[i]
            source = self.read(value)
            made = Touch((self.path, "copy", name), source.nbytes, source.form)
            engine = Engine.HOST if on_host(self.graph.type(value)) else Engine.AICORE
            call = Call(move, {}, (source.form,), (source.form,), [None], {})
            yield self.maker.job(-1, f"{name}.copy", engine.value, call, [(0, source)], (made,), times)

    def read(self, value: int) -> Touch:
        """The bytes of a value, in the form in which it is seen; what makes it has been met before."""
        found = self.touches.get(value)
        if found is None:
            root = self.views.get(value, value)
            form = self.maker.form(self.graph.values[value].type, root in self.constants)
            key = (self.path, root) if self.path else root
            found = self.touches[value] = Touch(key, form.nbytes, form)
        return found

    def job(self, node: Node, op: Op, times: int) -> Job:
        """The job of a node."""
        constants, touches = self.constants, self.touches
        seen = [touches[v] if v in touches else None if v == ABSENT else self.read(v) for v in node.inputs]
        writes = tuple([self.read(v) for v in node.outputs])
        call = Call(
            op,
            node.attrs,
            tuple([None if t is None else t.form for t in seen]),
            tuple([t.form for t in writes]),
            [constants.get(v) for v in node.inputs],
            node.subgraphs,
        )
        hosted = op.host_inputs
        inputs = [(i, t) for i, t in enumerate(seen) if t is not None and i not in hosted]
        return self.maker.job(node.id, node.name, node.engine or self.engine(op, call), call, inputs, writes, times)

    def engine(self, op: Op, call: Call) -> str:
        """Where a node runs that has not been given an engine; what only renames bytes goes where they are."""
        types = [f.type for f in (*call.inputs, *call.outputs) if f is not None]
        forced, _ = engine_by_type(op, types)
        return (Engine.AICORE if op.flags.alias and forced is Engine.AICPU else forced)._value_
