"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from runlane import Runlane

APP = """
    from functools import cache
    from runlane import Queue, task
    from runlane.bootstrap import environment_runlane

    @task("shop.note")
    def note(text: str) -> str:
        return text.upper()

    {decorator}
    def runlane():
        return environment_runlane(queues=[Queue("main", default=True, concurrency_limit=2)], tasks=[note])

    def sell():
        runlane().trigger(note, "sold")
"""
CACHED = APP.format(decorator="@cache")


@pytest.fixture
def project(pytester: pytest.Pytester, server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for variable in ("RUNLANE_APP", "DATABASE_URL", "RUNLANE_QUEUE_URL", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RUNLANE_TEST_DATABASE_URL", server_dsn)
    pytester.makeini("[pytest]\nrunlane_app = shop:runlane\npythonpath = .\n")
    pytester.makepyfile(shop=CACHED)
    return pytester


def databases(server_dsn: str) -> set[str]:
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


def test_each_test_has_the_application_on_a_database_of_its_own(project: pytest.Pytester, server_dsn: str) -> None:
    before = databases(server_dsn)
    project.makepyfile("""
        import psycopg, pytest, shop
        from runlane import UnavailableError
        from runlane.testing import assert_triggered, drain

        @pytest.mark.parametrize("number", range(3))
        def test_what_the_application_triggers(runlane, number):
            shop.sell()
            (run,) = assert_triggered(runlane, shop.note, payload="sold", count=1)
            assert drain(runlane).attempts[0].outcome.result == "SOLD"
            assert shop.runlane() is runlane

        def test_a_test_that_breaks_its_database(runlane_database):
            with psycopg.connect(runlane_database) as connection:
                connection.execute("DROP SCHEMA runlane CASCADE")
            assert False, "broken"

        def test_the_next_one_does_not_notice(runlane, runlane_database):
            shop.sell()
            with psycopg.connect(runlane_database) as connection:
                assert connection.execute("SELECT count(*) FROM runlane.run").fetchone() == (1,)

        def test_a_database_without_the_application(runlane_database):
            with psycopg.connect(runlane_database) as connection:
                assert connection.execute("SELECT count(*) FROM runlane.queue").fetchone() == (0,)

        def test_without_the_fixture_nothing_is_reached():
            with pytest.raises(UnavailableError) as caught:
                shop.sell()
            assert "the-test-does-not-use-the-runlane-fixture" in str(caught.value.__cause__)
    """)
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=6, failed=1)
    assert databases(server_dsn) == before


WITHOUT = """
    import shop

    def test_without_the_fixture():
        shop.sell()
"""


@pytest.mark.thorough
def test_a_first_test_without_the_fixture_fails_and_does_not_reach_the_database_of_the_environment(
    project: pytest.Pytester, shop: Runlane, runlane_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_on(runlane_database, monkeypatch)
    # Bound when conftest.py imports it: as early as a project can.
    project.makeconftest("import shop\nshop.runlane()\n")
    project.makepyfile(test_it=WITHOUT)
    result = project.runpytest_subprocess("-n0")
    result.assert_outcomes(failed=1)
    errors = [line for line in result.outlines if line.startswith("E ")]
    assert len(errors) == 1
    assert "needs the fixture `runlane`" in errors[0]
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_without_the_fixture - Failed: needs*"])
    assert runs(runlane_database) == 0


@pytest.mark.thorough
def test_without_the_ini_option_the_use_of_the_fixture_anywhere_protects_the_other_tests(
    project: pytest.Pytester, shop: Runlane, runlane_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_on(runlane_database, monkeypatch)
    monkeypatch.setenv("RUNLANE_APP", "shop:runlane")
    project.makeini("[pytest]\npythonpath = .\n")
    project.makepyfile(test_a=WITHOUT, test_b="def test_with(runlane):\n    pass\n")
    project.runpytest_subprocess().assert_outcomes(failed=1, passed=1)
    assert runs(runlane_database) == 0


@pytest.mark.thorough
def test_a_project_that_names_no_application_keeps_its_environment(
    project: pytest.Pytester, shop: Runlane, runlane_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_on(runlane_database, monkeypatch)
    monkeypatch.setenv("RUNLANE_APP", "shop:runlane")
    project.makeini("[pytest]\npythonpath = .\n")
    project.makepyfile(WITHOUT)
    project.runpytest_subprocess().assert_outcomes(passed=1)
    assert runs(runlane_database) == 1


def test_the_environment_is_as_before_after_the_session(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///mine")
    project.makepyfile("import os\ndef test_it(): assert os.environ['DATABASE_URL'] != 'postgresql:///mine'\n")
    project.runpytest_inprocess().assert_outcomes(passed=1)
    assert os.environ["DATABASE_URL"] == "postgresql:///mine"
    assert "RUNLANE_QUEUE_URL" not in os.environ


def runtime_on(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell of a running `runlane dev`; with the fixture `shop`, its queues are in force there."""
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.setenv("RUNLANE_TRANSPORT", "none")


def runs(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM runlane.run")
        return int(count)


@pytest.mark.thorough
def test_workers_of_xdist_do_not_meet(project: pytest.Pytester, server_dsn: str) -> None:
    before = databases(server_dsn)
    project.makepyfile("""
        import pytest, shop
        from runlane.testing import assert_triggered

        @pytest.mark.parametrize("number", range(4))
        def test_alone(runlane, number):
            shop.sell()
            assert_triggered(runlane, shop.note, count=1)
    """)
    project.runpytest_subprocess("-n", "2").assert_outcomes(passed=4)
    assert databases(server_dsn) == before


@pytest.mark.thorough
def test_what_a_killed_session_leaves_is_gone_after_the_next(project: pytest.Pytester, server_dsn: str) -> None:
    before = databases(server_dsn)
    ready = project.path / "ready"
    project.makepyfile(
        test_hang=f"import pathlib, time\ndef test_hang(runlane):\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n",
        test_short="def test_short(runlane):\n    pass\n",
    )
    with subprocess.Popen([sys.executable, "-m", "pytest", "-q", "test_hang.py"], cwd=project.path, stdout=subprocess.DEVNULL) as hanging:
        wait_for(ready)
        assert len(databases(server_dsn) - before) == 2
        os.kill(hanging.pid, signal.SIGKILL)
    wait_until_alone(server_dsn)
    project.runpytest_subprocess("test_short.py").assert_outcomes(passed=1)
    assert databases(server_dsn) == before


@pytest.mark.thorough
def test_a_server_is_started_for_a_session_that_names_none_and_ends_with_it(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNLANE_TEST_DATABASE_URL")
    project.makepyfile("""
        import os, psycopg

        def test_own(runlane_database):
            with psycopg.connect(runlane_database) as connection:
                assert connection.execute("SHOW fsync").fetchone() == ("off",)
                print("postmaster", connection.execute("SELECT setting FROM pg_settings WHERE name = 'data_directory'").fetchone()[0])
            os._exit(3)
    """)
    result = project.runpytest_subprocess("-s")
    assert result.ret == 3
    (folder,) = re.findall(r"postmaster (.+)", result.stdout.str())
    wait_for(Path(folder), there=False)


@pytest.mark.thorough
def test_an_application_that_is_made_anew_at_each_call_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(shop=APP.format(decorator=""), test_it="def test_it(runlane):\n    pass\n")
    result = project.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*shop:runlane makes another Runlane at each call*functools.cache*")


@pytest.mark.thorough
def test_a_project_that_uses_no_fixture_pays_nothing(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import sys

        def test_nothing_is_loaded():
            assert "runlane.testing.plugin" in sys.modules
            loaded = {name for name in sys.modules if name.startswith(("runlane", "psycopg", "pydantic", "boto"))}
            assert loaded == {"runlane", "runlane.testing", "runlane.testing.nowhere", "runlane.testing.plugin"}
    """)
    project.runpytest_subprocess().assert_outcomes(passed=1)


def wait_for(path: Path, *, there: bool = True) -> None:
    ends_at = time.monotonic() + 60
    while path.exists() is not there:
        assert time.monotonic() < ends_at, path
        time.sleep(0.02)


def wait_until_alone(server_dsn: str) -> None:
    """The server notices a moment later that a client has been killed."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'runlane_test_%'"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        ends_at = time.monotonic() + 60
        # The plugin of this very test has one, too.
        while connection.execute(query).fetchone() != (1,):
            assert time.monotonic() < ends_at
            time.sleep(0.02)
