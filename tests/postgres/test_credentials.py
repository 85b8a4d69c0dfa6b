"""A secret or a token is fetched once, again when asked, and never shown."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.postgres.credentials import TOKEN_AGE, SecretSource, TokenSource, read_address
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


def test_a_secret_becomes_a_connection_string_once() -> None:
    source = SecretSource("arn", client=Secrets(json.dumps(SECRET)))
    parts = conninfo_to_dict(source.conninfo(refresh=False))

    assert (parts["host"], parts["port"], parts["user"], parts["password"]) == ("db.example", "5433", "app", "p@ss word'")
    assert source.conninfo(refresh=False) == source.conninfo(refresh=False)


def test_a_rotated_secret_is_read_again() -> None:
    source = SecretSource("arn", client=Secrets(json.dumps(SECRET), json.dumps({**SECRET, "password": "new"})))
    source.conninfo(refresh=False)

    assert conninfo_to_dict(source.conninfo(refresh=True))["password"] == "new"


@pytest.mark.parametrize(
    "text", ["not json", '{"password": "hunter2"}', "[]", "null", "[" * 100_000, "9" * 5000], ids=lambda text: text[:9]
)
def test_a_secret_of_another_form_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        SecretSource("arn", client=Secrets(text)).conninfo(refresh=False)

    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


ODD = [7, ["hunter2"], "hunter2\0", "hunter2\ud800", {}]
UNFIT = [(name, odd) for name in ("username", "password", "host", "port", "dbname") for odd in ODD if (name, odd) != ("port", 7)]


@pytest.mark.parametrize(("name", "odd"), [*UNFIT, ("username", None), ("password", None), ("port", -1)], ids=ascii)
def test_what_no_login_can_hold_is_named_and_not_shown(name: str, odd: object) -> None:
    with pytest.raises(ConfigurationError, match=f"its {name} is no text") as raised:
        SecretSource("arn", client=Secrets(json.dumps({**SECRET, name: odd}))).conninfo(refresh=False)

    assert "hunter2" not in str(raised.value)


def test_a_secret_out_of_reach_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        SecretSource("arn", client=Secrets(RuntimeError("no route"))).conninfo(refresh=False)


def test_where_the_database_is_may_be_said_beside_a_secret_that_does_not() -> None:
    managed = json.dumps({"username": "app", "password": "p"})
    source = SecretSource("arn", address="postgresql://proxy.example:6432/jobs?connect_timeout=9", client=Secrets(managed))
    parts = conninfo_to_dict(source.conninfo(refresh=False))
    assert (parts["host"], parts["port"], parts["dbname"], parts["user"]) == ("proxy.example", "6432", "jobs", "app")
    assert parts["connect_timeout"] == "9"


def test_what_is_said_beside_the_secret_goes_before_it() -> None:
    source = SecretSource("arn", address="host=proxy.example", client=Secrets(json.dumps(SECRET)))
    parts = conninfo_to_dict(source.conninfo(refresh=False))
    assert (parts["host"], parts["port"], parts["dbname"]) == ("proxy.example", "5433", "jobs")


def test_a_secret_without_a_host_needs_an_address() -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL: is not set, and the database secret names no host"):
        SecretSource("arn", client=Secrets('{"username": "app", "password": "p"}')).conninfo(refresh=False)


def test_two_logins_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL: gives the password and user, and so does the secret") as raised:
        SecretSource("arn", address="postgresql://app:hunter2@db.example/jobs")
    assert "hunter2" not in str(raised.value)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


PROXY = "postgresql://app@main.proxy-x.eu-west-1.rds.amazonaws.com/jobs"


@pytest.mark.usefixtures("credentials")
def test_a_token_is_a_password_for_this_user_at_this_host_in_its_region() -> None:
    parts = conninfo_to_dict(TokenSource(PROXY).conninfo(refresh=False))
    token = urlsplit(f"https://{parts['password']}")
    asked = parse_qs(token.query)
    assert token.netloc == "main.proxy-x.eu-west-1.rds.amazonaws.com:5432"
    assert (asked["Action"], asked["DBUser"], asked["X-Amz-Expires"]) == (["connect"], ["app"], ["900"])
    assert "/eu-west-1/rds-db/" in asked["X-Amz-Credential"][0]
    assert (parts["user"], parts["dbname"], parts["sslmode"]) == ("app", "jobs", "verify-full")


@pytest.mark.usefixtures("credentials")
def test_a_token_out_of_reach_is_unavailable() -> None:
    """No region, neither in the name nor elsewhere."""
    with pytest.raises(UnavailableError, match="no IAM token can be made"):
        TokenSource("postgresql://app@db.example/jobs").conninfo(refresh=False)


class Tokens:
    def __init__(self) -> None:
        self.made = 0

    def generate_db_auth_token(self, host: str, port: int, user: str) -> str:
        self.made += 1
        return f"token-{self.made}"


def test_a_token_serves_until_a_login_fails_or_its_time_comes_near(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("runlane.adapters.postgres.credentials.time.time", lambda: now)
    source = TokenSource(PROXY, client=Tokens())

    def password(*, refresh: bool = False) -> Any:
        return conninfo_to_dict(source.conninfo(refresh=refresh))["password"]

    assert [password(), password(), password(refresh=True), password()] == ["token-1", "token-1", "token-2", "token-2"]
    now += TOKEN_AGE - 1
    assert password() == "token-2"
    now += 1
    assert password() == "token-3"
    assert TOKEN_AGE <= 14 * 60, "the database takes it for 15 minutes"
    now -= 5
    assert password() == "token-4", "a clock that was set back says nothing of a token's age"


@pytest.mark.parametrize(
    ("address", "fault"),
    [("host=db.example", "names no user"), ("user=app", "names no host"), ("host=h user=u password=hunter2", "gives a password")],
)
def test_an_address_that_no_token_is_for_is_refused(address: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"DATABASE_URL: {fault}, and RUNLANE_DATABASE_IAM is set") as raised:
        TokenSource(address)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("text", ["nonsense", "sqlite:///x", "postgresql://u:p%ss@h/x", "postgresql://[::1", "postgresql://h/x?foo=bar"])
def test_what_is_no_connection_string_is_said_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_address(text)
    assert "DATABASE_URL" in caught.value.message
    assert text not in f"{caught.value.message}{caught.value.__cause__}"
