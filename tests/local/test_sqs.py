from __future__ import annotations

import subprocess
import sys
import textwrap

import psutil
import pytest

from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.sqs import LocalQueue, LocalSqs
from tests.waiting import has_ended, until

pytestmark = pytest.mark.sqs


def test_a_message_goes_round(sqs: LocalSqs, queue: LocalQueue) -> None:
    sent = sqs.client.send_message(QueueUrl=queue.url, MessageBody="hello")
    (message,) = sqs.client.receive_message(QueueUrl=queue.url)["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello")
    sqs.client.delete_message(QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"])


def test_a_message_received_too_often_goes_to_the_dead_letter_queue(sqs: LocalSqs, queue: LocalQueue) -> None:
    sqs.client.send_message(QueueUrl=queue.url, MessageBody="poison")
    for _ in range(2):
        (message,) = sqs.client.receive_message(QueueUrl=queue.url)["Messages"]
        sqs.client.change_message_visibility(QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert "Messages" not in sqs.client.receive_message(QueueUrl=queue.url)
    (dead,) = sqs.client.receive_message(QueueUrl=queue.dead_letter_url)["Messages"]
    assert dead["Body"] == "poison"


def test_a_fifo_queue_has_a_fifo_dead_letter_queue(sqs: LocalSqs) -> None:
    queue = sqs.create_queue("ordered.fifo")
    assert queue.dead_letter_url.endswith("ordered-dlq.fifo")
    assert sqs.create_queue("ordered.fifo") == queue


def test_it_listens_on_loopback_only(sqs: LocalSqs) -> None:
    listening = [c.laddr.ip for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN and c.laddr.port == sqs.port]
    assert listening == ["127.0.0.1"]


def test_a_taken_port_is_refused_with_the_log(sqs: LocalSqs) -> None:
    with pytest.raises(LocalLaneError, match="already in use"):
        LocalSqs(port=sqs.port).start()


def test_it_ends_with_the_process_that_started_it() -> None:
    program = textwrap.dedent("""
        import sys, time
        from runlane.adapters.local.sqs import LocalSqs
        server = LocalSqs().start()
        sys.stdout.write(f"{server._server.pid}\\n")
        sys.stdout.flush()
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: has_ended(pid))
