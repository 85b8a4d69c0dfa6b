"""What went wrong between us and SQS, sorted by whether sending again may help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Operation = Literal["publish", "get_queue_url", "receive", "delete", "hide"]

CONFIGURATION_INVALID = "configuration_invalid"
TRANSPORT_UNAVAILABLE = "transport_unavailable"
TRANSPORT_PUBLISH_FAILED = "transport_publish_failed"

_MAX_TEXT = 300
_MISSING_QUEUE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "KMS.ThrottlingException",
        "KmsThrottled",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_TRANSIENT = frozenset({"InternalError", "InternalFailure", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable"})
# The next attempt is signed anew, with fresh credentials.
_STALE_SIGNATURE = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed"})
_RETRYABLE_CODES = _THROTTLED | _TRANSIENT | _STALE_SIGNATURE


class Fault(NamedTuple):
    """Why a wakeup was not sent. `code` is stable; `detail` is at most 300 characters and for people."""

    code: str
    detail: str
    retryable: bool

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def classify(error: Exception, operation: Operation) -> Fault:
    """Sort what an AWS call raised; what is unknown is not retryable."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return _client_fault(error.response, operation)
    detail = _bounded(f"{operation}: {type(error).__name__}: {error}")
    if _is_connection_trouble(error):
        return Fault(TRANSPORT_UNAVAILABLE, detail, retryable=True)
    return Fault(TRANSPORT_PUBLISH_FAILED, detail, retryable=False)


def entry_fault(failed: Mapping[str, Any]) -> Fault:
    """Sort one entry of `Failed` in a batch's answer: the sender's fault is not retryable, whatever else is."""
    code = str(failed.get("Code", "unknown"))
    retryable = not failed.get("SenderFault", False) or code in _RETRYABLE_CODES
    return Fault(TRANSPORT_PUBLISH_FAILED, _bounded(f"publish: {code}: {failed.get('Message', '')}"), retryable)


def unanswered() -> Fault:
    """An entry that the batch's answer names not exactly once."""
    return Fault(TRANSPORT_PUBLISH_FAILED, "publish: SQS did not say what became of the entry", retryable=True)


def not_sent(cause: Fault) -> Fault:
    """An entry held back because SQS is out of reach, or because one before it in its group was not sent."""
    return Fault(TRANSPORT_UNAVAILABLE, _bounded(f"publish: not sent after {cause.detail}"), retryable=True)


def unbound(queue: str) -> Fault:
    return Fault(CONFIGURATION_INVALID, f"publish: queue {queue!r} has no SQS binding; add sqs_queue(...)", retryable=False)


def _client_fault(response: Mapping[str, Any], operation: Operation) -> Fault:
    error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, status = str(error.get("Code", "unknown")), metadata.get("HTTPStatusCode", 0)
    detail = _bounded(f"{operation}: {code} (HTTP {status}, request {metadata.get('RequestId', '?')}): {error.get('Message', '')}")
    if operation == "get_queue_url" and code in _MISSING_QUEUE:
        return Fault(CONFIGURATION_INVALID, detail, retryable=False)
    if status == 429 or status >= 500 or code in _RETRYABLE_CODES:
        return Fault(TRANSPORT_UNAVAILABLE, detail, retryable=True)
    return Fault(TRANSPORT_PUBLISH_FAILED if operation == "publish" else TRANSPORT_UNAVAILABLE, detail, retryable=False)


def _is_connection_trouble(error: Exception) -> bool:
    from botocore import exceptions, parsers

    return isinstance(
        error,
        (
            OSError,
            exceptions.ConnectionError,
            exceptions.HTTPClientError,
            exceptions.IncompleteReadError,
            exceptions.CredentialRetrievalError,
            exceptions.MetadataRetrievalError,
            parsers.ResponseParserError,
        ),
    )


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
