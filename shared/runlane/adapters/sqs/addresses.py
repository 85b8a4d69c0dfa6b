"""From a binding to the URL that SQS is called with; names are looked up once."""

from __future__ import annotations

from typing import NamedTuple

from runlane.adapters.sqs.bindings import Source
from runlane.adapters.sqs.client import SqsClient
from runlane.adapters.sqs.faults import TRANSPORT_UNAVAILABLE, Fault, classify


class Address(NamedTuple):
    """Where an SQS queue is: a URL, or a name and possibly its owner. Logical queues at one address share batches."""

    url: str | None
    name: str | None
    owner: str | None


def address_of(source: Source) -> Address:
    return Address(source.queue_url, source.queue_name, source.queue_owner_account_id)


class QueueUrls:
    """URLs by address, kept for the life of the process; failed look-ups are not kept."""

    def __init__(self) -> None:
        self._found: dict[Address, str] = {}

    def known(self, address: Address) -> str | None:
        return address.url or self._found.get(address)

    def resolve(self, client: SqsClient, address: Address) -> str | Fault:
        """The URL, with one GetQueueUrl when it is not known yet."""
        if (known := self.known(address)) is not None:
            return known
        found = _look_up(client, address)
        if isinstance(found, str):
            self._found[address] = found
        return found


def _look_up(client: SqsClient, address: Address) -> str | Fault:
    owner = {} if address.owner is None else {"QueueOwnerAWSAccountId": address.owner}
    try:
        answer = client.get_queue_url(QueueName=address.name, **owner)
    except Exception as error:  # A failed call is an outcome of its wakeups, whatever the client raised.
        return classify(error, "get_queue_url")
    url = answer.get("QueueUrl")
    return url if isinstance(url, str) and url else Fault(TRANSPORT_UNAVAILABLE, "get_queue_url: answered without a URL", retryable=True)
