"""How Lambda reads the answer of a handler that reports batch item failures."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any


def failed_message_ids(answer: Any, message_ids: Collection[str]) -> frozenset[str]:
    """The messages that stay in the queue.

    Null, `{}` and an absent, null or empty `batchItemFailures` mean success. An answer that is no JSON object, a list that is none,
    and an item without the id of a message of this batch fail the whole batch.
    """
    everything = frozenset(message_ids)
    try:
        answer = json.loads(json.dumps(answer))
    except (TypeError, ValueError):
        return everything
    items = answer.get("batchItemFailures") if isinstance(answer, dict) else answer
    if items is None:
        return frozenset()
    if not isinstance(answer, dict) or not isinstance(items, list):
        return everything
    # A number or null is no message id; as text it is an unknown one.
    named = frozenset(str(item.get("itemIdentifier")) if isinstance(item, dict) else "" for item in items)
    return named if named <= everything else everything
