"""Schedules in code: what is refused, what is put in force, and what a pass decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue
from runlane.domain.records import Fire
from runlane.domain.schedule import CatchUp, Schedule, Timing
from runlane.domain.task import task
from runlane.ports.schedules import DueSchedule, Skipped
from runlane.services.maintenance.materialize_schedules import GROUPS
from runlane.services.maintenance.phase import LIMIT
from runlane.services.schedules.plan import plan
from tests.services.tasks import Bench

NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
AHEAD = 4 * MINUTE
EACH_MINUTE = "* * * * *"
FEW = settings(deadline=None, max_examples=60)


class Sync(BaseModel):
    customer: str


def due(since: timedelta, *, holds_key: bool = False, **timing: Any) -> DueSchedule:
    """A schedule about which nothing has been decided for so long."""
    return DueSchedule("s", Timing(**timing), holds_key, 7, NOW - since, NOW)


def times(one: DueSchedule) -> list[str]:
    return [fire.fire_at.strftime("%H:%M") for fire in plan(one, AHEAD).fires]


@pytest.mark.parametrize(("policy", "count"), [("skip", 0), ("latest", 1), ("all", 60)])
def test_after_an_hour_without_a_tick_each_policy_makes_its_own_number_at_once(policy: CatchUp, count: int) -> None:
    made = plan(due(HOUR, cron=EACH_MINUTE, catch_up=policy), AHEAD)
    late = [fire for fire in made.fires if fire.due_at <= NOW]
    assert len(late) == count
    assert [fire.fire_at for fire in late[-1:]] == [NOW.replace(second=0)] * min(count, 1)
    assert [fire.fire_at for fire in made.fires[count:]] == [NOW.replace(second=0) + number * MINUTE for number in (1, 2, 3, 4)]
    since = NOW.replace(hour=11, minute=1, second=0)
    assert made.skipped == {"skip": Skipped(since, NOW), "latest": Skipped(since, NOW.replace(second=0)), "all": None}[policy]


def test_all_is_the_last_hundred_and_says_what_it_left() -> None:
    made = plan(due(3 * HOUR, cron=EACH_MINUTE, catch_up="all"), AHEAD)
    assert len(made.fires) == 100 + 4
    assert made.skipped == Skipped(NOW.replace(hour=9, minute=1, second=0), made.fires[0].fire_at)


def test_a_plan_decides_the_whole_look_ahead_and_says_when_to_look_again() -> None:
    made = plan(due(timedelta(seconds=1), cron="0 9 * * *"), AHEAD)
    assert (made.fires, made.version) == ((), 7)
    assert made.until == NOW + AHEAD
    assert made.look_at == datetime(2026, 12, 1, 9, tzinfo=UTC) - AHEAD


@FEW
@given(st.integers(0, 60_000_000), st.lists(st.integers(1, 150_000_000), min_size=8, max_size=8), st.booleans())
def test_passes_of_any_phase_make_each_fire_once(phase: int, pauses: list[int], holds_key: bool) -> None:
    now = NOW.replace(second=0) + timedelta(microseconds=phase)
    started, decided, look_at, made = now, now, now, list[Fire]()
    for pause in pauses:
        if look_at <= now:
            one = plan(DueSchedule("s", Timing(cron=EACH_MINUTE, catch_up="all"), holds_key, 1, decided, now), AHEAD)
            assert one.look_at is not None
            decided, look_at = one.until, one.look_at
            made += one.fires
        now += timedelta(microseconds=pause)
    first = started.replace(second=0, microsecond=0) + MINUTE
    assert [fire.fire_at for fire in made] == [first + number * MINUTE for number in range(len(made))]
    assert made[-1].fire_at > now - timedelta(microseconds=pauses[-1]) - MINUTE


def test_a_schedule_with_a_singleton_key_has_one_fire_ahead_at_most() -> None:
    first = plan(due(timedelta(seconds=1), cron=EACH_MINUTE, holds_key=True), AHEAD)
    assert [fire.fire_at for fire in first.fires] == [NOW.replace(minute=1, second=0)] == [first.look_at]
    waiting = DueSchedule("s", Timing(cron=EACH_MINUTE), True, 8, first.until, NOW)
    assert plan(waiting, AHEAD).fires == ()
    assert times(due(3 * MINUTE, cron=EACH_MINUTE, holds_key=True)) == ["12:00", "12:01"]


def test_a_single_time_fires_once_and_is_over() -> None:
    at = NOW + MINUTE
    made = plan(due(timedelta(0), run_at=at), AHEAD)
    assert ([fire.fire_at for fire in made.fires], made.look_at) == ([at], None)
    assert plan(DueSchedule("s", Timing(run_at=at), False, 8, made.until, NOW), AHEAD).fires == ()
    assert times(due(HOUR, run_at=NOW - MINUTE)) == ["11:59"]
    assert times(due(timedelta(0), run_at=NOW - MINUTE)) == []


def test_a_clock_that_goes_back_decides_nothing_twice() -> None:
    made = plan(DueSchedule("s", Timing(cron=EACH_MINUTE), False, 7, NOW + AHEAD, NOW - 5 * MINUTE), AHEAD)
    assert (made.fires, made.until) == ((), NOW + AHEAD)


@pytest.mark.parametrize("holds_key", [False, True])
def test_what_a_clock_decided_that_was_far_ahead_is_decided_again(holds_key: bool) -> None:
    made = plan(DueSchedule("s", Timing(cron=EACH_MINUTE), holds_key, 7, NOW + timedelta(days=365), NOW), AHEAD)
    assert [fire.fire_at.minute for fire in made.fires] == ([1] if holds_key else [1, 2, 3, 4])
    assert made.until <= NOW + AHEAD
    assert plan(DueSchedule("s", None, holds_key, 7, NOW + timedelta(days=365), NOW), AHEAD).until == NOW


@pytest.mark.parametrize(
    "timing",
    [None, Timing(cron=EACH_MINUTE, timezone="Mars/Olympus"), Timing(cron=EACH_MINUTE, timezone="../UTC"), Timing(cron="0 0 31 2 ?")],
)
def test_one_that_this_release_cannot_read_is_left_to_another(timing: Timing | None) -> None:
    made = plan(DueSchedule("s", timing, False, 7, NOW - HOUR, NOW), AHEAD)
    assert (made.fires, made.until, made.look_at, made.is_unreadable) == ((), NOW - HOUR, NOW + MINUTE, True)


def test_everything_that_is_wrong_with_a_schedule_is_one_error() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Schedule("a:b", cron=EACH_MINUTE, every="1m", timezone="Europe/Belin", jitter="2d", catch_up="some")  # type: ignore[arg-type]
    faults = raised.value.faults
    assert len(faults) == 5
    for part in (
        "contains ':'",
        "cron, every: give exactly one",
        "did you mean 'Europe/Berlin'?",
        "jitter: 2d is too long",
        "'some'",
    ):
        assert any(part in fault for fault in faults), part


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "no time: give exactly one of cron, every and run_at"),
        ({"every": "15"}, "every: '15' is not a duration"),
        ({"every": "10ms"}, "every: is too short; give at least 1s"),
        ({"every": "1m", "jitter": "1m"}, "jitter: 1m is not less than every=1m"),
        ({"every": "1m", "timezone": "UTC"}, "timezone: only a cron expression has one"),
        ({"run_at": datetime(2027, 1, 1)}, "is not a datetime with a time zone"),  # noqa: DTZ001
        ({"cron": "0 9 * * *", "timezone": "America"}, "timezone: 'America' is no IANA zone"),
        ({"cron": "0 9 * * *", "timezone": "../UTC"}, "is no IANA zone"),
        ({"cron": "0 9 * * *", "timezone": "Factory"}, "is no IANA zone"),
        ({"cron": "0 9 * * *", "timezone": "localtime"}, "is no IANA zone"),
        ({"cron": "0 9 * * *", "timezone": "posixrules"}, "is no IANA zone"),
        ({"cron": "0 9 * * *", "timezone": 5}, "timezone: 5 is no IANA zone"),
        ({"cron": 5}, "cron: 5 is no expression"),
        ({"every": "1m", "queue": "main"}, "queue: 'main' is not a Queue"),
        ({"every": "1m", "enabled": "no"}, "enabled: 'no' is neither True nor False"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Schedule("s", **given)
    assert fault in str(raised.value)


def scheduled(*schedules: Any, **options: Any) -> Any:
    @task("sync", schedules=list(schedules), **options)
    def sync(payload: Sync) -> None: ...

    return sync


def test_what_only_the_runtime_can_know_is_refused_when_it_is_made() -> None:
    stranger = Queue("stranger")
    other = Schedule("twice", every="1m", payload={"customer": "acme"})
    with pytest.raises(ConfigurationError) as raised:
        Bench(
            tasks=[
                scheduled(
                    Schedule("twice", cron="0 0 30 2 *", payload={"customer": "acme"}),
                    other,
                    Schedule("misfit", every="1m", payload={"customer": 5}),
                    Schedule("nowhere", every="1m", payload={"customer": "acme"}, queue=stranger),
                )
            ]
        )
    said = str(raised.value)
    for part in (
        "schedule 'twice' is given 2 times",
        "schedule 'twice' of task 'sync': cron: '0 0 30 2 *' has a day-of-month that does not exist",
        "schedule 'misfit' of task 'sync': payload of task 'sync': customer: Input should be a valid string",
        "schedule 'nowhere' of task 'sync': queue 'stranger'",
    ):
        assert part in said, part


def test_a_singleton_key_asks_for_a_minute_between_fires() -> None:
    payload = {"customer": "acme"}
    with pytest.raises(ConfigurationError, match="give at least 1m"):
        Bench(tasks=[scheduled(Schedule("s", every="15s", payload=payload), singleton_key="one")])


def test_only_schedules_are_taken() -> None:
    for wrong in ("0 9 * * *", [5]):
        with pytest.raises(ConfigurationError, match="schedules: "):
            task("sync", schedules=wrong)(lambda payload: None)  # type: ignore[arg-type]


def test_a_timing_is_read_back_as_it_was_written() -> None:
    for timing in (
        Timing(cron="0 9 * * *", timezone="Europe/Berlin", catch_up="all"),
        Timing(every=timedelta(minutes=15), jitter=timedelta(seconds=30)),
        Timing(run_at=NOW),
    ):
        assert Timing.from_policy(timing.policy()) == timing
    for wrong in ({"catch_up": "backfill"}, {"every": "0s"}, {"run_at": "soon"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            Timing.from_policy({**Timing().policy(), **wrong})


def test_drift_of_schedules_is_reported_with_the_remedy() -> None:
    bench = Bench()
    bench.storage.schedules.differences = {"new": "created", "old": "removed", "other": "updated"}
    _, *found = bench.runlane.start()
    assert [fact["detail"] for fact in bench.telemetry.named("schedule.drift")] == found
    assert all("`runlane migrate`" in difference for difference in found)


def test_a_pass_looks_on_past_schedules_that_do_not_fire_yet_and_tells_what_was_skipped() -> None:
    bench = Bench()
    idle = due(timedelta(0), cron="0 0 1 1 *")
    bench.storage.schedules.due = [(idle,), (due(HOUR, cron=EACH_MINUTE),)]
    assert bench.runlane.tick()["counts"]["materialize_schedules"] == 5
    (fact,) = bench.telemetry.named("schedule.skipped")
    assert (fact["schedule"], fact["since"]) == ("s", "2026-11-30T11:01:00+00:00")


def test_what_a_new_timing_passes_over_is_told() -> None:
    bench = Bench()
    bench.storage.schedules.passed = (
        due(HOUR, cron=EACH_MINUTE),
        due(HOUR, cron="0 9 * * *")._replace(schedule_id="none"),
        due(HOUR, cron=EACH_MINUTE, timezone="Mars/Olympus")._replace(schedule_id="martian"),
    )
    bench.runlane.schedules.put_in_force()
    (fact,) = bench.telemetry.named("schedule.skipped")
    assert (fact["schedule"], fact["since"], fact["until"]) == ("s", "2026-11-30T11:01:00+00:00", NOW.isoformat())


def test_a_pass_says_which_schedule_it_cannot_read_and_goes_on_with_the_others() -> None:
    bench = Bench()
    unknown = due(HOUR, cron=EACH_MINUTE, timezone="Mars/Olympus")._replace(schedule_id="martian")
    bench.storage.schedules.due = [(unknown, due(HOUR, cron=EACH_MINUTE))]
    report = bench.runlane.tick()
    assert (report["counts"]["materialize_schedules"], report["failed"]) == (5, [])
    assert [fact["schedule"] for fact in bench.telemetry.named("schedule.unreadable")] == ["martian"]


def test_one_whose_runs_the_database_refuses_waits_alone() -> None:
    bench = Bench()
    bad = due(HOUR, cron=EACH_MINUTE)._replace(schedule_id="bad")
    bench.storage.schedules.due = [(bad, due(HOUR, cron=EACH_MINUTE))]
    bench.storage.schedules.refused = {"bad"}
    report = bench.runlane.tick()
    assert (report["counts"]["materialize_schedules"], report["failed"]) == (5, [])
    waits, carried_out = bench.storage.schedules.plans
    assert (waits.schedule_id, waits.fires, waits.until, waits.look_at) == ("bad", (), NOW - HOUR, NOW + MINUTE)
    assert len(carried_out.fires) == 5
    (fact,) = bench.telemetry.named("schedule.failed")
    assert (fact["schedule"], "queue 'gone'" in fact["error"]) == ("bad", True)


def test_a_pass_does_not_end_before_the_schedules_that_are_only_to_be_looked_at() -> None:
    bench = Bench()
    idle = (due(timedelta(0), cron="0 0 1 1 *"),) * LIMIT
    bench.storage.schedules.due = [*[idle] * (GROUPS + 1), (due(HOUR, cron=EACH_MINUTE),)]
    assert bench.runlane.tick()["counts"]["materialize_schedules"] == 5


def test_a_transaction_has_a_thousand_fires_at_most_and_the_pass_goes_on() -> None:
    bench = Bench()
    many = tuple(due(2 * HOUR, cron=EACH_MINUTE, catch_up="all") for _ in range(12))
    bench.storage.schedules.due = [many, many[9:]]
    assert bench.runlane.tick()["counts"]["materialize_schedules"] == 12 * 104
    assert len(bench.storage.schedules.plans) == 12
