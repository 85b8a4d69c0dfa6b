from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalSqs
from runlane.adapters.postgres.migrate import migrate
from tests.docs.reader import follow

PAGE_TAKES_AT_MOST = 60.0
Follow = Callable[[Path], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """With a database `template` that holds the schema, to be copied for each page."""
    with LocalPostgres(durable=False) as server:
        with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE template")
        with psycopg.connect(server.socket_dsn, dbname="template") as connection:
            migrate(connection, schema="runlane", environment="production")
        yield server


@pytest.fixture(scope="session")
def sqs() -> Iterator[LocalSqs]:
    with LocalSqs() as server:
        yield server


@pytest.fixture
def follow_page(postgres: LocalPostgres, sqs: LocalSqs, tmp_path: Path) -> Follow:
    """Follows a page to its end; what was not true of it."""
    processes = get_context("forkserver")
    # Loaded once for all pages; nothing that reads a page's environment when it is imported.
    processes.set_forkserver_preload(["tests.docs.reader", "runlane.bootstrap", "runlane.cli.application", "boto3"])

    def follow_to_its_end(page: Path) -> str:
        name = re.sub(r"\W", "_", page.stem.lower())
        with psycopg.connect(postgres.socket_dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE page_{name} TEMPLATE template STRATEGY file_copy".encode())
        url = sqs.create_queue(f"page-{name}", visibility_timeout=timedelta(seconds=180)).url
        dsn = postgres.dsn.rpartition("/")[0]
        variables = {"DATABASE_URL": f"{dsn}/page_{name}", "RUNLANE_QUEUE_URL": url, **sqs.variables}
        folder, report = tmp_path / "folder", tmp_path / "report"
        folder.mkdir()
        process = processes.Process(target=follow, args=(page, folder, variables, report))
        process.start()
        process.join(PAGE_TAKES_AT_MOST)
        if process.is_alive():
            process.kill()
            return f"{page.name} takes longer than {PAGE_TAKES_AT_MOST:.0f} s"
        return report.read_text(encoding="utf-8") if report.exists() else f"{page.name}: its process ended with {process.exitcode}"

    return follow_to_its_end
