"""From a lowered graph to a Plan: order, places, streams, tasks."""

from atc_py.schedule.hint import live_hints
from atc_py.schedule.schedule import ScheduleOptions, schedule

__all__ = ["ScheduleOptions", "live_hints", "schedule"]
