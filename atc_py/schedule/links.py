"""What collectives take: messages over the links between devices, one after the other.

    AllReduce of 4 MiB by 4 devices     each sends 6 messages of 1 MiB:  6 · (5 us + 1 MiB / 25,000 bytes a us) = 282 us

The figures are assumptions, one for all targets, and no published row has collectives: a device's link is taken for a
PCIe 4.0 of 16 lanes (31.5 GB/s each way by the standard, four fifths of it in practice), and a message to begin 5 us
after the one before. Links of more than that between the chips of one server (HCCS) only make collectives shorter.
"""

from __future__ import annotations

from atc_py.schedule.jobs import Job
from atc_py.target import Target
from atc_py.target.cost import Breakdown, cycles_of

BYTES_A_US = 25_000.0
"""What a link carries one way in a microsecond, in bytes."""
MESSAGE_US = 5.0
"""What each message costs beside its bytes."""


def linked(job: Job, target: Target) -> Breakdown:
    """A collective: its launch, and its messages; no core has a part in it."""
    us = job.work.messages * MESSAGE_US + job.work.sent * job.dtype.itemsize / BYTES_A_US
    setup = cycles_of(target.rates.task_us, target)
    return Breakdown(0.0, 0.0, 0.0, setup, setup + cycles_of(us, target))
