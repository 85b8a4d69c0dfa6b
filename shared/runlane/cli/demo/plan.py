"""Which runs the demo triggers, wave by wave: the same ones every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runlane.cli.demo.catalog import Job, export, send_email, sync_invoices
from runlane.services.payload import AnyTask
from runlane.services.trigger import Item

NOISY = "noisy"
ENDLESS = "endless"
SLOW_RUNS = 4
DUPLICATES = 10
WAVE = 120
FOREVER = 3600.0
ALWAYS = 1000


@dataclass(frozen=True, slots=True)
class Wave:
    """Items to trigger together; `duplicates` of them ask for a run that an item before them made."""

    task: AnyTask
    items: tuple[Item, ...]
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """`failures`: runs that fail for good. The run of customer `endless` ends only when it is cancelled."""

    waves: tuple[Wave, ...]
    runs: int
    failures: int
    duplicates: int


def plan(runs: int) -> Plan:
    """`runs` runs (at least 100): the noisy customer's backlog and some slow ones first, then everybody's, mixed."""
    noisy, exported, mailed = runs * 6 // 100, runs * 15 // 100, runs * 25 // 100
    quiet = runs - noisy - exported - mailed - SLOW_RUNS - 1
    first = [Item(Job(customer=ENDLESS, seconds=FOREVER)), *(Item(Job(customer=f"slow-{n}", seconds=1.5)) for n in range(SLOW_RUNS))]
    waves = [
        Wave(sync_invoices, (*first, *(_job(n, NOISY) for n in range(noisy)))),
        *_mixed(
            list(_waves(sync_invoices, [_job(n, f"customer-{n % max(1, quiet // 8):03d}") for n in range(quiet)])),
            list(_waves(send_email, [_mail(n) for n in range(mailed)])),
            list(_waves(export, [_job(n, f"customer-{n % 40:03d}", releases=n % 6 == 0) for n in range(exported)])),
        ),
        Wave(send_email, tuple(_mail(n) for n in range(DUPLICATES)), duplicates=DUPLICATES),
    ]
    failures = sum(item.payload.fails == ALWAYS for wave in waves[:-1] for item in wave.items)
    return Plan(tuple(waves), runs, failures, DUPLICATES)


def _job(number: int, customer: str, *, releases: bool = False) -> Item:
    """Every eleventh run fails once, every ninety-seventh always."""
    fails = ALWAYS if number % 97 == 96 else 1 if number % 11 == 10 else 0
    return Item(Job(customer=customer, fails=fails, releases=int(releases)))


def _mail(number: int) -> Item:
    return Item(Job(customer=f"customer-{number:03d}", fails=int(number % 11 == 10)), idempotency_key=f"welcome-{number}")


def _waves(task: AnyTask, items: list[Item]) -> Iterator[Wave]:
    for start in range(0, len(items), WAVE):
        yield Wave(task, tuple(items[start : start + WAVE]))


def _mixed(*rows: list[Wave]) -> Iterator[Wave]:
    for place in range(max(map(len, rows))):
        yield from (row[place] for row in rows if place < len(row))
