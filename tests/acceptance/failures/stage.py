"""Real processes around a real Postgres and a real SQS: workers that are killed and stopped, seen from one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from runlane.adapters.local.sqs import LocalQueue, LocalSqs
from runlane.domain.records import RunRecord
from runlane.domain.run import Status
from runlane.runtime import Runlane
from tests.acceptance.failures.processes import WorkerProcess
from tests.waiting import PATIENCE, until


@dataclass(frozen=True)
class Note:
    what: str
    number: int
    attempt: int
    pid: int
    at: float


@dataclass
class Stage:
    """`variables` are the environment of the workers. `tick` runs in this process."""

    runlane: Runlane
    sqs: LocalSqs
    queue: LocalQueue
    dsn: str
    folder: Path
    variables: dict[str, str]
    workers: list[WorkerProcess] = field(default_factory=list)
    sources: tuple[str, ...] = ()
    """What workers receive from besides the common queue."""

    def spawn(self, *arguments: str, **variables: str) -> WorkerProcess:
        """A worker process with the worker function's handler."""
        urls = [part for url in (self.queue.url, *self.sources) for part in ("--queue-url", url)]
        return self._start("--app", "functions.worker.app:handler", *urls, *arguments, **variables)

    def spawn_ticker(self, every: float) -> WorkerProcess:
        """A process that does nothing but call the maintenance function's handler."""
        maintenance = "functions.maintenance.app:handler"
        return self._start("--app", maintenance, "--maintenance", maintenance, "--tick-every", str(every))

    def spawn_resident(self, mode: str, *arguments: str, **variables: str) -> WorkerProcess:
        """A process of `runlane worker`; what it prints goes to the log."""
        return self._start("worker", "--mode", mode, *arguments, command=True, **variables)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def open_gate(self, number: int, attempt: int) -> None:
        (self.folder / f"{number}-{attempt}").touch()

    def notes(self, what: str) -> list[Note]:
        path = self.folder / "notes"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Note(kind, int(number), int(attempt), int(pid), float(at)) for kind, number, attempt, pid, at in lines if kind == what]

    def get(self, run_id: str) -> RunRecord:
        return self.runlane.runs.get(run_id)

    def events(self, run_id: str) -> list[str]:
        return [event.type.value for event in self.runlane.runs.events(run_id)]

    def ticking_until(self, holds: Callable[[], bool], timeout: float = PATIENCE) -> None:
        def ticked() -> bool:
            self.runlane.tick()
            return holds()

        until(ticked, timeout)

    def ticking_until_status(self, status: Status, *run_ids: str, timeout: float = PATIENCE) -> None:
        self.ticking_until(lambda: {self.get(run_id).status for run_id in run_ids} == {status}, timeout)

    def send(self, body: str) -> None:
        self.sqs.client.send_message(QueueUrl=self.queue.url, MessageBody=body)

    def dead_letters(self) -> list[str]:
        """Their bodies; they stay where they are."""
        answer = self.sqs.client.receive_message(QueueUrl=self.queue.dead_letter_url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return sorted(message["Body"] for message in answer.get("Messages", []))

    def value(self, query: str, *parameters: Any) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.runlane.close()

    def _start(self, *arguments: str, command: bool = False, **variables: str) -> WorkerProcess:
        self.workers.append(WorkerProcess(arguments, {**self.variables, **variables}, self.folder / "log", command=command))
        return self.workers[-1]
