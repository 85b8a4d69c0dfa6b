"""Telemetry as structured logs and EMF metrics: the one subscriber to what use cases report."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

from aws_lambda_powertools import Logger

_ERRORS = frozenset({"phase.failed", "schedule.failed", "settle.failed", "attempt.strayed", "worker.exits", "observer.failed"})
_ROUTINE = frozenset({"settle.done", "claim.refused", "delivery.returned", "tick.done"})


class PowertoolsTelemetry:
    """Errors and warnings are logged at once; counts are summed and written as EMF by `flush`, once an invocation.

    `metrics`: whether anybody reads EMF from standard output, as CloudWatch does in Lambda. `tell_runs`: say on the standard
    error what became of a delivery's runs, a line each, for a person who looks on.
    """

    def __init__(self, *, environment: str, metrics: bool, tell_runs: bool = False) -> None:
        self._environment = environment
        # A command answers on its standard output; only in Lambda is that the log.
        stream = sys.stdout if metrics else sys.stderr
        self._logger = Logger(service="runlane", level=logging.INFO, stream=stream, json_serializer=_line, environment=environment)
        self._writers = {logging.ERROR: self._logger.error, logging.WARNING: self._logger.warning, logging.DEBUG: self._logger.debug}
        self._is_measuring, self._is_telling = metrics, tell_runs
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def emit(self, event: str, /, **facts: Any) -> None:
        level = _level(event)
        # Routine facts come with every batch; at the default level they must cost nothing but their counts.
        if level >= self._logger.log_level:
            self._writers[level](event, extra={name: _plain(value) for name, value in facts.items()})
        if self._is_measuring or self._is_telling:
            with self._lock:
                self._counts.update(dict(_counted(event, facts)))

    def flush(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if counts and self._is_measuring:
            sys.stdout.write(_emf(self._environment, counts))
            sys.stdout.flush()
        if self._is_telling and (line := _told(counts)):
            sys.stderr.write(line)


def _line(document: Mapping[str, Any]) -> str:
    """Plain ASCII: an error's text comes from anywhere, and a terminal may be reading."""
    # DEL alone is ASCII, and JSON need not escape it; in a dumped document it stands in texts only.
    return json.dumps(document, default=str, separators=(",", ":")).replace("\x7f", "\\u007f")


def _emf(environment: str, counts: Mapping[str, int]) -> str:
    """One line of CloudWatch's embedded metric format. By hand: the library's took a thirtieth of a batch of ten's whole cost."""
    metrics = [{"Name": name, "Unit": "Seconds" if name.endswith("_seconds") else "Count"} for name in counts]
    described = {"Namespace": "Runlane", "Dimensions": [["environment", "service"]], "Metrics": metrics}
    line = {
        "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [described]},
        "environment": environment,
        "service": "runlane",
    }
    return _line({**line, **counts}) + "\n"


def _told(counts: Mapping[str, int]) -> str:
    runs = [f"{count} {name.removeprefix('runs_')}" for name, count in sorted(counts.items()) if name.startswith("runs_")]
    return f"{time.strftime('%H:%M:%SZ', time.gmtime())}  runs: {', '.join(runs)}\n" if runs else ""


def _level(event: str) -> int:
    if event in _ERRORS:
        return logging.ERROR
    return logging.DEBUG if event in _ROUTINE else logging.WARNING


def _counted(event: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if event == "settle.done":
        yield from ((f"runs_{status}", count) for status, count in facts["statuses"].items())
    elif event == "claim.refused":
        yield from ((f"wakeups_{reason}", count) for reason, count in facts["reasons"].items())
    elif event == "tick.done":
        yield "ticks", 1
        yield from ((f"tick_{phase}", count) for phase, count in facts["counts"].items())
        yield from facts.get("gauges", {}).items()
    else:
        yield event.replace(".", "_"), int(facts.get("count", 1))


def _plain(value: Any) -> Any:
    """What the JSON formatter can write; keys of enums become their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple | set | frozenset) else value
