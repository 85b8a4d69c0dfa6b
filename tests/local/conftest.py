from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest

from runlane.adapters.local.sqs import LocalQueue, LocalSqs


@pytest.fixture(scope="session")
def sqs() -> Iterator[LocalSqs]:
    with LocalSqs() as server:
        yield server


@pytest.fixture
def queue(sqs: LocalSqs) -> LocalQueue:
    """A queue of the test's own: one second of invisibility, dead after two receives."""
    return sqs.create_queue(f"work-{uuid4().hex}", visibility_timeout=timedelta(seconds=1), max_receive_count=2)
