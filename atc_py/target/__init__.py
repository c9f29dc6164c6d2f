"""Targets: what a system on chip has, read from TOML files."""

from atc_py.target.target import CubeShape, Rates, Target, load, names

__all__ = ["CubeShape", "Rates", "Target", "load", "names"]
