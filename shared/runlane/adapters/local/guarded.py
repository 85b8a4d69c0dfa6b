"""A child process that cannot outlive this one: the parent's side of `guard.py`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runlane.adapters.local.faults import LocalLaneError, with_log_tail

GUARD = Path(__file__).with_name("guard.py")


class GuardedProcess:
    """A running child. `pid` is the child's own, not its guard's."""

    def __init__(self, guard: subprocess.Popen[str], pid: int, name: str) -> None:
        self.pid = pid
        self._guard = guard
        self._name = name

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        variables: Mapping[str, str] | None = None,
        uid: int | None = None,
        gid: int | None = None,
        remove: Sequence[Path] = (),
    ) -> GuardedProcess:
        """Start `command` with its output appended to `log`.

        variables: set on top of this process's environment.
        uid, gid: whom to become, root only; default nobody else.
        remove: folders deleted if this process dies first.
        Raises LocalLaneError when the command cannot be started.
        """
        order = {
            "command": with_variables(command, variables or {}),
            "log": str(log),
            "stop_signal": int(stop_signal),
            "uid": uid,
            "gid": gid,
            "remove": [str(folder) for folder in remove],
        }
        guard = _start_guard(json.dumps(order), log)
        return cls(guard, _read_pid(guard, command[0], log), Path(command[0]).name)

    def is_alive(self) -> bool:
        return self._guard.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the child; nothing happens once it has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 20.0) -> None:
        """Ask the child to end with `number`; after `timeout` seconds it is killed."""
        self.send_signal(number)
        if not self._has_ended_within(timeout):
            self.send_signal(signal.SIGKILL)
            if not self._has_ended_within(timeout):
                raise LocalLaneError(f"{self._name} (pid {self.pid}) does not end; stop it by hand")

    def _has_ended_within(self, timeout: float) -> bool:
        try:
            self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        _close(self._guard)
        return True


def with_variables(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The command with variables set on top of the inherited environment, by `env`, which becomes the command."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command] if variables else list(command)


def _start_guard(order: str, log: Path) -> subprocess.Popen[str]:
    with log.open("ab") as stderr:
        # A session of its own: Ctrl-C in the terminal stops the parent, which stops its servers in the right order.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


def _read_pid(guard: subprocess.Popen[str], command: str, log: Path) -> int:
    line = guard.stdout.readline() if guard.stdout else ""
    answer = json.loads(line or "{}")
    if "pid" in answer:
        return int(answer["pid"])
    guard.wait()
    _close(guard)
    raise with_log_tail(f"{command} could not be started: {answer.get('error', 'its guard ended')}", log)


def _close(guard: subprocess.Popen[str]) -> None:
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()
