"""Schedules in force, and their fires."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import decode_json, encode_run, recorded_run, wakeups
from runlane.domain.errors import ContractError
from runlane.domain.schedule import Timing
from runlane.ports.schedules import Change, DueSchedule, Materialized, Plan, StoredSchedule, TriggeredSchedule, Written
from runlane.ports.stores import ScheduleDefinition, Wakeup


class PostgresScheduleStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def write_schedules(self, definitions: Sequence[ScheduleDefinition], *, actor: str | None) -> Written:
        written = ",".join(
            f'{{"name":{json.dumps(one.schedule_id)},"enabled":{json.dumps(one.enabled)},"definition":{_text(one)}}}' for one in definitions
        )
        effects = self._session.run("write_schedules", {"schedules": f"[{written}]", "actor": actor})
        changes: dict[str, Change] = {row[4]: row[3] for row in effects if row[0] == "changed"}
        return Written(changes, wakeups(effects), tuple(_passed(row) for row in effects if row[0] == "passed"))

    def compare(self, definitions: Sequence[ScheduleDefinition]) -> Mapping[str, Change]:
        stored = {name: (digest, enabled) for name, digest, enabled in self._session.run("read_schedule_digests", {})}
        found: dict[str, Change] = {}
        for one in definitions:
            digest = md5(_text(one).encode(), usedforsecurity=False).hexdigest()
            if one.schedule_id not in stored:
                found[one.schedule_id] = "created"
            elif stored.pop(one.schedule_id) != (digest, one.enabled):
                found[one.schedule_id] = "updated"
        return {**found, **dict.fromkeys(stored, "removed")}

    def due_schedules(self, *, limit: int) -> tuple[DueSchedule, ...]:
        return tuple(map(_due, self._session.run("due_schedules", {"limit": limit})))

    def materialize(self, plans: Sequence[Plan]) -> Materialized:
        fires = [
            {"plan": place, "fire_at": _written(fire.fire_at), "due_at": _written(fire.due_at)}
            for place, one in enumerate(plans, 1)
            for fire in one.fires
        ]
        written = [_plan(place, one) for place, one in enumerate(plans, 1)]
        effects = self._session.run("materialize_schedules", {"plans": json.dumps(written), "fires": json.dumps(fires)})
        decided = frozenset(row[4] for row in effects if row[0] == "decided")
        return Materialized(decided, sum(row[0] == "counted" for row in effects), wakeups(effects))

    def list_schedules(self, schedule_id: str | None = None) -> tuple[StoredSchedule, ...]:
        return tuple(map(_stored, self._session.run("list_schedules", {"schedule": schedule_id})))

    def pause(self, schedule_id: str, *, actor: str | None) -> tuple[int, tuple[Wakeup, ...]] | None:
        effects = self._session.run("pause_schedule", {"schedule": schedule_id, "actor": actor})
        if not effects:
            return None
        return sum(row[0] == "cancelled" and row[3] == "cancelled" for row in effects), wakeups(effects)

    def resume(self, schedule_id: str, *, actor: str | None) -> bool:
        ((found,),) = self._session.run("resume_schedule", {"schedule": schedule_id, "actor": actor})
        return bool(found)

    def trigger(self, schedule_id: str, *, actor: str | None) -> TriggeredSchedule | None:
        rows = self._session.run("trigger_schedule", {"schedule": schedule_id, "actor": actor})
        effects = [row[1:] for row in rows]
        for task, row in zip((row[0] for row in rows), effects, strict=True):
            if row[0] == "run":
                starved = tuple({effect[4] for effect in effects if effect[0] == "starved"})
                return TriggeredSchedule(recorded_run(row[2], row[3], row[7], row[8], row[9]), task, row[4], wakeups(effects), starved)
        return None


def _text(definition: ScheduleDefinition) -> str:
    """As it is stored and compared: the same definition gives the same text."""
    return f'{{"timing":{json.dumps(definition.timing.policy())},"run":{encode_run(definition.run)}}}'


def _plan(place: int, plan: Plan) -> dict[str, Any]:
    look_at = None if plan.look_at is None else _written(plan.look_at)
    return {"ord": place, "name": plan.schedule_id, "version": plan.version, "until": _written(plan.until), "look_at": look_at}


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _timing(definition: Mapping[str, Any]) -> Timing | None:
    try:
        return Timing.from_policy(definition["timing"])
    except (KeyError, TypeError, ValueError, ContractError):
        return None


def _due(row: tuple[Any, ...]) -> DueSchedule:
    name, text, version, decided_until, now = row
    definition = decode_json(text)
    return DueSchedule(name, _timing(definition), "singleton_key" in definition["run"], version, decided_until, now)


def _passed(row: tuple[Any, ...]) -> DueSchedule:
    name, since, passed, definition = row[4], *row[7:10]
    return _due((name, definition, 0, since, since + passed))


def _stored(row: tuple[Any, ...]) -> StoredSchedule:
    name, text, enabled, paused_at, fire_at, run_id, now = row
    definition = decode_json(text)
    run = definition["run"]
    return StoredSchedule(
        name, _timing(definition), enabled, run["task"], run["queue"], run["payload"], paused_at, fire_at, run_id, now
    )  # fmt: skip
