"""Which SQS queue carries which logical queue, and which one their timers. Every violation is reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args
from urllib.parse import unquote, urlsplit

from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue

MessageGroup = Literal["run", "queue", "key"]

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_ACCOUNT_ID = re.compile(r"[0-9]{12}")
_MAX_NAME = 80


class Fifo(NamedTuple):
    """A FIFO queue; `message_group` says what is kept in order: each run, the whole queue, or each concurrency key."""

    message_group: MessageGroup = "run"


class SqsBinding(NamedTuple):
    """One logical queue and its SQS queue, by URL or by name, as `sqs_queue` makes it."""

    queue: Queue
    queue_url: str | None = None
    queue_name: str | None = None
    queue_owner_account_id: str | None = None
    fifo: Fifo | None = None


class SqsTimers(NamedTuple):
    """The standard SQS queue that holds back delayed wakeups of FIFO queues, as `sqs_timers` makes it."""

    queue_url: str | None = None
    queue_name: str | None = None
    queue_owner_account_id: str | None = None


Source = SqsBinding | SqsTimers


def sqs_queue(
    queue: Queue,
    *,
    queue_url: str | None = None,
    queue_name: str | None = None,
    queue_owner_account_id: str | None = None,
    fifo: Fifo | None = None,
) -> SqsBinding:
    """Bind a queue to an SQS queue: by URL, or by name (and, if another account owns it, that account's 12 digits).

    `fifo=Fifo(...)` and a name that ends in `.fifo` require each other. Raises `ConfigurationError` with every fault.
    """
    binding = SqsBinding(queue, queue_url, queue_name, queue_owner_account_id, fifo)
    label = getattr(queue, "name", "?")
    ConfigurationError.raise_if(f"SQS binding of queue {label!r}: {fault}" for fault in _faults(binding))
    return binding


def sqs_timers(*, queue_url: str | None = None, queue_name: str | None = None, queue_owner_account_id: str | None = None) -> SqsTimers:
    """Name the standard SQS queue through which retries, releases and delays of FIFO queues go, as `sqs_queue` names one."""
    timers = SqsTimers(queue_url, queue_name, queue_owner_account_id)
    ConfigurationError.raise_if(f"SQS timers queue: {fault}" for fault in _timers_faults(timers))
    return timers


def names_fifo(queue_url: str) -> bool:
    """Whether the URL is a FIFO queue's, as its name tells."""
    return _is_http(queue_url) and _last_segment(queue_url).endswith(".fifo")


def checked_bindings(bindings: Sequence[SqsBinding], timers: SqsTimers | None = None) -> dict[str, SqsBinding]:
    """Bindings by logical queue name; `ConfigurationError` with every fault of the set.

    There must be one, none twice, and with a FIFO queue a timers queue: any run may be retried or released.
    """
    ConfigurationError.raise_if(_set_faults(bindings, timers))
    return {binding.queue.name: binding for binding in bindings}


def _set_faults(bindings: Sequence[SqsBinding], timers: SqsTimers | None) -> Iterator[str]:
    if not bindings:
        yield "SQS transport: no queue is bound; give at least one sqs_queue(...)"
    seen: dict[str, Queue] = {}
    for binding in bindings:
        if binding.queue.name in seen:
            yield _double_fault(seen[binding.queue.name], binding.queue)
        seen.setdefault(binding.queue.name, binding.queue)
        if binding.fifo is not None and timers is None:
            yield (
                f"SQS binding of queue {binding.queue.name!r}: a FIFO queue delays no single message, so retries, releases and delays of "
                "its runs go through a standard queue; name one with SqsTransport(…, timers=sqs_timers(…))"
            )


def _double_fault(first: Queue, second: Queue) -> str:
    if first == second:
        return f"queue {first.name!r} is bound to SQS twice; keep one binding"
    return f"queue {first.name!r} is bound to SQS twice, with different policies: {first.policy()} and {second.policy()}"


def _faults(binding: SqsBinding) -> Iterator[str]:
    queue: object = binding.queue
    if not isinstance(queue, Queue):
        yield f"a Queue is expected, not {type(queue).__name__}"
    yield from _source_faults(binding)
    yield from _fifo_faults(binding)


def _timers_faults(timers: SqsTimers) -> Iterator[str]:
    yield from _source_faults(timers)
    if (physical_name(timers) or "").endswith(".fifo"):
        yield "the SQS queue's name ends in '.fifo', and a FIFO queue delays no single message: give a standard queue"


def _source_faults(source: Source) -> Iterator[str]:
    if (source.queue_url is None) == (source.queue_name is None):
        yield "exactly one of queue_url and queue_name is needed"
    if source.queue_url is not None:
        yield from _url_faults(source.queue_url)
    if source.queue_name is not None:
        yield from _name_faults(source.queue_name)
    yield from _owner_faults(source)


def _url_faults(url: object) -> Iterator[str]:
    if not isinstance(url, str) or not _is_http(url):
        yield "queue_url: an http or https URL is expected"
    elif not _last_segment(url):
        yield "queue_url: the path names no queue; give the URL as SQS shows it"


def _name_faults(name: object) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield "queue_name: letters, digits, '-' and '_' are expected, with '.fifo' at the end of a FIFO queue's"
    if isinstance(name, str) and len(name) > _MAX_NAME:
        yield f"queue_name: {len(name)} characters, more than the {_MAX_NAME} that SQS permits"


def _owner_faults(source: Source) -> Iterator[str]:
    owner: object = source.queue_owner_account_id
    if owner is None:
        return
    if not isinstance(owner, str) or not _ACCOUNT_ID.fullmatch(owner):
        yield "queue_owner_account_id: 12 digits are expected"
    if source.queue_name is None:
        yield "queue_owner_account_id: only together with queue_name; a URL already says whose queue it is"


def _fifo_faults(binding: SqsBinding) -> Iterator[str]:
    fifo: object = binding.fifo
    if isinstance(fifo, Fifo):
        if fifo.message_group not in get_args(MessageGroup):
            yield "fifo: message_group is one of 'run', 'queue', 'key'"
    elif fifo is not None:
        yield f"fifo: a Fifo is expected, not {type(fifo).__name__}"
    name = physical_name(binding)
    if name is None:
        return
    if name.endswith(".fifo") and fifo is None:
        yield "the SQS queue's name ends in '.fifo': give fifo=Fifo()"
    if fifo is not None and not name.endswith(".fifo"):
        yield "fifo: the SQS queue's name does not end in '.fifo', so it is a standard queue"


def physical_name(source: Source) -> str | None:
    """The SQS queue's name as far as it is said which one; None when none or two are named."""
    url: object = source.queue_url
    name: object = source.queue_name
    if isinstance(url, str) and name is None:
        return _last_segment(url) if _is_http(url) else None
    return name if isinstance(name, str) and url is None else None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _last_segment(url: str) -> str:
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
