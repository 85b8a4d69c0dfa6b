"""What Lambda hands to a handler: the SQS event, the schedule's event, and the context."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from runlane.adapters.sqs.receiving import sqs_record

ACCOUNT = "000000000000"


@dataclass(frozen=True, slots=True)
class LocalLambdaContext:
    """The attributes of AWS's context object. `timeout` counts from its creation; nothing here ends a handler that overstays."""

    function_name: str
    timeout: timedelta
    aws_region: str = "us-east-1"
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    function_version: str = "$LATEST"
    memory_limit_in_mb: int = 512
    identity: None = None
    client_context: None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def invoked_function_arn(self) -> str:
        return f"arn:aws:lambda:{self.aws_region}:{ACCOUNT}:function:{self.function_name}"

    @property
    def log_group_name(self) -> str:
        return f"/aws/lambda/{self.function_name}"

    @property
    def log_stream_name(self) -> str:
        return f"local/[{self.function_version}]{self.aws_request_id}"

    def get_remaining_time_in_millis(self) -> int:
        spent = time.monotonic() - self.started
        return max(0, int((self.timeout.total_seconds() - spent) * 1000))


def sqs_event(messages: Sequence[Mapping[str, Any]], queue_arn: str) -> dict[str, Any]:
    """The event of an SQS mapping, `{"Records": […]}`, from received messages."""
    return {"Records": [sqs_record(message, queue_arn) for message in messages]}


def schedule_event(rule: str, region: str = "us-east-1") -> dict[str, Any]:
    """The event of an EventBridge schedule rule that fires now."""
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": region,
        "resources": [f"arn:aws:events:{region}:{ACCOUNT}:rule/{rule}"],
        "detail": {},
    }
