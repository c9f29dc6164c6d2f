"""Plan and graph → OM: the partitions that others read (projections) and our own (the authority)."""

from atc_py.emit.bundle import Om, om_bytes, write_file

__all__ = ["Om", "om_bytes", "write_file"]
