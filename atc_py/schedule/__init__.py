"""From a lowered graph to a Plan: order, places, streams, tasks."""

from atc_py.schedule.costs import graph_timeline, latency_us, plan_handing, plan_timeline
from atc_py.schedule.hint import graph_hint, live_hints
from atc_py.schedule.schedule import ScheduleOptions, schedule, schedule_priced
from atc_py.schedule.sink import SINKS
from atc_py.schedule.streams import MOST_STREAMS, STREAMS

__all__ = [
    "MOST_STREAMS", "SINKS", "STREAMS", "ScheduleOptions", "graph_hint", "graph_timeline", "latency_us", "live_hints",
    "plan_handing", "plan_timeline", "schedule", "schedule_priced",
]  # fmt: skip
