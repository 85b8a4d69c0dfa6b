"""docs/benchmarks.md is put together from sections that were measured at different times."""

from __future__ import annotations

from benchmarks.figure import Row, Samples, Table
from benchmarks.figures import PAGE_ORDER
from benchmarks.page import PAGE, merged, sections_of
from benchmarks.report import section

ORDER = ("first", "second", "third")
PAGE_OF_TWO = merged("", {"first": "## First\n\nof yesterday\n", "third": "## Third\n"}, ORDER)


def test_a_section_measured_anew_replaces_itself_and_no_other() -> None:
    page = merged(PAGE_OF_TWO, {"first": "## First\n\nof today\n"}, ORDER)

    assert sections_of(page) == {"first": "## First\n\nof today\n\n", "third": "## Third\n"}


def test_a_new_section_stands_in_the_order_of_the_figures() -> None:
    page = merged(PAGE_OF_TWO, {"second": "## Second\n"}, ORDER)

    assert list(sections_of(page)) == list(ORDER)


def test_a_page_written_again_without_news_stays_as_it_is() -> None:
    assert merged(PAGE_OF_TWO, {}, ORDER) == PAGE_OF_TWO


def test_the_section_of_a_figure_that_is_no_more_goes() -> None:
    assert list(sections_of(merged(PAGE_OF_TWO, {}, ("third",)))) == ["third"]


def test_the_page_of_the_repository_holds_sections_of_figures_only() -> None:
    assert set(sections_of(PAGE.read_text(encoding="utf-8"))) <= set(PAGE_ORDER)


def test_a_section_says_what_was_missed_and_under_what_it_was_measured() -> None:
    rows = [Row("slow", Samples((3.0,), "ms"), Samples((1.0,), "ms"), at_most=2), Row("known", Samples((1.0, 3.0), "ms"))]

    shown = section(Table("Title", "Notes.", rows), "Measured then; load before 0.7")

    assert "*Measured then; load before 0.7*" in shown
    assert "| slow | 3.00 ms | 1.00 ms | 3.00 | ≤ 2 | BROKEN |" in shown
    assert "| known | 2.00 (1.00–3.00) ms |  |  |  |  |" in shown
