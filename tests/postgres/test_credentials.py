"""TLS is verified off this machine; a secret is read once, again when asked, and never shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.postgres.credentials import SecretSource, with_verified_tls
from runlane.domain.errors import ConfigurationError, UnavailableError

SECRET = {"host": "db.example", "port": 5433, "dbname": "jobs", "username": "app", "password": "p@ss word'"}


class Secrets:
    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    def get_secret_value(self, SecretId: str) -> dict[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"SecretString": answer}


@pytest.mark.parametrize(
    "local", ["host=localhost", "host=127.0.0.1", "host=/run/postgresql", "dbname=x", "host=db.example sslmode=require"]
)
def test_a_local_or_explicit_connection_is_left_as_it_is(local: str) -> None:
    assert with_verified_tls(local) == local


def test_a_remote_connection_verifies_the_server() -> None:
    parts = conninfo_to_dict(with_verified_tls("host=db.example", ca="/etc/ca.pem"))

    assert (parts["sslmode"], parts["sslrootcert"]) == ("verify-full", "/etc/ca.pem")


def test_a_secret_becomes_a_connection_string_once() -> None:
    source = SecretSource("arn", client=Secrets(json.dumps(SECRET)))
    parts = conninfo_to_dict(source.conninfo(refresh=False))

    assert (parts["host"], parts["port"], parts["user"], parts["password"]) == ("db.example", "5433", "app", "p@ss word'")
    assert source.conninfo(refresh=False) == source.conninfo(refresh=False)


def test_a_rotated_secret_is_read_again() -> None:
    source = SecretSource("arn", client=Secrets(json.dumps(SECRET), json.dumps({**SECRET, "password": "new"})))
    source.conninfo(refresh=False)

    assert conninfo_to_dict(source.conninfo(refresh=True))["password"] == "new"


@pytest.mark.parametrize("text", ["not json", '{"password": "hunter2"}', "[]"])
def test_a_secret_of_another_form_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        SecretSource("arn", client=Secrets(text)).conninfo(refresh=False)

    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_secret_out_of_reach_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        SecretSource("arn", client=Secrets(RuntimeError("no route"))).conninfo(refresh=False)


@pytest.mark.parametrize("text", ["nonsense", "sqlite:///x", "postgresql://u:p%ss@h/x", "postgresql://[::1", "postgresql://h/x?foo=bar"])
def test_what_is_no_connection_string_is_said_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        with_verified_tls(text)
    assert "DATABASE_URL" in caught.value.message
    assert text not in f"{caught.value.message}{caught.value.__cause__}"
