"""How to log in with a secret or an IAM token: fetched when it is needed, and again when it is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.postgres.trust import region_of, with_verified_tls
from runlane.domain.errors import ConfigurationError, UnavailableError
from runlane.domain.excerpt import unstorable

TOKEN_AGE = 600.0
"""Seconds after which another token is made. The database takes one for 15 minutes, by its own clock."""


class SecretSource:
    """A Secrets Manager secret in the form that RDS keeps: username, password, and host, port, dbname where `address` does not say them.

    Read once a process, and again when a login fails, since secrets rotate. `address`: a connection string without a login, such as a
    proxy's; the secret that RDS manages by itself holds no host.
    """

    def __init__(self, arn: str, *, address: str | None = None, ca: str | None = None, client: Any = None) -> None:
        self._arn = arn
        self._address = read_address(address or "")
        if both := sorted({"user", "password"} & set(self._address)):
            raise ConfigurationError(
                f"DATABASE_URL: gives the {' and '.join(both)}, and so does the secret of RUNLANE_DATABASE_SECRET_ARN; "
                "set one of the two, or give only the place in DATABASE_URL: postgresql://host:5432/database"
            )
        self._ca = ca
        self._client = client
        self._conninfo: str | None = None

    def conninfo(self, *, refresh: bool) -> str:
        if self._conninfo is None or refresh:
            self._conninfo = self._read()
        return self._conninfo

    def password(self) -> str:
        """That of the login; asked anew each time."""
        return str(self._secret()["password"])

    def _read(self) -> str:
        secret = self._secret()
        login = {"user": secret["username"], "password": secret["password"]}
        place = {"host": secret.get("host"), "port": secret.get("port", 5432), "dbname": secret.get("dbname") or "postgres"}
        place |= self._address
        if not place["host"]:
            raise ConfigurationError(
                "DATABASE_URL: is not set, and the database secret names no host; give postgresql://host:5432/database, without a login"
            )
        return with_verified_tls({**place, **login}, ca=self._ca)

    def _secret(self) -> Mapping[str, Any]:
        try:
            text = self._secrets().get_secret_value(SecretId=self._arn)["SecretString"]
        except Exception as error:  # Whatever the provider raises, the database cannot be reached now.
            raise UnavailableError("credentials_unavailable", f"the database secret cannot be read ({type(error).__name__})") from error
        try:
            secret: Mapping[str, Any] = json.loads(text)
            is_complete = {"username", "password"} <= secret.keys()
        except (ValueError, TypeError, AttributeError, RecursionError):
            is_complete = False
        if not is_complete:
            # Without a cause: its text may hold the secret.
            raise ConfigurationError(["the database secret is not the JSON that RDS keeps: username and password are needed"]) from None
        ConfigurationError.raise_if(
            f"the database secret: its {name} is no text that a login can hold; store it as RDS does"
            for name in ("username", "password", "host", "port", "dbname")
            if not _fits(secret.get(name), is_needed=name in ("username", "password"), is_number=name == "port")
        )
        return secret

    def _secrets(self) -> Any:
        if self._client is None:
            self._client = _client("secretsmanager")
        return self._client


def _fits(value: object, *, is_needed: bool, is_number: bool) -> bool:
    if value is None:
        return not is_needed
    if is_number and isinstance(value, int):
        return 0 <= value <= 65535
    return isinstance(value, str) and unstorable(value) is None


class TokenSource:
    """An IAM token as the password of `address`'s user, where RDS, Aurora or a proxy authenticates by IAM.

    A token is made on this machine from the role's own credentials, once; another when a login fails, or this one is ten minutes old.
    """

    def __init__(self, address: str, *, ca: str | None = None, client: Any = None) -> None:
        self._address = read_address(address)
        faults = [f"names no {what}" for what in ("host", "user") if not self._address.get(what)]
        faults += ["gives a password"] if "password" in self._address else []
        ConfigurationError.raise_if(
            f"DATABASE_URL: {fault}, and RUNLANE_DATABASE_IAM is set; give postgresql://user@host:5432/database" for fault in faults
        )
        self._ca = ca
        self._client = client
        self._made_at = 0.0
        self._conninfo: str | None = None

    def conninfo(self, *, refresh: bool) -> str:
        # Not the monotonic clock, which may stand still while the sandbox is frozen.
        age = time.time() - self._made_at
        if self._conninfo is None or refresh or not 0 <= age < TOKEN_AGE:
            self._made_at = time.time()
            self._conninfo = with_verified_tls({**self._address, "password": self._token()}, ca=self._ca)
        return self._conninfo

    def _token(self) -> str:
        host, user, port = (str(self._address.get(part, "")) for part in ("host", "user", "port"))
        try:
            if self._client is None:
                self._client = _client("rds", region_of(host))
            return str(self._client.generate_db_auth_token(host, int(port or 5432), user))
        except Exception as error:  # No region, no credentials: whatever the provider raises, nobody can log in now.
            raise UnavailableError("credentials_unavailable", f"no IAM token can be made ({type(error).__name__})") from error


def read_address(conninfo: str) -> Mapping[str, Any]:
    """The parts of a connection string. `ConfigurationError` when it is none."""
    try:
        return conninfo_to_dict(conninfo)
    except (ProgrammingError, UnicodeError):
        # Without the cause: its text may hold the password.
        raise ConfigurationError(
            "DATABASE_URL: is no Postgres connection string; give postgresql://user:password@host:5432/database, "
            "with special characters percent-encoded"
        ) from None


def _client(service: Literal["rds", "secretsmanager"], region: str | None = None) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 2})
    return boto3.client(service, region_name=region, config=config)
