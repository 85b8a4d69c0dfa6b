"""A migration as a custom resource of a stack: what its events ask for, and the one answer that CloudFormation waits for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import Lock, Timer
from typing import Any, Protocol
from urllib.request import Request, urlopen

from runlane.domain.errors import RunlaneError

MARGIN = 30.0
"""Seconds before the function ends in which to say that it has not ended."""
_TRIES, _PATIENCE = 3, 5.0
_LONGEST_REASON = 1500
"""Of the 4,096 bytes of an answer."""
_PHASES = ("before", "after")
_LONGEST_VERSION = 18


class Migrate(Protocol):
    def __call__(self, phase: Any, *, release: str, previous: str | None) -> Sequence[str]: ...


def answer(event: Mapping[str, Any], migrate: Migrate, *, remaining: Callable[[], float]) -> None:
    """Do what the event asks for and send CloudFormation the outcome; what went wrong is its reason, and raised for the log.

    Only a step forward migrates. The schema is forward only, and the release before runs on it: deleting the resource, as with its
    stack, and going back to an earlier release, as when a deploy fails, do nothing. `remaining` gives the seconds until the function
    is stopped: shortly before that CloudFormation is told that it took too long, rather than nothing until its own time-out.
    """
    replies = _Replies(event)
    # What is not answered is waited for until a time-out of hours.
    try:
        applied = _migrated(event, migrate, replies, remaining) if _steps_forward(event) else 0
    except Exception as error:
        replies.send(_reason(error))
        raise
    replies.send(None, applied=applied)


def _migrated(event: Mapping[str, Any], migrate: Migrate, replies: _Replies, remaining: Callable[[], float]) -> int:
    """How many migrations were applied."""
    watch = Timer(max(0.0, remaining() - MARGIN), replies.send, [_too_long(event)])
    watch.daemon = True
    watch.start()
    try:
        properties = event["ResourceProperties"]
        if properties.get("Phase") not in _PHASES:
            raise ValueError(f"Phase: {properties.get('Phase')!r} is not one of {', '.join(_PHASES)}")
        release, previous = properties["Release"], (event.get("OldResourceProperties") or {}).get("Release")
        return len(migrate(properties["Phase"], release=release, previous=None if previous == release else previous))
    finally:
        watch.cancel()


def _steps_forward(event: Mapping[str, Any]) -> bool:
    if event["RequestType"] != "Update":
        return bool(event["RequestType"] == "Create")
    before, now = _release(event.get("OldResourceProperties") or {}), _release(event["ResourceProperties"])
    # Versions of one layer are only ever counted up.
    return before is None or now is None or before[0] != now[0] or before[1] <= now[1]


def _release(properties: Mapping[str, Any]) -> tuple[str, int] | None:
    """The layer's name and its version."""
    layer, _, version = str(properties.get("Release", "")).rpartition(":")
    return (layer, int(version)) if version.isdecimal() and len(version) <= _LONGEST_VERSION else None


class _Replies:
    """The first reply counts: one that comes after the time is up has nobody who waits for it."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        self._event = event
        self._lock = Lock()
        self._is_sent = False

    def send(self, reason: str | None, *, applied: int = 0) -> None:
        with self._lock:
            if self._is_sent:
                return
            self._is_sent = True
            _put(self._event["ResponseURL"], self._body(reason, applied))

    def _body(self, reason: str | None, applied: int) -> bytes:
        event = self._event
        return json.dumps(
            {
                "Status": "SUCCESS" if reason is None else "FAILED",
                "Reason": reason or "",
                # The same for ever, so that no update is a replacement.
                "PhysicalResourceId": event.get("PhysicalResourceId") or f"runlane-{event['LogicalResourceId']}",
                "StackId": event["StackId"],
                "RequestId": event["RequestId"],
                "LogicalResourceId": event["LogicalResourceId"],
                "Data": {"Applied": applied},
            }
        ).encode()


def _put(url: str, body: bytes) -> None:
    # The signature of the URL is for a body without a type.
    request = Request(url, data=body, method="PUT", headers={"Content-Type": ""})
    for left in reversed(range(_TRIES)):
        try:
            with urlopen(request, timeout=_PATIENCE):
                return
        except OSError as error:
            if not left:
                # Not the URL: whoever has it may answer.
                sys.stderr.write(f"CloudFormation cannot be answered ({type(error).__name__}); is S3 reachable, by NAT or an endpoint?\n")
                raise


def _reason(error: Exception) -> str:
    text = error.message if isinstance(error, RunlaneError) else f"{type(error).__name__}; the function's log has the rest"
    return text[:_LONGEST_REASON]


def _too_long(event: Mapping[str, Any]) -> str:
    phase = event["ResourceProperties"].get("Phase")
    return (
        f"the migrations of phase {phase} take longer than the 15 minutes of a function; what has been applied stays. "
        f"Run `runlane migrate --phase {phase}` by hand, with the login that owns the schema, and deploy again"
    )
