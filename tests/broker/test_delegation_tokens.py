"""Delegation tokens: the four APIs, logins with a token, and `headrace tokens`."""

import asyncio
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.client
import headrace.client.aio
from headrace.client import RequestFailed, TokenInfo
from headrace.ensemble.zookeeper import free_port
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.scram import SCRAMS
from headrace.security.scram_client import ScramClient
from headrace.testing import RunningBroker
from headrace.wire.apis import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    METADATA,
    RENEW_DELEGATION_TOKEN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tests.broker.raw import RawConnection, eventually

SECRET = "planted secret key"


class Broker:
    def __init__(self, directory: Path, **settings: str) -> None:
        self.open_port, self.port = free_port(), free_port()
        self.directory = directory
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:{self.open_port},"
                f"SASL_PLAINTEXT://127.0.0.1:{self.port}",
                "connection.failed.authentication.delay.ms": "1",
                **settings,
            },
            options=("--log-level", "debug"),
        )
        with headrace.client.connect(f"127.0.0.1:{self.open_port}") as client:
            for user in ("alice", "bob", "carol"):
                client.set_password(user, "secret")

    def client(self, user: str) -> headrace.client.Client:
        return headrace.client.connect(
            f"127.0.0.1:{self.port}", sasl_username=user, sasl_password="secret"
        )

    def command(self, user: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        config = self.directory / f"{user}.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.username={user}\nsasl.password=secret\n"
        )
        server = ["--bootstrap-server", f"127.0.0.1:{self.port}", "--command-config", str(config)]
        return subprocess.run(
            [sys.executable, "-m", "headrace", "tokens", *arguments, *server],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("tokens")
    broker = Broker(directory, **{"delegation.token.secret.key": SECRET})
    yield broker
    log = broker.broker.log()
    broker.broker.close()
    assert "Traceback" not in log
    assert SECRET not in log


def log_in(
    connection: RawConnection, token: TokenInfo, mechanism: str = SCRAM_SHA_256, password: str = ""
) -> dict[str, Any]:
    connection.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    password = password or b64encode(token.hmac).decode()
    client = ScramClient(SCRAMS[mechanism], token.token_id, password, "nonce", is_token=True)
    challenge, reply = b"", {}
    while (message := client.next(challenge)) is not None:
        reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": message})
        if reply["error_code"]:
            break
        challenge = reply["auth_bytes"]
    return reply


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_token_logs_in_and_its_session_ends_with_it(broker: Broker, mechanism: str) -> None:
    with broker.client("alice") as client:
        token = client.create_token()
    assert (token.owner, token.requester, token.renewers) == ("alice", "alice", ())
    assert token.expires_ms - token.issued_ms == 24 * 3_600_000
    assert token.max_ms - token.issued_ms == 7 * 24 * 3_600_000
    with RawConnection(broker.port) as connection:
        reply = log_in(connection, token, mechanism)
        assert reply["error_code"] == 0
        assert 0 < reply["session_lifetime_ms"] <= 24 * 3_600_000
        assert connection.ask(METADATA, 1, {"topics": []})["brokers"]


def test_wrong_password_and_unknown_token_are_rejected(broker: Broker) -> None:
    with broker.client("alice") as client:
        token = client.create_token()
    unknown = TokenInfo("unknown", "", "", (), 0, 0, 0, b"x" * 64)
    for given, password in ((token, "wrong"), (unknown, ""), (token, "secret")):
        with RawConnection(broker.port) as connection:
            reply = log_in(connection, given, password=password)
            assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            connection.wait_closed()


def test_client_with_a_token_or_without_a_login_cannot_use_tokens(broker: Broker) -> None:
    with broker.client("alice") as client:
        token = client.create_token()
    requests: list[tuple[int, dict[str, Any]]] = [
        (CREATE_DELEGATION_TOKEN, {"renewers": [], "max_lifetime_ms": -1}),
        (RENEW_DELEGATION_TOKEN, {"hmac": token.hmac, "renew_period_ms": -1}),
        (EXPIRE_DELEGATION_TOKEN, {"hmac": token.hmac, "expiry_time_period_ms": -1}),
        (DESCRIBE_DELEGATION_TOKEN, {"owners": None}),
    ]
    with RawConnection(broker.port) as by_token, RawConnection(broker.open_port) as anonymous:
        assert log_in(by_token, token)["error_code"] == 0
        for connection in (by_token, anonymous):
            for key, body in requests:
                reply = connection.ask(key, 2, body)
                assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_expired_token_closes_its_connections(broker: Broker) -> None:
    with broker.client("alice") as client, RawConnection(broker.port) as connection:
        token = client.create_token()
        assert log_in(connection, token)["error_code"] == 0
        client.expire_token(token.hmac)
        connection.wait_closed()
        assert token.token_id not in [each.token_id for each in client.list_tokens()]
        for call in (client.renew_token, client.expire_token):
            with pytest.raises(RequestFailed) as failure:
                call(token.hmac)
            assert failure.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with RawConnection(broker.port) as connection:
        assert log_in(connection, token)["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_owner_and_renewers_renew_a_token_up_to_its_maximum(broker: Broker) -> None:
    with broker.client("alice") as alice, broker.client("bob") as bob:
        token = alice.create_token(renewers=["bob"], max_lifetime_ms=3_600_000)
        assert token.expires_ms == token.max_ms == token.issued_ms + 3_600_000
        near = bob.expire_token(token.hmac, 60_000)
        assert near < token.expires_ms
        assert near < bob.renew_token(token.hmac, 120_000) < token.max_ms
        assert alice.renew_token(token.hmac) == token.max_ms
        with broker.client("carol") as carol:
            for call in (carol.renew_token, carol.expire_token):
                with pytest.raises(RequestFailed) as failure:
                    call(token.hmac)
                assert failure.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_token_that_has_expired_by_time_is_rejected(broker: Broker) -> None:
    with broker.client("alice") as client:
        token = client.create_token(max_lifetime_ms=1500)
        eventually(
            "the token expires",
            lambda: token.token_id not in [each.token_id for each in client.list_tokens()],
        )
        with pytest.raises(RequestFailed) as failure:
            client.renew_token(token.hmac)
        assert failure.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED
    with RawConnection(broker.port) as connection:
        assert log_in(connection, token)["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_tokens_survive_a_restart_and_expired_ones_are_deleted(tmp_path: Path) -> None:
    broker = Broker(
        tmp_path,
        **{
            "delegation.token.secret.key": SECRET,
            "delegation.token.expiry.check.interval.ms": "200",
        },
    )
    try:
        with broker.client("alice") as client:
            kept = client.create_token()
            client.create_token(max_lifetime_ms=1)
        broker.broker.restart()
        with broker.client("alice") as client:
            assert [each.token_id for each in client.list_tokens()] == [kept.token_id]
        deleted = "expired delegation tokens deleted: tokens=1"
        eventually("the expired token is deleted", lambda: deleted in broker.broker.log())
        with RawConnection(broker.port) as connection:
            assert log_in(connection, kept)["error_code"] == 0
    finally:
        broker.broker.close()


def test_tokens_are_disabled_without_a_secret_key(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    try:
        with broker.client("alice") as client:
            with pytest.raises(RequestFailed) as failure:
                client.create_token()
            assert failure.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        token = TokenInfo("any", "", "", (), 0, 0, 0, b"x" * 64)
        with RawConnection(broker.port) as connection:
            assert log_in(connection, token)["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    finally:
        broker.broker.close()


def test_users_see_only_tokens_that_acls_allow(tmp_path: Path) -> None:
    broker = Broker(
        tmp_path,
        **{
            "delegation.token.secret.key": SECRET,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:carol;User:ANONYMOUS",
        },
    )
    try:
        with broker.client("alice") as alice, broker.client("bob") as bob:
            token = alice.create_token()
            assert [each.token_id for each in alice.list_tokens()] == [token.token_id]
            assert bob.list_tokens() == []
            with pytest.raises(RequestFailed) as failure:
                bob.create_token("alice")
            assert failure.value.code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        with broker.client("carol") as carol:
            assert [each.token_id for each in carol.list_tokens("alice")] == [token.token_id]
            assert carol.list_tokens("bob") == []
            assert carol.create_token("bob").owner == "bob"
    finally:
        broker.broker.close()


def test_commands_create_list_renew_and_expire_a_token(broker: Broker) -> None:
    created = broker.command("carol", "create", "--renewer", "bob", "--max-hours", "2")
    assert created.returncode == 0, created.stderr
    found = re.search(r'username="([\w-]+)" password="([^"]+)" tokenauth="true";', created.stdout)
    assert found is not None
    listed = json.loads(broker.command("bob", "list", "--owner", "carol", "--json").stdout)
    assert (found[1], ["bob"]) in [(row["id"], row["renewers"]) for row in listed]
    table = broker.command("carol", "list").stdout
    assert found[1] in table
    assert found[2] not in table
    renewed = broker.command("bob", "renew", found[1], "--hours", "1")
    assert renewed.stdout.startswith("The token expires ")
    assert broker.command("carol", "expire", found[1]).returncode == 0
    again = broker.command("carol", "expire", found[1])
    assert (again.returncode, "Unknown token" in again.stderr) == (1, True)


def test_our_own_clients_log_in_with_a_token(broker: Broker, tmp_path: Path) -> None:
    created = broker.command("carol", "create")
    assert created.returncode == 0, created.stderr
    (login,) = re.findall("^sasl.jaas.config=.*$", created.stdout, re.MULTILINE)
    file = tmp_path / "token.properties"
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n{login}\n")
    settings = headrace.client.load_properties(str(file))
    address = f"127.0.0.1:{broker.port}"
    with headrace.client.connect(address, **settings) as client:
        client.produce("by-token", "blocking")

    async def produce() -> None:
        async with headrace.client.aio.connect(address, **settings) as client:
            await client.produce("by-token", "asyncio")

    asyncio.run(produce())
    with headrace.client.connect(address, **settings) as client:
        values = [record.value for record in client.consume("by-token", until="end")]
    assert values == [b"blocking", b"asyncio"]
    without, plain = settings.copy(), settings.copy()
    without["sasl_token"] = False
    plain["sasl_mechanism"] = "PLAIN"
    with pytest.raises(headrace.client.AuthenticationFailed):
        headrace.client.connect(address, **without).open()
    with pytest.raises(ValueError, match="not PLAIN"):
        headrace.client.connect(address, **plain)
