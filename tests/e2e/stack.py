"""The deployed stack, as its operator sees it, and a client that triggers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from runlane.domain.ids import RunId
from runlane.domain.records import RunRecord
from runlane.runtime import Runlane
from tests.e2e.application import Work
from tests.e2e.cloud import APP, Cloud, Project
from tests.waiting import until

NAME = "runlane-e2e"
MAXIMUM_CONCURRENCY = 2


class Stack:
    def __init__(self, cloud: Cloud, project: Project, database: psycopg.Connection, secrets: dict[str, str]) -> None:
        self.cloud = cloud
        self.project = project
        self.database = database
        self._secrets = secrets
        self._changes: dict[str, str] = {}
        self.runlane: Runlane

    def deploy(self, **changes: str) -> None:
        """Build, and create or update the stack, with other parameters than before if any are given."""
        self._changes |= changes
        parameters = {
            "EnvironmentName": "e2e",
            "App": APP,
            "DatabaseSecretArn": self._secrets["runtime"],
            "DatabaseAdminSecretArn": self._secrets["owner"],
            "DatabaseRole": "runtime",
            "WorkerMaximumConcurrency": MAXIMUM_CONCURRENCY,
            **self._changes,
        }
        self.project.sam("build")
        named = [f"{name}={value}" for name, value in parameters.items()]
        self.project.sam(
            "deploy", "--stack-name", NAME, "--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset",
            "--parameter-overrides", *named,
        )  # fmt: skip
        self._give_mappings_numbers()

    def _give_mappings_numbers(self) -> None:
        """The emulator keeps numbers that come from parameters as text, and then polls nothing; AWS reads them as numbers."""
        functions = self.cloud.client("lambda")
        for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
            maximum = int(mapping["ScalingConfig"]["MaximumConcurrency"])
            functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig={"MaximumConcurrency": maximum})

    def delete(self) -> None:
        self.project.sam("delete", "--stack-name", NAME, "--no-prompts")

    @property
    def outputs(self) -> dict[str, str]:
        (stack,) = self.cloud.client("cloudformation").describe_stacks(StackName=NAME)["Stacks"]
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def worker(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cloud.client("lambda").get_function_configuration(FunctionName=self.outputs["WorkerName"])
        return found

    def version(self) -> dict[str, Any]:
        """What of the worker its mappings invoke; fails unless that is one version."""
        functions = self.cloud.client("lambda")
        (arn,) = {mapping["FunctionArn"] for mapping in functions.list_event_source_mappings()["EventSourceMappings"]}
        found: dict[str, Any] = functions.get_function_configuration(FunctionName=arn)
        return found

    def trigger(self, task: Any, works: Iterable[Work]) -> list[RunId]:
        return [result.run.run_id for result in self.runlane.trigger_many(task, list(works))]

    def ended(self, run_ids: Sequence[RunId], timeout: float = 60.0) -> list[RunRecord]:
        """The runs, when all have ended."""
        until(lambda: self._open(run_ids) == 0, timeout)
        return [self.runlane.runs.get(run_id) for run_id in run_ids]

    def _open(self, run_ids: Sequence[RunId]) -> int:
        ended = "SELECT count(*) FROM runlane.outcome WHERE run_id = ANY (%s::uuid[])"
        ((count,),) = self.database.execute(ended, (list(run_ids),)).fetchall()
        return len(run_ids) - int(count)
