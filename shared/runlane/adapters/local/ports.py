"""Free ports on loopback, and what to do when somebody else was quicker."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port nobody listens on now; it may be taken before it is used, so callers try again."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
