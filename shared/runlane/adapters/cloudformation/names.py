"""Logical ids of a queue's resources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

TIMERS = "Timers"
_TAKEN = frozenset({TIMERS, "Maintenance", "Migrate", "Worker"})
_LONGEST = 40


def logical_names(queues: Iterable[str]) -> dict[str, str]:
    """By queue, a name of letters and digits that no other has; of two that would have the same, both end in a part of their hash.

    A name does not depend on the queues beside it unless they are written alike, so that to add a queue moves no other.
    """
    plain = {queue: _plain(queue) for queue in queues}
    # Logical ids differ by case, but people do not see it.
    counts = Counter(name.lower() for name in plain.values())
    taken = {name.lower() for name in _TAKEN}
    return {
        queue: name if name and counts[name.lower()] == 1 and name.lower() not in taken else f"{name or 'Queue'}{_hash(queue)}"
        for queue, name in plain.items()
    }


def _plain(queue: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", queue)
    name = "".join(word[0].upper() + word[1:] for word in words)
    if len(name) > _LONGEST:
        return name[:_LONGEST] + _hash(queue)
    return name


def _hash(queue: str) -> str:
    return sha256(queue.encode()).hexdigest()[:6]
