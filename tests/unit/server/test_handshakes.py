"""Which flights of a TLS handshake a short step follows."""

import contextlib
import ssl
from pathlib import Path

import pytest

from headrace.server.handshakes import is_encrypted
from tests.certificates import Certificates


@pytest.mark.parametrize(
    ("version", "expected"),
    [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)],
)
def test_only_the_flight_of_tls_1_3_ends_encrypted(
    tmp_path: Path, version: ssl.TLSVersion, expected: bool
) -> None:
    certificates = Certificates.create(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.path("broker.pem"))
    server.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (client, server.wrap_bio(to_server, to_client, server_side=True)):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    flight = to_client.read()
    assert is_encrypted(flight) == expected
    assert not is_encrypted(flight[:100])  # The first record is ServerHello.


@pytest.mark.parametrize("flight", [b"", b"\x17\x03", b"\x16\x03\x03\xff\xff"])
def test_incomplete_flights_are_not_encrypted(flight: bytes) -> None:
    assert not is_encrypted(flight)
