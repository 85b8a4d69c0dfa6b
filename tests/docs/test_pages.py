"""What the README and the guide say is run: their Python, their commands, their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.bootstrap import migrate

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "architecture.md")
NOWHERE = "http://127.0.0.1:9"


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    with LocalPostgres(durable=False) as running:
        yield running


@pytest.fixture
def environment(server: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migrated database, and an SQS that nobody answers for: a trigger must not need it."""
    values = {
        "DATABASE_URL": server.dsn,
        "RUNLANE_QUEUE_URL": f"{NOWHERE}/000000000000/wakeups",
        "AWS_ENDPOINT_URL": NOWHERE,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    migrate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, environment: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # One module a page, as a reader would have it; payload types must be importable from where they are named.
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in _blocks(page, "python"):
        exec(compile(block.replace("from __future__ import annotations\n", ""), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_of_a_page_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in _blocks(page, "sh"):
        for target in re.findall(r"^make (\w+)", block, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    from typer.testing import CliRunner

    from runlane.cli.application import application

    for block in _blocks(page, "sh"):
        for line in re.findall(r"^runlane (.+)", block, re.MULTILINE):
            words = [word for word in line.split() if re.fullmatch(r"[a-z]+", word)][:2]
            result = CliRunner().invoke(application, [*words, "--help"])
            assert result.exit_code == 0, (line, result.output)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_names_the_test_command_that_ci_runs() -> None:
    assert "make test" in _blocks(ROOT / "README.md", "sh")[0]
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_setting_is_in_the_guide() -> None:
    source = (ROOT / "shared" / "runlane" / "settings.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    variables = set(re.findall(r'"((?:RUNLANE|DATABASE)_[A-Z_]+)"', source))
    missing = {variable for variable in variables if f"`{variable}`" not in page}

    assert not missing
