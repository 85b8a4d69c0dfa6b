"""What `RUNLANE_APP` names in these tests: whatever the test has put here."""

from __future__ import annotations

from collections.abc import Callable

from runlane.runtime import Runlane

build: Callable[[], Runlane]


def current() -> Runlane:
    return build()
