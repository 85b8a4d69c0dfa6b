"""Checks of what is deployed: that the template has each queue, that each SQS queue and its mapping are as they must be, and that the
functions are told what this process is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from runlane.domain.durations import format_duration
from runlane.domain.finding import Finding, Level
from runlane.ports.deployment import Deployment, FunctionState, MappingState, QueueState, Unseen
from runlane.services.doctor import Check

TIMES_TIMEOUT = 6
"""How many of the function's time-outs a message must stay hidden: AWS's own advice, for batches that are throttled and tried again."""
LARGEST_BATCH = 10
_OFF = frozenset({"Disabled", "Disabling"})
_REDEPLOY = "deploy the template, as `runlane template` writes it"


@dataclass(frozen=True, slots=True)
class BoundQueue:
    """An SQS queue by its URL, and what it is for: a queue of the catalog, or the timers."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What a function is told otherwise than this process, as text."""

    variable: str
    theirs: str
    ours: str
    level: Level


Differences = Callable[[Mapping[str, str]], Iterable[Difference]]
"""Of a function's variables."""


def deployment_checks(
    deployment: Deployment, queues: Sequence[BoundQueue], *, lease: timedelta, differences: Differences
) -> tuple[tuple[str, Check], ...]:
    functions: dict[str, FunctionState | Unseen | None] = {}
    checks = [("queues", partial(_queue, deployment, shared, lease, functions)) for shared in _by_url(queues)]
    return (*checks, ("functions", partial(_functions, functions, differences)))


def template_check(name: str, *, is_current: bool | None, faults: Sequence[str] = ()) -> Finding:
    """`is_current` None: it has no blocks to compare, for the reasons given."""
    if is_current is None:
        return Finding("template", Level.UNSEEN, f"{name} cannot be compared with the catalog: {'; '.join(faults)}")
    if is_current:
        return Finding("template", Level.OK, f"{name} has what each queue of the catalog needs")
    return Finding(
        "template", Level.FAILURE, f"{name} is not what the catalog needs",
        "the functions do not start with a queue whose SQS queue they are not told, and one that is gone keeps its own",
        f"run `runlane template --write {name}`, and deploy",
    )  # fmt: skip


def _by_url(queues: Sequence[BoundQueue]) -> list[tuple[str, BoundQueue]]:
    """One of each SQS queue, with the names of all that share it."""
    return [
        (", ".join(one.name for one in queues if one.url == url), next(one for one in queues if one.url == url))
        for url in dict.fromkeys(one.url for one in queues)
    ]


def _queue(
    deployment: Deployment, shared: tuple[str, BoundQueue], lease: timedelta, functions: dict[str, FunctionState | Unseen | None]
) -> Iterator[Finding]:
    names, bound = shared
    what = f"SQS queue of {names}"
    state = deployment.queue_at(bound.url)
    if state is None:
        why = "what is published there fails, and waits for maintenance, which cannot publish it either"
        yield Finding("queues", Level.FAILURE, f"{what}: does not exist", why, f"{_REDEPLOY}, or correct RUNLANE_QUEUE_URLS")
        return
    if isinstance(state, Unseen):
        yield Finding("queues", Level.UNSEEN, f"{what}: {state.what}", remedy=state.remedy)
        return
    mappings = deployment.mappings(state.arn)
    found = [*_redrive(deployment, what, state, lease), *_mapped(deployment, what, state, mappings, functions)]
    if not state.is_encrypted:
        why = "ids of runs, and the names of queues and environments, lie there in the clear"
        found.append(Finding("queues", Level.WARNING, f"{what}: is not encrypted", why, f"set SqsManagedSseEnabled: {_REDEPLOY}"))
    yield from found or [Finding("queues", Level.OK, f"{what}: is as it must be")]


def _redrive(deployment: Deployment, what: str, state: QueueState, lease: timedelta) -> Iterator[Finding]:
    if state.dead_letters is None:
        yield Finding(
            "queues", Level.FAILURE, f"{what}: has no dead-letter queue",
            "a message that no worker can read comes back until it is too old, and in a FIFO queue holds up its group", _REDEPLOY,
        )  # fmt: skip
        return
    least = LARGEST_BATCH if state.is_fifo else 1
    if state.receives <= least:
        yield Finding(
            "queues", Level.WARNING, f"{what}: after {state.receives} receives a message is a dead letter",
            "one that is behind others of its group or was throttled is received as often without anything being wrong",
            f"set maxReceiveCount to more than {least}: {_REDEPLOY}",
        )  # fmt: skip
    # Of standard queues a wakeup whose run is leased is done with; of FIFO queues it is returned until the lease is recovered.
    if state.is_fifo and lease > state.lasts_for:
        held, lasts = format_duration(lease), format_duration(state.lasts_for)
        yield Finding(
            "queues", Level.FAILURE, f"{what}: a lease of {held} outlasts {state.receives} receives, which take {lasts}",
            "the wakeup of a run whose worker died is a dead letter before the run can be recovered, and its group goes on without it",
            "shorten RUNLANE_LEASE_DURATION, or raise VisibilityTimeout or maxReceiveCount",
        )  # fmt: skip
    letters = deployment.queue_of(state.dead_letters)
    if isinstance(letters, Unseen):
        yield Finding("queues", Level.UNSEEN, f"dead letters, {what}: {letters.what}", remedy=letters.remedy)
    elif letters is None:
        yield Finding("queues", Level.FAILURE, f"{what}: its dead-letter queue does not exist", "dead letters are lost", _REDEPLOY)
    else:
        yield from _letters(what, state, letters)


