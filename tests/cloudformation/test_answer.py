"""What the migrate function tells CloudFormation, over real HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from runlane.adapters.cloudformation import answer as module
from runlane.adapters.cloudformation.answer import answer
from runlane.domain.errors import ConfigurationError

LAYER = "arn:aws:lambda:eu-west-1:123456789012:layer:RuntimeLayer"


class Bucket:
    """Takes what is put, as the bucket of a presigned URL does; the first `refusing` times it answers 503."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.types: list[str | None] = []
        self.refusing = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refusing:
                    outer.refusing -= 1
                    self.send_response(503)
                else:
                    outer.types.append(self.headers["Content-Type"])
                    outer.bodies.append(json.loads(body))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/answer"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    serving = Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


class Migrations:
    def __init__(self, outcome: Exception | float = 0.0) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self._outcome = outcome

    def __call__(self, phase: str, *, release: str, previous: str | None) -> list[str]:
        self.asked.append((phase, release, previous))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        time.sleep(self._outcome)
        return ["0001_tables"]


def event(bucket: Bucket, kind: str = "Create", version: int = 7, old: int | None = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "RequestType": kind,
        "ResponseURL": bucket.url,
        "StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/runlane/1",
        "RequestId": "request",
        "LogicalResourceId": "MigrateBefore",
        "ResourceProperties": {"Phase": "before", "Release": f"{LAYER}:{version}", **more},
    }
    if old is not None:
        made |= {"PhysicalResourceId": "runlane-MigrateBefore", "OldResourceProperties": {"Phase": "before", "Release": f"{LAYER}:{old}"}}
    return made


def answered(bucket: Bucket, migrate: Migrations, asked: dict[str, Any], remaining: float = 900.0) -> dict[str, Any]:
    answer(asked, migrate, remaining=lambda: remaining)
    (body,) = bucket.bodies
    return body


def test_a_new_stack_migrates_and_is_told_so(bucket: Bucket) -> None:
    migrate = Migrations()
    body = answered(bucket, migrate, event(bucket))
    assert migrate.asked == [("before", f"{LAYER}:7", None)]
    assert (body["Status"], body["PhysicalResourceId"], body["Data"]) == ("SUCCESS", "runlane-MigrateBefore", {"Applied": 1})
    assert (body["StackId"], body["RequestId"], body["LogicalResourceId"]) == (event(bucket)["StackId"], "request", "MigrateBefore")
    assert bucket.types == [""], "S3 refuses a type that the URL was not signed for"


def test_a_new_release_migrates_and_keeps_the_resource(bucket: Bucket) -> None:
    migrate = Migrations()
    body = answered(bucket, migrate, event(bucket, "Update", version=10, old=9))
    assert migrate.asked == [("before", f"{LAYER}:10", f"{LAYER}:9")]
    assert body["PhysicalResourceId"] == "runlane-MigrateBefore"


def test_another_catalog_of_the_same_release_migrates_too_but_has_no_release_before_it(bucket: Bucket) -> None:
    migrate = Migrations()
    answered(bucket, migrate, event(bucket, "Update", version=9, old=9, App="other:app"))
    assert migrate.asked == [("before", f"{LAYER}:9", None)]


@pytest.mark.parametrize(("kind", "version", "old"), [("Update", 9, 10), ("Delete", 7, None)])
def test_going_back_and_deleting_do_nothing(bucket: Bucket, kind: str, version: int, old: int | None) -> None:
    migrate = Migrations()
    assert answered(bucket, migrate, event(bucket, kind, version, old))["Status"] == "SUCCESS"
    assert migrate.asked == []


def test_what_is_wrong_is_the_reason_that_the_deploy_gives(bucket: Bucket) -> None:
    with pytest.raises(ConfigurationError):
        answer(event(bucket), Migrations(ConfigurationError("RUNLANE_APP: is wrong")), remaining=lambda: 900.0)
    (body,) = bucket.bodies
    assert (body["Status"], body["Reason"]) == ("FAILED", "RUNLANE_APP: is wrong")


def test_of_an_error_that_may_hold_anything_only_its_kind_is_told(bucket: Bucket) -> None:
    with pytest.raises(RuntimeError):
        answer(event(bucket), Migrations(RuntimeError("password=hunter2")), remaining=lambda: 900.0)
    assert bucket.bodies[0]["Reason"] == "RuntimeError; the function's log has the rest"


def test_an_unknown_phase_fails_the_deploy(bucket: Bucket) -> None:
    with pytest.raises(ValueError, match="Phase: 'later'"):
        answer(event(bucket, Phase="later"), Migrations(), remaining=lambda: 900.0)
    assert bucket.bodies[0]["Status"] == "FAILED"


@pytest.mark.parametrize(
    "odd",
    [{"RequestType": None}, {"ResourceProperties": None}, {"ResourceProperties": []}, {"ResourceProperties": {"Phase": "before"}}],
    ids=ascii,
)
@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_an_event_that_cannot_be_read_is_answered_as_failed(bucket: Bucket, kind: str, odd: dict[str, Any]) -> None:
    asked = event(bucket, kind, old=6) | odd
    if odd == {"RequestType": None}:
        del asked["RequestType"]
    with pytest.raises((KeyError, AttributeError, TypeError)):
        answer(asked, Migrations(), remaining=lambda: 900.0)
    assert [body["Status"] for body in bucket.bodies] == ["FAILED"]


@pytest.mark.parametrize(
    "odd", [{"OldResourceProperties": None}, {"ResourceProperties": {"Phase": "before", "Release": "a:" + "9" * 5000}}], ids=["old", "huge"]
)
def test_what_says_nothing_of_the_release_before_migrates(bucket: Bucket, odd: dict[str, Any]) -> None:
    migrate = Migrations()
    answer(event(bucket, "Update", old=6) | odd, migrate, remaining=lambda: 900.0)
    assert (len(migrate.asked), bucket.bodies[0]["Status"]) == (1, "SUCCESS")


def test_what_takes_too_long_is_told_before_the_function_is_stopped_and_only_once(bucket: Bucket) -> None:
    answer(event(bucket), Migrations(0.3), remaining=lambda: module.MARGIN + 0.05)
    (body,) = bucket.bodies
    assert body["Status"] == "FAILED"
    assert "runlane migrate --phase before" in body["Reason"]


def test_an_answer_is_sent_again_when_it_is_refused(bucket: Bucket) -> None:
    bucket.refusing = 2
    assert answered(bucket, Migrations(), event(bucket))["Status"] == "SUCCESS"
