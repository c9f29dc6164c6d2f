"""Planning of memory: sizes and lifetimes in, offsets out. Knows neither graphs nor operators."""

from atc_py.memory.allocate import plan_memory
from atc_py.memory.bind import Binding, bind
from atc_py.memory.conflicts import plan_memory_conflicts
from atc_py.memory.problem import EFFORTS, Assignment, Block, Effort, lower_bound

__all__ = [
    "EFFORTS",
    "Assignment",
    "Binding",
    "Block",
    "Effort",
    "bind",
    "lower_bound",
    "plan_memory",
    "plan_memory_conflicts",
]