def _letters(what: str, state: QueueState, letters: QueueState) -> Iterator[Finding]:
    if letters.kept_for < state.kept_for:
        yield Finding(
            "queues", Level.WARNING,
            f"{what}: keeps messages for {format_duration(state.kept_for)}, its dead letters only for {format_duration(letters.kept_for)}",
            "the age of a dead letter counts from when it was first sent, so that it may be gone when somebody looks",
            f"set MessageRetentionPeriod: {_REDEPLOY}",
        )  # fmt: skip
    if letters.messages:
        yield Finding(
            "queues", Level.WARNING, f"{what}: has about {letters.messages} dead letters",
            "no worker could read or accept them; their runs are safe, and maintenance sends other wakeups for those that wait",
            f"look at one of {letters.name}: is it of another environment or release? Then redrive or purge them",
        )  # fmt: skip


def _mapped(
    deployment: Deployment,
    what: str,
    state: QueueState,
    mappings: tuple[MappingState, ...] | Unseen,
    functions: dict[str, FunctionState | Unseen | None],
) -> Iterator[Finding]:
    if isinstance(mappings, Unseen):
        yield Finding("queues", Level.UNSEEN, f"mapping, {what}: {mappings.what}", remedy=mappings.remedy)
        return
    if not mappings:
        yield Finding(
            "queues", Level.WARNING, f"{what}: is mapped to no function", "nobody receives its wakeups, unless workers off Lambda do",
            f"{_REDEPLOY}, or run `runlane worker`",
        )  # fmt: skip
    for mapping in mappings:
        yield from _mapping(what, mapping)
        if mapping.function not in functions:
            functions[mapping.function] = deployment.function(mapping.function)
        function = functions[mapping.function]
        if isinstance(function, FunctionState) and state.visible_after < (needed := TIMES_TIMEOUT * function.timeout):
            hidden, timeout = format_duration(state.visible_after), format_duration(function.timeout)
            yield Finding(
                "queues", Level.FAILURE, f"{what}: hides a message for {hidden}, and {function.name} may run for {timeout}",
                "SQS hands out again what a batch still holds, and counts it as received until it is a dead letter",
                f"set VisibilityTimeout to {format_duration(needed)} or more, {TIMES_TIMEOUT} times the time-out",
            )  # fmt: skip


def _mapping(what: str, mapping: MappingState) -> Iterator[Finding]:
    if mapping.state in _OFF:
        yield Finding(
            "queues", Level.FAILURE, f"{what}: its mapping is {mapping.state.lower()}", "nobody receives its wakeups",
            f"enable it: aws lambda list-event-source-mappings --function-name {mapping.function}",
        )  # fmt: skip
    if not mapping.returns_failures:
        yield Finding(
            "queues", Level.FAILURE, f"{what}: its mapping does not take ReportBatchItemFailures",
            "what the worker gives back counts as done, and is lost until maintenance finds it", _REDEPLOY,
        )  # fmt: skip
    if mapping.most_at_once is None:
        yield Finding(
            "queues", Level.WARNING, f"{what}: its mapping has no MaximumConcurrency",
            "a burst takes all of the account's concurrency, and more connections than the database has", _REDEPLOY,
        )  # fmt: skip


def _functions(functions: Mapping[str, FunctionState | Unseen | None], differences: Differences) -> Iterator[Finding]:
    for name, function in functions.items():
        if isinstance(function, Unseen):
            yield Finding("functions", Level.UNSEEN, f"{name}: {function.what}", remedy=function.remedy)
        elif function is None:
            yield Finding("functions", Level.FAILURE, f"{name}: is gone, and mappings name it", "nobody receives its wakeups", _REDEPLOY)
        else:
            wrong = [*(_differing(function.name, one) for one in differences(function.variables)), *_looping(function)]
            yield from wrong or [Finding("functions", Level.OK, f"{function.name}: is told what this process is told")]


def _differing(function: str, difference: Difference) -> Finding:
    return Finding(
        "functions", difference.level,
        f"{function}: {difference.variable} is {difference.theirs or 'not set'} there, and {difference.ours or 'not set'} here",
        "what one of them triggers or stores the other does not find, or treats otherwise",
        f"deploy again, or take over what is deployed: `runlane doctor --function {function}`",
    )  # fmt: skip


def _looping(function: FunctionState) -> Iterator[Finding]:
    if function.may_follow_itself is False:
        yield Finding(
            "functions", Level.FAILURE, f"{function.name}: Lambda's loop detection is on",
            "it stops a chain of sixteen runs, as each publishes the wakeup of the next", f"set RecursiveLoop: Allow: {_REDEPLOY}",
        )  # fmt: skip
