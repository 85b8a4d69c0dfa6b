"""The only reader of the environment; reports all faults at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, ValidationError, model_validator

from runlane.domain.durations import format_duration, parse_duration
from runlane.domain.errors import ConfigurationError, RunlaneError
from runlane.domain.excerpt import storable
from runlane.domain.ids import validate_name
from runlane.domain.retention import read_retention

_VARIABLES = {
    "app": "RUNLANE_APP",
    "environment": "RUNLANE_ENVIRONMENT",
    "database_schema": "RUNLANE_SCHEMA",
    "database_url": "DATABASE_URL",
    "database_secret_arn": "RUNLANE_DATABASE_SECRET_ARN",
    "database_iam": "RUNLANE_DATABASE_IAM",
    "database_role": "RUNLANE_DATABASE_ROLE",
    "database_role_secret_arn": "RUNLANE_DATABASE_ROLE_SECRET_ARN",
    "database_ca": "RUNLANE_DATABASE_CA",
    "transport": "RUNLANE_TRANSPORT",
    "queue_url": "RUNLANE_QUEUE_URL",
    "queue_urls": "RUNLANE_QUEUE_URLS",
    "timers_queue_url": "RUNLANE_TIMERS_QUEUE_URL",
    "message_groups": "RUNLANE_MESSAGE_GROUPS",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "worker_concurrency": "RUNLANE_WORKER_CONCURRENCY",
    "lease_duration": "RUNLANE_LEASE_DURATION",
    "retention": "RUNLANE_RETENTION",
    "tell_runs": "RUNLANE_TELL_RUNS",
    "in_lambda": "AWS_LAMBDA_FUNCTION_NAME",
}
_BY_VARIABLE = {variable: field for field, variable in _VARIABLES.items()}

APP_PATH = r"\w+(\.\w+)*:\w+"
SHORTEST_LEASE = timedelta(seconds=1)
"""A worker extends its leases after a third of their length, so that two heartbeats may fail. Three a second are the most that make
sense: ordinary pauses of a process, a network or a database take hundreds of milliseconds, and must not cost a living worker its runs."""


def _name(value: str) -> str:
    try:
        return validate_name(value, "it")
    except RunlaneError as error:
        # pydantic gathers ValueErrors; ours would end the gathering at the first.
        raise ValueError(error.message) from error


def _lease(value: str) -> str:
    try:
        duration = parse_duration(value, "it")
    except RunlaneError as error:
        raise ValueError(error.message) from error
    if duration < SHORTEST_LEASE:
        raise ValueError(
            f"{value} is shorter than {format_duration(SHORTEST_LEASE)}, which leaves a heartbeat no time to be late; give more"
        )
    return value


def _retention(value: str) -> str:
    try:
        read_retention(value)
    except RunlaneError as error:
        raise ValueError(error.message) from error
    return value


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(expected)
        return value

    return AfterValidator(check)


class Settings(BaseModel):
    """What a process is told by its environment. An empty variable counts as not set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: Annotated[str, _matching(APP_PATH, "name the application as module:attribute, e.g. app:runlane")] = "app:runlane"
    """Where the catalog is, as `module:attribute`: a `Runlane`, or a function that makes one."""
    environment: Annotated[str, AfterValidator(_name)] = "production"
    """Named in every wakeup; a message of another environment is refused."""
    database_schema: Annotated[
        str, _matching(r"(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,62}", "give up to 63 ASCII letters, digits, '_' and '-', not beginning with pg_")
    ] = "runlane"
    """The schema of Runlane's tables. One an environment; a database may hold several."""
    database_url: str | None = None
    """A connection string of the database, `postgresql://user:password@host:5432/database`; without what the next two give."""
    database_secret_arn: str | None = None
    """The ARN of a Secrets Manager secret with the login, in the form that RDS keeps. Host, port and database are the secret's, where
    `DATABASE_URL` does not give them, as it must for a proxy, and for a secret that RDS manages."""
    database_iam: bool = False
    """`1`: log in as `DATABASE_URL`'s user with an IAM token as the password, as RDS, Aurora and RDS Proxy take it."""
    database_role: Annotated[str, Field(max_length=63)] | None = None
    """The role that the runtime logs in as, when migrate logs in as another: migrate grants it what it needs."""
    database_role_secret_arn: str | None = None
    """The ARN of the secret with that role's login, when migrate is to make the role, too."""
    database_ca: str | None = None
    """A file of root certificates for the database's TLS; default: for hosts of RDS those of RDS and of Amazon, else the system's."""
    transport: Literal["sqs", "none"] = "sqs"
    """none: nothing is published, and runs are started by workers that poll."""
    queue_url: str | None = None
    """The SQS queue of every Runlane queue that `RUNLANE_QUEUE_URLS` does not name."""
    queue_urls: Json[dict[str, str]] = Field(default_factory=dict)
    """A JSON object of Runlane queue to SQS queue URL, for queues with an SQS queue of their own."""
    timers_queue_url: str | None = None
    """The standard SQS queue through which delayed wakeups of FIFO queues go; needed when one is bound."""
    message_groups: Json[dict[str, Literal["run", "queue", "key"]]] = Field(default_factory=dict)
    """A JSON object of Runlane queue to `run` (else), `queue` or `key`: what is kept in order on queues bound to FIFO."""
    endpoint_url: Annotated[str, _matching(r"https?://[^/\s]+.*", "give an http or https URL, e.g. http://127.0.0.1:4566")] | None = None
    """Another SQS than AWS's."""
    worker_concurrency: Annotated[int, Field(ge=1, le=1000)] = 10
    """Attempts of a process at a time."""
    lease_duration: Annotated[str, AfterValidator(_lease)] = "60s"
    """How long a silent worker keeps its runs; at least 1 s."""
    retention: Annotated[str, AfterValidator(_retention)] = "90d"
    """How long ended runs are kept, at least 1 d, or `forever`. Not shorter than any task's idempotency TTL."""
    tell_runs: bool = False
    """`1`: say on the standard error what became of each delivery's runs, as `runlane dev` does."""
    in_lambda: bool = False
    """Set by Lambda: metrics are written, and an attempt that overstays its deadline ends the process."""

    @model_validator(mode="after")
    def _one_database(self) -> Settings:
        if self.database_url is None and self.database_secret_arn is None:
            raise ValueError(
                "no database is named: set DATABASE_URL or RUNLANE_DATABASE_SECRET_ARN; "
                "in the folder of a running `runlane dev`, `set -a; . .runlane/env` sets all there is to set"
            )
        if self.database_iam and self.database_secret_arn is not None:
            raise ValueError("two ways to log in are named: set only one of RUNLANE_DATABASE_SECRET_ARN and RUNLANE_DATABASE_IAM")
        if self.database_iam and self.database_url is None:
            raise ValueError(
                "RUNLANE_DATABASE_IAM needs to know where, and as whom: set DATABASE_URL to postgresql://user@host:5432/database"
            )
        return self


