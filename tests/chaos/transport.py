"""A transport that loses, doubles, delays and reorders what it is given, by seed; it says of everything that it was published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random

from runlane.ports.stores import PublishResult, Wakeup
from runlane.services.lane import LaneTransport

LOST, DOUBLED, LATE = 0.05, 0.10, 0.10
LATEST = 3.0
"""Seconds, at least 1, that a late wakeup is held back."""


class UnreliableTransport:
    """Between the use cases and a real transport, in every process that publishes."""

    def __init__(self, transport: LaneTransport, random: Random) -> None:
        self._transport = transport
        self._random = random

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        sent = [copy for wakeup in wakeups for copy in self._copies(wakeup)]
        self._random.shuffle(sent)
        results = {result.run_id: result for result in self._transport.publish(sent)} if sent else {}
        return tuple(results.get(one.run_id, PublishResult(one.run_id, published=True, hint=one.hint)) for one in wakeups)

    def serves(self, queue: str) -> bool:
        return self._transport.serves(queue)

    def keeps_order(self, queue: str) -> bool:
        return self._transport.keeps_order(queue)

    def close(self) -> None:
        self._transport.close()

    def _copies(self, wakeup: Wakeup) -> Iterator[Wakeup]:
        if self._random.random() < LOST:
            return
        for _ in range(1 + (self._random.random() < DOUBLED)):
            is_late = self._random.random() < LATE
            yield wakeup._replace(delay=wakeup.delay + timedelta(seconds=self._random.uniform(1, LATEST))) if is_late else wakeup
