"""Where and with what the figures were taken."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import psutil
import psycopg

from benchmarks.peers.environment import peer_version


def describe_machine(dsn: str) -> dict[str, str]:
    """What a reader needs to judge the figures."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT version()").fetchone()
    server = str(row[0]).split(" on ")[0] if row else "?"
    memory = psutil.virtual_memory().total / 2**30
    return {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()} {platform.machine()}",
        "server": f"{server}, default settings",
        "ours": f"Python {platform.python_version()}, psycopg {version('psycopg')}, pydantic {version('pydantic')}",
        "peer": ", ".join(f"{name} {peer_version(name)}" for name in ("pgqueuer", "asyncpg", "uvloop")),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
