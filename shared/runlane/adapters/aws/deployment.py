"""What is deployed, as SQS and Lambda tell it. Reads only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from runlane.adapters.sqs.returning import return_delays
from runlane.ports.deployment import FunctionState, MappingState, QueueState, Unseen

T = TypeVar("T")

_MISSING = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException"})
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AWS.SimpleQueueService.AccessDenied"})


class AwsDeployment:
    """Clients are made when they are first needed. `region`: default: the environment's."""

    def __init__(self, region: str | None = None) -> None:
        self._region = region
        self._clients: dict[str, Any] = {}

    def queue_at(self, url: str) -> QueueState | Unseen | None:
        return _asked("sqs:GetQueueAttributes", lambda: self._queue(url))

    def queue_of(self, arn: str) -> QueueState | Unseen | None:
        *_, account, name = arn.split(":")
        url = _asked("sqs:GetQueueUrl", lambda: str(self._sqs().get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]))
        return self.queue_at(url) if isinstance(url, str) else url

    def mappings(self, queue_arn: str) -> tuple[MappingState, ...] | Unseen:
        found = _asked("lambda:ListEventSourceMappings", lambda: self._mappings(queue_arn))
        return () if found is None else found

    def function(self, name: str) -> FunctionState | Unseen | None:
        return _asked("lambda:GetFunctionConfiguration", lambda: self._function(name))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _queue(self, url: str) -> QueueState:
        told = self._sqs().get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        redrive = json.loads(told.get("RedrivePolicy") or "{}")
        receives, visible_after = int(redrive.get("maxReceiveCount", 0)), timedelta(seconds=int(told["VisibilityTimeout"]))
        is_fifo = told.get("FifoQueue") == "true"
        return QueueState(
            arn=told["QueueArn"],
            is_fifo=is_fifo,
            visible_after=visible_after,
            kept_for=timedelta(seconds=int(told["MessageRetentionPeriod"])),
            is_encrypted=told.get("SqsManagedSseEnabled") == "true" or bool(told.get("KmsMasterKeyId")),
            messages=int(told["ApproximateNumberOfMessages"]),
            dead_letters=redrive.get("deadLetterTargetArn"),
            receives=receives,
            lasts_for=_lasts_for(visible_after, receives) if is_fifo else visible_after * receives,
        )

    def _mappings(self, queue_arn: str) -> tuple[MappingState, ...]:
        pages = self._lambda().get_paginator("list_event_source_mappings").paginate(EventSourceArn=queue_arn)
        return tuple(
            MappingState(
                function=told["FunctionArn"],
                state=told["State"],
                returns_failures="ReportBatchItemFailures" in told.get("FunctionResponseTypes", ()),
                most_at_once=told.get("ScalingConfig", {}).get("MaximumConcurrency"),
            )
            for page in pages
            for told in page["EventSourceMappings"]
        )

    def _function(self, name: str) -> FunctionState:
        told = self._lambda().get_function_configuration(FunctionName=name)
        variables: Mapping[str, str] = told.get("Environment", {}).get("Variables", {})
        # A mapping may name an alias, and has its version's configuration; what follows itself is told of the function alone.
        plain = told["FunctionName"]
        return FunctionState(plain, timedelta(seconds=told["Timeout"]), variables, self._may_follow_itself(plain))

    def _may_follow_itself(self, name: str) -> bool | None:
        found = _asked("lambda:GetFunctionRecursionConfig", lambda: self._lambda().get_function_recursion_config(FunctionName=name))
        return found["RecursiveLoop"] == "Allow" if isinstance(found, dict) and "RecursiveLoop" in found else None

    def _sqs(self) -> Any:
        return self._client("sqs")

    def _lambda(self) -> Any:
        return self._client("lambda")

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            import boto3
            from botocore.config import Config

            config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
            make: Any = boto3.client
            self._clients[service] = make(service, region_name=self._region, config=config)
        return self._clients[service]


def _lasts_for(visible_after: timedelta, receives: int) -> timedelta:
    """The worker shows again sooner what it returns of a FIFO queue, so that the receives are used up sooner, too."""
    return sum((min(visible_after, delay) for delay in return_delays(receives)), timedelta())


def _asked(action: str, ask: Callable[[], T]) -> T | Unseen | None:
    try:
        return ask()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in _MISSING:
            return None
        if code in _DENIED:
            return Unseen(f"{action} is denied", f"allow {action} to whoever runs the doctor")
        return Unseen(f"{action} fails with {code}", "see that these credentials are valid, and the region the one of the stack")
    except BotoCoreError as error:
        return Unseen(f"{action} cannot be called ({type(error).__name__})", "give AWS credentials and a region that reach the account")
