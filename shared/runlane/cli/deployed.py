"""What `runlane doctor` asks about what is deployed: from settings to checks, and from a function's variables to this process's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runlane.cli.project import find_project
from runlane.domain.errors import ConfigurationError
from runlane.domain.finding import Finding, Level

if TYPE_CHECKING:
    from runlane.services.doctor import Check
    from runlane.services.doctor.deployment import BoundQueue, Difference
    from runlane.settings import Settings

_COMPARED = {
    **dict.fromkeys(("environment", "database_schema", "queue_url", "queue_urls", "timers_queue_url", "message_groups"), Level.FAILURE),
    **dict.fromkeys(("app", "lease_duration", "retention"), Level.WARNING),
}
"""Settings that a process and the functions must agree on, and how bad it is when they do not. None of them is secret."""


def adopt_function(name: str) -> None:
    """Take over the variables of a deployed function, and forget those of this process; `ConfigurationError` when it cannot be read."""
    from runlane.adapters.aws.deployment import AwsDeployment
    from runlane.ports.deployment import FunctionState
    from runlane.settings import adopt_variables

    with ExitStack() as opened:
        deployment = AwsDeployment()
        opened.callback(deployment.close)
        found = deployment.function(name)
    if not isinstance(found, FunctionState):
        fault = "there is none of this name in the region" if found is None else f"{found.what}; {found.remedy}"
        raise ConfigurationError(f"--function {name}: {fault}", code="function_unreadable")
    adopt_variables(found.variables, alone=True)


def is_deployed(settings: Settings) -> bool:
    """Whether the queues are AWS's own. Others have neither mappings nor redrives that anybody made."""
    return settings.transport == "sqs" and settings.endpoint_url is None


def deployed_checks(settings: Settings, opened: ExitStack) -> tuple[tuple[str, Check], ...]:
    from runlane.adapters.aws.deployment import AwsDeployment
    from runlane.domain.durations import parse_duration
    from runlane.services.doctor.deployment import deployment_checks

    queues = _bound(settings)
    deployment = AwsDeployment(_region(queues))
    opened.callback(deployment.close)
    lease = parse_duration(settings.lease_duration)
    return deployment_checks(deployment, queues, lease=lease, differences=lambda theirs: _differences(theirs, settings))


def template_finding(queues: list[str]) -> Iterator[Finding]:
    """Of the project's template.yaml, if it has one."""
    from runlane.adapters.cloudformation.blocks import Template
    from runlane.services.doctor.deployment import template_check

    path = find_project().folder / "template.yaml"
    if not path.is_file():
        return
    template = Template(path.read_text(encoding="utf-8"))
    if faults := template.faults():
        yield template_check(path.name, is_current=None, faults=faults)
        return
    fifo = {name: group for name, group in template.fifo().items() if name in queues}
    yield template_check(path.name, is_current=template.renewed(queues, fifo) == template.text)


def _region(queues: Sequence[BoundQueue]) -> str | None:
    """The region of the queues, which need not be the environment's; None where their URLs do not tell."""
    found = (re.match(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com", queue.url) for queue in queues)
    return next((match[1] for match in found if match), None)


def _bound(settings: Settings) -> list[BoundQueue]:
    from runlane.services.doctor.deployment import BoundQueue

    bound = [BoundQueue(name, url) for name, url in settings.queue_urls.items()]
    if settings.queue_url is not None:
        bound.append(BoundQueue("all others" if bound else "all queues", settings.queue_url))
    if settings.timers_queue_url is not None:
        bound.append(BoundQueue("timers", settings.timers_queue_url))
    return bound


def _differences(variables: Mapping[str, str], ours: Settings) -> Iterator[Difference]:
    from runlane.services.doctor.deployment import Difference
    from runlane.settings import read_settings, variable_of

    theirs = read_settings(variables)
    for field, level in _COMPARED.items():
        there, here = getattr(theirs, field), getattr(ours, field)
        if there != here:
            yield Difference(variable_of(field), str(there or ""), str(here or ""), level)
