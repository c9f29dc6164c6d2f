"""The symbols that types, constants and attributes speak of, and their replacement.

    symbols_in(Tensor(FLOAT32, (N, H//2)))                         →  ("N", "H")
    rename(Tensor(FLOAT32, (N, H//2)), {"H": symbol("height")})    →  Tensor(FLOAT32, (N, height//2))

Both take any attribute value: types, Dims, constants, and tuples of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from atc_py.ir.constants import Blob, Derived, DimVec, Splat
from atc_py.ir.dims import Dim, Size, substitute, symbols_of
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import Map, Optional, Sequence, Tensor, Type

_PLAIN = frozenset({int, float, bool, str, bytes, type(None), Blob})


def dims_in(value: Any) -> Iterator[Dim]:
    """The symbolic sizes inside a value, from left to right."""
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, Dim):
            yield top
        elif isinstance(top, Tensor):
            stack += reversed(top.shape or ())
        elif isinstance(top, (Sequence, Optional)):
            stack.append(top.element)
        elif isinstance(top, Map):
            stack.append(top.value)
        elif isinstance(top, (tuple, list)):
            stack += reversed(top)
        elif isinstance(top, Splat):
            stack += reversed(top.shape)
        elif isinstance(top, DimVec):
            stack += reversed(top.elements)
        elif isinstance(top, Derived):
            stack += (*top.inputs, *top.attrs.values())


def symbols_in(value: Any) -> tuple[str, ...]:
    """The names of the symbols inside a value, each once."""
    return tuple(dict.fromkeys(name for dim in dims_in(value) for name in symbols_of(dim)))


@lru_cache(1 << 12)
def type_symbols(type_: Type) -> tuple[str, ...]:
    """`symbols_in` a type, kept."""
    return symbols_in(type_)


def node_symbols(graph: Graph, node: Node) -> Iterator[str]:
    """The symbols that a node speaks of, possibly more than once: those of its outputs' types first."""
    for value in node.outputs:
        yield from type_symbols(graph.values[value].type)
    if node.const is not None:
        yield from symbols_in(node.const)
    for item in node.attrs.values():
        if type(item) not in _PLAIN:
            yield from symbols_in(item)


def rename(value: Any, env: Mapping[str, Size]) -> Any:
    """The value with symbols replaced, all at once; the same object where it has none of them."""
    if type(value) in _PLAIN or not any(name in env for name in symbols_in(value)):
        return value
    if isinstance(value, Dim):
        return substitute(value, env)
    if isinstance(value, Tensor):
        return replace(value, shape=_sizes(value.dims, env))
    if isinstance(value, (Sequence, Optional)):
        return replace(value, element=rename(value.element, env))
    if isinstance(value, Map):
        return replace(value, value=rename(value.value, env))
    if isinstance(value, (tuple, list)):
        return type(value)(rename(item, env) for item in value)
    if isinstance(value, Splat):
        return Splat(value.dtype, _sizes(value.shape, env), value.value)
    if isinstance(value, DimVec):
        return DimVec(value.dtype, value.shape, _sizes(value.elements, env))
    attrs = {name: rename(item, env) for name, item in value.attrs.items()}
    return Derived(value.dtype, value.shape, value.op, tuple(rename(c, env) for c in value.inputs), attrs)


def _sizes(sizes: tuple[Size, ...], env: Mapping[str, Size]) -> tuple[Size, ...]:
    return tuple([substitute(size, env) for size in sizes])


def rename_symbols(graph: Graph, env: Mapping[str, Size]) -> None:
    """Replace symbols in the types, constants and attributes of a graph and of all graphs inside it."""
    if not env:
        return
    types: dict[Type, Type] = {}
    for inner in graph.walk():
        for value in inner.values.values():
            if value.type not in types:
                types[value.type] = rename(value.type, env)
            value.type = types[value.type]
        for node in inner.nodes.values():
            node.const = rename(node.const, env)
            for name, item in node.attrs.items():
                if type(item) not in _PLAIN:
                    node.attrs[name] = rename(item, env)
