"""The functions as they are shipped, on a Postgres of their own, through Lambda's own runtime client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest

from benchmarks.artifact import Artifact, NotHere, make_artifact
from benchmarks.lambda_runtime import ExecutionEnvironment, Function
from tests.conftest import Running

Start = Callable[..., ExecutionEnvironment]
"""`(function, *interpreter options, **environment variables)`."""
QUEUE_URL = "http://127.0.0.1:9/000000000000/main"
"""Nobody answers there."""


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    try:
        return make_artifact(tmp_path_factory.mktemp("artifact"))
    except NotHere as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def dsn(running: Callable[[int], Running]) -> Iterator[str]:
    with running(18).databases.lend() as found:
        yield found


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def start(artifact: Artifact, dsn: str) -> Iterator[Start]:
    with ExitStack() as started:

        def begin(function: str, *options: str, **variables: str) -> ExecutionEnvironment:
            given = {"DATABASE_URL": dsn, "RUNLANE_ENVIRONMENT": "test", "RUNLANE_QUEUE_URL": QUEUE_URL, **variables}
            made = Function(artifact.python, artifact.brought, artifact.code, artifact.layers, f"{function}.app.handler", given)
            environment = ExecutionEnvironment(replace(made, options=options))
            started.callback(environment.close)
            return environment

        yield begin
