"""Where handlers run: a few lasting threads for `def`, one event loop for `async def`.

A thread that has woken takes one attempt after the other, so that quick ones share one switch between threads.
More threads are called only by `widen`, when attempts wait although time passes.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, new_event_loop
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Lock, Thread, get_ident

from runlane.services.attempt import Attempt, Pipeline


class AttemptPool:
    """Runs at most `size` attempts at a time. Its threads are daemons: a handler that never ends cannot hold the process.

    `beside` is a pool whose event loop is used too, and outlives this one: `async` handlers share clients that belong to one loop.
    """

    def __init__(self, pipeline: Pipeline, size: int, beside: AttemptPool | None = None) -> None:
        self.size = size
        self.strays = 0
        """Attempts past their deadline that nobody waits for, and whose threads still live."""
        self._pipeline = pipeline
        self._waiting: deque[Attempt] = deque()
        self._lock = Lock()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._owns_loop = beside is None
        self._loop: HandlerLoop = HandlerLoop() if beside is None else beside._loop
        self._at_loop: set[Attempt] = set()
        """Given to the loop and not begun: a handler that blocks the loop keeps them waiting."""
        self._threads = 0
        self._idents: set[int] = set()
        self._idle = 0
        self._busy = 0
        self._closed = False

    @property
    def is_clogged(self) -> bool:
        """Whether strays hold every place, so that nothing can start."""
        return self.strays >= self.size

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Queue attempts and call a thread for them; one of the pool's own that submits is free for them next."""
        with self._lock:
            self._waiting.extend(attempts)
            if get_ident() not in self._idents:
                self._call(1)

    def widen(self, threads: int) -> bool:
        """Call up to so many more threads for the attempts that wait; whether still more could be of use."""
        with self._lock:
            room = min(len(self._waiting), self.size - self._busy)
            self._call(min(room, threads))
        return room > threads

    def withdraw(self, batch: object) -> list[Attempt]:
        """Take back a batch's attempts that have not started."""
        with self._lock:
            mine = [attempt for attempt in self._waiting if attempt.batch is batch]
            for attempt in mine:
                self._waiting.remove(attempt)
            stuck = [attempt for attempt in self._at_loop if attempt.batch is batch]
            self._at_loop.difference_update(stuck)
        return mine + stuck

    def interrupt(self, attempt: Attempt) -> None:
        """Tell an attempt that its time is up: an `async` one is cancelled, another learns of it from its context."""
        attempt.interrupted = True
        if attempt.task.is_async:
            self._loop.cancel(attempt)

    def count_strays(self, change: int) -> None:
        with self._lock:
            self.strays += change

    def close(self) -> None:
        """Let idle threads end; attempts under way go on."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(False)
            self._idle = 0
        if self._owns_loop:
            self._loop.close()

    async def execute_async(self, attempt: Attempt) -> None:
        with self._lock:
            is_mine = attempt in self._at_loop
            self._at_loop.discard(attempt)
        if is_mine:
            await self._pipeline.execute_async(attempt)
        with self._lock:
            self._busy -= 1
            if self._waiting:
                self._call(1)
        if is_mine:
            attempt.batch.finish(attempt)

    def _call(self, wanted: int) -> None:
        for _ in range(wanted):
            if self._idle:
                self._idle -= 1
                self._calls.put(True)
            elif self._threads < self.size:
                self._threads += 1
                Thread(target=self._work, name=f"runlane-attempt-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        self._idents.add(get_ident())
        freed = 0
        while True:
            attempt = self._take(freed)
            freed = 0
            if attempt is None:
                if not self._calls.get():
                    return
            elif attempt.task.is_async:
                self._loop.start(self, attempt)
            else:
                self._pipeline.execute(attempt)
                freed = 1
                attempt.batch.finish(attempt)

    def _take(self, freed: int) -> Attempt | None:
        """The next attempt, or None and this thread counts as idle: both in one step, so that no call is missed."""
        with self._lock:
            self._busy -= freed
            if self._waiting and self._busy < self.size:
                self._busy += 1
                attempt = self._waiting.popleft()
                if attempt.task.is_async:
                    self._at_loop.add(attempt)
                return attempt
            self._idle += 1
            if self._closed:
                self._idle -= 1
                self._calls.put(False)
            return None


class HandlerLoop:
    """The one event loop of all `async def` handlers, on a thread of its own that starts with the first of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: AbstractEventLoop | None = None
        self._starting: deque[tuple[AttemptPool, Attempt]] = deque()
        self._is_called = False

    def start(self, pool: AttemptPool, attempt: Attempt) -> None:
        self._starting.append((pool, attempt))
        if not self._is_called:
            self._is_called = True
            self._running().call_soon_threadsafe(self._begin)

    def cancel(self, attempt: Attempt) -> None:
        self._running().call_soon_threadsafe(_cancel, attempt)

    def close(self) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _running(self) -> AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                Thread(target=_run, args=(self._loop,), name="runlane-async", daemon=True).start()
            return self._loop

    def _begin(self) -> None:
        # Cleared first: whoever adds an attempt from here on calls again.
        self._is_called = False
        loop = self._running()
        while self._starting:
            pool, attempt = self._starting.popleft()
            attempt.coroutine = loop.create_task(pool.execute_async(attempt))


def _run(loop: AbstractEventLoop) -> None:
    while _is_stopped_by_an_exit(loop):
        pass
    loop.close()


def _is_stopped_by_an_exit(loop: AbstractEventLoop) -> bool:
    """Run the loop; True when it has to go on: asyncio lets an exit inside a task that some handler started end the loop of all."""
    try:
        loop.run_forever()
    except BaseException:
        return True
    return False


def _cancel(attempt: Attempt) -> None:
    if attempt.coroutine is not None:
        attempt.coroutine.cancel()
