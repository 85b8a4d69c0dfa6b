"""How wakeups become entries, and entries become requests."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.adapters.sqs.batches import MAX_BATCH_BYTES, Entry, batches, delay_seconds, entry
from runlane.adapters.sqs.groups import group_id
from tests.sqs.wakeups import wakeup


def entries(*sizes: int) -> list[Entry]:
    return [Entry(position, size, {}) for position, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([], []),
        ([1] * 10, [10]),
        ([1] * 11, [10, 1]),
        ([MAX_BATCH_BYTES // 4] * 9, [4, 4, 1]),
        ([MAX_BATCH_BYTES - 1, 1], [2]),
        ([MAX_BATCH_BYTES - 1, 2], [1, 1]),
        ([MAX_BATCH_BYTES + 1, 1], [1, 1]),
    ],
)
def test_a_batch_ends_at_ten_entries_and_at_one_mebibyte(sizes: list[int], cut: list[int]) -> None:
    assert [len(batch) for batch in batches(entries(*sizes))] == cut


@given(st.lists(st.integers(1, MAX_BATCH_BYTES), max_size=60))
def test_batches_keep_everything_in_order_and_within_bounds(sizes: list[int]) -> None:
    cut = list(batches(entries(*sizes)))
    assert [item.position for batch in cut for item in batch] == list(range(len(sizes)))
    assert all(1 <= len(batch) <= 10 and sum(item.size for item in batch) <= MAX_BATCH_BYTES for batch in cut)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(-5, 0), (0, 0), (0.999, 0), (1, 1), (59.9999, 59), (900, 900), (900.5, 900), (86_400, 900)],
)
def test_a_delay_is_floored_and_kept_within_fifteen_minutes(delay: float, seconds: int) -> None:
    assert delay_seconds(timedelta(seconds=delay)) == seconds


def test_the_time_that_sending_takes_is_taken_off_a_delay() -> None:
    made = entry(0, "production", wakeup(delay=timedelta(seconds=9)), "{}")
    assert made.due_at is not None
    assert [made.request_at(made.due_at - left)["DelaySeconds"] for left in (9, 7.5, 0.5, -3)] == [9, 7, 0, 0]
    assert entry(0, "production", wakeup(), "{}").request_at(monotonic())["DelaySeconds"] == 0


def test_group_ids_are_those_of_the_published_vectors() -> None:
    assert group_id("run", "production", "run_123") == "runlane_gllIUQbnBWE4jqhnaR67_KFl6GrN2y9N3gaDLGhRp6E"
    assert group_id("queue", "production", "emails") == "runlane_Rk7e_Sqpxo7srwjklcsU0U5r-7Pq6wUziFnP4rnI7eo"


def test_a_wakeup_without_a_key_has_no_group() -> None:
    assert "MessageGroupId" not in entry(0, "production", wakeup(tenant="acme"), "{}").request


def test_a_group_is_one_key_of_one_tenant_and_hides_both() -> None:
    pairs = [("acme", "a"), ("acme", "b"), ("other", "a"), (None, "a")]
    groups = [entry(0, "production", wakeup(tenant=tenant, concurrency_key=key), "{}").request["MessageGroupId"] for tenant, key in pairs]
    assert len(set(groups)) == len(pairs)
    assert all(len(group) == 51 and "acme" not in group for group in groups)
    assert groups[0] == entry(7, "production", wakeup(tenant="acme", concurrency_key="a"), "{}").request["MessageGroupId"]


def test_the_delay_is_always_given_so_that_a_queues_own_default_does_not_hold() -> None:
    assert entry(0, "production", wakeup(), "{}").request["DelaySeconds"] == 0
