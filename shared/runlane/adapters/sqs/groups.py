"""Message group ids: stable, of fixed length, and telling nothing of the tenant or key they stand for."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256

from runlane.adapters.sqs.bindings import MessageGroup
from runlane.ports.stores import Wakeup


def group_id(*parts: str) -> str:
    """`runlane_` and the unpadded base64url SHA-256 of the NUL-joined parts: 51 characters that SQS accepts."""
    digest = sha256("\0".join(parts).encode()).digest()
    return "runlane_" + urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def fair_group_id(environment: str, wakeup: Wakeup) -> str | None:
    """The group of a wakeup on a standard queue, by tenant and key, so that SQS delivers groups fairly; None without a key."""
    if wakeup.concurrency_key is None:
        return None
    return group_id("key", environment, wakeup.queue, wakeup.tenant or "", wakeup.concurrency_key)


def fifo_group_id(environment: str, wakeup: Wakeup, kept_in_order: MessageGroup) -> str:
    """The group of a wakeup on a FIFO queue: its queue's, its key's, or its run's own, which a wakeup without a key gets too."""
    if kept_in_order == "queue":
        return group_id("queue", environment, wakeup.queue)
    by_key = fair_group_id(environment, wakeup) if kept_in_order == "key" else None
    return by_key or group_id("run", environment, wakeup.run_id)
