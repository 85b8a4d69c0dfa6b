from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.conftest import Running
from tests.faults.play import Stage


@pytest.fixture(scope="session")
def stage(running: Callable[[int], Running]) -> Iterator[Stage]:
    """One database for all plays of this process; with what it is given here, it is not lent to others afterwards."""
    with running(18).databases.lend() as dsn, closing(Stage(dsn)) as made:
        yield made
