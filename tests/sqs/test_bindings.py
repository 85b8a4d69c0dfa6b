"""Which bindings are refused, each with everything that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.adapters.sqs.bindings import Fifo, checked_bindings, sqs_queue, sqs_timers
from runlane.adapters.sqs.transport import SqsTransport
from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue
from tests.sqs.wakeups import EMAILS, REPORTS

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/emails"


def faults_of(**options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        sqs_queue(options.pop("queue", EMAILS), **options)
    return refused.value.faults


@pytest.mark.parametrize(
    "options",
    [
        {"queue_url": URL},
        {"queue_url": "http://127.0.0.1:4566/000000000000/emails/"},
        {"queue_url": f"{URL}.fifo", "fifo": Fifo()},
        {"queue_url": f"{URL}%2Efifo", "fifo": Fifo("queue")},
        {"queue_name": "emails"},
        {"queue_name": "E-m_0" * 16},
        {"queue_name": "emails", "queue_owner_account_id": "123456789012"},
        {"queue_name": "emails.fifo", "fifo": Fifo("key")},
        {"queue_name": "x" * 75 + ".fifo", "fifo": Fifo()},
    ],
)
def test_a_binding_that_fits_is_made(options: dict[str, Any]) -> None:
    binding = sqs_queue(EMAILS, **options)
    assert {name: getattr(binding, name) for name in options} == options


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "exactly one of"),
        ({"queue_url": URL, "queue_name": "emails"}, "exactly one of"),
        ({"queue_url": "emails"}, "http or https"),
        ({"queue_url": "ftp://host/emails"}, "http or https"),
        ({"queue_url": "https:///emails"}, "http or https"),
        ({"queue_url": "https://[broken/emails"}, "http or https"),
        ({"queue_url": "https://host/"}, "names no queue"),
        ({"queue_url": 5}, "http or https"),
        ({"queue_name": ""}, "letters, digits"),
        ({"queue_name": "a b"}, "letters, digits"),
        ({"queue_name": "a.b"}, "letters, digits"),
        ({"queue_name": "é"}, "letters, digits"),
        ({"queue_name": "a\n"}, "letters, digits"),
        ({"queue_name": 5}, "letters, digits"),
        ({"queue_name": "x" * 81}, "81 characters"),
        ({"queue_name": "x" * 76 + ".fifo", "fifo": Fifo()}, "81 characters"),
        ({"queue_name": "emails", "queue_owner_account_id": "12345678901"}, "12 digits"),
        ({"queue_name": "emails", "queue_owner_account_id": "١٢٣٤٥٦٧٨٩٠١٢"}, "12 digits"),
        ({"queue_name": "emails", "queue_owner_account_id": 123456789012}, "12 digits"),
        ({"queue_url": URL, "queue_owner_account_id": "123456789012"}, "only together with queue_name"),
        ({"queue_name": "emails.fifo"}, "give fifo=Fifo()"),
        ({"queue_url": f"{URL}.fifo"}, "give fifo=Fifo()"),
        ({"queue_name": "emails", "fifo": Fifo()}, "does not end in '.fifo'"),
        ({"queue_url": URL, "fifo": Fifo()}, "does not end in '.fifo'"),
        ({"queue_name": "emails.fifo", "fifo": Fifo("tenant")}, "one of 'run', 'queue', 'key'"),
        ({"queue_name": "emails.fifo", "fifo": True}, "a Fifo is expected"),
        ({"queue": "emails", "queue_name": "emails"}, "a Queue is expected"),
    ],
)
def test_a_binding_that_does_not_fit_has_one_fault(options: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(**options)
    assert fault in found


def test_every_violation_is_reported_at_once() -> None:
    faults = faults_of(queue_url="nowhere", queue_name="a b", queue_owner_account_id="x", fifo="yes")
    assert len(faults) == 5
    assert all(fault.startswith("SQS binding of queue 'emails': ") for fault in faults)


def test_a_queue_is_bound_once() -> None:
    binding = sqs_queue(EMAILS, queue_url=URL)
    with pytest.raises(ConfigurationError, match="bound to SQS twice; keep one"):
        checked_bindings([binding, binding])


def test_two_policies_of_one_queue_are_both_shown() -> None:
    narrow = Queue("emails", concurrency_limit=7)
    with pytest.raises(ConfigurationError, match=r"different policies: .*None.*'concurrency_limit': 7"):
        checked_bindings([sqs_queue(EMAILS, queue_url=URL), sqs_queue(narrow, queue_url=URL)])


def test_two_queues_may_share_one_sqs_queue() -> None:
    assert set(checked_bindings([sqs_queue(EMAILS, queue_url=URL), sqs_queue(REPORTS, queue_url=URL)])) == {"emails", "reports"}


def test_a_transport_without_bindings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no queue is bound"):
        SqsTransport([], "production")


def test_a_fifo_queue_needs_a_timers_queue_whatever_else_is_wrong() -> None:
    fifo = sqs_queue(EMAILS, queue_name="emails.fifo", fifo=Fifo())
    with pytest.raises(ConfigurationError) as refused:
        SqsTransport([fifo, sqs_queue(REPORTS, queue_url=URL), sqs_queue(REPORTS, queue_url=URL)], "production")
    missing, double = refused.value.faults
    assert "'emails'" in missing
    assert "timers=sqs_timers(" in missing
    assert "'reports' is bound to SQS twice" in double


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "exactly one of"),
        ({"queue_url": URL, "queue_name": "timers"}, "exactly one of"),
        ({"queue_url": "timers"}, "http or https"),
        ({"queue_name": "timers.fifo"}, "give a standard queue"),
        ({"queue_url": f"{URL}%2Efifo"}, "give a standard queue"),
        ({"queue_name": "timers", "queue_owner_account_id": "1"}, "12 digits"),
    ],
)
def test_a_timers_queue_is_one_standard_queue(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        sqs_timers(**options)
    (found,) = refused.value.faults
    assert found.startswith("SQS timers queue: ")
    assert fault in found


def test_a_transport_knows_whom_it_serves() -> None:
    transport = SqsTransport([sqs_queue(EMAILS, queue_url=URL)], "production")
    assert transport.serves("emails")
    assert not transport.serves("reports")


def test_a_transport_knows_which_queues_keep_an_order() -> None:
    fifo = sqs_queue(EMAILS, queue_name="emails.fifo", fifo=Fifo())
    transport = SqsTransport([fifo, sqs_queue(REPORTS, queue_url=URL)], "production", timers=sqs_timers(queue_name="timers"))
    assert [transport.keeps_order(queue) for queue in ("emails", "reports", "nowhere")] == [True, False, False]
