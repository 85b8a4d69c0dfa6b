"""Whom to believe that it is the database: TLS verified off this machine, against the roots of whoever runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", ""})
_RDS = re.compile(r"\.(?P<region>[a-z0-9-]+)\.rds\.amazonaws\.com(\.cn)?$")
_ROOTS = Path(__file__).with_name("roots")
_AMAZON = _ROOTS / "amazon.pem"
_OF_SYSTEMS = (
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/openssl@3/cert.pem",
)
"""Where systems keep them. The driver's wheel carries an OpenSSL that looks elsewhere, so that libpq's own `system` finds none."""


def with_verified_tls(parts: Mapping[str, Any], *, ca: str | None = None) -> str:
    """The connection string, with `sslmode=verify-full` unless it says otherwise or stays on this machine.

    Roots: `ca`; else for hosts of RDS the region's and Amazon's own, which proxies present, from this package; else the system's.
    """
    host = str(parts.get("host") or parts.get("hostaddr") or "")
    if host in _LOOPBACK or host.startswith("/") or not str(parts.get("sslmode", "verify-full")).startswith("verify"):
        return make_conninfo(**parts)
    return make_conninfo(**{"sslmode": "verify-full", "sslrootcert": ca or _roots_for(host), **parts})


def region_of(host: str) -> str | None:
    """The AWS region of a host of RDS; None for others."""
    found = _RDS.search(host)
    return None if found is None else found["region"]


def _roots_for(host: str) -> str:
    region = region_of(host)
    if region is None:
        return next((path for path in _OF_SYSTEMS if Path(path).is_file()), "system")
    # A file a region: all of RDS's roots took 16 ms of every connect.
    known = _ROOTS / f"{region}.pem"
    return str(known if known.is_file() else _AMAZON)
