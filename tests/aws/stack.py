"""What the template makes, in an account that moto keeps."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import boto3

REGION = "eu-west-1"


class Stack:
    """What the template makes, but for what is given otherwise."""

    def __init__(self) -> None:
        self.sqs: Any = boto3.client("sqs", region_name=REGION)
        self.functions: Any = boto3.client("lambda", region_name=REGION)
        assume = json.dumps({"Version": "2012-10-17", "Statement": []})
        self.role = boto3.client("iam").create_role(RoleName="worker", AssumeRolePolicyDocument=assume)["Role"]["Arn"]

    def function(self, timeout: int = 300, **variables: str) -> str:
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("app.py", "")
        made = self.functions.create_function(
            FunctionName="worker",
            Runtime="python3.13",
            Role=self.role,
            Handler="app.handler",
            Code={"ZipFile": code.getvalue()},
            Timeout=timeout,
            Environment={"Variables": variables},
        )
        return str(made["FunctionArn"])

    def queue(self, name: str, receives: int | None = 5, letters_kept: int = 1209600, **attributes: str) -> str:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        redrive = {}
        if receives is not None:
            letters = self.sqs.create_queue(QueueName=f"letters-{name}", Attributes={"MessageRetentionPeriod": str(letters_kept), **fifo})[
                "QueueUrl"
            ]
            redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": self.arn(letters), "maxReceiveCount": receives})}
        made = {"VisibilityTimeout": "1860", "MessageRetentionPeriod": "1209600", "SqsManagedSseEnabled": "true"}
        return str(self.sqs.create_queue(QueueName=name, Attributes={**made, **fifo, **redrive, **attributes})["QueueUrl"])

    def arn(self, url: str) -> str:
        return str(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])

    def map(self, url: str, function: str, **given: Any) -> str:
        made = {"FunctionResponseTypes": ["ReportBatchItemFailures"], "ScalingConfig": {"MaximumConcurrency": 10}, **given}
        return str(self.functions.create_event_source_mapping(EventSourceArn=self.arn(url), FunctionName=function, **made)["UUID"])
