"""The schedules of a runtime's tasks, checked and made ready to be put in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta

from runlane.domain.errors import ConfigurationError, RunlaneError
from runlane.domain.schedule import Schedule
from runlane.ports.stores import ScheduleDefinition
from runlane.services.new_run import NewRuns
from runlane.services.payload import AnyTask
from runlane.services.schedules.cron import cron_fault

_A_PASS = timedelta(minutes=1)


def scheduled(tasks: Iterable[AnyTask], runs: NewRuns) -> tuple[ScheduleDefinition, ...]:
    """By id; one `ConfigurationError` with every fault of every schedule."""
    pairs = [(task, schedule) for task in tasks for schedule in task.options.schedules]
    faults = list(_id_faults(schedule for _, schedule in pairs))
    found = [definition for task, schedule in pairs if (definition := _defined(task, schedule, runs, faults)) is not None]
    ConfigurationError.raise_if(faults)
    return tuple(sorted(found, key=lambda definition: definition.schedule_id))


def _defined(task: AnyTask, schedule: Schedule, runs: NewRuns, faults: list[str]) -> ScheduleDefinition | None:
    where, timing = f"schedule {schedule.id!r} of task {task.id!r}", schedule.timing
    if timing.cron is not None and (fault := cron_fault(timing.cron)):
        faults.append(f"{where}: {fault}")
    try:
        run = runs.scheduled(task, schedule.payload, schedule.queue)
    except ConfigurationError as error:
        faults += [f"{where}: {fault}" for fault in error.faults]
        return None
    except RunlaneError as error:
        faults.append(f"{where}: {error.message}")
        return None
    if run.singleton_key is not None and timing.every is not None and timing.every < _A_PASS:
        faults.append(f"{where}: every: with a singleton key one fire is made ahead at a time; give at least 1m")
    return ScheduleDefinition(schedule.id, timing, schedule.enabled, run)


def _id_faults(schedules: Iterable[Schedule]) -> Iterator[str]:
    for schedule_id, count in Counter(schedule.id for schedule in schedules).items():
        if count > 1:
            yield f"schedule {schedule_id!r} is given {count} times; ids are unique over all tasks"
