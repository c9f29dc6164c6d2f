"""How messages name what is in a plan: %3, task 7 'conv', Loop 'decoder'."""

from __future__ import annotations

from atc_py.plan.types import NO_VALUE, Region, Task


def show(actor: Task | Region) -> str:
    """A task or region as people write it."""
    return show_task(actor) if isinstance(actor, Task) else show_region(actor)


def show_value(value: int) -> str:
    """A value as people write it, or the workspace of the task that is spoken of."""
    return "its workspace" if value == NO_VALUE else f"%{value}"


def show_task(task: Task) -> str:
    """A task as people write it."""
    return f"task {task.id} '{task.name}'"


def show_region(region: Region) -> str:
    """A region as people write it."""
    origin = getattr(region, "origin", ())
    return type(region).__name__ + (f" '{origin[0]}'" if origin else "")
