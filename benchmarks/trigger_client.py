"""Triggers no-op runs one by one: `python -m benchmarks.trigger_client DSN COUNT`; speaks the lines of the peers' drivers."""

from __future__ import annotations

import sys
from contextlib import closing

from benchmarks.catalog import Payload, noop
from benchmarks.lane import MemoryTransport, make_runlane
from benchmarks.peers.lines import Measured


def main(dsn: str, count: str) -> None:
    measured = Measured()
    with closing(make_runlane(dsn, MemoryTransport())) as runlane:
        runlane.start()  # Connects, as the peers have connected.
        measured.begin()
        for number in range(int(count)):
            runlane.trigger(noop, Payload(number=number))
        runlane.parts.publisher.flush()  # What is left to be marked is a part of it.
        measured.answer()


if __name__ == "__main__":
    main(*sys.argv[1:])
