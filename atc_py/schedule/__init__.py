"""From a lowered graph to a Plan: order, places, streams, tasks."""

from atc_py.schedule.schedule import ScheduleOptions, default_hint, schedule

__all__ = ["ScheduleOptions", "default_hint", "schedule"]
