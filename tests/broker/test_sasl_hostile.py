"""Attacks before and after a login: announced sizes, secrets in logs, and deleted users."""

import contextlib
import socket
import struct
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import TokenInfo
from headrace.model.errors import ErrorCode
from headrace.model.sasl import PLAIN, SCRAM_SHA_256
from headrace.testing import RunningBroker
from headrace.wire import apis
from headrace.wire.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import Message, encode_request
from tests.broker.raw import RawConnection, eventually, framed, header, one_batch
from tests.broker.test_delegation_tokens import log_in as log_in_with_token
from tests.broker.test_sasl import Secured, log_in

MIB = 1 << 20
GROWTH_MAX = 20 * MIB
PLANTED = "planted-secret"
LARGE = {
    "string": struct.pack(">h", 0x7FFF),
    "bytes": struct.pack(">i", 0x7FFFFFFF),
    "compact": b"\xff\xff\xff\xff\x0f",
    "negative": struct.pack(">i", -0x80000000),
}
"""Announced lengths, without the bytes that should follow."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    audit = tmp_path_factory.mktemp("audit") / "audit.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_LOG_LEVEL", "debug")
        patch.setattr(
            Secured,
            "settings",
            {"delegation.token.secret.key": PLANTED, "headrace.audit.file": str(audit)},
        )
        secured = Secured()
    secured.create("alice")
    yield secured
    secured.broker.stop()
    log = secured.broker.log()
    text = log + audit.read_text()
    secured.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log
    assert "alice" in text
    for form in (PLANTED, b64encode(PLANTED.encode()).decode(), PLANTED.encode().hex()):
        assert form not in text


def peak_bytes(broker: RunningBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("length", LARGE)
def test_announced_sizes_before_the_login_allocate_nothing(secured: Secured, length: str) -> None:
    Path(f"/proc/{secured.broker.pid}/clear_refs").write_text("5", encoding="ascii")
    before = peak_bytes(secured.broker)
    for key in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
        for version in range(APIS[key].version_max + 1):
            start = header(key, version, flexible=APIS[key].is_flexible(version))
            with RawConnection(secured.port) as connection:
                if key == SASL_AUTHENTICATE:
                    connection.ask(SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
                connection.send(framed(start + LARGE[length]))
                connection.sock.settimeout(0.05)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection.sock.recv(1000)
    with RawConnection(secured.port) as connection:
        assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
    assert peak_bytes(secured.broker) - before < GROWTH_MAX


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
@pytest.mark.parametrize("size", [4097, 500_000])
def test_oversized_token_fails_the_login(secured: Secured, mechanism: str, size: int) -> None:
    with RawConnection(secured.port) as connection:
        connection.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        token = b"n,,n=alice,r=" if mechanism == SCRAM_SHA_256 else b"\0alice\0"
        reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token.ljust(size, b"a")})
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        connection.wait_closed()


def test_deleted_user_gets_no_record_and_writes_none(secured: Secured, new_topic: str) -> None:
    """Also while a long poll waits for records."""
    secured.create("bob")
    with RawConnection(secured.open_port) as other, RawConnection(secured.port) as mine:
        other.create_topic(new_topic)
        assert log_in(mine, SCRAM_SHA_256, "bob")["error_code"] == 0
        mine.send(mine.fetch_frame(new_topic, 0, max_wait_ms=30_000))
        secured.delete("bob")
        with contextlib.suppress(ConnectionError):
            mine.send(mine.produce_frame(new_topic, one_batch(b"too late")))
        other.produce(new_topic, one_batch(b"value"))
        assert mine.wait_closed() == b""
        assert other.end_offset(new_topic) == 1


def test_long_poll_of_an_expired_token_gets_no_record(secured: Secured, new_topic: str) -> None:
    create: Message = {"renewers": [], "max_lifetime_ms": -1}
    with RawConnection(secured.port) as owner, RawConnection(secured.port) as poll:
        assert log_in(owner, SCRAM_SHA_256)["error_code"] == 0
        owner.create_topic(new_topic)
        made = owner.ask(apis.CREATE_DELEGATION_TOKEN, 2, create)
        token = TokenInfo(made["token_id"], "", "", (), 0, 0, 0, made["hmac"])
        assert log_in_with_token(poll, token)["error_code"] == 0
        poll.send(poll.fetch_frame(new_topic, 0, max_wait_ms=30_000))
        expire: Message = {"hmac": token.hmac, "expiry_time_period_ms": -1}
        assert owner.ask(apis.EXPIRE_DELEGATION_TOKEN, 2, expire)["error_code"] == 0
        owner.produce(new_topic, one_batch(b"value"))
        assert poll.wait_closed() == b""


def test_client_that_changes_its_own_password_gets_the_response(secured: Secured) -> None:
    secured.create("dora")
    with RawConnection(secured.port) as connection:
        assert log_in(connection, SCRAM_SHA_256, "dora")["error_code"] == 0
        body: Message = {"deletions": [], "upsertions": [credential("dora", b"planted-secret")]}
        reply = connection.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
        assert reply["results"][0]["error_code"] == 0
        connection.wait_closed()


def credential(user: str, salted_password: bytes) -> Message:
    scram = {"mechanism": 1, "iterations": 4096, "salt": bytes(16)}
    return {"name": user, "salted_password": salted_password, **scram}


def test_no_log_contains_a_secret(secured: Secured) -> None:
    """CVE-2026-33558: the fixture searches the logs for the secret in these requests."""
    secret = PLANTED.encode()
    tokens = {PLAIN: b"\0alice\0" + secret, SCRAM_SHA_256: b"n,,n=alice,r=" + secret}
    for mechanism, token in tokens.items():
        for version in range(3):
            with RawConnection(secured.port) as connection:
                connection.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
                connection.ask(SASL_AUTHENTICATE, version, {"auth_bytes": token})
                connection.send(framed(secret))
    resource = {"resource_type": 4, "resource_name": "1"}
    setting = {"name": "ssl.keystore.password", "value": PLANTED, "config_operation": 0}
    altered: Message = {"resources": [{**resource, "configs": [setting]}], "validate_only": False}
    users: Message = {"deletions": [], "upsertions": [credential("erin", secret)]}
    requests: list[tuple[int, Message]] = [
        (apis.ALTER_CONFIGS, altered),
        (apis.INCREMENTAL_ALTER_CONFIGS, altered),
        (apis.ALTER_USER_SCRAM_CREDENTIALS, users),
        (apis.RENEW_DELEGATION_TOKEN, {"hmac": secret, "renew_period_ms": -1}),
        (apis.EXPIRE_DELEGATION_TOKEN, {"hmac": secret, "expiry_time_period_ms": -1}),
    ]
    for key, body in requests:
        for version in range(APIS[key].version_min, APIS[key].version_max + 1):
            frame = encode_request(key, version, 7, "raw", body)
            for data in (frame, frame[:-1], frame.replace(secret, secret[:-1] + b"\xff")):
                with RawConnection(secured.port) as connection:
                    assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
                    connection.send(framed(data))
                    connection.sock.shutdown(socket.SHUT_WR)
                    connection.wait_closed()
    eventually("the password is changed", lambda: "user='erin'" in secured.broker.log())
