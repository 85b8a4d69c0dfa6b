"""What goes wrong when a server is run on one's own machine, said so that it can be mended."""

from __future__ import annotations

from pathlib import Path

from runlane.domain.errors import RunlaneError

LOCAL_LANE_FAILED = "local_lane_failed"
LOG_TAIL_LINES = 20


class LocalLaneError(RunlaneError):
    """A local server was not found, did not start, or stopped answering; the message ends with the tail of its log."""

    def __init__(self, message: str) -> None:
        super().__init__(LOCAL_LANE_FAILED, message)
        self.args = (message,)


def with_log_tail(message: str, log: Path) -> LocalLaneError:
    """The error for a server whose log says why; a missing or empty log is named instead of quoted."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
    tail = "\n".join(f"  {line}" for line in lines) or "  (nothing was logged)"
    return LocalLaneError(f"{message}\nThe end of {log}:\n{tail}")
