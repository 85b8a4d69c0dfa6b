"""TLS is verified off this machine, against the roots of whoever runs the database; on real handshakes."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.postgres import trust
from runlane.adapters.postgres.trust import with_verified_tls

ROOTS = Path(trust.__file__).with_name("roots")
RDS = "jobs.cluster-abc.eu-west-1.rds.amazonaws.com"


def verified(conninfo: str, ca: str | None = None) -> dict[str, object]:
    return dict(conninfo_to_dict(with_verified_tls(conninfo_to_dict(conninfo), ca=ca)))


@pytest.mark.parametrize(
    "local", ["host=localhost", "host=127.0.0.1", "host=/run/postgresql", "dbname=x", "host=db.example sslmode=require"]
)
def test_a_local_or_explicit_connection_is_left_as_it_is(local: str) -> None:
    assert verified(local) == conninfo_to_dict(local)


@pytest.mark.parametrize("given", ["host=db.example", "hostaddr=10.0.0.1", "host=db.example sslmode=verify-full"])
def test_a_remote_connection_verifies_the_server(given: str) -> None:
    parts = verified(given, ca="/etc/ca.pem")
    assert (parts["sslmode"], parts["sslrootcert"]) == ("verify-full", "/etc/ca.pem")


def test_what_the_connection_string_says_of_roots_is_kept() -> None:
    parts = verified("host=db.example sslmode=verify-ca sslrootcert=/mine.pem", ca="/etc/ca.pem")
    assert (parts["sslmode"], parts["sslrootcert"]) == ("verify-ca", "/mine.pem")


@pytest.mark.parametrize(
    ("host", "file"),
    [
        (RDS, "eu-west-1.pem"),
        ("main.proxy-abc.us-east-1.rds.amazonaws.com", "us-east-1.pem"),
        ("jobs.abc.nowhere-9.rds.amazonaws.com", "amazon.pem"),
    ],
)
def test_a_host_of_rds_is_believed_by_its_regions_roots(host: str, file: str) -> None:
    assert verified(f"host={host}")["sslrootcert"] == str(ROOTS / file)


def test_any_other_host_is_believed_by_the_systems_roots() -> None:
    """Not by `system`: the driver's wheel looks for them in a folder of its own, where there are none."""
    found = str(verified("host=db.example")["sslrootcert"])
    assert len(ssl.create_default_context(cafile=found).get_ca_certs()) > 50


@pytest.mark.parametrize("path", sorted(ROOTS.glob("*.pem")), ids=lambda path: path.stem)
def test_a_file_has_the_roots_of_its_region_and_of_amazon_and_none_that_ends_soon(path: Path) -> None:
    found = ssl.create_default_context(cafile=str(path)).get_ca_certs()
    names = [dict(part[0] for part in certificate["subject"]).get("commonName", "") for certificate in found]  # type: ignore[misc]
    regional = {f"Amazon RDS {path.stem} Root CA {kind} G1" for kind in ("RSA2048", "RSA4096", "ECC384")}
    assert {name for name in names if "RDS" in name} == (set() if path.stem == "amazon" else regional)
    assert {f"Amazon Root CA {number}" for number in range(1, 5)} < set(names)
    ends = [ssl.cert_time_to_seconds(str(certificate["notAfter"])) for certificate in found]
    assert datetime.fromtimestamp(min(ends), UTC).year >= 2037
