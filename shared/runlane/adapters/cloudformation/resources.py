"""An SQS queue, its dead letters, its mapping and its alarms for each queue of the catalog; what the functions may do with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from textwrap import dedent, indent
from typing import Any

from runlane.adapters.cloudformation.dashboard import dashboard
from runlane.adapters.cloudformation.names import TIMERS, logical_names
from runlane.adapters.sqs.bindings import MessageGroup

VISIBILITY = 1860
"""Seconds: six times the worker's timeout, and the longest batch window. SQS must not hand out again what a batch still holds."""
RECEIVES, FIFO_RECEIVES = 5, 15
"""After which a message is a dead letter. The last of ten in a group may be received ten times before it is the first, without anything
being wrong."""


def resources(queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> str:
    names = logical_names(queues)
    parts = [part for queue in queues for part in _queue(names[queue], queue, is_fifo=queue in fifo)]
    if fifo:
        # FIFO delays no single message: wakeups of FIFO queues that are due later wait here, and are published there by the worker.
        parts += _queue(TIMERS, "timers of FIFO queues", is_fifo=False)
    standing = [*names.values(), *([TIMERS] if fifo else [])]
    parts += _policies(standing, [names[queue] for queue in fifo])
    parts.append(dashboard(standing))
    return "\n\n".join(parts)


def _queue(name: str, title: str, *, is_fifo: bool) -> Iterator[str]:
    receives = FIFO_RECEIVES if is_fifo else RECEIVES
    yield _filled(_DEAD_LETTERS, name=name, fifo="\n    FifoQueue: true" if is_fifo else "")
    yield _filled(_QUEUE, name=name, fifo=_FIFO if is_fifo else "", visibility=VISIBILITY, receives=receives)
    # FIFO knows no batch window; a batch ends with its slowest, and until then SQS holds the groups of all.
    yield _filled(_MAPPING, name=name, batch="1" if is_fifo else "10", window="" if is_fifo else _WINDOW)
    yield _alarm(
        f"{name}DeadLettersAlarm", f"Dead letters of {title}: no worker could read them. Look at one, mend its cause, and start a redrive.",
        f"{name}DeadLetters", "ApproximateNumberOfMessagesVisible", "0", "1",
    )  # fmt: skip
    yield _alarm(
        f"{name}OldestMessageAlarm", f"Wakeups of {title} are not received: workers are too few, throttled, or failing.",
        f"{name}Queue", "ApproximateAgeOfOldestMessage", "!Ref OldestMessageSeconds", "5",
    )  # fmt: skip


def _alarm(name: str, description: str, queue: str, metric: str, threshold: str, periods: str) -> str:
    return _filled(
        _ALARM,
        name=name,
        description=json.dumps(description, ensure_ascii=False),
        queue=queue,
        metric=metric,
        threshold=threshold,
        periods=periods,
    )


def _policies(names: Sequence[str], fifo: Sequence[str]) -> Iterator[str]:
    every = _arns(f"{name}Queue" for name in names)
    returned = _filled(_RETURN, arns=_arns(f"{name}Queue" for name in fifo)) if fifo else ""
    yield _filled(_SEND, arns=every)
    yield _filled(_RECEIVE, arns=every, returned=returned)


def _arns(queues: Iterator[str]) -> str:
    return "\n".join(f"            - !GetAtt {queue}.Arn" for queue in queues)


def _filled(text: str, **values: Any) -> str:
    return Template(text).substitute({name: str(value) for name, value in values.items()})


def _text(text: str) -> str:
    return dedent(text).strip("\n")


_DEAD_LETTERS = _text("""
    ${name}DeadLetters:
      Type: AWS::SQS::Queue
      Properties:$fifo
        MessageRetentionPeriod: 1209600
        SqsManagedSseEnabled: true
""")
_FIFO = indent(_text("""
    FifoQueue: true
    # What SQS limits is then each group, not the queue.
    DeduplicationScope: messageGroup
    FifoThroughputLimit: perMessageGroupId
"""), "    ").join(["\n", ""])  # fmt: skip
_QUEUE = _text("""
    ${name}Queue:
      Type: AWS::SQS::Queue
      Properties:$fifo
        VisibilityTimeout: $visibility
        MessageRetentionPeriod: 1209600
        SqsManagedSseEnabled: true
        RedrivePolicy:
          deadLetterTargetArn: !GetAtt ${name}DeadLetters.Arn
          maxReceiveCount: $receives
""")
_WINDOW = "\n    MaximumBatchingWindowInSeconds: !Ref BatchWindowSeconds"
_MAPPING = _text("""
    ${name}Mapping:
      Type: AWS::Lambda::EventSourceMapping
      Properties:
        FunctionName: !If [Snapshots, !Ref WorkerAlias, !Ref Worker]
        EventSourceArn: !GetAtt ${name}Queue.Arn
        BatchSize: $batch$window
        FunctionResponseTypes: [ReportBatchItemFailures]
        ScalingConfig:
          MaximumConcurrency: !Ref WorkerMaximumConcurrency
""")
_ALARM = _text("""
    $name:
      Type: AWS::CloudWatch::Alarm
      Properties:
        AlarmDescription: $description
        Namespace: AWS/SQS
        MetricName: $metric
        Dimensions: [{Name: QueueName, Value: !GetAtt $queue.QueueName}]
        Statistic: Maximum
        Period: 60
        EvaluationPeriods: $periods
        Threshold: $threshold
        ComparisonOperator: GreaterThanThreshold
        TreatMissingData: notBreaching
        AlarmActions: !If [Alarms, [!Ref AlarmTopicArn], !Ref AWS::NoValue]
        OKActions: !If [Alarms, [!Ref AlarmTopicArn], !Ref AWS::NoValue]
""")
_SEND = _text("""
    SendWakeups:
      Type: AWS::IAM::ManagedPolicy
      Properties:
        PolicyDocument:
          Version: "2012-10-17"
          Statement:
            - Effect: Allow
              Action: sqs:SendMessage
              Resource:
""") + "\n$arns"  # fmt: skip
_RECEIVE = _text("""
    ReceiveWakeups:
      Type: AWS::IAM::ManagedPolicy
      Properties:
        PolicyDocument:
          Version: "2012-10-17"
          Statement:
            - Effect: Allow
              Action: [sqs:DeleteMessage, sqs:GetQueueAttributes, sqs:ReceiveMessage]
              Resource:
""") + "\n$arns$returned"  # fmt: skip
_RETURN = "\n" + indent(_text("""
    # What is returned shows again soon: its group stands still until then.
    - Effect: Allow
      Action: sqs:ChangeMessageVisibility
      Resource:
"""), "        ") + "\n$arns"  # fmt: skip
