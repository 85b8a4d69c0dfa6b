"""Stands between a server and the process that asked for it, and ends the server when that process is gone, however it died.

Run as a script with one argument, the order as JSON. Its standard input is the lifeline: a pipe the parent only holds open. A
parent that forks leaves copies of the pipe behind, so the parent's pid is watched too. Standard library only, to start in milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

WATCH_SECONDS = 0.25
GRACE_SECONDS = 10.0


def main() -> int:
    parent, order = os.getppid(), json.loads(sys.argv[1])
    try:
        child = start(order)
    except OSError as error:
        answer({"error": str(error)})
        return 127
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(order["stop_signal"]))
    answer({"pid": child.pid})
    threading.Thread(target=end_with_parent, args=(child, parent, order["stop_signal"]), daemon=True).start()
    code = child.wait()
    if is_orphan(parent):
        remove(order["remove"])
    return code


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    identity = {"user": order["uid"], "group": order["gid"], "extra_groups": []} if order["uid"] is not None else {}
    with Path(order["log"]).open("ab") as log:
        return subprocess.Popen(order["command"], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, **identity)


def answer(fact: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def is_orphan(parent: int, timeout: float = 0) -> bool:
    """Whether the parent is gone; waits up to `timeout` seconds for that."""
    closed, _, _ = select.select([sys.stdin], [], [], timeout)
    return bool(closed) or os.getppid() != parent


def end_with_parent(child: subprocess.Popen[bytes], parent: int, stop_signal: int) -> None:
    while not is_orphan(parent, WATCH_SECONDS):
        pass
    child.send_signal(stop_signal)
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def remove(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # os._exit: the watching thread may be inside select, and nothing is left to flush.
    os._exit(main() & 0xFF)
