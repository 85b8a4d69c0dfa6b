"""Connection strings: TLS verified off loopback, passwords fetched when they are needed and again when they are refused."""

from __future__ import annotations

import json
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runlane.domain.errors import ConfigurationError, UnavailableError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", ""})


def with_verified_tls(conninfo: str, *, ca: str | None = None) -> str:
    """The same string, with `sslmode=verify-full` unless it says otherwise or stays on this machine.

    `ConfigurationError` when it is no connection string.
    """
    try:
        parts = conninfo_to_dict(conninfo)
    except ProgrammingError:
        # Without the cause: its text may hold the password.
        raise ConfigurationError(
            "DATABASE_URL: is no Postgres connection string; give postgresql://user:password@host:5432/database, "
            "with special characters percent-encoded"
        ) from None
    host = str(parts.get("host") or "")
    if host in _LOOPBACK or host.startswith("/") or "sslmode" in parts:
        return conninfo
    return make_conninfo(conninfo, sslmode="verify-full", sslrootcert=ca or str(parts.get("sslrootcert") or "system"))


class SecretSource:
    """A Secrets Manager secret in the form that RDS keeps: host, port, dbname, username, password.

    Read once a process, and again when a login fails, since secrets rotate.
    """

    def __init__(self, arn: str, *, ca: str | None = None, client: Any = None) -> None:
        self._arn = arn
        self._ca = ca
        self._client = client
        self._conninfo: str | None = None

    def conninfo(self, *, refresh: bool) -> str:
        if self._conninfo is None or refresh:
            self._conninfo = self._read()
        return self._conninfo

    def _read(self) -> str:
        try:
            text = self._secrets().get_secret_value(SecretId=self._arn)["SecretString"]
        except Exception as error:  # Whatever the provider raises, the database cannot be reached now.
            raise UnavailableError("credentials_unavailable", f"the database secret cannot be read ({type(error).__name__})") from error
        try:
            secret = json.loads(text)
            parts = {
                "host": secret["host"],
                "port": secret.get("port", 5432),
                "dbname": secret.get("dbname") or "postgres",
                "user": secret["username"],
                "password": secret["password"],
            }
        except (ValueError, KeyError, TypeError):
            # Without the cause: its text may hold the secret.
            raise ConfigurationError(
                ["the database secret is not the JSON that RDS keeps: host, username and password are needed"]
            ) from None
        return with_verified_tls(make_conninfo(**parts), ca=self._ca)

    def _secrets(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            self._client = boto3.client(
                "secretsmanager", config=Config(connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 2})
            )
        return self._client
