from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.sqs.misbehaving import misbehaving, succeed

ROOT = Path(__file__).parents[2]
PROGRAM = textwrap.dedent("""
    import os, sys
    from runlane.adapters.sqs.bindings import sqs_queue
    from runlane.adapters.sqs.transport import SqsTransport
    from tests.sqs.wakeups import EMAILS, wakeups

    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")
    transport = SqsTransport([sqs_queue(EMAILS, queue_url=sys.argv[1] + "/1/emails")], "test", endpoint_url=sys.argv[1])

    def publish():
        return all(result.published for result in transport.publish(wakeups(30)))

    before = publish()
    child = os.fork()
    if not child:
        os._exit(not publish())
    sys.exit(not (before and publish()) or os.waitpid(child, 0)[1])
""")


def test_a_forked_process_publishes_with_a_client_and_threads_of_its_own() -> None:
    """As a web server does that loads the application, and triggers something, before it forks its workers."""
    with misbehaving(succeed) as sqs:
        done = subprocess.run([sys.executable, "-c", PROGRAM, sqs.url], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert sum(len(request["Entries"]) for request in sqs.requests) == 90
