from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from threading import Lock

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalSqs
from runlane.adapters.postgres.migrate import migrate
from tests.docs.reader import follow

PAGE_TAKES_AT_MOST = 90.0
PAGES_AT_ONCE = 4
Follow = Callable[[Path], str]
Problems = Callable[[Path], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """With a database `template` that holds the schema, to be copied for each page."""
    with LocalPostgres(durable=False) as server:
        with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE template")
        with psycopg.connect(server.socket_dsn, dbname="template") as connection:
            migrate(connection, schema="runlane", environment="production")
        yield server
        # Nothing of it is wanted any more.
        server.kill()


@pytest.fixture(scope="session")
def sqs() -> Iterator[LocalSqs]:
    with LocalSqs() as server:
        yield server


@pytest.fixture(scope="session")
def follow_page(postgres: LocalPostgres, sqs: LocalSqs, tmp_path_factory: pytest.TempPathFactory) -> Follow:
    """Follows a page to its end; what was not true of it."""
    processes = get_context("forkserver")
    # Loaded once for all pages; nothing that reads a page's environment when it is imported.
    processes.set_forkserver_preload(["tests.docs.reader", "runlane.bootstrap", "runlane.cli.application", "boto3"])
    starting = Lock()

    def follow_to_its_end(page: Path) -> str:
        with starting:
            folder = tmp_path_factory.mktemp(re.sub(r"\W", "_", page.stem.lower()))
            name, report = folder.name, folder / "report"
            with psycopg.connect(postgres.socket_dsn, autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template STRATEGY file_copy'.encode())
            url = sqs.create_queue(name, visibility_timeout=timedelta(seconds=180)).url
            dsn = postgres.dsn.rpartition("/")[0]
            databases = {"DATABASE_URL": f"{dsn}/{name}", "RUNLANE_TEST_DATABASE_URL": postgres.dsn}
            variables = {**databases, "RUNLANE_QUEUE_URL": url, **sqs.variables}
            process = processes.Process(target=follow, args=(page, folder / "folder", variables, report))
            process.start()
        process.join(PAGE_TAKES_AT_MOST)
        is_late = process.is_alive()
        process.kill()
        # Dropped before it is written to the disk: of all together that takes seconds.
        with psycopg.connect(postgres.socket_dsn, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
        if is_late:
            return f"{page.name} takes longer than {PAGE_TAKES_AT_MOST:.0f} s"
        return report.read_text(encoding="utf-8") if report.exists() else f"{page.name}: its process ended with {process.exitcode}"

    return follow_to_its_end


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest, follow_page: Follow) -> Iterator[Problems]:
    """Follows the pages that are to be tested, several at once, since much of a page is waiting; asked for one, what was not true of it."""
    asked = [item.callspec.params["page"] for item in request.session.items if "problems" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(PAGES_AT_ONCE) as readers:
        found = {page: readers.submit(follow_page, page) for page in asked}
        yield lambda page: found[page].result()
        readers.shutdown(cancel_futures=True)
