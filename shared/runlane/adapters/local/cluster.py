"""A Postgres data directory: made once, used by one server at a time."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path

import psutil

from runlane.adapters.local.account import Account, hand_over
from runlane.adapters.local.binaries import PostgresBinaries
from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.guarded import with_variables

SUPERUSER = "postgres"
RELEASE_TIMEOUT = 15.0
# Messages in English, whatever the terminal speaks: the launcher reads them.
SERVER_VARIABLES = {"LC_ALL": "C", "TZ": "UTC"}


class Cluster:
    """The folder `base` with `data`, the superuser's `password` and the server's `log`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.data = base / "data"
        self.log = base / "log"
        self._password = base / "password"

    @property
    def password(self) -> str:
        return self._password.read_text()

    def create(self, binaries: PostgresBinaries, account: Account, *, sync: bool) -> None:
        """Run initdb unless it was run; a data directory of another major version is refused.

        TCP asks for a password: on a shared machine, a superuser open to loopback would be anybody's shell.
        """
        if self.data.exists():
            return self._require(binaries)
        # Renamed when complete, so that an interrupted initdb is simply made again.
        unfinished = self.base / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._write_password(account)
        command = [
            binaries.path("initdb"),
            "-D",
            str(unfinished),
            "-U",
            SUPERUSER,
            "--encoding=UTF8",
            "--no-locale",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={self._password}",
        ]
        done = account.run(with_variables(command + ([] if sync else ["--no-sync"]), SERVER_VARIABLES))
        if done.returncode != 0:
            raise LocalLaneError(f"initdb could not make {self.data}:\n{done.stdout}")
        unfinished.rename(self.data)
        return None

    def release(self) -> None:
        """Forget a server that did not end properly; wait for one that is still ending.

        Postgres itself only compares pids, and takes a stranger that got the dead server's pid for the server.
        """
        deadline = time.monotonic() + RELEASE_TIMEOUT
        while (pid := self.server_pid()) is not None:
            if time.monotonic() > deadline:
                raise LocalLaneError(f"A Postgres server (pid {pid}) already runs on {self.data}: stop it, or choose another folder.")
            time.sleep(0.05)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def server_pid(self) -> int | None:
        """The pid of the server that runs on this data directory, if one does."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            is_ours = psutil.Process(pid).cwd() == str(self.data.resolve())
        except (OSError, ValueError, psutil.Error):
            return None
        return pid if is_ours else None

    def _require(self, binaries: PostgresBinaries) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        if made_by != str(binaries.major):
            raise LocalLaneError(
                f"{self.data} was made by Postgres {made_by}, but {binaries.folder} is Postgres {binaries.major}. "
                "Install the old version, or delete the folder if its contents are not needed."
            )

    def _write_password(self, account: Account) -> None:
        self._password.touch(mode=0o600)
        self._password.write_text(secrets.token_urlsafe(24))
        hand_over(self.base, account.owner)
