from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.stage import Servers, servers


@pytest.fixture(scope="session")
def running() -> Iterator[Servers]:
    with servers() as found:
        yield found
