"""CPU seconds that a test may take, where timings count: `scripts/test --all` sets ATC_TIMINGS, ordinary runs do not.

with cpu_seconds(5):
    optimize(graph)        # a machine that is busy or slow is no fault of the code; a quadratic pass is
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    """Fail when the block takes more CPU time, if ATC_TIMINGS is set."""
    start = time.process_time()
    yield
    taken = time.process_time() - start
    assert taken < most or not os.environ.get("ATC_TIMINGS"), f"{taken:.1f} s of CPU time, at most {most} s expected"
