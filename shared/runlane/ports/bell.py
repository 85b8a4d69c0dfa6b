"""How a resident worker learns of new runs without asking again and again."""

from __future__ import annotations

from typing import Protocol


class Bell(Protocol):
    """Belongs to one thread. Every method may raise `UnavailableError`; then open it again."""

    def open(self) -> bool:
        """Listen from now on; False where the connection cannot carry notifications."""
        ...

    def wait(self, seconds: float) -> bool:
        """Up to so many seconds; True as soon as a run may have been dispatched."""
        ...

    def close(self) -> None: ...