def read_settings(variables: Mapping[str, str] | None = None) -> Settings:
    """Settings from `variables`, by default the process's environment; `ConfigurationError` lists every fault by its variable."""
    source = os.environ if variables is None else variables
    given: dict[str, Any] = {field: source[variable] for variable, field in _BY_VARIABLE.items() if source.get(variable)}
    if "in_lambda" in given:
        given["in_lambda"] = True
    # As a process gets what is not UTF-8: nothing that it is handed to could take it.
    ConfigurationError.raise_if(f"{_VARIABLES[field]}: is not UTF-8; correct it" for field, value in given.items() if not _is_text(value))
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        # Not `from error`: pydantic's report of the same faults above ours would only hide it.
        raise ConfigurationError(_fault(detail["loc"], detail["msg"]) for detail in error.errors()) from None


def app_path() -> str:
    """Where the environment says that the application is; nothing else need be set."""
    return os.environ.get(_VARIABLES["app"]) or str(Settings.model_fields["app"].default)


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return _VARIABLES[field]


def variables_of_process() -> Mapping[str, str]:
    """The environment to hand to a child process."""
    return dict(os.environ)


def adopt_variables(variables: Mapping[str, str], *, alone: bool = False) -> None:
    """Set variables of this process's environment, for all that reads it and for child processes; alone: forget every other setting."""
    for variable in _BY_VARIABLE if alone else ():
        os.environ.pop(variable, None)
    os.environ.update(variables)


def _is_text(value: str | bool) -> bool:
    return not isinstance(value, str) or storable(value) == value


def _fault(location: tuple[int | str, ...], message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"{_VARIABLES.get(str(location[0]), location[0])}: {text}" if location else text
