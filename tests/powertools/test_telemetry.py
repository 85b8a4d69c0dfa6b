"""What the one subscriber writes: errors at once, counts once a delivery, payloads never."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter

import pytest

from runlane.adapters.powertools import PowertoolsTelemetry
from runlane.domain.run import Status


@pytest.fixture(autouse=True)
def _logger_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps the first stream of a process, which was another test's."""
    monkeypatch.delitem(logging.Logger.manager.loggerDict, "runlane", raising=False)


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_flush_writes_what_was_counted_as_one_metric_line(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = PowertoolsTelemetry(environment="staging", metrics=True)
    telemetry.emit("settle.done", statuses=Counter({Status.SUCCEEDED: 9, Status.FAILED: 1}), refused=0)
    telemetry.emit("settle.done", statuses=Counter({Status.SUCCEEDED: 10}), refused=0)
    telemetry.flush()
    telemetry.flush()

    (line,) = _lines(capsys.readouterr().out)
    described = line["_aws"]["CloudWatchMetrics"][0]  # type: ignore[index]
    assert (line["runs_succeeded"], line["runs_failed"], line["environment"]) == (19, 1, "staging")
    assert {metric["Name"] for metric in described["Metrics"]} == {"runs_succeeded", "runs_failed"}
    assert all(set(names) <= line.keys() for names in described["Dimensions"])


def test_a_tick_is_counted_and_tells_what_alarms_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = PowertoolsTelemetry(environment="staging", metrics=True)
    telemetry.emit("tick.done", counts={"recover_leases": 2}, gauges={"oldest_due_seconds": 90, "horizon_seconds": 0})
    telemetry.flush()

    (line,) = _lines(capsys.readouterr().out)
    assert (line["ticks"], line["tick_recover_leases"], line["oldest_due_seconds"], line["horizon_seconds"]) == (1, 2, 90, 0)
    units = {metric["Name"]: metric["Unit"] for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]}  # type: ignore[index]
    assert (units["ticks"], units["oldest_due_seconds"]) == ("Count", "Seconds")


def test_an_error_is_logged_at_once_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    PowertoolsTelemetry(environment="staging", metrics=True).emit("phase.failed", phase="due_timers", error="boom")

    (line,) = _lines(capsys.readouterr().out)
    assert (line["level"], line["message"], line["phase"], line["environment"]) == ("ERROR", "phase.failed", "due_timers", "staging")


def test_success_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = PowertoolsTelemetry(environment="staging", metrics=False)
    telemetry.emit("settle.done", statuses=Counter({Status.SUCCEEDED: 1}), refused=0)
    telemetry.emit("tick.done", counts={"due_timers": 0})
    telemetry.flush()

    assert capsys.readouterr() == ("", "")


def test_outside_lambda_logs_stay_off_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    PowertoolsTelemetry(environment="staging", metrics=False).emit("publish.failed", count=2, error="x")

    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["level"] == logging.getLevelName(logging.WARNING)


def test_what_became_of_a_deliverys_runs_is_one_line_for_whoever_looks_on(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = PowertoolsTelemetry(environment="development", metrics=False, tell_runs=True)
    telemetry.emit("settle.done", statuses=Counter({Status.SUCCEEDED: 2, Status.RETRYING: 1}), refused=0)
    telemetry.emit("settle.done", statuses=Counter({Status.SUCCEEDED: 1}), refused=0)
    telemetry.emit("tick.done", counts={"due_timers": 1})
    telemetry.flush()
    telemetry.flush()
    telemetry.emit("tick.done", counts={"due_timers": 1})
    telemetry.flush()

    written = capsys.readouterr()
    assert written.out == ""
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ  runs: 1 retrying, 3 succeeded\n", written.err)


@pytest.mark.parametrize("metrics", [True, False])
def test_nothing_a_terminal_obeys_is_logged(capsys: pytest.CaptureFixture[str], metrics: bool) -> None:
    odd = "\x1b[31m\x9b2J\u202e\x7f\ud800\u2028é"
    telemetry = PowertoolsTelemetry(environment=odd, metrics=metrics)
    telemetry.emit("attempt.failed", detail=odd, message_id=odd, reasons={odd: odd}, odd=ValueError(odd))
    telemetry.flush()

    written = "".join(capsys.readouterr())
    assert written.isascii()
    assert written.replace("\n", "").isprintable()
    first = _lines(written)[0]
    assert (first["environment"], first["detail"], first["message_id"], first["odd"]) == (odd, odd, odd, odd)
