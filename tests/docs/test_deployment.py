"""What the pages say of the stack is what template.yaml has; and what it costs is computed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import costs
from tests.template.test_template import RESOURCES, ROLES, TEMPLATE, listed, statements

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Services whose permissions are spelled otherwise than their resources' types; Serverless makes the rule and what Lambda needs.
PREFIXES = {"Serverless": "lambda"}


def told_actions() -> dict[str, set[str]]:
    """The rows of security.md's table, by role; a row without a role goes on with that of the row before."""
    told: dict[str, set[str]] = {}
    role = ""
    for name, may in re.findall(r"^\| (?:`(\w+Role)` )?\| (.*?) \|", (DOCS / "security.md").read_text(encoding="utf-8"), re.MULTILINE):
        role = name or role
        if role:
            told.setdefault(role, set()).update(re.findall(r"`([a-z0-9-]+:[A-Za-z]+)`", may))
    return told


@pytest.mark.parametrize("role", ROLES)
def test_the_security_page_says_all_that_a_role_may_do_and_no_more(role: str) -> None:
    assert told_actions()[role] == {action for statement in statements(role) for action in listed(statement["Action"])}


def test_the_security_page_knows_every_role() -> None:
    assert set(told_actions()) == set(ROLES)


def test_the_deployer_is_told_of_every_service_of_the_stack() -> None:
    page = (DOCS / "how-to/deploy.md").read_text(encoding="utf-8")
    services = {resource["Type"].split("::")[1] for resource in RESOURCES.values()}
    assert {one for one in services if f"| `{PREFIXES.get(one, one).lower()}:` |" not in page} == set()
    assert "SQS" in services


def test_whoever_asks_the_doctor_is_told_what_it_asks_of_aws() -> None:
    asked = {
        action
        for source in (ROOT / "shared/runlane/adapters/aws").glob("*.py")
        for action in re.findall(r'"((?:lambda|sqs):[A-Z]\w+)"', source.read_text(encoding="utf-8"))
    }
    page = (DOCS / "how-to/deploy.md").read_text(encoding="utf-8")
    assert asked
    assert {action for action in asked if f"`{action}`" not in page} == set()


@pytest.mark.parametrize("page", ["how-to/deploy.md", "how-to/scale.md", "how-to/alarms.md", "security.md", "costs.md"])
def test_a_parameter_that_a_page_gives_a_value_exists(page: str) -> None:
    given = re.findall(r"[`\"](?!RUNLANE|DATABASE)([A-Z][A-Za-z]+)(?:=|: )[\w…]", (DOCS / page).read_text(encoding="utf-8"))
    of_others = {"Name"}
    assert set(given) - of_others <= set(TEMPLATE["Parameters"])


def test_the_tables_of_costs_are_those_that_are_computed() -> None:
    page = costs.PAGE.read_text(encoding="utf-8")
    assert costs.written(page) == page, "run `python -m docs.costs`"
    assert all(table in page for table in costs.tables().values())


def test_more_runs_cost_more_and_each_of_them_less() -> None:
    totals = [sum(costs.lines(size).values()) for size in costs.SIZES]
    assert totals == sorted(totals)
    each = [total / size.runs for total, size in zip(totals, costs.SIZES, strict=True)]
    assert each == sorted(each, reverse=True)


def measured(row: str) -> float:
    found = re.search(
        rf"^\| {re.escape(row)}(?: / \w+, the cheapest peer)? \| ([\d.]+) ",
        (DOCS / "benchmarks.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert found is not None, row
    return float(found[1])


def test_costs_are_counted_with_cpu_as_it_is_measured() -> None:
    """Within a factor of three: machines differ by as much, and the totals hardly notice."""
    pairs = {
        "worker": (costs.WORKER_RUN_MS, measured("warm, a no-op run in a batch of ten")),
        "server": (costs.SERVER_RUN_MS, measured("of it the server processes', batches of 10")),
        "trigger": (
            costs.SERVER_TRIGGER_MS,
            measured("CPU of trigger, client and server process") - measured("of it the client's"),
        ),
    }
    assert {name: pair for name, pair in pairs.items() if not 1 / 3 <= pair[0] / pair[1] <= 3} == {}


def test_costs_are_counted_with_the_templates_memory() -> None:
    assert TEMPLATE["Parameters"]["WorkerMemory"]["Default"] == costs.WORKER_MEMORY_MB
