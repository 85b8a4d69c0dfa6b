"""Errors sorted by who must act. Branch on `code`, never on text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

CONFIGURATION_INVALID = "configuration_invalid"
PAYLOAD_INVALID = "payload_invalid"
PAYLOAD_TOO_LARGE = "payload_too_large"
RESULT_TOO_LARGE = "result_too_large"


class RunlaneError(Exception):
    """Whatever Runlane raises.

    `code` is stable and snake_case; `message` says what is wrong and what mends it; `retryable` says whether the same
    call may succeed later (default: what the class says); `meta` holds JSON-able facts (default: empty).
    """

    retryable_by_default: ClassVar[bool] = False

    def __init__(self, code: str, message: str, *, retryable: bool | None = None, meta: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.meta: dict[str, Any] = dict(meta or {})

    def __str__(self) -> str:
        return self.message


class ConfigurationError(RunlaneError):
    """The deployer must act, before start-up succeeds. `faults` lists everything that is wrong, not only the first."""

    def __init__(self, faults: str | Iterable[str], *, code: str = CONFIGURATION_INVALID) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__(code, _listed(self.faults), meta={"faults": list(self.faults)})
        # Pickling calls the class with `args`, so they must be what this constructor takes.
        self.args = (self.faults,)

    @classmethod
    def raise_if(cls, faults: Iterable[str]) -> None:
        """Raise one error with all faults; return when there are none."""
        if found := tuple(faults):
            raise cls(found)


class ContractError(RunlaneError):
    """The caller must act: the input is malformed, and the same input will be refused again."""


class PayloadError(ContractError):
    """A payload that does not fit its task; `meta["fields"]` is `[{"path": "user.id", "message": "…"}, …]`."""

    def __init__(self, message: str, fields: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(PAYLOAD_INVALID, message, meta={"fields": [dict(field) for field in fields]})
        self.args = (message, self.meta["fields"])


class NotFoundError(RunlaneError):
    """What was named does not exist."""


class ConflictError(RunlaneError):
    """Another one was faster or holds what is needed: a stale claim, a lost lease, no capacity."""

    retryable_by_default = True


class UnavailableError(RunlaneError):
    """Storage or transport is out of reach."""

    retryable_by_default = True


class InvariantError(RunlaneError):
    """A bug in Runlane: something that must never be false is false. Raises an alarm."""


def _listed(faults: Sequence[str]) -> str:
    return faults[0] if len(faults) == 1 else "\n".join([f"{len(faults)} faults:", *(f"- {fault}" for fault in faults)])
