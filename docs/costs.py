"""`python -m docs.costs`: write the tables of costs.md anew, from the prices and assumptions here and what template.yaml makes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

PAGE = Path(__file__).parent / "costs.md"
TEMPLATE = (Path(__file__).parents[1] / "template.yaml").read_text(encoding="utf-8")

HOURS, DAYS = 730, 30
SECONDS = DAYS * 86_400

# US dollars, us-east-1, without free tiers and discounts.
PRICES = {
    "Lambda, a million requests": 0.20,
    "Lambda arm64, a GB-second": 0.0000133334,
    "SQS standard, a million requests": 0.40,
    "Aurora Serverless v2, an ACU-hour": 0.12,
    "Aurora, a GB-month": 0.10,
    "Aurora, a million I/Os": 0.20,
    "RDS Proxy, an ACU-hour": 0.015,
    "interface endpoint, an hour in a zone": 0.01,
    "NAT gateway, an hour": 0.045,
    "CloudWatch Logs, a GB taken in": 0.50,
    "CloudWatch, a metric": 0.30,
    "CloudWatch, an alarm": 0.10,
    "CloudWatch, a dashboard": 3.00,
    "Secrets Manager, a secret": 0.40,
}

# Measured, in ms of CPU, rounded up; the tests hold them to benchmarks.md, with room for the machine that measures.
WORKER_RUN_MS = 0.2
SERVER_RUN_MS = 0.14
SERVER_TRIGGER_MS = 0.56

# Assumed.
TASK_MS = 200
INVOCATION_MS = 25
MAINTENANCE_MS = 500
WORKER_MEMORY_MB, FULL_CORE_MB = 512, 1769
ACUS_A_CORE, USED = 4, 0.4
PEAK = 3
SEND_BATCH = 1
IDLE_POLLERS, POLL_SECONDS = 5, 20
LOG_KB, METRICS, ZONES = 0.8, 30, 2
RUN_KB = 3
IOS_A_RUN = 3
PROXY_LEAST_ACUS = 8


@dataclass(frozen=True)
class Size:
    """`batch`: wakeups that an invocation finds together. `kept`: days."""

    name: str
    runs: int
    batch: int
    kept: int
    replicas: int


SIZES = (
    Size("10,000 a day", 10_000, 1, 90, 0),
    Size("a million a day", 1_000_000, 1, 90, 1),
    Size("30 million a day", 30_000_000, 5, 14, 1),
)


def acus(size: Size) -> float:
    """Of the writer on average; in halves, no less than the template's default minimum."""
    cores = size.runs / 86_400 * (SERVER_RUN_MS + SERVER_TRIGGER_MS) / 1000
    return max(0.5, ceil(2 * cores * ACUS_A_CORE / USED) / 2)


def lines(size: Size) -> dict[str, float]:
    """Dollars a month, by what is paid for."""
    price = PRICES
    runs = size.runs * DAYS
    calls = runs / size.batch
    cpu = WORKER_RUN_MS * size.batch * FULL_CORE_MB / WORKER_MEMORY_MB
    gigabyte_seconds = calls * (TASK_MS + INVOCATION_MS + cpu) / 1000 * WORKER_MEMORY_MB / 1024
    ticks = SECONDS / 60
    gigabyte_seconds += ticks * MAINTENANCE_MS / 1000 * 0.5
    queues = TEMPLATE.count("Type: AWS::Lambda::EventSourceMapping")
    requests = runs / SEND_BATCH + 2 * calls + queues * IDLE_POLLERS * SECONDS / POLL_SECONDS
    capacity = acus(size) * (1 + size.replicas)
    return {
        "Lambda, requests": (calls + ticks) / 1e6 * price["Lambda, a million requests"],
        "Lambda, time": gigabyte_seconds * price["Lambda arm64, a GB-second"],
        "SQS": requests / 1e6 * price["SQS standard, a million requests"],
        "Aurora, capacity": capacity * HOURS * price["Aurora Serverless v2, an ACU-hour"],
        "Aurora, storage": size.runs * size.kept * RUN_KB / 1024**2 * price["Aurora, a GB-month"],
        "Aurora, I/O": runs * IOS_A_RUN / 1e6 * price["Aurora, a million I/Os"],
        "RDS Proxy": max(PROXY_LEAST_ACUS, capacity) * HOURS * price["RDS Proxy, an ACU-hour"],
        "endpoints": TEMPLATE.count("VpcEndpointType: Interface") * ZONES * HOURS * price["interface endpoint, an hour in a zone"],
        "CloudWatch": (calls + ticks) * LOG_KB / 1024**2 * price["CloudWatch Logs, a GB taken in"]
        + METRICS * price["CloudWatch, a metric"]
        + TEMPLATE.count("Type: AWS::CloudWatch::Alarm") * price["CloudWatch, an alarm"]
        + price["CloudWatch, a dashboard"],
        "secrets": 2 * price["Secrets Manager, a secret"],
        "EventBridge, one rule by the clock": 0.0,
    }


def tables() -> dict[str, str]:
    """By the name of its place in the page."""
    columns = [lines(size) for size in SIZES]
    costs = [f"| dollars a month | {' | '.join(size.name for size in SIZES)} |", "|---|" + "---:|" * len(SIZES)]
    costs += [f"| {name} | {' | '.join(f'{column[name]:,.2f}' for column in columns)} |" for name in columns[0]]
    totals = [sum(column.values()) for column in columns]
    costs.append(f"| **together** | {' | '.join(f'**{total:,.0f}**' for total in totals)} |")
    per_million = [total / (size.runs * DAYS / 1e6) for total, size in zip(totals, SIZES, strict=True)]
    costs.append(f"| a million runs | {' | '.join(f'{one:,.2f}' for one in per_million)} |")

    assumed = [f"| assumed | {' | '.join(size.name for size in SIZES)} |", "|---|" + "---:|" * len(SIZES)]
    rows = {
        "wakeups that an invocation finds together": [f"{size.batch}" for size in SIZES],
        "days that runs are kept": [f"{size.kept}" for size in SIZES],
        "GB of runs in the end": [f"{size.runs * size.kept * RUN_KB / 1024**2:,.0f}" for size in SIZES],
        "ACUs of the writer, on average": [f"{acus(size):g}" for size in SIZES],
        "replicas of the same size": [f"{size.replicas}" for size in SIZES],
        f"workers at once, at {PEAK} × the average": [f"{_workers(size):,}" for size in SIZES],
    }
    assumed += [f"| {name} | {' | '.join(values)} |" for name, values in rows.items()]

    prices = [
        "| price | dollars |",
        "|---|---:|",
        *(f"| {name} | {price:.10f}".rstrip("0").rstrip(".") + " |" for name, price in PRICES.items()),
    ]
    return {"costs": "\n".join(costs), "assumed": "\n".join(assumed), "prices": "\n".join(prices)}


def _workers(size: Size) -> int:
    return ceil(PEAK * size.runs / 86_400 / size.batch * (TASK_MS + INVOCATION_MS) / 1000)


def written(page: str) -> str:
    """The page with its tables as they are now."""
    for name, table in tables().items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page, flags=re.DOTALL
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
