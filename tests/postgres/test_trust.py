"""TLS is verified off this machine, against the roots of whoever runs the database; on real handshakes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg.conninfo import conninfo_to_dict

from runlane.adapters.local.binaries import installed_postgres
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres import trust
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.adapters.postgres.trust import with_verified_tls
from runlane.domain.errors import ConfigurationError

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


def signed(name: str, issuer: tuple[str, ec.EllipticCurvePrivateKey] | None = None) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    """A certificate, as PEM, and its key; without an issuer a root."""
    key = ec.generate_private_key(ec.SECP256R1())
    by, signer = issuer or (name, key)
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])]),
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, by)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) - timedelta(days=1),
        not_valid_after=datetime.now(UTC) + timedelta(days=1),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    if issuer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalPostgres, Path]]:
    """A server that presents a certificate for `RDS`, and the file of the root that signed it. Debian's, as the other has no TLS."""
    if 15 not in {binaries.major for binaries in installed_postgres()}:
        pytest.skip("Postgres 15 is not installed")
    root, root_key = signed("A root of our own")
    certificate, key = signed(RDS, ("A root of our own", root_key))
    ca = tmp_path_factory.mktemp("trust") / "ca.pem"
    ca.write_bytes(root)
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with LocalPostgres(major=15, durable=False) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        folder = Path(connection.execute("SHOW data_directory").fetchone()[0])
        for name, text in (("server.crt", certificate), ("server.key", key.private_bytes(*encoding))):
            file = folder / name
            file.write_bytes(text)
            file.chmod(0o600)
            os.chown(file, folder.stat().st_uid, folder.stat().st_gid)
        connection.execute("ALTER SYSTEM SET ssl = on")
        connection.execute("SELECT pg_reload_conf()")
        yield server, ca


def reach(server: LocalPostgres, host: str, ca: Path | None) -> bool | None:
    """Whether the connection is encrypted; the name is the server's, the address this machine's."""
    parts = {**conninfo_to_dict(server.dsn), "host": host, "hostaddr": "127.0.0.1"}
    with psycopg.connect(with_verified_tls(parts, ca=None if ca is None else str(ca))) as connection:
        return connection.pgconn.ssl_in_use


def test_a_server_with_the_right_name_and_a_root_that_is_known_is_believed(secured: tuple[LocalPostgres, Path]) -> None:
    server, ca = secured
    assert reach(server, RDS, ca) is True


def test_a_server_whose_root_is_none_of_rds_is_not_believed_by_the_name_of_rds(secured: tuple[LocalPostgres, Path]) -> None:
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        reach(secured[0], RDS, None)


def test_a_server_that_has_another_name_is_not_believed(secured: tuple[LocalPostgres, Path]) -> None:
    server, ca = secured
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        reach(server, "other.cluster-abc.eu-west-1.rds.amazonaws.com", ca)


def test_who_is_not_believed_is_told_with_what_mends_it(secured: tuple[LocalPostgres, Path]) -> None:
    parts = {**conninfo_to_dict(secured[0].dsn), "host": RDS, "hostaddr": "127.0.0.1"}
    session = Session(FixedSource(with_verified_tls(parts)), "runlane")
    with pytest.raises(ConfigurationError, match=r"RUNLANE_DATABASE_CA: .*certificate verify failed") as caught:
        session.run("read_policies", {})
    assert caught.value.code == "certificate_refused"
    assert str(parts["password"]) not in str(caught.value)
