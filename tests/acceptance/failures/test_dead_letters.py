from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from runlane.adapters.sqs.envelope import encode_wakeup
from runlane.domain.ids import RunId
from runlane.domain.run import Status
from runlane.ports.stores import Wakeup
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.tasks import noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]


def test_misfits_and_another_environment_s_wakeups_reach_the_dead_letter_queue_and_their_neighbours_do_not(open_stage: OpenStage) -> None:
    stage = open_stage(max_receive_count=2)
    foreign = encode_wakeup("staging", Wakeup(RunId(str(uuid4())), "main"), datetime.now(UTC))
    unknown = encode_wakeup("test", Wakeup(RunId(str(uuid4())), "main"), datetime.now(UTC))
    misfits = sorted(["no json at all", foreign])
    for body in (*misfits, unknown):
        stage.send(body)
    runs = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(7))]
    stage.spawn("--concurrency", "1")
    until(lambda: {stage.get(run_id).status for run_id in runs} == {Status.SUCCEEDED})
    until(lambda: stage.dead_letters() == misfits)
    counts = stage.sqs.client.get_queue_attributes(QueueUrl=stage.queue.url, AttributeNames=["All"])["Attributes"]
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]) == ("0", "0")
    assert {stage.get(run_id).attempt for run_id in runs} == {1}
