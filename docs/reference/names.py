"""The public names of the package, from their docstrings and signatures; nothing is imported."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import griffe

HEAD = """# Python

Names stand where they are imported from. Lengths of time are text (`"500ms"`, `"30s"`, `"2m"`, `"1h"`, `"7d"`) or `timedelta`; times
are aware.
"""
PARTS = {
    "The runtime": [
        "runlane.Runlane",
        "runlane.bootstrap.environment_runlane",
        "runlane.bootstrap.migrate",
        "runlane.Lane",
        "runlane.Record",
        "runlane.services.resident.worker.ResidentWorker",
        "runlane.services.resident.worker.WorkerState",
    ],
    "Queues": ["runlane.Queue", "runlane.Throttle"],
    "Tasks": [f"runlane.{name}" for name in ("task", "Task", "Schedule", "Retry", "Exponential", "Fixed")],
    "In a handler": [
        *(f"runlane.{name}" for name in ("Context", "Release", "RetryAfter", "NonRetryable")),
        *(f"runlane.{name}" for name in ("Suspension", "Cancelled", "OutOfTime", "LeaseLost")),
    ],
    "Triggering": [
        "runlane.services.options.TriggerOptions",
        "runlane.services.options.RunNowOptions",
        "runlane.Item",
        "runlane.TriggerResult",
        "runlane.services.trigger.TriggeredRun",
        "runlane.TriggerOutcome",
        "runlane.services.trigger.JoinedTransaction",
        "runlane.RunNowResult",
    ],
    "`runlane().runs`, `.queues`, `.schedules`, `.idempotency_keys`": [
        "runlane.services.operate.runs.Runs",
        "runlane.services.operate.many_runs.ManyRuns",
        "runlane.services.operate.filters.RunFilters",
        "runlane.services.operate.queues.Queues",
        "runlane.services.operate.schedules.Schedules",
        "runlane.services.operate.idempotency_keys.IdempotencyKeys",
    ],
    "What they answer": [
        "runlane.Status",
        "runlane.Source",
        "runlane.BulkReport",
        *(f"runlane.domain.records.{name}" for name in ("RunSummary", "RunRecord", "AttemptRecord", "EventRecord")),
        "runlane.EventType",
        "runlane.domain.outcome.Failure",
        "runlane.domain.records.Page",
        "runlane.QueueStats",
        *(f"runlane.{name}" for name in ("ScheduleRecord", "ScheduleState", "Fire")),
    ],
    "Errors": [
        f"runlane.{name}Error"
        for name in ("Runlane", "Configuration", "Contract", "Payload", "NotFound", "Conflict", "Unavailable", "Invariant")
    ],
}
"""What a reader looks for together. Public names that stand nowhere here follow at the end."""

_HIDDEN = {"self", "cls"}
_SYNTAX = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


def python() -> str:
    package = griffe.load("runlane", search_paths=["shared"], resolve_aliases=True)
    placed = {path for paths in PARTS.values() for path in paths}
    rest = {
        "More": [path for path in _exported(package, "runlane") if path not in placed],
        "`runlane.testing`": list(_exported(package, "runlane.testing")),
    }
    parts = (_part(package, title, paths) for title, paths in {**PARTS, **rest}.items() if paths)
    return HEAD + "".join(parts)


def _exported(package: griffe.Object | griffe.Alias, module: str) -> Iterator[str]:
    found = _at(package, module)
    yield from (f"{module}.{name}" for name in found.exports or ())


def _part(package: griffe.Object | griffe.Alias, title: str, paths: list[str]) -> str:
    return f"\n## {title}\n" + "".join(_named(path, _at(package, path)) for path in paths)


def _at(package: griffe.Object | griffe.Alias, path: str) -> griffe.Object:
    found = package if path == "runlane" else package[path.removeprefix("runlane.")]
    return found.final_target if isinstance(found, griffe.Alias) else found


def _named(path: str, found: griffe.Object) -> str:
    text = f"\n### {path}\n\n"
    if isinstance(found, griffe.Function):
        return text + _code(_call(path.rpartition(".")[2], found)) + _said(found)
    if isinstance(found, griffe.Class):
        return text + _class(found)
    return text + _said(found)


def _class(found: griffe.Class) -> str:
    members = [member for name, member in found.members.items() if not name.startswith("_") and not isinstance(member, griffe.Alias)]
    start = found.members.get("__init__")
    head = _code(_call(found.name, start)) if isinstance(start, griffe.Function) else ""
    fields = "".join(_field(member) for member in members if isinstance(member, griffe.Attribute) and _is_told(member))
    methods = "".join(_method(found, member) for member in members if isinstance(member, griffe.Function))
    return head + _said(found) + (f"{fields}\n" if fields else "") + methods


def _is_told(member: griffe.Attribute) -> bool:
    """Whether it was meant for readers: an enumeration's value, a field, a property; not what a constructor happens to keep."""
    return "class-attribute" in member.labels or member.annotation is not None


def _field(member: griffe.Attribute) -> str:
    value = f" = {member.value}" if member.value is not None and "property" not in member.labels else ""
    kind = f": {member.annotation}" if member.annotation is not None else value
    said = " ".join(member.docstring.value.split()) if member.docstring else ""
    return f"* `{member.name}{kind}`" + (f": {said}" if said else "") + "\n"


def _method(owner: griffe.Class, member: griffe.Function) -> str:
    return f"#### {owner.name}.{member.name}\n\n" + _code(_call(member.name, member)) + _said(member)


def _said(found: griffe.Object) -> str:
    return f"{textwrap.dedent(found.docstring.value).strip()}\n\n" if found.docstring else ""


def _code(text: str) -> str:
    # Shown, not run: the tests run blocks that name a language.
    return f"```\n{text}\n```\n\n"


def _call(name: str, function: griffe.Function) -> str:
    given = list(_parameters(function))
    returns = f" -> {function.returns}" if function.returns is not None and str(function.returns) != "None" else ""
    line = f"{name}({', '.join(given)}){returns}"
    return line if len(line) <= 110 else f"{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){returns}"


def _parameters(function: griffe.Function) -> Iterator[str]:
    starred = False
    for one in function.parameters:
        if one.name in _HIDDEN or str(one.annotation) == "Never":
            continue
        if one.kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        starred = starred or one.kind is griffe.ParameterKind.var_positional
        default = f" = {one.default}" if one.default is not None and one.kind not in _SYNTAX else ""
        yield f"{_SYNTAX.get(one.kind, '')}{one.name}: {one.annotation}{default}" if one.annotation else f"{one.name}{default}"
