"""A long operation stops between two batches and says how to go on; asked a second time, it does not wait for the batch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import typer

from runlane.cli.bulk import Bulk, carry_out
from runlane.cli.errors import report
from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.services.operate.bulk import BulkReport

PAGES = [
    BulkReport(100, 100, (), "one"),
    BulkReport(200, 199, ((RunId("a"), "odd \x1b"),), "two"),
    BulkReport(300, 299, ((RunId("a"), "odd \x1b"),)),
]


def bulk(in_batch: Callable[[int], None], *, pages: list[BulkReport] = PAGES, **options: Any) -> Bulk:
    def move(*, dry_run: bool, limit: int | None, cursor: str | None, on_progress: Callable[[BulkReport], None]) -> BulkReport:
        for number, page in enumerate(pages):
            in_batch(number)
            on_progress(page)
        return pages[-1]

    return Bulk(move, ("runlane", "runs", "cancel", "--tenant", "a b"), "cancel", "cancelled", **options)


def interrupt(number: int) -> None:
    if number == 1:
        os.kill(os.getpid(), signal.SIGINT)


def fail(number: int) -> None:
    if number == 1:
        raise UnavailableError("storage_unavailable", "away")


def test_an_interruption_ends_it_after_the_batch_and_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        carry_out(bulk(interrupt), dry_run=False, yes=True, as_json=True)
    written = capsys.readouterr()
    document = json.loads(written.out)
    assert ended.value.exit_code == 130
    assert (document["matched"], document["next_cursor"]) == (200, "two")
    assert document["next"] == "runlane runs cancel --tenant 'a b' --cursor two --yes"
    assert "stopping after the batch" in written.err


def test_after_an_interruption_only_what_is_left_of_the_limit_is_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        carry_out(bulk(interrupt, limit=300), dry_run=False, yes=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["next"] == "runlane runs cancel --tenant 'a b' --limit 100 --cursor two --yes"


def test_after_a_page_that_is_complete_the_next_is_as_long(capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(bulk(interrupt, pages=[PAGES[0], BulkReport(200, 200, (), "two")], limit=200), dry_run=False, yes=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["next"] == "runlane runs cancel --tenant 'a b' --limit 200 --cursor two --yes"


def test_what_has_no_cursor_counts_its_limit_by_what_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [BulkReport(500, 400), BulkReport(1000, 700), BulkReport(1300, 1000)]
    with pytest.raises(typer.Exit):
        carry_out(bulk(interrupt, pages=pages, limit=1000, is_paged=False), dry_run=False, yes=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["next"] == "runlane runs cancel --tenant 'a b' --limit 300 --yes"


def test_what_has_no_cursor_and_reached_its_limit_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [BulkReport(500, 500), BulkReport(1000, 1000)]
    carry_out(bulk(interrupt, pages=pages, limit=1000, is_paged=False), dry_run=False, yes=True, as_json=False)
    assert capsys.readouterr().out == "1000 runs cancelled\n"


def test_what_has_no_cursor_is_gone_on_with_by_running_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [BulkReport(500, 500), BulkReport(1000, 1000), BulkReport(1200, 1200)]
    with pytest.raises(typer.Exit) as ended:
        carry_out(bulk(interrupt, pages=pages, is_paged=False), dry_run=False, yes=True, as_json=False)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().out == "1000 runs cancelled\nnext: runlane runs cancel --tenant 'a b' --yes\n"


def test_an_interruption_of_the_last_batch_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(bulk(interrupt, pages=[PAGES[0], BulkReport(101, 101)]), dry_run=False, yes=True, as_json=False)
    assert capsys.readouterr().out == "101 runs cancelled\n"


def test_a_second_interruption_does_not_wait_for_the_batch() -> None:
    def twice(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        carry_out(bulk(twice), dry_run=False, yes=True, as_json=False)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_outage_in_the_middle_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnavailableError) as caught:
        carry_out(bulk(fail), dry_run=False, yes=True, as_json=False)
    assert report(caught.value, as_json=False) == 1
    assert "go on with: runlane runs cancel --tenant 'a b' --cursor one" in capsys.readouterr().err


@pytest.mark.parametrize(("failing", "limit", "cursor"), [(0, 300, ""), (1, 200, " --cursor one")], ids=["at once", "in the middle"])
def test_after_an_outage_only_what_is_left_of_the_limit_is_gone_on_with(failing: int, limit: int, cursor: str) -> None:
    def fail_there(number: int) -> None:
        if number == failing:
            fail(1)

    with pytest.raises(UnavailableError) as caught:
        carry_out(bulk(fail_there, limit=300), dry_run=False, yes=True, as_json=False)
    assert caught.value.meta["next"] == f"runlane runs cancel --tenant 'a b' --limit {limit}{cursor}"


def test_refusals_fail_the_command_and_are_counted_by_their_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        carry_out(bulk(lambda number: None), dry_run=False, yes=True, as_json=False)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out.splitlines() == [r"299 runs cancelled of 300; 1 odd \x1b", r"  a  odd \x1b"]


def test_a_run_that_ended_by_itself_is_no_failure_of_a_cancellation(capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(bulk(lambda number: None, pages=[BulkReport(2, 1, ((RunId("a"), "already_ended"),))]), dry_run=False, yes=True, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["1 run cancelled of 2; 1 already_ended", "  a  already_ended"]
