"""Where people find each queue, and what its workers could not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runlane.adapters.cloudformation.names import TIMERS, logical_names
from runlane.adapters.sqs.bindings import MessageGroup


def outputs(queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> str:
    names = [*logical_names(queues).values(), *([TIMERS] if fifo else [])]
    return "\n".join(f"{name}{kind}Url:\n  Value: !Ref {name}{kind}" for name in names for kind in ("Queue", "DeadLetters"))
