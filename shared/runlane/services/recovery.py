"""What becomes of a run whose lease has expired."""

from __future__ import annotations

from collections.abc import Mapping
from random import SystemRandom

from runlane.domain.outcome import Counters, Lost, Settlement, decide
from runlane.ports.stores import ExpiredLease
from runlane.services.attempt import DEFAULT_RETRY
from runlane.services.payload import AnyTask

# Without a state that a snapshot could give to many processes, to try again all at once.
_rng = SystemRandom()


def recover(expired: ExpiredLease, tasks: Mapping[str, AnyTask]) -> Settlement:
    """The lost attempt counts as a failure, retried by its task's policy; by the default one if this code knows no such task."""
    task = tasks.get(expired.task)
    retry = (task.options.retry if task is not None else None) or DEFAULT_RETRY
    return decide(expired.run_id, expired.token, Lost(), Counters(expired.failures, expired.max_attempts), retry, _rng)
