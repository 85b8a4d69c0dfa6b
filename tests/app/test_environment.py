"""Whatever is wrong with the environment is told by the name of the variable, all of it at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runlane.bootstrap import environment_lane, load_app
from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue
from runlane.settings import read_settings

SQS = "https://sqs.eu-west-1.amazonaws.com/123456789012"
GOOD = {"DATABASE_URL": "postgresql://localhost/x", "RUNLANE_QUEUE_URL": "https://sqs.example/1/work"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RUNLANE_APP", "app"),
        ("RUNLANE_ENVIRONMENT", "a:b"),
        ("RUNLANE_SCHEMA", 'a"b'),
        ("RUNLANE_SCHEMA", "pg_mine"),
        ("RUNLANE_SCHEMA", "é" * 40),
        ("AWS_ENDPOINT_URL", "localhost:4566"),
        ("RUNLANE_WORKER_CONCURRENCY", "0"),
        ("RUNLANE_APP", ".app:runlane"),
        ("RUNLANE_LEASE_DURATION", "0s"),
        ("RUNLANE_LEASE_DURATION", "999ms"),
        ("RUNLANE_QUEUE_URLS", "[]"),
        ("RUNLANE_MESSAGE_GROUPS", '{"main": "tenant"}'),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings({**GOOD, variable: value})
    assert caught.value.message.startswith(f"{variable}: ")
    assert caught.value.__suppress_context__, "no other library's report stands above ours"


def test_a_wrong_address_is_told_for_every_queue_with_its_variable() -> None:
    settings = read_settings({**GOOD, "RUNLANE_QUEUE_URL": "nonsense", "RUNLANE_QUEUE_URLS": '{"own": "nonsense"}'})
    with pytest.raises(ConfigurationError) as caught:
        environment_lane([Queue("main"), Queue("own")], settings)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["RUNLANE_QUEUE_URL", "RUNLANE_QUEUE_URLS"]


def faults_of(**variables: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        environment_lane([Queue("main"), Queue("ledger")], read_settings({**GOOD, "RUNLANE_QUEUE_URL": f"{SQS}/main", **variables}))
    return caught.value.faults


def test_a_name_that_is_no_queue_is_refused_and_every_queue_named() -> None:
    unknown, misspelt = faults_of(RUNLANE_QUEUE_URLS=f'{{"legder": "{SQS}/x"}}', RUNLANE_MESSAGE_GROUPS='{"ledgr": "key"}')
    assert unknown == "RUNLANE_QUEUE_URLS: 'legder' is no queue here; the application has ledger, main; correct or remove it"
    assert misspelt.startswith("RUNLANE_MESSAGE_GROUPS: 'ledgr' is no queue here")


def test_a_fifo_queue_is_bound_by_its_url_and_its_message_group() -> None:
    given = {"RUNLANE_QUEUE_URLS": f'{{"ledger": "{SQS}/ledger.fifo"}}', "RUNLANE_TIMERS_QUEUE_URL": f"{SQS}/timers"}
    lane = environment_lane(
        [Queue("main"), Queue("ledger")],
        read_settings({**GOOD, "RUNLANE_QUEUE_URL": f"{SQS}/main", "RUNLANE_MESSAGE_GROUPS": '{"ledger": "key"}', **given}),
    )
    assert [lane.transport.keeps_order(queue) for queue in ("main", "ledger")] == [False, True]


def test_a_fifo_queue_without_timers_and_a_group_without_fifo_are_refused_by_their_variables() -> None:
    (missing,) = faults_of(RUNLANE_QUEUE_URLS=f'{{"ledger": "{SQS}/ledger.fifo"}}')
    assert missing.startswith("RUNLANE_TIMERS_QUEUE_URL: is not set; the FIFO queues of ledger need it")
    (standard,) = faults_of(RUNLANE_MESSAGE_GROUPS='{"ledger": "key"}')
    assert standard.startswith("RUNLANE_QUEUE_URL: SQS binding of queue 'ledger': fifo: the SQS queue's name does not end in '.fifo'")
    (wrong,) = faults_of(RUNLANE_TIMERS_QUEUE_URL=f"{SQS}/timers.fifo")
    assert wrong.startswith("RUNLANE_TIMERS_QUEUE_URL: SQS timers queue: ")


def test_an_application_that_exits_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in ("exiting:runlane", "sys:exit"):
        with pytest.raises(ConfigurationError) as caught:
            load_app(path)
        assert caught.value.code == "app_invalid"
    assert "exiting" not in sys.modules


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("broken_inside:runlane", "was found, but it imports 'nowhere_at_all'"),
        ("nowhere_at_all:runlane", "was not found (No module named 'nowhere_at_all')"),
        ("nowhere_at_all.deeper:runlane", "was not found"),
        ("whole:runlame", "has no 'runlame'; did you mean 'runlane'?"),
        ("whole:runlane", "is a int, not a Runlane"),
    ],
)
def test_what_keeps_an_application_from_loading_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    (tmp_path / "broken_inside.py").write_text("import nowhere_at_all\n")
    (tmp_path / "whole.py").write_text("runlane = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        load_app(path)
    assert says in caught.value.message
    assert caught.value.code == "app_invalid"
