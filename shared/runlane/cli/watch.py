"""`--watch`: the same answer again and again, until Ctrl-C or until nothing can change any more."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runlane.cli.output import console, write_json_line
from runlane.cli.text import clean
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ContractError, RunlaneError
from runlane.domain.shown import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

Seen = TypeVar("Seen")
OFTENEST = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class View(Generic[Seen]):
    """What is watched: how it is read, and shown on a terminal, in a pipe (a line is written when it is new) and as a document.

    `state`: what makes a document worth writing when it differs (default: all of it). `is_over`: nothing can change any more.
    """

    read: Callable[[], Seen]
    screen: Callable[[Seen], RenderableType]
    lines: Callable[[Seen], Iterable[str]]
    document: Callable[[Seen], Any]
    state: Callable[[Seen], object] = lambda seen: seen
    is_over: Callable[[Seen], bool] = lambda _: False


def interval(text: str) -> timedelta:
    """`--every`, not so often that looking becomes the load; `ContractError`."""
    every = parse_duration(text, "--every")
    if every < OFTENEST:
        raise ContractError(
            "option_invalid", f"--every: {shown(text)} is more often than every 100ms; give more", meta={"field": "--every"}
        )
    return every


def watch(view: View[Seen], every: timedelta, *, as_json: bool) -> None:
    """Look until interrupted, which is no failure. What is out of reach for a while is waited for, but not at the first look."""
    with _interruptible():
        try:
            with _shown(view, as_json=as_json) as show:
                for seen in _looks(view.read, every.total_seconds()):
                    show(seen)
                    if view.is_over(seen):
                        return
        except KeyboardInterrupt:
            return


def _looks(read: Callable[[], Seen], pause: float) -> Iterator[Seen]:
    yield read()
    is_silent = True
    while True:
        time.sleep(pause)
        try:
            yield read()
        except RunlaneError as error:
            if not error.retryable:
                raise
            if is_silent:
                console(stderr=True).print(f"{clean(error.message)}; trying again")
            is_silent = False
        else:
            is_silent = True


@contextmanager
def _shown(view: View[Seen], *, as_json: bool) -> Iterator[Callable[[Seen], None]]:
    out = console()
    if as_json or not out.is_terminal:
        yield _documents(view) if as_json else _lines(view)
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False) as live:
        yield lambda seen: live.update(view.screen(seen), refresh=True)


def _documents(view: View[Seen]) -> Callable[[Seen], None]:
    last: list[object] = []

    def show(seen: Seen) -> None:
        state = view.state(seen)
        if last != [state]:
            last[:] = [state]
            write_json_line(view.document(seen))

    return show


def _lines(view: View[Seen]) -> Callable[[Seen], None]:
    last: set[str] = set()

    def show(seen: Seen) -> None:
        lines = list(view.lines(seen))
        for line in lines:
            if line not in last:
                sys.stdout.write(clean(line) + "\n")
        sys.stdout.flush()
        last.clear()
        last.update(lines)

    return show


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a watch like Ctrl-C, so that the terminal gets its cursor back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
