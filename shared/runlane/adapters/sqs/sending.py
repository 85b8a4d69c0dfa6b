"""One request to SQS, and what its answer says of each entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from runlane.adapters.sqs.batches import Entry, batches
from runlane.adapters.sqs.client import SqsClient
from runlane.adapters.sqs.faults import Fault, classify, entry_fault, not_sent, unanswered

Outcomes = dict[int, Fault | None]
"""By the wakeup's place in the input: the fault, or None when it was sent."""


class Outage:
    """Notices within one publish call that SQS is out of reach, so that what remains is not tried at a time-out each."""

    LIMIT = 3
    """Requests in a row, each already tried twice, that fail before the rest are held back."""

    def __init__(self) -> None:
        self._failures = 0
        self.cause: Fault | None = None

    def note(self, fault: Fault | None) -> None:
        if fault is None or not fault.retryable:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self.LIMIT:
            self.cause = fault


def all_failed(entries: Iterable[Entry], fault: Fault) -> Outcomes:
    return {entry.position: fault for entry in entries}


def send_batch(url: str, batch: tuple[Entry, ...], client: SqsClient, outage: Outage) -> Outcomes:
    """Send one batch; never raises. A failed request is the fault of each of its entries."""
    if outage.cause is not None:
        return all_failed(batch, not_sent(outage.cause))
    try:
        now = monotonic()
        answer = client.send_message_batch(QueueUrl=url, Entries=[entry.request_at(now) for entry in batch])
    except Exception as error:  # A failed call is an outcome of its wakeups, whatever the client raised.
        fault = classify(error, "publish")
        outage.note(fault)
        return all_failed(batch, fault)
    outage.note(None)
    return _read_answer(batch, answer)


def send_in_order(url: str, entries: Sequence[Entry], client: SqsClient, outage: Outage) -> Outcomes:
    """Send entries of a FIFO queue, one batch after another; never raises.

    What follows an entry of its group that may be sent again is held back, so that both go later, in their order.
    """
    outcomes: Outcomes = {}
    broken: dict[str, Fault] = {}
    for batch in batches(entries):
        outcomes.update((entry.position, not_sent(broken[entry.group])) for entry in batch if entry.group in broken)
        sent = tuple(entry for entry in batch if entry.group not in broken)
        if sent:
            outcomes.update(send_batch(url, sent, client, outage))
        for entry in sent:
            fault = outcomes[entry.position]
            if fault is not None and fault.retryable:
                broken.setdefault(entry.group, fault)
    return outcomes


def _read_answer(batch: tuple[Entry, ...], answer: Mapping[str, Any]) -> Outcomes:
    verdicts: dict[str, list[Fault | None]] = {}
    for sent in answer.get("Successful") or ():
        verdicts.setdefault(sent.get("Id", ""), []).append(None)
    for failed in answer.get("Failed") or ():
        verdicts.setdefault(failed.get("Id", ""), []).append(entry_fault(failed))
    return {entry.position: _only(verdicts.get(entry.request["Id"], [])) for entry in batch}


def _only(verdicts: list[Fault | None]) -> Fault | None:
    return verdicts[0] if len(verdicts) == 1 else unanswered()
