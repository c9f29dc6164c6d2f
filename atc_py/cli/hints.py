"""`--input-hint-shape`: input shapes as values of the model's symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc_py.errors import Problems, error
from atc_py.frontend import inputs, model_file
from atc_py.plan.ports import solve
from atc_py.plan.types import Port
from atc_py.runtime.feeds import parse_shapes


def hint_values(model: str, shapes: Mapping[str, Sequence[inputs.Item]], text: str) -> dict[str, int]:
    """The symbols' values under which the inputs have the shapes of `text`, after `--input-shape` has been applied.

    Raises `AtcError` E10002 for a name that is no input, E30001 for a shape that does not fit.
    """
    hints = parse_shapes(text)
    problems = Problems()
    graph = model_file.load(model).proto.graph
    constants = {i.name for i in graph.initializer if i.name not in shapes}
    found = inputs.resolve({i.name: i.type for i in graph.input if i.name not in constants}, shapes, problems)
    problems.raise_any()
    for name in hints:
        if name not in found.types:
            hint = f"the model's inputs are {', '.join(found.types) or 'none'}"
            raise error("E10002", f"input '{name}'", "the model has no input of this name", hint)
    ports = [Port(name, type_, -1) for name, type_ in found.types.items()]
    return solve(ports, [hints.get(p.name) for p in ports], found.symbols)
