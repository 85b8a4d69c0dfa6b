"""What an AWS account tells about what is deployed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Unseen:
    """What may not be looked at, or cannot from here, and what lets one look."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """An SQS queue. `dead_letters`: the ARN of the queue that they go to, after `receives`; None: they go nowhere. `lasts_for`: how long a
    message that is returned again and again is no dead letter."""

    arn: str
    is_fifo: bool
    visible_after: timedelta
    kept_for: timedelta
    is_encrypted: bool
    messages: int
    dead_letters: str | None
    receives: int
    lasts_for: timedelta

    @property
    def name(self) -> str:
        return self.arn.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class MappingState:
    """From an SQS queue to a function. `state` as AWS calls it; `most_at_once` None: whatever the account allows."""

    function: str
    state: str
    returns_failures: bool
    most_at_once: int | None


@dataclass(frozen=True, slots=True)
class FunctionState:
    """`may_follow_itself`: whether loop detection is off; None: not known."""

    name: str
    timeout: timedelta
    variables: Mapping[str, str]
    may_follow_itself: bool | None


class Deployment(Protocol):
    """Every answer may be `Unseen`, and None where there is none of that name."""

    def queue_at(self, url: str) -> QueueState | Unseen | None: ...

    def queue_of(self, arn: str) -> QueueState | Unseen | None: ...

    def mappings(self, queue_arn: str) -> tuple[MappingState, ...] | Unseen: ...

    def function(self, name: str) -> FunctionState | Unseen | None: ...
