"""The database dies, stalls, fills up and drops connections; what was acknowledged is kept, and work goes on by itself."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from secrets import token_hex

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runlane.domain.errors import UnavailableError
from tests.acceptance.failures.outage import Door
from tests.chaos.catalog import Job, on_free, on_keyed
from tests.chaos.faults import resumes_in
from tests.chaos.load import Load
from tests.chaos.soak import RESUMES_WITHIN, Producer
from tests.chaos.stage import ChaosStage, Servers, chaos_stage, check, check_history, wait_for_the_end
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs, pytest.mark.slow, pytest.mark.chaos]
RATE = 60.0


@contextmanager
def under_load(stage: ChaosStage, seed: int) -> Iterator[Load]:
    """From when work goes on until all that was triggered has ended and was checked."""
    stage.start()
    load = Load(stage.runlane, Random(seed))
    producer = Producer(load, RATE)
    producer.start()
    try:
        until(lambda: stage.ended() > 20)
        yield load
    finally:
        producer.stopping.set()
        producer.join(PATIENCE)
    wait_for_the_end(stage, len(load.triggered), timeout=PATIENCE)
    check(stage, load.triggered, load.doomed, load.asked)


def test_after_a_crash_of_postgres_nothing_acknowledged_is_missing_and_work_resumes_within_five_seconds(running: Servers) -> None:
    with chaos_stage(running, 2) as stage, under_load(stage, 2) as load:
        for _ in range(2):
            refused = load.refused
            running.postgres.kill()
            until(lambda refused=refused: load.refused > refused)
            running.postgres.start()
            assert resumes_in(stage) <= RESUMES_WITHIN


def test_connections_that_are_cut_in_mid_statement_cost_only_time(running: Servers) -> None:
    with Door(running.postgres.dsn.replace("postgresql", "tcp")) as door:
        port = door.url.rsplit(":", 1)[1]
        with chaos_stage(running, 4, reach=lambda dsn: make_conninfo(dsn, port=port)) as stage, under_load(stage, 4):
            for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 0.05, 0.1, 0.2):
                door.shut()
                door.open()
                time.sleep(pause)


@pytest.mark.parametrize(("setting", "state"), [("lock_timeout", "55P03"), ("statement_timeout", "57014")])
def test_time_outs_of_the_database_are_told_and_outlived(running: Servers, setting: str, state: str) -> None:
    def impatient(dsn: str) -> str:
        return make_conninfo(dsn, options=f"-c {setting}=700ms")

    with chaos_stage(running, 6) as patient:
        patient.variables["DATABASE_URL"] = impatient(patient.dsn)
        with under_load(patient, 6):
            with psycopg.connect(patient.dsn) as holder:
                holder.execute(b"SELECT 1 FROM runlane.partition FOR UPDATE")
                with psycopg.connect(impatient(patient.dsn)) as caller, pytest.raises(psycopg.Error) as refused:
                    caller.execute(b"SELECT 1 FROM runlane.partition FOR UPDATE")
                assert refused.value.sqlstate == state
                time.sleep(2)
            assert resumes_in(patient) <= RESUMES_WITHIN


@pytest.fixture
def small_disk(running: Servers) -> Iterator[Path]:
    """A file system of 96 MB of which the server has a tablespace `small`."""
    with psycopg.connect(running.postgres.dsn, autocommit=True) as connection, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runlane-disk-")))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], capture_output=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"only who may mount can have a small disk: {mounted.stderr.decode().strip()}")
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        row = connection.execute(b"SHOW data_directory").fetchone()
        assert row is not None
        folder.chmod(0o755)
        owner = Path(row[0]).stat()
        (folder / "space").mkdir()
        os.chown(folder / "space", owner.st_uid, owner.st_gid)
        connection.execute(f"CREATE TABLESPACE small LOCATION '{folder / 'space'}'".encode())
        yield folder
        # A checkpoint fails on files that are gone.
        for (name,) in connection.execute(
            b"SELECT datname FROM pg_database d JOIN pg_tablespace t ON t.oid = dattablespace WHERE spcname = 'small'"
        ):
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        connection.execute(b"DROP TABLESPACE small")


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    return ballast


def test_a_full_disk_is_told_as_one_and_work_resumes_when_there_is_room(running: Servers, small_disk: Path) -> None:
    with chaos_stage(running, 8, tablespace="small") as stage, under_load(stage, 8):
        ballast = fill(small_disk)
        large = [Job(number=number, key="large", padding=token_hex(10_000)) for number in range(200)]
        with pytest.raises(UnavailableError, match="its disk is full") as refused:
            stage.runlane.trigger_many(on_free, large)
        assert refused.value.retryable
        time.sleep(1)
        ballast.unlink()
        assert resumes_in(stage) <= RESUMES_WITHIN


def test_a_database_that_forgets_its_last_second_is_whole_and_goes_on(running: Servers) -> None:
    """What a failover to a replica that is behind does: an acknowledged run may be gone, and an attempt may be repeated."""
    with chaos_stage(running, 10) as stage:
        with stage.connect() as connection:
            connection.execute(b"ALTER SYSTEM SET wal_writer_delay = '1s'")
            connection.execute(b"SELECT pg_reload_conf()")
            connection.execute(b"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$")
        stage.start()
        load = Load(stage.runlane, Random(10))
        producer = Producer(load, RATE)
        producer.start()
        until(lambda: stage.ended() > 20)
        running.postgres.kill()
        running.postgres.start()
        assert resumes_in(stage) <= RESUMES_WITHIN
        producer.stopping.set()
        producer.join(PATIENCE)
        wait_for_the_end(stage, 20, timeout=PATIENCE)
        check_history(stage)
        last = stage.runlane.trigger(on_keyed, Job(number=1, key="k")).run.run_id
        until(lambda: stage.runlane.runs.get(last).status.is_terminal)
