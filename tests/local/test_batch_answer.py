from __future__ import annotations

from typing import Any

import pytest

from runlane.adapters.local.batch_answer import failed_message_ids

BATCH = ("a", "b", "c")


def failures(*names: object) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


@pytest.mark.parametrize("answer", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, {"statusCode": 200}])
def test_an_answer_without_failures_acknowledges_the_batch(answer: object) -> None:
    assert failed_message_ids(answer, BATCH) == frozenset()


@pytest.mark.parametrize(("answer", "failed"), [(failures("b"), {"b"}), (failures("a", "c"), {"a", "c"}), (failures("b", "b"), {"b"})])
def test_named_messages_stay(answer: object, failed: set[str]) -> None:
    assert failed_message_ids(answer, BATCH) == failed


@pytest.mark.parametrize(
    "answer",
    [
        failures(""),
        failures(None),
        failures(7),
        failures("a", "unknown"),
        {"batchItemFailures": [{"itemIdentifer": "a"}]},
        {"batchItemFailures": ["a"]},
        {"batchItemFailures": "a"},
        {"batchItemFailures": {}},
        "ok",
        [],
        {"batchItemFailures": {"a"}},
        {"when": ...},
    ],
    ids=repr,
)
def test_a_malformed_answer_fails_the_whole_batch(answer: object) -> None:
    assert failed_message_ids(answer, BATCH) == set(BATCH)
