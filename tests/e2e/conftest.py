from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.local.postgres import LocalPostgres
from tests.e2e import application
from tests.e2e.cloud import MINISTACK, SAM, Cloud, Project
from tests.e2e.stack import Stack

PASSWORD = "of the runtime"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Deployed from an empty account on an empty database, and a client of it."""
    missing = [str(tool) for tool in (MINISTACK, SAM) if not tool.exists()]
    assert not missing, f"{', '.join(missing)} is missing: run `make e2e`"
    with ExitStack() as opened, pytest.MonkeyPatch.context() as environment:
        server = opened.enter_context(LocalPostgres(durable=False))
        database = opened.enter_context(psycopg.connect(server.dsn, autocommit=True))
        database.execute(f"CREATE ROLE runtime LOGIN PASSWORD '{PASSWORD}'".encode())
        cloud = opened.enter_context(Cloud())
        project = Project(tmp_path_factory.mktemp("project"), cloud.variables)
        stack = Stack(cloud, project, database, keep_secrets(cloud, server))
        stack.deploy()
        for variable, value in {**cloud.variables, **client_variables(stack, server)}.items():
            environment.setenv(variable, value)
        stack.runlane = application.runlane()
        opened.callback(stack.runlane.close)
        yield stack


def keep_secrets(cloud: Cloud, server: LocalPostgres) -> dict[str, str]:
    """The ARNs of the two logins, in the form that RDS keeps."""
    secrets, parts = cloud.client("secretsmanager"), conninfo_to_dict(server.dsn)
    place = {"host": parts["host"], "port": int(str(parts["port"])), "dbname": parts["dbname"]}
    logins = {"owner": (parts["user"], parts["password"]), "runtime": ("runtime", PASSWORD)}
    return {
        name: secrets.create_secret(Name=name, SecretString=json.dumps({**place, "username": user, "password": password}))["ARN"]
        for name, (user, password) in logins.items()
    }


def client_variables(stack: Stack, server: LocalPostgres) -> dict[str, str]:
    """A web application's, which triggers: what the functions are told, and a database login of its own."""
    told = {name: value for name, value in stack.worker()["Environment"]["Variables"].items() if name.startswith("RUNLANE_")}
    del told["RUNLANE_DATABASE_SECRET_ARN"]
    return {**told, "DATABASE_URL": server.dsn}
