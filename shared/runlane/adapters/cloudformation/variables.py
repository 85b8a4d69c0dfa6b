"""What tells the functions where each queue is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runlane.adapters.cloudformation.names import TIMERS, logical_names
from runlane.adapters.sqs.bindings import MessageGroup
from runlane.domain.errors import ConfigurationError

_ROOM = 3000
"""Bytes of Lambda's 4 KB of variables that queues may have."""
_URL_LENGTH = 125
"""`https://sqs.REGION.amazonaws.com/ACCOUNT/` and a name of at most 80, as CloudFormation makes them."""


def variables(queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> str:
    """`ConfigurationError` when more queues are named than Lambda's variables have room for."""
    names = logical_names(queues)
    if sum(len(json.dumps(queue)) + _URL_LENGTH + 2 for queue in queues) > _ROOM:
        raise ConfigurationError(
            f"template: the addresses of {len(queues)} queues have no room in Lambda's 4 KB of variables; let queues with the same limits "
            "be one, with keys or tenants, or deploy them as two stacks with an application each"
        )
    lines = [f"RUNLANE_QUEUE_URLS: {substituted({queue: f'${{{names[queue]}Queue}}' for queue in queues})}"]
    if fifo:
        lines += [f"RUNLANE_MESSAGE_GROUPS: {quoted(json.dumps(dict(fifo)))}", f"RUNLANE_TIMERS_QUEUE_URL: !Ref {TIMERS}Queue"]
    return "\n".join(lines)


def substituted(values: Mapping[str, str]) -> str:
    """A JSON object as `!Sub` makes it: `${…}` in values only, as a queue's name is no place for one."""
    entries = (f"{_literal(json.dumps(key))}: {json.dumps(value)}" for key, value in values.items())
    return f"!Sub {quoted('{' + ', '.join(entries) + '}')}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(text: str) -> str:
    return text.replace("${", "${!")
