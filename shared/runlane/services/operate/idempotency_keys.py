"""Owners of idempotency keys."""

from __future__ import annotations

from runlane.domain.ids import validate_key
from runlane.ports.stores import RunStore
from runlane.services.operate.arguments import TaskName, task_name


class IdempotencyKeys:
    def __init__(self, store: RunStore) -> None:
        self._store = store

    def reset(self, task: TaskName, key: str) -> bool:
        """Free a key, so that the next trigger with it makes a new run; False if it had no owner."""
        return self._store.reset_idempotency_key(task_name(task), validate_key(key, "key"))
