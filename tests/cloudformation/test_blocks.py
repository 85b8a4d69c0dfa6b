"""What a template gets for its queues, whatever they are called."""

from __future__ import annotations

import json
import re

import pytest

from runlane.adapters.cloudformation.blocks import Template, blocks, read_fifo
from runlane.adapters.cloudformation.names import logical_names
from runlane.domain.errors import ConfigurationError

EMPTY = "".join(f"  # runlane template: {name}\n  # runlane template: end\n" for name in ("variables", "resources", "outputs"))


def test_a_name_is_letters_and_digits_and_nobody_elses() -> None:
    queues = ["main", "Main", "invoice_sync", "invoice-sync", "timers", "worker", "日本", "語", "x" * 255, "x" * 254]
    names = list(logical_names(queues).values())
    assert all(re.fullmatch("[A-Za-z0-9]+", name) for name in names)
    assert len({name.lower() for name in names}) == len(queues)
    assert not {"Timers", "Worker"} & set(names)


def test_to_add_a_queue_moves_no_other() -> None:
    before, after = logical_names(["main", "invoice_sync"]), logical_names(["exports", "main", "invoice_sync"])
    assert after.items() >= before.items()
    assert after["invoice_sync"] == "InvoiceSync"


def test_blocks_are_renewed_to_what_the_catalog_needs_and_then_stay() -> None:
    once = Template(EMPTY).renewed(["main", "ledger"], {"ledger": "key"})
    assert Template(once).fifo() == {"ledger": "key"}
    assert Template(once).renewed(["main", "ledger"], Template(once).fifo()) == once
    assert "LedgerQueue" not in Template(once).renewed(["main"], {})
    assert Template(once).renewed([], {}).count("# runlane template: end") == 3


def test_without_fifo_there_are_neither_timers_nor_groups() -> None:
    made = "".join(blocks(["main"], {}).values())
    assert not re.search("Fifo|Timers|MESSAGE_GROUPS|ChangeMessageVisibility", made)


def test_a_queues_name_is_never_taken_for_a_reference() -> None:
    text = blocks(["it's ${AWS::Region}"], {})["variables"]
    assert "${!AWS::Region}" in text
    assert "it''s" in text


def test_more_queues_than_lambda_has_room_for_are_refused() -> None:
    blocks([f"queue_{number}" for number in range(20)], {})
    with pytest.raises(ConfigurationError, match="the addresses of 40 queues"):
        blocks([f"queue_{number}" for number in range(40)], {})


@pytest.mark.parametrize(
    ("fifo", "fault"), [({"ledgr": "key"}, "--fifo ledgr: is no queue here; the application has main"), ({"a b": "key"}, "white space")]
)
def test_what_cannot_be_kept_in_order_is_refused(fifo: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        blocks(["main", "a b"], fifo)  # type: ignore[arg-type]


def test_an_order_is_read_and_a_wrong_one_refused_with_every_fault() -> None:
    assert read_fifo(["a=key", "b=queue", "c=run", "d"]) == {"a": "key", "b": "queue", "c": "run", "d": "run"}
    with pytest.raises(ConfigurationError) as caught:
        read_fifo(["a=keys", "b=tenant"])
    assert len(caught.value.faults) == 2


def test_a_template_without_marks_is_told_which() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Template(EMPTY.replace("outputs", "output")).renewed(["main"], {})
    assert caught.value.faults == (
        "template: has 0 blocks `# runlane template: outputs` that end in `# runlane template: end`; one is needed",
    )


def test_a_url_is_the_one_of_its_queue() -> None:
    urls = re.search("RUNLANE_QUEUE_URLS: !Sub '(.+)'", blocks(["main", "ledger"], {})["variables"])
    assert urls
    assert json.loads(urls[1]) == {"main": "${MainQueue}", "ledger": "${LedgerQueue}"}
