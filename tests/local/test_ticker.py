from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from runlane.adapters.local.ticker import Ticker


def test_it_ticks_at_once_and_again_after_a_tick_that_raised() -> None:
    events: list[dict[str, Any]] = []
    ticked = threading.Event()

    def handler(event: dict[str, Any], context: Any) -> None:
        events.append(event)
        if len(events) == 1:
            raise RuntimeError("the first tick fails")
        assert context.get_remaining_time_in_millis() > 0
        ticked.set()

    ticker = Ticker(handler, every=timedelta(milliseconds=10)).start()
    assert ticked.wait(60)
    assert ticker.stop()
    assert (events[0]["source"], events[0]["detail-type"]) == ("aws.events", "Scheduled Event")


def test_it_never_ticks_twice_at_once_and_stops_after_the_tick_that_runs() -> None:
    entered, may_end, ticks = threading.Event(), threading.Event(), []

    def handler(event: dict[str, Any], context: Any) -> None:
        ticks.append(event)
        entered.set()
        may_end.wait(60)

    ticker = Ticker(handler, every=timedelta(0)).start()
    assert entered.wait(60)
    assert not ticker.stop(timedelta(milliseconds=50))
    may_end.set()
    assert ticker.stop()
    assert len(ticks) == 1
