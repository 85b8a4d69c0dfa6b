from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from runlane.bootstrap import environment_lane
from runlane.cli.local_lane import local_lane
from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.ports.stores import Wakeup
from runlane.settings import read_settings

pytestmark = pytest.mark.sqs


def test_a_queue_to_keep_in_order_gets_a_fifo_queue_and_all_of_them_a_timers_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [Queue("main"), Queue("the ledger"), Queue("mail")]
    with local_lane(queue="dev", visibility=timedelta(seconds=30), postgres=False, in_order=["the ledger", "mail"]) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        groups = '{"the ledger": "key", "mail": "run"}'
        lane = environment_lane(queues, read_settings({**variables, "DATABASE_URL": "postgresql:///x", "RUNLANE_MESSAGE_GROUPS": groups}))
        assert [lane.transport.keeps_order(queue.name) for queue in queues] == [False, True, True]
        delays = (timedelta(0), timedelta(minutes=1))
        sent = [Wakeup(RunId(str(uuid4())), queue.name, delay=delay) for queue in queues for delay in delays]
        assert [result.error for result in lane.transport.publish(sent)] == [None] * 6
        lane.transport.close()
