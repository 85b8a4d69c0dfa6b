"""Which runs: the filters that lists and bulk operations share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

import typer

from runlane.cli.completion import complete_queue, complete_task
from runlane.cli.times import ago, iso
from runlane.domain.run import Source, Status

Statuses = Annotated[list[Status] | None, typer.Option("--status", help=f"{', '.join(Status)}; may be repeated.", metavar="STATUS")]
TaskId = Annotated[str | None, typer.Option("--task", help="The task's id.", metavar="TASK", autocompletion=complete_task)]
QueueFilter = Annotated[str | None, typer.Option("--queue", help="The queue's name.", metavar="QUEUE", autocompletion=complete_queue)]
Tenant = Annotated[str | None, typer.Option("--tenant", help="The tenant.", metavar="TENANT")]
Key = Annotated[str | None, typer.Option("--key", help="The concurrency key.", metavar="KEY")]
SourceFilter = Annotated[Source | None, typer.Option("--source", help=f"What made it: {', '.join(Source)}.", metavar="SOURCE")]
CreatedAfter = Annotated[str | None, typer.Option(help="Triggered since then: 2h ago, or an ISO time.", metavar="TIME")]
CreatedBefore = Annotated[str | None, typer.Option(help="Triggered before then: 7d ago, or an ISO time.", metavar="TIME")]
Cursor = Annotated[str | None, typer.Option(help="Go on after what was answered with this cursor.", metavar="CURSOR")]


@dataclass(frozen=True, slots=True)
class Filters:
    """The same for the runtime (`options`) and for the next command line (`words`), where times are no longer relative."""

    status: tuple[Status, ...] = ()
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    concurrency_key: str | None = None
    source: Source | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return not any(self._given())

    def options(self) -> dict[str, Any]:
        """As keyword arguments; one that is not given is None."""
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "status": self.status or None}

    def words(self) -> list[str]:
        """As options of a command line that means the same whenever it is run."""
        return [word for option, value in self._given() for word in (option, value)]

    def _given(self) -> Iterator[tuple[str, str]]:
        yield from (("--status", status.value) for status in self.status)
        for option, text in {
            "--task": self.task,
            "--queue": self.queue,
            "--tenant": self.tenant,
            "--key": self.concurrency_key,
            "--source": self.source,
        }.items():
            if text is not None:
                yield option, text
        for option, moment in (("--created-after", self.created_after), ("--created-before", self.created_before)):
            if moment is not None:
                yield option, iso(moment)


def filters(
    status: list[Status] | None,
    task: str | None,
    queue: str | None,
    tenant: str | None,
    concurrency_key: str | None,
    source: Source | None,
    created_after: str | None,
    created_before: str | None,
) -> Filters:
    """Read what the options say; `ContractError` names the option of a time that is none."""
    return Filters(
        tuple(status or ()),
        task,
        queue,
        tenant,
        concurrency_key,
        source,
        None if created_after is None else ago(created_after, "--created-after"),
        None if created_before is None else ago(created_before, "--created-before"),
    )
