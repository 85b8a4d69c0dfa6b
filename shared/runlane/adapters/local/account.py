"""Postgres refuses to run as root: who runs it instead."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from runlane.adapters.local.faults import LocalLaneError

UNPRIVILEGED = ("postgres", "nobody")
NAMESPACE_ID = 65534


@dataclass(frozen=True, slots=True)
class Account:
    """uid, gid: whom to become, None for nobody else; prefix: put before the command; owner: whose files the server wants."""

    uid: int | None
    gid: int | None
    owner: tuple[int, int]
    prefix: tuple[str, ...] = ()

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the answer carries both outputs in stdout."""
        return subprocess.run(
            [*self.prefix, *command],
            cwd="/",
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )


def server_account(postgres: str, *folders: Path) -> Account:
    """The account that can run `postgres` in all `folders`, which are handed to it with what is in them.

    Another user where one can reach both; a user namespace where they lie in a private folder (say, below /root).
    Raises LocalLaneError when neither works.
    """
    if os.geteuid() != 0:
        return Account(None, None, (os.geteuid(), os.getegid()))
    for account in (_other_user(), _namespace()):
        if account is not None and all(_can_run(account, postgres, folder) for folder in folders):
            return account
    raise LocalLaneError(
        f"Postgres does not run as root, and no other user can reach {', '.join(map(str, (postgres, *folders)))}. "
        "Run as an ordinary user, move these to a folder that others may enter, or set DATABASE_URL."
    )


def _other_user() -> Account | None:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for entry in (known[name] for name in UNPRIVILEGED if name in known):
        return Account(entry.pw_uid, entry.pw_gid, (entry.pw_uid, entry.pw_gid))
    return None


def _namespace() -> Account | None:
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    prefix = (unshare, "--user", f"--map-user={NAMESPACE_ID}", f"--map-group={NAMESPACE_ID}", "--")
    return Account(None, None, (os.geteuid(), os.getegid()), prefix)


def _can_run(account: Account, postgres: str, folder: Path) -> bool:
    hand_over(folder, account.owner)
    try:
        # Asked as the account itself: the folders above count too.
        return all(account.run(command).returncode == 0 for command in (["test", "-w", str(folder)], [postgres, "--version"]))
    except PermissionError:
        return False


def hand_over(folder: Path, owner: tuple[int, int]) -> None:
    """Make `owner` (uid, gid) the owner of everything in the folder; quick when it already is."""
    if all(path.stat().st_uid == owner[0] for path in (folder, *folder.iterdir())):
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *owner, follow_symlinks=False)
