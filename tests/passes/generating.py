"""How random graphs are made (`generated.py`): the values so far, which of them a step reads, and how large they are.

pick(0, an image)    the newest value that is one; pick(1, …) the one before
bounds               x: 4, MatMul(x, w): 32, Add of two of them: 64, and the next one goes through Tanh
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, overload

import numpy as np

from atc_py.graph import Builder, Ref
from atc_py.ir.types import DType, Tensor

Step = tuple[str, int, int, int]
Made = Ref | list[Ref] | None
MOST = 8_192
"""Elements of the largest value."""
LARGE = 64.0
"""Magnitude above which a value goes through Tanh."""
SIZES: Mapping[str, int] = {"N": 3}
"""What symbols stand for when a generated graph runs."""


@dataclass
class Maker:
    """The graph under construction, the values that later steps may read, and bounds of their magnitudes."""

    b: Builder
    pool: list[Ref] = field(default_factory=list)
    bound: dict[int, float] = field(default_factory=dict)
    consts: int = 0

    @overload
    def op(self, name: str, *inputs: Ref | None, outputs: Literal[1] = 1, **attrs: Any) -> Ref: ...

    @overload
    def op(self, name: str, *inputs: Ref | None, outputs: Literal[2], **attrs: Any) -> list[Ref]: ...

    def op(self, name: str, *inputs: Ref | None, outputs: int = 1, **attrs: Any) -> Ref | list[Ref]:
        """One operator; its results are bounded as its inputs are."""
        made: Ref | list[Ref] = self.b.op(name, *inputs, outputs=outputs, **attrs)
        size = max((self.bound.get(r.value, 1.0) for r in inputs if r is not None), default=1.0)
        for r in made if isinstance(made, list) else [made]:
            self.bound[r.value] = size
        return made

    def scaled(self, r: Ref, factor: float) -> Ref:
        """The value, said to be that much larger than its inputs; too large, it goes through Tanh."""
        self.bound[r.value] = self.bound.get(r.value, 1.0) * factor
        if self.bound[r.value] <= LARGE:
            return r
        small: Ref = self.b.op("Tanh", r)
        self.bound[small.value] = 1.0
        return small

    def const(self, array: Any, dtype: Any = np.float32) -> Ref:
        """A constant."""
        r = self.b.const(np.asarray(array, dtype, order="C"))
        found = np.abs(np.asarray(array, np.float64)).max(initial=0)
        self.bound[r.value] = float(found)
        return r

    def random(self, *shape: int, scale: float = 0.5) -> Ref:
        """A constant of random numbers, others at each call."""
        self.consts += 1
        return self.const(np.random.default_rng(self.consts).uniform(-scale, scale, shape))

    def pick(self, number: int, fits: Callable[[Tensor], bool]) -> Ref:
        """The newest value that fits, or one before it. Raises `Skip` when there is none."""
        found = [r for r in self.pool if fits(tensor(r))]
        if not found:
            raise Skip
        return found[-1 - number % len(found)]

    def real(self, number: int, least: int = 1) -> Ref:
        """A float32 value of some rank."""
        return self.pick(number, lambda t: t.dtype is DType.FLOAT32 and rank(t) >= least)

    def image(self, number: int) -> Ref:
        """A batch of feature maps with a side to slide over."""
        return self.pick(
            number, lambda t: t.dtype is DType.FLOAT32 and t.rank == 4 and known(t, 1) and min(sides(t)) > 2
        )

    def flat(self, number: int) -> Ref:
        """A value whose last dim is known: a row of features."""
        return self.pick(number, lambda t: t.dtype is DType.FLOAT32 and rank(t) >= 2 and known(t, -1))

    def run(self, steps: list[Step]) -> None:
        """Take the steps."""
        for name, *numbers in steps:
            try:
                made = STEPS[name](self, *numbers)
            except Skip:
                continue
            for r in made if isinstance(made, list) else [] if made is None else [made]:
                if elements(tensor(r)) <= MOST:
                    self.pool.append(r)


class Skip(Exception):
    """Nothing fits a step."""


def tensor(r: Ref) -> Tensor:
    """The type, which is a tensor."""
    assert isinstance(r.type, Tensor)
    return r.type


def rank(t: Tensor) -> int:
    """Number of dims: what is generated has one."""
    return len(t.dims)


def ints(t: Tensor) -> list[int]:
    """The shape with symbols at the size at which the graph runs."""
    return [d if isinstance(d, int) else 3 for d in t.dims]


def elements(t: Tensor) -> int:
    return prod(ints(t))


def known(t: Tensor, axis: int) -> bool:
    return isinstance(t.dims[axis], int) and t.dims[axis] != 0


def sides(t: Tensor) -> list[int]:
    return [d if isinstance(d, int) else 0 for d in t.dims[2:]]


STEPS: dict[str, Callable[..., Made]] = {}


def step(fn: Callable[..., Made]) -> Callable[..., Made]:
    """Declare a step under the function's name."""
    STEPS[fn.__name__] = fn
    return fn
