"""The SQS client: made when something is first published, so that importing Runlane costs no boto3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

PARALLEL_SENDS = 8
CONNECT_TIMEOUT = 1.0
READ_TIMEOUT = 3.0
ATTEMPTS = 2


class SqsClient(Protocol):
    """What is used of boto3's client; parameters as in the SQS API."""

    def send_message_batch(self, **request: Any) -> Any: ...

    def get_queue_url(self, **request: Any) -> Any: ...

    def close(self) -> None: ...


ClientFactory = Callable[[], SqsClient]


def sqs_client(
    endpoint_url: str | None = None, *, connect_timeout: float = CONNECT_TIMEOUT, read_timeout: float = READ_TIMEOUT
) -> SqsClient:
    """A boto3 client that gives up soon (seconds per try, two tries), so that an SQS outage does not hang a trigger."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=PARALLEL_SENDS,
        tcp_keepalive=True,
        # Requests are built from checked values, and a tenth of a call's CPU time is saved.
        parameter_validation=False,
    )
    client: Any = boto3.client("sqs", endpoint_url=endpoint_url, config=config)
    narrowed: SqsClient = client
    return narrowed
