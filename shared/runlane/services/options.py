"""What a trigger may say; None, or nothing, means what the task says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, get_args

from runlane.domain.durations import Duration
from runlane.domain.errors import ContractError
from runlane.domain.moments import to_utc
from runlane.domain.options import SingletonMode
from runlane.domain.queue import Queue
from runlane.domain.shown import shown


class RunNowOptions(TypedDict, total=False):
    """`priority` is in seconds, -600 to 600. `idempotency_ttl` may be "active"."""

    queue: Queue | str | None
    priority: int | None
    tenant: str | None
    concurrency_key: str | None
    idempotency_key: str | None
    idempotency_ttl: Duration | None
    singleton_key: str | None
    singleton_mode: SingletonMode | None
    actor: str | None
    trace: Mapping[str, str] | None
    meta: Mapping[str, Any] | None


class TriggerOptions(RunNowOptions, total=False):
    """`delay` and `run_at` (aware) exclude each other."""

    delay: Duration | None
    run_at: datetime | None


def require_options(options: TriggerOptions) -> None:
    """`ContractError` `option_unknown` names options that do not exist, `option_invalid` those that exclude each other."""
    if unknown := sorted(options.keys() - TriggerOptions.__annotations__.keys()):
        known = ", ".join(TriggerOptions.__annotations__)
        raise ContractError(
            "option_unknown", f"{', '.join(unknown)}: there is no such option; there are {known}", meta={"field": unknown[0]}
        )
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise _invalid("run_at", "delay and run_at exclude each other; give one")
    run_at = options.get("run_at")
    if run_at is not None:
        to_utc(run_at, "run_at")
    if options.get("singleton_mode") not in (None, *get_args(SingletonMode)):
        raise _invalid("singleton_mode", f'{shown(options.get("singleton_mode"))} is none; give "return", "cancel" or "latest"')


def _invalid(field: str, fault: str) -> ContractError:
    return ContractError("option_invalid", f"{field}: {fault}", meta={"field": field})
