"""Assertions about what was triggered, and what they say when they fail."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from runlane import PayloadError, Runlane
from runlane.testing import assert_triggered
from tests.testing.catalog import Order, count, main, note, pack


def test_matching_runs_come_back_oldest_first(shop: Runlane) -> None:
    ids = [shop.trigger(pack, Order(name=name, parts=3)).run.run_id for name in ("a", "b")]
    found = assert_triggered(shop, pack, match=lambda order: order.parts == 3, count=2, queue="narrow")
    assert [run.run_id for run in found] == ids
    assert assert_triggered(shop, pack, payload={"name": "b", "parts": 3}, tenant="b") == found[1:]
    assert assert_triggered(shop, pack, payload=Order(name="a", parts=3), count=1) == found[:1]


def test_options_are_compared(shop: Runlane) -> None:
    options = {"tenant": "t", "concurrency_key": "k", "idempotency_key": "i", "singleton_key": "s", "priority": 5, "meta": {"a": 1, "b": 2}}
    shop.trigger(note, "x", delay="10m", **options)
    assert_triggered(shop, note, delay=timedelta(minutes=10), queue=main, **{**options, "meta": {"a": 1}})
    for name, value in {**dict.fromkeys(options, "other"), "priority": 6, "meta": {"a": 2}, "delay": "9m"}.items():
        with pytest.raises(AssertionError, match=rf"\n    {name}"):
            assert_triggered(shop, note, **{name: value})


def test_a_failure_shows_what_was_triggered_instead(shop: Runlane) -> None:
    shop.trigger(pack, Order(name="a", parts=3))
    shop.trigger(note, "hello")
    with pytest.raises(AssertionError) as caught:
        assert_triggered(shop, pack, payload=Order(name="b"), tenant="b")
    assert str(caught.value).splitlines() == [
        'expected a run of orders.pack with tenant="b", payload={"name": "b", "parts": 1}, but none was found',
        "runs of orders.pack, and what is other than expected:",
        '  orders.pack on narrow tenant=a queued {"name": "a", "parts": 3}',
        '    tenant: "a", expected "b"',
        '    payload.name: "a", expected "b"',
        "    payload.parts: 3, expected 1",
        "also triggered: orders.note × 1",
    ]


def test_too_many_are_as_wrong_as_too_few(shop: Runlane) -> None:
    shop.trigger(note, "hello")
    shop.trigger(note, "world")
    with pytest.raises(
        AssertionError, match=r"expected no run of orders\.note, but 2 were found\nfound:\n  orders\.note on main queued \"hello\""
    ):
        assert_triggered(shop, note, count=0)
    with pytest.raises(AssertionError, match=r"expected 2 runs of .* but one was found\nfound:\n.*\nothers of orders\.note"):
        assert_triggered(shop, note, payload="world", count=2)
    assert assert_triggered(shop, count, count=0) == ()


def test_nothing_triggered_is_said_plainly(shop: Runlane) -> None:
    with pytest.raises(AssertionError, match=r"^expected a run of orders\.count, but none was found\nnothing was triggered$"):
        assert_triggered(shop, count)


def test_a_payload_that_could_not_be_triggered_is_no_expectation(shop: Runlane) -> None:
    with pytest.raises(PayloadError, match="name"):
        assert_triggered(shop, pack, payload={"name": ""})


def test_a_run_of_an_open_transaction_is_not_there_yet(shop: Runlane, runlane_database: str) -> None:
    with psycopg.connect(runlane_database) as connection:
        shop.trigger(note, "x", connection=connection)
        assert_triggered(shop, note, count=0)
    assert_triggered(shop, note, count=1)


def test_many_runs_are_read_page_by_page_and_shown_in_part(shop: Runlane) -> None:
    shop.trigger_many(note, [f"{number}" for number in range(205)], dispatch="deferred")
    assert assert_triggered(shop, note, payload="0")
    with pytest.raises(AssertionError, match=r"and 195 more"):
        assert_triggered(shop, note, payload="none")
