"""Targets: what a system on chip has, read from TOML files."""

from atc_py.target.target import CubeShape, Target, load, names

__all__ = ["CubeShape", "Target", "load", "names"]
