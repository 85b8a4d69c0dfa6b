"""`runlane worker`."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, console, counted, plain
from runlane.cli.text import clean

if TYPE_CHECKING:
    from runlane.services.resident.worker import ResidentWorker

LOOK_EVERY = 0.5
"""Seconds; how far a stop may go past its grace."""


def worker(
    mode: Annotated[
        Literal["poll", "drain", "sqs"], typer.Option(help="Poll Postgres, do so until nothing is due, or consume SQS.")
    ] = "poll",
    queue: Annotated[list[str] | None, typer.Option(help="A queue to serve; may be repeated. Default: all.", metavar="NAME")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Attempts at a time; default RUNLANE_WORKER_CONCURRENCY.")
    ] = None,
    grace: Annotated[str, typer.Option(help="What a stop gives to attempts under way.", metavar="DURATION")] = "25s",
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer /live and /ready over HTTP on this port; default: not.")
    ] = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Execute runs in this process, off Lambda, until SIGTERM or SIGINT.

    A stop starts nothing more and lets attempts under way end within the grace; those that have not are released, and run elsewhere.
    A second signal ends the grace at once. Exit code 0 when nothing is left behind, 1 when something broke or is left under a lease.
    """
    from runlane.domain.durations import parse_duration

    parse_duration(grace, "--grace")
    with connected(app) as runlane:
        runlane.start()
        resident = runlane.worker(mode, queues=queue, concurrency=concurrency, grace=grace)
        with stopping_on_signals(resident), _health(resident, health_port):
            if not as_json:
                console(stderr=True).print(_greeting(resident))
            left = run_to_end(resident)
        state = resident.state
        facts = {"mode": mode, "queues": state.queues, "attempts": state.attempts, "left": left}
        answer(facts, as_json, lambda: _summary(state.attempts, left))
    if left:
        raise typer.Exit(1)


def run_to_end(resident: ResidentWorker) -> int:
    """Wait for the worker, but not past its grace, and give back what it still holds; the number of leases left."""
    try:
        while not resident.wait(LOOK_EVERY) and resident.ends_in != 0:
            pass
    except BaseException:
        resident.give_back()
        raise
    return resident.give_back()


@contextmanager
def stopping_on_signals(resident: ResidentWorker) -> Iterator[None]:
    def stop(*_: Any) -> None:
        resident.stop(None if resident.ends_in is None else "0s")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _health(resident: ResidentWorker, port: int | None) -> Any:
    if port is None:
        return nullcontext()
    from runlane.adapters.health import health_server

    def shown() -> Mapping[str, Any]:
        facts: Mapping[str, Any] = plain(resident.state)
        return facts

    return health_server(port, {"/live": lambda: (resident.is_running, shown()), "/ready": lambda: (resident.is_ready, shown())})


def _greeting(resident: ResidentWorker) -> str:
    state = resident.state
    return f"{state.mode}: {clean(', '.join(state.queues))}; {counted(state.concurrency, 'attempt')} at a time; Ctrl-C stops"


def _summary(attempts: Mapping[str, int], left: int) -> Any:
    from rich.text import Text

    done = ", ".join(f"{count} {status}" for status, count in attempts.items()) or "no attempt"
    return Text(f"{done}; {counted(left, 'lease')} left")
