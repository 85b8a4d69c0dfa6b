"""Testing an application that uses Runlane.

`run_task` runs one attempt in memory. `assert_triggered`, `drain` and `make_due` work on a real database of the test's own, which the
pytest fixtures `runlane_database` and `runlane` give, or `Databases` and `on_database` without pytest. See docs/how-to/testing.md.

The names are loaded when they are first used: `run_task` needs neither pytest nor a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runlane.testing.clock import ManualClock
    from runlane.testing.databases import Databases
    from runlane.testing.draining import DrainedAttempt, DrainReport, drain
    from runlane.testing.due import make_due
    from runlane.testing.inline import run_task
    from runlane.testing.lane import RecordingTransport, on_database
    from runlane.testing.outcome import TaskOutcome
    from runlane.testing.triggered import assert_triggered

_HOME_OF = {
    "DrainReport": "draining",
    "DrainedAttempt": "draining",
    "Databases": "databases",
    "ManualClock": "clock",
    "RecordingTransport": "lane",
    "TaskOutcome": "outcome",
    "assert_triggered": "triggered",
    "drain": "draining",
    "make_due": "due",
    "on_database": "lane",
    "run_task": "inline",
}

__all__ = [
    "Databases",
    "DrainReport",
    "DrainedAttempt",
    "ManualClock",
    "RecordingTransport",
    "TaskOutcome",
    "assert_triggered",
    "drain",
    "make_due",
    "on_database",
    "run_task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
