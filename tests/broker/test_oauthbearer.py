"""OAUTHBEARER listeners: real clients, keys in files and at a URL, and settings."""

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker
from tests.broker.raw import eventually
from tests.cluster.test_zookeeper_security import make_certificate

ISSUER, AUDIENCE = "https://issuer.example", "headrace"


class Issuer:
    """Creates tokens."""

    def __init__(self, kid: str) -> None:
        self.kid = kid
        self._key = ec.generate_private_key(ec.SECP256R1())

    def jwk(self) -> dict[str, Any]:
        text = jwt.get_algorithm_by_name("ES256").to_jwk(self._key.public_key())
        return {**json.loads(text), "kid": self.kid}

    def pem(self) -> bytes:
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, user: str = "alice", seconds: float = 300) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": now + seconds}
        return jwt.encode(claims, self._key, "ES256", {"kid": self.kid})


def settings(port: int, url: str, open_port: int = 0) -> dict[str, str]:
    return {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{open_port}",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connection.failed.authentication.delay.ms": "1",
    }


def options(port: int, issuer: Issuer, seconds: float = 300) -> dict[str, Any]:
    def token(_config: str) -> tuple[str, float]:
        return issuer.token(seconds=seconds), time.time() + seconds

    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
        "log_level": 0,
    }


def can_produce(port: int, issuer: Issuer, seconds: float = 20) -> bool:
    """Whether a client with a token of this issuer can write."""
    errors: list[KafkaError] = []
    producer = Producer({**options(port, issuer), "error_cb": errors.append})
    delivered: list[object] = []
    producer.produce("mill", b"turn", on_delivery=lambda error, _: delivered.append(error))
    end = time.monotonic() + seconds
    failed = KafkaError._AUTHENTICATION
    while not delivered and time.monotonic() < end:
        producer.poll(0.2)
        if any(error.code() == failed for error in errors):
            producer.purge()
            producer.flush(5)
            return False
    return delivered == [None]


@pytest.fixture(scope="module")
def with_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Issuer]]:
    file = tmp_path_factory.mktemp("keys") / "jwks.json"
    issuer = Issuer("one")
    file.write_text(json.dumps({"keys": [issuer.jwk()]}))
    port, open_port = free_port(), free_port()
    broker = RunningBroker.start(settings=settings(port, f"file://{file}", open_port))
    yield port, open_port, issuer
    log = broker.log()
    broker.close()
    assert "Traceback" not in log
    assert "eyJ" not in log  # No part of a token.


def test_client_with_a_valid_token_can_write(with_file: tuple[int, int, Issuer]) -> None:
    port, _, issuer = with_file
    assert can_produce(port, issuer, 60)


def test_client_with_a_token_of_another_issuer_is_rejected(
    with_file: tuple[int, int, Issuer],
) -> None:
    port, _, _ = with_file
    assert not can_produce(port, Issuer("one"), 60)


def test_client_renews_its_session_before_the_token_expires(
    with_file: tuple[int, int, Issuer],
) -> None:
    port, _, issuer = with_file
    errors: list[KafkaError] = []
    failures: list[object] = []
    # The client logs in again shortly before the token expires. A busy machine needs some seconds.
    producer = Producer({**options(port, issuer, seconds=20), "error_cb": errors.append})
    end = time.monotonic() + 25
    while time.monotonic() < end:
        producer.produce("mill", b"turn", on_delivery=lambda error, _: failures.append(error))
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert set(failures) == {None}
    assert errors == []


def test_url_of_the_keys_cannot_be_changed_by_a_client(
    with_file: tuple[int, int, Issuer],
) -> None:
    _, open_port, _ = with_file
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{open_port}", "log_level": 0})
    for name in ("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.expected.issuer"):
        entry = ConfigEntry(name, "x", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (changed,) = admin.incremental_alter_configs([resource]).values()
        with pytest.raises(KafkaException) as failure:
            changed.result(30)
        assert failure.value.args[0].code() == KafkaError.INVALID_REQUEST


def start(directory: Path, changes: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    chosen = settings(free_port(), f"file://{directory}/keys") | changes
    sets = [each for name, value in chosen.items() for each in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "headrace", "up", "--data", str(directory / "data"), *sets]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sasl.oauthbearer.expected.issuer": ""}, "requires sasl.oauthbearer.expected.issuer"),
        ({"sasl.oauthbearer.expected.audience": ""}, "requires sasl.oauthbearer.expected.audience"),
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "an https:// URL, or file:///path"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://x/keys"}, "must be an https:// URL"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:///none"}, "No such file"),
        ({}, "neither a JWKS document nor a PEM file"),
    ],
)
def test_setting_that_cannot_be_used_stops_the_start(
    tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    (tmp_path / "keys").write_text("{}")
    done = start(tmp_path, changes)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


class KeyServer:
    """Serves keys over HTTPS at /keys, and redirects all other paths there."""

    def __init__(self, certificate: Path) -> None:
        self.document = b""
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                is_found = self.path == "/keys"
                self.send_response(200 if is_found else 302)
                if not is_found:
                    self.send_header("Location", "/keys")
                self.end_headers()
                self.wfile.write(outer.document if is_found else b"")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def key_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    make_certificate(tmp_path / "server.pem", "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    server = KeyServer(tmp_path / "server.pem")
    yield server
    server.close()


def test_keys_are_loaded_from_a_url_and_again_for_an_unknown_key(key_server: KeyServer) -> None:
    first, second = Issuer("first"), Issuer("second")
    key_server.document = json.dumps({"keys": [first.jwk()]}).encode()
    port = free_port()
    with RunningBroker.start(settings=settings(port, key_server.url + "/keys")):
        eventually("the keys are loaded", lambda: bool(key_server.requests))
        assert can_produce(port, first, 60)
        key_server.document = json.dumps({"keys": [second.jwk()]}).encode()
        # The broker loads keys at most every 10 s.
        eventually("the new key is used", lambda: can_produce(port, second), 90)
        assert len(key_server.requests) <= 10


@pytest.mark.parametrize("path", ["/redirected", "/keys"])
def test_redirected_and_untrusted_downloads_give_no_keys(
    key_server: KeyServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "/keys":
        monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    issuer = Issuer("first")
    key_server.document = json.dumps({"keys": [issuer.jwk()]}).encode()
    port = free_port()
    with RunningBroker.start(settings=settings(port, key_server.url + path)) as broker:
        eventually("the download fails", lambda: "keys not loaded" in broker.log())
        assert not can_produce(port, issuer)
        assert "/keys" not in key_server.requests


def test_key_in_a_pem_file_verifies_tokens(tmp_path: Path) -> None:
    issuer = Issuer("any")
    (tmp_path / "key.pem").write_bytes(issuer.pem())
    port = free_port()
    with RunningBroker.start(settings=settings(port, f"file://{tmp_path}/key.pem")):
        assert can_produce(port, issuer, 60)
        assert not can_produce(port, Issuer("any"), 60)
