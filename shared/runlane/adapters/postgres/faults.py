"""Database errors in our own words, sorted by who must act."""

from __future__ import annotations

import psycopg
from psycopg import errors

from runlane.adapters.postgres.partitions import lacks_partition
from runlane.domain.errors import ConfigurationError, ConflictError, InvariantError, RunlaneError, UnavailableError

_TRANSIENT = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.TooManyConnections,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.DiskFull,
    errors.OutOfMemory,
    errors.IdleInTransactionSessionTimeout,
    errors.ReadOnlySqlTransaction,
)
_OUTAGES = ("08", "53", "57", "58")
"""Classes of SQLSTATE: connections, resources, an operator, the system."""
_TRUST = "name a file with the roots that signed its certificate, for RDS AWS's global-bundle.pem, and reach it by a name that this is for"
_REASONS = {
    "53100": "its disk is full: free space or add some, and work goes on by itself",
    "55P03": "a lock was not given within its lock_timeout",
    "57014": "a statement took longer than its statement_timeout",
}
"""What a person can do something about, beside the SQLSTATE."""
_NAMING = (errors.ObjectNotInPrerequisiteState, errors.DependentObjectsStillExist)
"""Raised by statements about tables: their message names objects, and never a value."""


def translate(error: psycopg.Error) -> RunlaneError:
    """The error to raise instead; `from` keeps the original. Messages carry no parameter values."""
    state = error.sqlstate or ""
    if state == "RL001":
        return ConfigurationError([str(error).splitlines()[0]], code="queue_not_migrated")
    if state == "RL002":
        return ConflictError("run_moving", str(error).splitlines()[0])
    if state == "RL003":
        code, _, message = str(error).splitlines()[0].partition(": ")
        return ConflictError(code, message)
    if isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure)):
        return ConflictError("storage_conflict", "the database chose this transaction to give way to another; try again")
    if isinstance(error, (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)):
        return ConfigurationError(["the database has no schema of this release: run `runlane migrate`"], code="schema_missing")
    if lacks_partition(error):
        fault = "no time partition takes this run, as maintenance has not run for weeks: start it again, or run `runlane tick` once"
        return UnavailableError("partition_missing", f"{fault}, and try again; `runlane doctor` tells which are missing")
    if isinstance(error, errors.InsufficientPrivilege):
        fault = f"the database refuses the runtime's role ({str(error).splitlines()[0]}); run `runlane migrate` as the owner of the schema"
        return ConfigurationError([f"{fault}, with RUNLANE_DATABASE_ROLE naming that role"], code="privilege_missing")
    if isinstance(error, _NAMING):
        state = f"{state}: {error.diag.message_primary}"
    if isinstance(error, psycopg.OperationalError) and (line := next((one for one in str(error).splitlines() if "certificate" in one), "")):
        fault = f"the database is not believed to be what it says ({line.strip()})"
        return ConfigurationError([f"RUNLANE_DATABASE_CA: {fault}; {_TRUST}"], code="certificate_refused")
    if isinstance(error, (*_TRANSIENT, psycopg.OperationalError, psycopg.InterfaceError)):
        reason = f"; {_REASONS[state]}" if state in _REASONS else ""
        return UnavailableError("storage_unavailable", f"the database cannot be used now ({state or type(error).__name__}){reason}")
    return InvariantError("storage_refused", f"the database refused a statement ({state or type(error).__name__})")


def refusal(error: RunlaneError) -> tuple[str, str] | None:
    """SQLSTATE and the server's message, where it refused the statement itself; None: it could not be asked, or not now."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or not cause.sqlstate or isinstance(cause, _TRANSIENT) or cause.sqlstate[:2] in _OUTAGES:
        return None
    return cause.sqlstate, cause.diag.message_primary or ""
