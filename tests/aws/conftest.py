"""An empty account for each test, which is this process's only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.aws.stack import REGION


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_DEFAULT_REGION", REGION)):
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield
