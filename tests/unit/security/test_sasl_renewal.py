"""The login of a connection that has a session already (KIP-368)."""

import pytest

from headrace.model.errors import ErrorCode
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.sasl_machine import Action, Done, Failed, Reply, SaslMachine, Verify
from headrace.security.scram import SCRAMS, Credential, credential_of, salted_password
from headrace.security.scram_client import login_client
from headrace.security.session import Session
from headrace.security.unknown_users import UnknownUsers
from headrace.wire.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import Message, decode_response, encode_request

SALT = b"0123456789abcdef"
ALICE = Session("User:alice", "alice", SCRAM_SHA_256, SCRAM_SHA_256, 50.0)


def stored(mechanism: str, user: str) -> Credential | None:
    scram = SCRAMS[mechanism]
    salted = salted_password(scram, f"secret of {user}", SALT, 4096)
    return credential_of(scram, salted, SALT, 4096)


def machine(former: Session | None, lifetime_s: float = 60.0) -> SaslMachine:
    return SaslMachine(
        MECHANISMS,
        stored,
        UnknownUsers(b"s" * 32),
        lambda: "sn",
        0.0,
        lifetime_of=lambda _: lifetime_s,
        former=former,
    )


def send(to: SaslMachine, key: int, version: int, body: Message) -> Action:
    return to.receive(encode_request(key, version, 7, "test", body), 1.0)


def log_in(to: SaslMachine, mechanism: str, user: str, version: int = 2) -> Action:
    action = send(to, SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    client = login_client(mechanism, user, f"secret of {user}", "cn")
    challenge = b""
    while isinstance(action, Reply) and (token := client.next(challenge)) is not None:
        action = send(to, SASL_AUTHENTICATE, version, {"auth_bytes": token})
        if isinstance(action, Verify):
            action = to.verified(True, 1.0)
        if isinstance(action, Reply):
            challenge = decode_response(SASL_AUTHENTICATE, version, action.data)[1]["auth_bytes"]
    return action


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_login_sets_the_lifetime_of_the_session(mechanism: str, version: int) -> None:
    action = log_in(machine(None), mechanism, "alice", version)
    assert isinstance(action, Done)
    assert (action.session.expires_at, action.session.mechanism) == (61.0, mechanism)
    reply = decode_response(SASL_AUTHENTICATE, version, action.data)[1]
    assert reply.get("session_lifetime_ms", 0) == (60_000 if version else 0)


def test_session_without_a_lifetime_does_not_expire() -> None:
    action = log_in(machine(None, 0.0), SCRAM_SHA_256, "alice")
    assert isinstance(action, Done)
    assert action.session.expires_at == 0.0
    assert decode_response(SASL_AUTHENTICATE, 2, action.data)[1]["session_lifetime_ms"] == 0


def test_same_user_and_mechanism_renew_a_session() -> None:
    action = log_in(machine(ALICE), SCRAM_SHA_256, "alice")
    assert isinstance(action, Done)
    assert action.session == ALICE._replace(expires_at=61.0)


@pytest.mark.parametrize(
    ("mechanism", "user"),
    [(SCRAM_SHA_256, "bob"), (SCRAM_SHA_512, "alice"), (PLAIN, "alice"), (PLAIN, "bob")],
)
def test_other_user_or_mechanism_is_rejected(mechanism: str, user: str) -> None:
    action = log_in(machine(ALICE), mechanism, user)
    assert isinstance(action, Failed)
    assert action.is_rejected
    assert action.data is not None
    reply = decode_response(SASL_AUTHENTICATE, 2, action.data)[1]
    assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_tokens_without_a_header_cannot_renew_a_session() -> None:
    action = send(machine(ALICE), SASL_HANDSHAKE, 0, {"mechanism": SCRAM_SHA_256})
    assert action == Failed("SaslHandshake version 0 cannot renew a session")


def test_renewal_starts_with_a_handshake() -> None:
    for key, version in ((API_VERSIONS, 0), (SASL_AUTHENTICATE, 2)):
        assert isinstance(send(machine(ALICE), key, version, {"auth_bytes": b""}), Failed)
