"""The CloudWatch dashboard: what runs became, what waits, what the functions and the database do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_OURS = ("environment", "${EnvironmentName}", "service", "runlane")
_REPAIRS = ("recover_leases", "expire_dispatches", "publish_unpublished")
_WIDTH, _HEIGHT = 8, 6


def dashboard(names: Sequence[str]) -> str:
    """A widget a line, so that a change shows as one."""
    queues = [(f"{name}Queue", name) for name in names]
    letters = [(f"{name}DeadLetters", name) for name in names]
    widgets = [
        _widget("Runs", "Sum", [_own(f"runs_{status}") for status in ("succeeded", "failed", "cancelled", "retrying", "released")]),
        _widget("Seconds that the oldest due run has waited", "Maximum", [_own("oldest_due_seconds")]),
        _widget("Repaired by maintenance", "Sum", [_own(f"tick_{phase}") for phase in _REPAIRS]),
        _widget("Wakeups waiting", "Maximum", [_sqs("ApproximateNumberOfMessagesVisible", *queue) for queue in queues]),
        _widget("Seconds of the oldest wakeup", "Maximum", [_sqs("ApproximateAgeOfOldestMessage", *queue) for queue in queues]),
        _widget("Dead letters", "Maximum", [_sqs("ApproximateNumberOfMessagesVisible", *queue) for queue in letters]),
        _widget("Workers at once", "Maximum", [_function("ConcurrentExecutions", "Worker")]),
        _widget("Invocations that failed or were throttled", "Sum", [
            _function(metric, function) for function in ("Worker", "Maintenance") for metric in ("Errors", "Throttles")
        ]),
        _widget("Transactions that hold back vacuum, the oldest, in seconds", "Maximum", [_own("horizon_seconds")]),
    ]  # fmt: skip
    placed = (
        json.dumps(
            {"type": "metric", "x": index % 3 * _WIDTH, "y": index // 3 * _HEIGHT, "width": _WIDTH, "height": _HEIGHT, "properties": widget}
        )
        for index, widget in enumerate(widgets)
    )
    body = ",\n        ".join(placed)
    return (
        "Dashboard:\n  Type: AWS::CloudWatch::Dashboard\n  Properties:\n    DashboardBody: !Sub |\n"
        f'      {{"widgets": [\n        {body}\n      ]}}'
    )


def _widget(title: str, statistic: str, metrics: Sequence[list[Any]]) -> dict[str, Any]:
    return {"title": title, "region": "${AWS::Region}", "view": "timeSeries", "stat": statistic, "period": 60, "metrics": metrics}


def _own(metric: str) -> list[Any]:
    return ["Runlane", metric, *_OURS, {"label": metric}]


def _sqs(metric: str, queue: str, label: str) -> list[Any]:
    return ["AWS/SQS", metric, "QueueName", f"${{{queue}.QueueName}}", {"label": label}]


def _function(metric: str, function: str) -> list[Any]:
    return ["AWS/Lambda", metric, "FunctionName", f"${{{function}}}", {"label": f"{function} {metric}"}]
