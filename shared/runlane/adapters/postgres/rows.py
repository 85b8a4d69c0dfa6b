"""Rows to values and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

from runlane.domain.ids import RunId
from runlane.domain.outcome import Failure, OutcomeKind, Settlement
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.stores import (
    ClaimBatch,
    ClaimedRun,
    ExpiredLease,
    NewRun,
    RecordedRun,
    Refusal,
    SettleBatch,
    SettledRun,
    TriggerBatch,
    Wakeup,
)

_ZERO = timedelta(0)
HINT_HORIZON = timedelta(minutes=15)
"""How far ahead a delayed wakeup can be sent."""


def encode_runs(runs: Sequence[NewRun]) -> str:
    """The runs as the JSON that `record_runs` reads; payloads are spliced in as the text they are."""
    return "[" + ",".join(_encode_run(place, run) for place, run in enumerate(runs, 1)) + "]"


def _encode_run(place: int, run: NewRun) -> str:
    return f'{{"ord":{place},{encode_run(run)[1:]}'


def encode_run(run: NewRun) -> str:
    """One of these, without its place among them."""
    fields: dict[str, Any] = {
        "task": run.task,
        "queue": run.queue,
        "tenant": run.tenant,
        "concurrency_key": run.concurrency_key,
        "priority": run.priority or None,
        "delay": _interval(run.delay),
        "run_at": run.run_at and run.run_at.isoformat(),
        "idempotency_key": run.idempotency_key,
        "idempotency_ttl": _interval(run.idempotency_ttl),
        "payload_hash": run.payload_hash,
        "singleton_key": run.singleton_key,
        "singleton_mode": None if run.singleton_mode == "return" else run.singleton_mode,
        "max_attempts": run.max_attempts,
        "start_timeout": _interval(run.start_timeout),
        "finish_timeout": _interval(run.finish_timeout),
        "actor": run.actor,
        "trace": run.trace and dict(run.trace),
        "meta": run.meta and dict(run.meta),
        "source": run.source,
        "source_run_id": run.source_run_id,
        "reason": run.reason,
    }
    given = json.dumps({name: value for name, value in fields.items() if value is not None}, ensure_ascii=False)
    return f'{given[:-1]},"payload":{run.payload}}}'


def are_alike(runs: Sequence[NewRun]) -> bool:
    """Whether `trigger_alike` takes them: due at once, without a key that somebody may own, and different in its lists only."""
    first = runs[0]
    if first.delay or first.run_at or first.idempotency_key or first.singleton_key or first.source:
        return False
    shared, queue, task = first.shared, first.queue, first.task
    return all(run.shared == shared and run.queue == queue and run.task == task and _is_same(run.meta, first.meta) for run in runs)


def _is_same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """As JSON: for Python, true is 1 and 1 is 1.0."""
    return one is other or json.dumps(one) == json.dumps(other)


def encode_alike(runs: Sequence[NewRun]) -> dict[str, Any]:
    """The parameters of `trigger_alike`."""
    first = runs[0]
    return {
        "queue": first.queue,
        "task": first.task,
        "payloads": "[" + ",".join([run.payload for run in runs]) + "]",
        "tenants": _optional_list([run.tenant for run in runs]),
        "keys": _optional_list([run.concurrency_key for run in runs]),
        "priorities": id_list([str(run.priority) for run in runs]) if any(run.priority for run in runs) else None,
        "max_attempts": first.max_attempts,
        "start_timeout": first.start_timeout,
        "finish_timeout": first.finish_timeout,
        "actor": first.actor,
        "trace": json.dumps(dict(first.trace), ensure_ascii=False) if first.trace else None,
        "meta": json.dumps(dict(first.meta), ensure_ascii=False) if first.meta else None,
    }


def _optional_list(values: Sequence[str | None]) -> str | None:
    """`array_literal` with NULLs; None if there is nothing else."""
    if not any(values):
        return None
    return "{" + ",".join("NULL" if value is None else array_literal((value,))[1:-1] for value in values) + "}"


def array_literal(values: Iterable[str]) -> str:
    """An array literal. The driver would write the same, but a list costs it more than all the rest of a statement's parameters."""
    quoted = (value.replace("\\", r"\\").replace('"', r"\"") for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def id_list(ids: Iterable[str]) -> str:
    """`array_literal` of ids and tokens, which need no quotes."""
    return "{" + ",".join(ids) + "}"


def sorted_ids(run_ids: Iterable[str]) -> str:
    """Without repeats, and sorted, since rows are locked in the order in which they stand here."""
    return id_list(sorted(set(run_ids)))


@lru_cache(maxsize=64)
def name_list(names: tuple[str, ...]) -> str:
    """`array_literal` of names that come with every statement."""
    return array_literal(names)


def encode_settlements(settlements: Iterable[Settlement]) -> dict[str, Any]:
    """The parameters of `settle_runs`: JSON into which results are spliced as the text they are, the ids of the runs, and whether all of
    them have succeeded.

    Sorted by run id: leases are locked in the order in which they stand here.
    """
    ordered = sorted(settlements, key=attrgetter("run_id"))
    text = "[" + ",".join(map(_encode_settlement, ordered)) + "]"
    plain = all(settlement.kind is OutcomeKind.SUCCEEDED for settlement in ordered)
    return {"settlements": text, "ids": id_list([settlement.run_id for settlement in ordered]), "plain": plain}


def _encode_settlement(settlement: Settlement) -> str:
    # The common case has four fields whose values need no escaping.
    text = f'{{"run_id":"{settlement.run_id}","token":"{settlement.token}","kind":"{settlement.kind.value}"'
    if settlement.result is not None:
        text += f',"result":{settlement.result}'
    extra: dict[str, Any] = {}
    if settlement.failure is not None:
        extra["failure"] = encode_failure(settlement.failure)
    if settlement.delay is not None:
        extra["delay"] = _interval(settlement.delay)
    if settlement.reason is not None:
        extra["reason"] = settlement.reason
    if settlement.final:
        extra["final"] = True
    if settlement.keeps_failures:
        extra["keeps_failures"] = True
    if settlement.tried_before and settlement.attempt:
        extra["attempt"] = settlement.attempt
    return text + ("," + json.dumps(extra, ensure_ascii=False)[1:] if extra else "}")


def encode_failure(failure: Failure) -> dict[str, str]:
    fields = {"code": failure.code, "type": failure.type, "message": failure.message, "traceback": failure.traceback}
    return {name: value for name, value in fields.items() if value is not None}


def decode_failure(value: Mapping[str, str] | None) -> Failure | None:
    return None if value is None else Failure(value["code"], value["type"], value["message"], value.get("traceback"))


def decode_json(text: bytes | None) -> Any:
    """What no door of ours let in, numbers or depths that Python does not read, is given as the text that it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.decode()


def decode_object(text: bytes | None) -> Mapping[str, Any] | None:
    """The same, where text would be no use; a run must not keep those that are claimed with it from starting."""
    found = decode_json(text)
    return found if isinstance(found, dict) else None


def _interval(value: timedelta | None) -> str | None:
    return None if value is None else interval_literal(value)


def interval_literal(value: timedelta) -> str:
    """In seconds: what Postgres calls a day is 23 or 25 hours where the session's time zone changes its clocks."""
    return f"{value.days * 86400 + value.seconds}.{value.microseconds:06d} seconds"


# An effect is (kind, ord, run_id, verdict, queue, tenant, concurrency_key, due_at, due_in, detail).
Effect = tuple[Any, ...]


def wakeups(effects: Iterable[Effect]) -> tuple[Wakeup, ...]:
    """The dispatched runs and hints among the effects, in fair order."""
    return tuple(
        Wakeup(RunId(row[2]), row[4], row[5], row[6], row[8] or _ZERO, row[0] == "hint") for row in effects if row[0] in ("wakeup", "hint")
    )


def trigger_batch(effects: Sequence[Effect], runs: Sequence[NewRun], *, eager: bool) -> TriggerBatch:
    recorded = sorted((row for row in effects if row[0] == "run"), key=lambda row: row[1])
    placed = {row[2]: row for row in effects if row[0] == "wakeup"}
    sent: list[Wakeup] = []
    for row in recorded if eager else ():
        run = runs[row[1] - 1]
        if row[3] != "created":
            continue
        if row[2] in placed:
            starts_in = placed.pop(row[2])[8] or _ZERO
            sent.append(Wakeup(RunId(row[2]), run.queue, run.tenant, run.concurrency_key, starts_in, trace=run.trace))
        elif row[9] is None and row[8] is not None and _ZERO < row[8] <= HINT_HORIZON:
            sent.append(Wakeup(RunId(row[2]), run.queue, run.tenant, run.concurrency_key, row[8], True, run.trace))
    return TriggerBatch(
        tuple(recorded_run(row[2], row[3], row[7], row[8], row[9]) for row in recorded),
        (*sent, *wakeups(placed.values()), *wakeups(row for row in effects if row[0] == "hint")),
        tuple({row[4] for row in effects if row[0] == "starved"}),
    )


def alike_batch(effect: Effect, runs: Sequence[NewRun]) -> TriggerBatch:
    ids, due_at, trace = effect[3][1:-1].split(","), effect[7], runs[0].trace
    return TriggerBatch(
        tuple([RecordedRun(RunId(run_id), TriggerOutcome.CREATED, Status.QUEUED, due_at, None) for run_id in ids]),
        tuple([Wakeup(RunId(run_id), run[1], run[3], run[4], _ZERO, False, trace) for run_id, run in zip(ids, runs, strict=True)]),
    )


def recorded_run(run_id: str, verdict: str, due_at: datetime, due_in: timedelta | None, detail: bytes | None) -> RecordedRun:
    owner = decode_json(detail)
    if owner is not None:
        return RecordedRun(RunId(run_id), TriggerOutcome(verdict), Status(owner["status"]), due_at, owner["matches"])
    status = Status.SCHEDULED if due_in and due_in > _ZERO else Status.QUEUED
    return RecordedRun(RunId(run_id), TriggerOutcome.CREATED, status, due_at, None)


def claim_batch(rows: Iterable[tuple[Any, ...]]) -> ClaimBatch:
    claims: list[ClaimedRun] = []
    refusals: list[Refusal] = []
    expired: list[ExpiredLease] = []
    sent: list[Wakeup] = []
    for row in rows:
        kind = row[0]
        if kind == "claim":
            claims.append(_claimed(row))
        elif kind == "refusal":
            refusals.append(Refusal(RunId(row[1]), row[16], row[17]))
        elif kind == "expired":
            expired.append(ExpiredLease(RunId(row[1]), row[2], row[3], row[4], row[6], row[7], row[8], row[16] is not None))
        elif kind in ("wakeup", "hint"):
            sent.append(Wakeup(RunId(row[1]), row[4], row[9], row[10], row[17] or _ZERO, kind == "hint"))
    return ClaimBatch(tuple(claims), tuple(refusals), tuple(expired), tuple(sent))


def _claimed(row: tuple[Any, ...]) -> ClaimedRun:
    return ClaimedRun._make((*row[1:5], row[5].decode(), *row[6:14], decode_object(row[14]), decode_object(row[15])))


def settle_batch(settlements: Sequence[Settlement], effects: Sequence[Effect]) -> SettleBatch:
    return SettleBatch(*_settled(settlements, [(row[0], row[2], row[3]) for row in effects]), wakeups(effects))


def settle_and_claim_batch(settlements: Sequence[Settlement], rows: Sequence[tuple[Any, ...]]) -> tuple[SettleBatch, ClaimBatch]:
    """Claim rows that tell of a settle, too. Wakeups stay with the claims: one that both halves could name is told once."""
    told = [(row[0], row[1], row[16]) for row in rows if row[0] != "claim"]
    return SettleBatch(*_settled(settlements, told)), claim_batch(rows)


def _settled(
    settlements: Sequence[Settlement], told: Sequence[tuple[str, str, str | None]]
) -> tuple[tuple[SettledRun, ...], tuple[RunId, ...]]:
    """Who has settled and who was refused, of rows of a kind, a run and its status; a success that no row names has succeeded."""
    became = {run_id: Status(status) for kind, run_id, status in told if kind in ("settled", "hint") and status is not None}
    refused = tuple(RunId(run_id) for kind, run_id, _ in told if kind == "refused")
    settled = (
        SettledRun(settlement.run_id, became.get(settlement.run_id, Status.SUCCEEDED))
        for settlement in settlements
        if settlement.run_id not in refused
    )
    return tuple(settled), refused
