"""Planning of memory: sizes and lifetimes in, offsets out. Knows neither graphs nor operators."""

from atc_py.memory.allocate import Block, lower_bound, plan_memory
from atc_py.memory.bind import Binding, bind

__all__ = ["Binding", "Block", "bind", "lower_bound", "plan_memory"]
