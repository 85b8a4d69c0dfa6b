"""When, where and with what a figure was taken."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import psutil
import psycopg


def circumstances(dsn: str) -> str:
    """One line that a reader needs to judge a figure; the load is the one before it."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    memory = psutil.virtual_memory().total / 2**30
    return "; ".join(
        (
            f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()} {platform.machine()}",
            f"load before {os.getloadavg()[0]:.1f}",
            f"PostgreSQL {row[0] if row else '?'}, default settings",
            f"Python {platform.python_version()}, psycopg {version('psycopg')}, pydantic {version('pydantic')}",
        )
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
