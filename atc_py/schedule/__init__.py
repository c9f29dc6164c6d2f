"""From a lowered graph to a Plan: order, places, streams, tasks."""

from atc_py.schedule.costs import graph_timeline, latency_us, plan_timeline
from atc_py.schedule.hint import live_hints
from atc_py.schedule.schedule import ScheduleOptions, schedule

__all__ = ["ScheduleOptions", "graph_timeline", "latency_us", "live_hints", "plan_timeline", "schedule"]
