"""What a shell completes: names that the application has. Nothing where it cannot be loaded; no server is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from runlane.cli.connect import connected

if TYPE_CHECKING:
    from runlane.runtime import Runlane


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda runlane: runlane.tasks)


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda runlane: (queue.name for queue in runlane.queue_registry))


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Those of the code, which are the ones in force but during a deploy."""
    return _names(context, incomplete, lambda runlane: (one.id for task in runlane.tasks.values() for one in task.options.schedules))


def _names(context: typer.Context, incomplete: str, of: Callable[[Runlane], Iterable[str]]) -> list[str]:
    try:
        with connected(context.params.get("app") or context.find_root().params.get("app")) as runlane:
            return [name for name in of(runlane) if name.startswith(incomplete)]
    except Exception:  # A border to a person: in the middle of a line nobody wants to read what is wrong with the application.
        return []
