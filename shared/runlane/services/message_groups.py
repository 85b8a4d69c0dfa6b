"""The records of FIFO queues within a delivery: of each message group one after another, of several groups side by side.

A record is started when the one before it in its group is over: refused, or its attempt settled. Once a record of a group must be
returned to the transport, those behind it are returned, too, so that they come again behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runlane.domain.ids import RunId
from runlane.ports.transport import attributes_of, text_of


class GroupedRecord(NamedTuple):
    """`run_id` is None if the message cannot be read, which returns it and holds its group."""

    message_id: str
    group: str
    run_id: RunId | None


class MessageGroups:
    """Not safe to share between threads: whoever claims or settles for the delivery holds it."""

    def __init__(self, records: Iterable[GroupedRecord] = ()) -> None:
        self.returned: set[str] = set()
        """Messages that the transport must deliver again."""
        self.returned_runs: set[RunId] = set()
        self.run_ids: set[RunId] = set()
        """Of all records, over or not; none: the delivery is not in order."""
        self._behind: dict[str, deque[GroupedRecord]] = {}
        self._current: dict[RunId, GroupedRecord] = {}
        for record in records:
            self._behind.setdefault(record.group, deque()).append(record)
            if record.run_id is not None:
                self.run_ids.add(record.run_id)

    def __bool__(self) -> bool:
        """Whether a record is not yet under way."""
        return bool(self._behind)

    def next(self) -> list[RunId]:
        """The next run of each group that has none under way; it is from now on."""
        busy = {record.group for record in self._current.values()}
        return [run_id for group in list(self._behind) if group not in busy and (run_id := self._advance(group)) is not None]

    def end(self, run_id: RunId) -> None:
        """The record is acknowledged; its group goes on."""
        self._current.pop(run_id, None)

    def give_back(self, run_id: RunId) -> None:
        """The record is returned, and what stands behind it in its group."""
        if (record := self._current.pop(run_id, None)) is not None:
            self._return([record, *self._behind.pop(record.group, ())])

    def close(self) -> None:
        """Return all that is not under way."""
        for records in self._behind.values():
            self._return(records)
        self._behind.clear()

    def _advance(self, group: str) -> RunId | None:
        records = self._behind[group]
        if not records:
            del self._behind[group]
            return None
        run_id = records[0].run_id
        if run_id is None:
            self._return(self._behind.pop(group))
            return None
        # Copies of one wakeup may stand in two groups, if their kind was changed: one after the other.
        if run_id in self._current:
            return None
        self._current[run_id] = records.popleft()
        return run_id

    def _return(self, records: Iterable[GroupedRecord]) -> None:
        for record in records:
            self.returned.add(record.message_id)
            if record.run_id is not None:
                self.returned_runs.add(record.run_id)


def group_of(message: Mapping[str, object]) -> str | None:
    """The message group of an SQS record as Lambda gets it; None from a standard queue, whose group ids put nothing in order."""
    if not text_of(message, "eventSourceARN").endswith(".fifo"):
        return None
    return text_of(attributes_of(message), "MessageGroupId")
