"""Telemetry as structured logs and EMF metrics: the one subscriber to what use cases report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

_ERRORS = frozenset({"phase.failed", "settle.failed", "attempt.strayed", "worker.exits", "observer.failed"})
_ROUTINE = frozenset({"settle.done", "claim.refused"})


class PowertoolsTelemetry:
    """Errors and warnings are logged at once; counts are kept and written as one EMF line by `flush`, once an invocation."""

    def __init__(self, *, environment: str, metrics: bool) -> None:
        self._logger = Logger(service="runlane", level=logging.INFO, environment=environment)
        self._metrics = Metrics(namespace="Runlane", service="runlane") if metrics else None
        if self._metrics is not None:
            self._metrics.set_default_dimensions(environment=environment)

    def emit(self, event: str, /, **facts: Any) -> None:
        self._logger.log(_level(event), event, extra={name: _plain(value) for name, value in facts.items()})
        if self._metrics is not None:
            for name, count in _counts(event, facts):
                self._metrics.add_metric(name=name, unit=MetricUnit.Count, value=count)

    def flush(self) -> None:
        """Write the metrics gathered since the last flush."""
        if self._metrics is not None and self._metrics.metric_set:
            self._metrics.flush_metrics()


def _level(event: str) -> int:
    if event in _ERRORS:
        return logging.ERROR
    return logging.DEBUG if event in _ROUTINE else logging.WARNING


def _counts(event: str, facts: Mapping[str, Any]) -> list[tuple[str, int]]:
    if event == "settle.done":
        settled = [(f"runs_{status}", count) for status, count in facts["statuses"].items()]
        return [*settled, ("results_refused", facts["refused"])] if facts["refused"] else settled
    if event == "claim.refused":
        return [(f"wakeups_{reason}", count) for reason, count in facts["reasons"].items()]
    return [(event.replace(".", "_"), int(facts.get("count", 1)))]


def _plain(value: Any) -> Any:
    """What the JSON formatter can write; keys of enums become their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple | set | frozenset) else value
