"""The one registry of a runtime's queues, and the drift between code and what is stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from runlane.domain.errors import ConfigurationError, ContractError, NotFoundError
from runlane.domain.nearest import did_you_mean
from runlane.domain.queue import Queue
from runlane.domain.shown import shown


class QueueRegistry:
    """The queues of a runtime, in the order given; two of one name, or two defaults, are a `ConfigurationError`."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        ordered = tuple(queues)
        ConfigurationError.raise_if([*_name_faults(ordered), *_default_faults(ordered)])
        self._queues = {queue.name: queue for queue in ordered}
        self.default: Queue | None = next((queue for queue in ordered if queue.default), None)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def named(self, name: str) -> Queue:
        """The queue of this name; `NotFoundError` `queue_not_found`."""
        try:
            return self._queues[name]
        except KeyError:
            raise NotFoundError(
                "queue_not_found",
                f"no queue {shown(name)} is registered; there are: {self._listed()}{did_you_mean(name, self._queues)}",
                meta={"queue": name},
            ) from None

    def require(self, queue: Queue) -> Queue:
        """The registered queue that equals this one; `ConfigurationError` shows both policies if they differ."""
        if not isinstance(queue, Queue):
            raise ContractError("queue_invalid", f"queue: {shown(queue)} is neither a Queue nor a name", meta={"field": "queue"})
        registered = self._queues.get(queue.name)
        if registered is None:
            raise ConfigurationError(
                f"queue {queue.name!r} with {_shown(queue)} is not registered; add it to Runlane(queues=[…]), which has: {self._listed()}",
                code="queue_unregistered",
            )
        if registered != queue:
            raise ConfigurationError(
                f"queue {queue.name!r} has two definitions: registered {_shown(registered)}, used {_shown(queue)}; use one",
                code="queue_mismatch",
            )
        return registered

    def choose(self, *choices: Queue | None) -> Queue:
        """The first choice that is given, else the default; `ConfigurationError` `queue_missing` if there is neither."""
        chosen = next((queue for queue in choices if queue is not None), None)
        if chosen is not None:
            return self.require(chosen)
        if self.default is None:
            raise ConfigurationError(
                f"no queue is named and none is the default; give queue=…, or mark one of {self._listed()} with default=True",
                code="queue_missing",
            )
        return self.default

    def _listed(self) -> str:
        return ", ".join(repr(name) for name in self._queues) or "none"


def drift(code: Queue, stored: Queue) -> str | None:
    """What differs between the policy in code and the stored one, which is in force; None when they are equal."""
    if code == stored:
        return None
    return f"queue {code.name!r}: the code says {_shown(code)}, in force is {_shown(stored)}; `runlane migrate` stores what the code says"


def _shown(queue: Queue) -> str:
    return json.dumps(queue.policy(), ensure_ascii=False)


def _name_faults(queues: Sequence[Queue]) -> Iterator[str]:
    for name, count in Counter(queue.name for queue in queues).items():
        if count > 1:
            policies = " and ".join(_shown(queue) for queue in queues if queue.name == name)
            yield f"queue {shown(name)} is registered {count} times, with {policies}; register it once"


def _default_faults(queues: Sequence[Queue]) -> Iterator[str]:
    defaults = [repr(queue.name) for queue in queues if queue.default]
    if len(defaults) > 1:
        yield f"{len(defaults)} queues are the default: {', '.join(defaults)}; mark one with default=True"
