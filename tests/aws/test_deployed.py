"""From an environment to what the doctor compares, and from a deployed function to an environment."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from runlane.cli.deployed import adopt_function, deployed_checks, is_deployed, template_finding
from runlane.domain.errors import ConfigurationError
from runlane.domain.finding import Level
from runlane.services.doctor import examine
from runlane.settings import read_settings
from tests.aws.stack import REGION, Stack

DATABASE = "postgresql://runtime@db.example:5432/app"
SHIPPED = Path(__file__).parents[2] / "template.yaml"


def test_a_deployment_is_compared_variable_by_variable_and_however_its_json_is_spaced() -> None:
    stack = Stack()
    url, timers = stack.queue("main.fifo", receives=15), stack.queue("timers")
    told = {"RUNLANE_QUEUE_URLS": f'{{"main":"{url}"}}', "RUNLANE_TIMERS_QUEUE_URL": timers, "DATABASE_URL": DATABASE}
    function = stack.function(**told, RUNLANE_RETENTION="30d", RUNLANE_SCHEMA="other")
    for each in (url, timers):
        stack.map(each, function)
    ours = read_settings({**told, "RUNLANE_QUEUE_URLS": f'{{ "main": "{url}" }}', "DATABASE_URL": "postgresql://somebody@elsewhere/app"})
    with ExitStack() as opened:
        findings = examine(deployed_checks(ours, opened)).findings
    assert {finding.what: finding.level for finding in findings if finding.level is not Level.OK} == {
        "worker: RUNLANE_SCHEMA is other there, and runlane here": Level.FAILURE,
        "worker: RUNLANE_RETENTION is 30d there, and 90d here": Level.WARNING,
    }
    assert [finding.what for finding in findings if finding.check == "queues"] == [
        "SQS queue of main: is as it must be",
        "SQS queue of timers: is as it must be",
    ]


def test_a_deployed_function_lends_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "RUNLANE_RETENTION": "1d", "DATABASE_URL": "postgresql://here/app"})
    Stack().function(DATABASE_URL=DATABASE, RUNLANE_ENVIRONMENT="staging")
    adopt_function("worker")
    found = read_settings()
    assert (found.environment, found.retention, found.database_url) == ("staging", "90d", DATABASE)
    with pytest.raises(ConfigurationError, match="--function other: there is none of this name in the region"):
        adopt_function("other")


def test_only_queues_of_aws_itself_are_looked_at() -> None:
    own = read_settings({"DATABASE_URL": DATABASE, "RUNLANE_QUEUE_URL": f"https://sqs.{REGION}.amazonaws.com/1/main"})
    assert is_deployed(own)
    assert not is_deployed(own.model_copy(update={"endpoint_url": "http://127.0.0.1:4566"}))
    assert not is_deployed(own.model_copy(update={"transport": "none"}))


def test_the_template_of_the_project_is_compared_with_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(template_finding(["main"])) == []
    for text, queues, level in (
        (SHIPPED.read_text(), ["main", "invoice_sync", "exports"], Level.OK),
        (SHIPPED.read_text(), ["main", "invoice_sync", "exports", "new"], Level.FAILURE),
        (SHIPPED.read_text(), ["main", "exports"], Level.FAILURE),
        ("Resources: {}", ["main"], Level.UNSEEN),
    ):
        (tmp_path / "template.yaml").write_text(text)
        assert [finding.level for finding in template_finding(queues)] == [level]
