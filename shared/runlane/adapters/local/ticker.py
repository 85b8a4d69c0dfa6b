"""A local stand-in for the EventBridge schedule that calls maintenance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from runlane.adapters.local.lambda_event import LocalLambdaContext, schedule_event

logger = logging.getLogger(__name__)


class Ticker:
    """Calls `handler(event, context)` at once and then every `every`, never twice at the same time; a late tick is not made up for.

    A tick that raises is logged and the next one comes in time.
    """

    def __init__(
        self,
        handler: Callable[[dict[str, Any], Any], Any],
        *,
        every: timedelta = timedelta(minutes=1),
        function_name: str = "maintenance",
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self._handler = handler
        self._every = every.total_seconds()
        self._function_name = function_name
        self._timeout = timeout
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=function_name, daemon=True)

    def start(self) -> Ticker:
        self._thread.start()
        return self

    def stop(self, timeout: timedelta = timedelta(seconds=30)) -> bool:
        """Start no further tick and wait for the one that runs; False when it still runs after `timeout`."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout.total_seconds())
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            self._tick()
            self._stopping.wait(max(0.0, started + self._every - time.monotonic()))

    def _tick(self) -> None:
        try:
            self._handler(schedule_event(self._function_name), LocalLambdaContext(self._function_name, self._timeout))
        except (Exception, SystemExit):
            logger.exception("%s failed a tick", self._function_name)
