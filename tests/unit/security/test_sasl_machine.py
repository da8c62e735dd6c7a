"""The login of a connection: every order of requests, every mechanism, every failure."""

import struct
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.failures import (
    ADDRESSES_MAX,
    DELAY_SECONDS_MAX,
    DELAYED_MAX,
    DELAYED_PER_ADDRESS_MAX,
    FREE_FAILURES,
    FailedLogins,
)
from headrace.security.sasl_machine import (
    LOGIN_SECONDS_MAX,
    Action,
    Done,
    Failed,
    Reply,
    SaslMachine,
    Verify,
)
from headrace.security.scram import SCRAMS, Credential, credential_of, salted_password, verifies
from headrace.security.scram_client import login_client
from headrace.security.unknown_users import UnknownUsers
from headrace.wire.apis import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import Message, decode_response, encode_request

UNKNOWN = UnknownUsers(b"s" * 32)
SALT = b"0123456789abcdef"


@cache
def stored(name: str) -> Credential:
    scram = SCRAMS[name]
    return credential_of(scram, salted_password(scram, "secret", SALT, 4096), SALT, 4096)


class Login:
    """A machine, and the client that talks to it."""

    def __init__(
        self,
        mechanisms: tuple[str, ...] = MECHANISMS,
        credentials: tuple[str, ...] = (SCRAM_SHA_256, SCRAM_SHA_512),
    ) -> None:
        self.users = {(name, "alice"): stored(name) for name in credentials}
        self.machine = SaslMachine(
            mechanisms, lambda name, user: self.users.get((name, user)), UNKNOWN, lambda: "sn", 0.0
        )
        self.is_raw = False
        self.auth_version = 2

    def send(self, key: int, version: int, body: Message, now: float = 1.0) -> Action:
        return self.machine.receive(encode_request(key, version, 7, "test", body), now)

    def handshake(self, mechanism: str, version: int = 1) -> Action:
        self.is_raw = version == 0
        return self.send(SASL_HANDSHAKE, version, {"mechanism": mechanism})

    def token(self, token: bytes) -> Action:
        if self.is_raw:
            action = self.machine.receive(token, 1.0)
        else:
            action = self.send(SASL_AUTHENTICATE, self.auth_version, {"auth_bytes": token})
        if isinstance(action, Verify):
            is_valid = verifies(action.scram, action.credential, action.password)
            return self.machine.verified(is_valid, 1.0)
        return action

    def answer(self, action: Action) -> Message:
        assert isinstance(action, Reply | Done | Failed)
        assert action.data is not None
        return decode_response(SASL_AUTHENTICATE, self.auth_version, action.data)[1]

    def log_in(self, mechanism: str, user: str = "alice", password: str = "secret") -> Action:
        client = login_client(mechanism, user, password, "cn")
        challenge = b""
        while True:
            token = client.next(challenge)
            assert token is not None
            action = self.token(token)
            if not isinstance(action, Reply):
                return action
            challenge = action.data if self.is_raw else self.answer(action)["auth_bytes"]


@pytest.mark.parametrize(
    ("mechanism", "version", "auth_version"),
    [*product(MECHANISMS, [1], [0, 1, 2]), *product(MECHANISMS, [0], [0])],
)
def test_right_password_opens_a_session(mechanism: str, version: int, auth_version: int) -> None:
    login = Login()
    login.auth_version = auth_version
    assert isinstance(login.send(API_VERSIONS, 0, {}), Reply)
    assert isinstance(login.handshake(mechanism, version), Reply)
    done = login.log_in(mechanism)
    assert isinstance(done, Done)
    assert done.session.principal == "User:alice"
    assert done.session.credential == (SCRAM_SHA_256 if mechanism == PLAIN else mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "guess"), ("nobody", "secret")])
def test_wrong_password_and_unknown_user_get_the_same_response(
    mechanism: str, user: str, password: str
) -> None:
    login = Login()
    login.handshake(mechanism)
    failed = login.log_in(mechanism, user, password)
    assert isinstance(failed, Failed)
    assert failed.is_rejected
    assert login.answer(failed) == {
        "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "error_message": "Authentication failed during authentication due to invalid credentials "
        f"with SASL mechanism {mechanism}",
        "auth_bytes": b"",
        "session_lifetime_ms": 0,
    }
    assert password not in failed.reason


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_failed_login_with_raw_tokens_gets_no_response(mechanism: str) -> None:
    login = Login()
    login.handshake(mechanism, 0)
    failed = login.log_in(mechanism, password="wrong")
    assert isinstance(failed, Failed)
    assert (failed.data, failed.is_rejected) == (None, True)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0secret",
        b"admin\0alice\0secret",
        b"\0alice\0secret\0",
        b"\0alice\0\xff",
        b"\0alice\0" + b"s" * 5000,
    ],
)
def test_invalid_plain_token_is_rejected(token: bytes) -> None:
    login = Login()
    login.handshake(PLAIN)
    failed = login.token(token)
    assert isinstance(failed, Failed)
    assert failed.is_rejected


def test_plain_uses_the_credential_that_the_user_has() -> None:
    login = Login(credentials=(SCRAM_SHA_512,))
    login.handshake(PLAIN)
    done = login.log_in(PLAIN)
    assert isinstance(done, Done)
    assert done.session.credential == SCRAM_SHA_512


def test_plain_login_fails_if_the_credential_changes_during_the_check() -> None:
    login = Login()
    login.handshake(PLAIN)
    check = login.send(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0secret"})
    assert isinstance(check, Verify)
    login.users.clear()
    assert isinstance(login.machine.verified(True, 1.0), Failed)


def test_unknown_plain_user_fails_even_if_the_check_succeeds() -> None:
    login = Login()
    login.handshake(PLAIN)
    check = login.send(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0nobody\0secret"})
    assert isinstance(check, Verify)
    assert check.credential.iterations == 4096
    assert isinstance(login.machine.verified(True, 1.0), Failed)


def test_mechanism_that_is_not_enabled_gets_the_list() -> None:
    login = Login((SCRAM_SHA_512,))
    failed = login.handshake(PLAIN)
    assert isinstance(failed, Failed)
    assert failed.data is not None
    assert not failed.is_rejected
    reply = decode_response(SASL_HANDSHAKE, 1, failed.data)[1]
    assert reply["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(reply["mechanisms"]) == [SCRAM_SHA_512]


def test_unsupported_api_versions_is_accepted_twice() -> None:
    login = Login()
    frame = struct.pack(">hhihx", API_VERSIONS, 127, 7, -1)
    assert [type(login.machine.receive(frame, 1.0)) for _ in range(3)] == [Reply, Reply, Failed]


def test_api_versions_is_accepted_once() -> None:
    login = Login()
    # A version that the broker does not know gets the range, and the client sends another one.
    assert isinstance(login.machine.receive(b"\0\x12\0\x7f\0\0\0\1\xff\xff\0", 1.0), Reply)
    assert isinstance(login.send(API_VERSIONS, 3, _SOFTWARE), Reply)
    assert login.send(API_VERSIONS, 0, {}) == Failed("ApiVersions is not allowed before the login")


_SOFTWARE = {"client_software_name": "x", "client_software_version": "1"}


@pytest.mark.parametrize("key", [SASL_AUTHENTICATE, METADATA])
def test_other_request_before_the_handshake_ends_the_login(key: int) -> None:
    failed = Login().send(key, 0, {"auth_bytes": b"", "topics": []})
    assert isinstance(failed, Failed)
    assert failed.data is None


@pytest.mark.parametrize("key", [API_VERSIONS, METADATA])
def test_other_request_after_the_handshake_ends_the_login(key: int) -> None:
    login = Login()
    login.handshake(PLAIN)
    assert isinstance(login.send(key, 0, {"topics": []}), Failed)


def test_second_handshake_gets_illegal_sasl_state() -> None:
    login = Login()
    login.handshake(PLAIN)
    failed = login.handshake(SCRAM_SHA_256)
    assert isinstance(failed, Failed)
    assert failed.data is not None
    code = decode_response(SASL_HANDSHAKE, 1, failed.data)[1]["error_code"]
    assert code == ErrorCode.ILLEGAL_SASL_STATE


def test_login_ends_at_its_deadline() -> None:
    login = Login()
    assert login.machine.deadline == LOGIN_SECONDS_MAX
    assert isinstance(login.send(API_VERSIONS, 0, {}, LOGIN_SECONDS_MAX - 0.1), Reply)
    late = login.send(SASL_HANDSHAKE, 1, {"mechanism": PLAIN}, LOGIN_SECONDS_MAX)
    assert late == Failed("no login within 10 s")


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans(), st.sampled_from(MECHANISMS))
def test_random_frames_open_no_session(frames: list[bytes], shakes: bool, mechanism: str) -> None:
    login = Login()
    if shakes:
        login.handshake(mechanism)
    _feed(login, frames)


@given(st.lists(st.sampled_from([17, 18, 36, 3, 0, 1]), max_size=6), st.data())
def test_random_requests_open_no_session(keys: list[int], data: st.DataObject) -> None:
    login = Login()
    frames = []
    for key in keys:
        version = data.draw(st.integers(0, 4))
        body = data.draw(
            st.sampled_from([b"", b"\0\5PLAIN", b"\0\0\0\4\0a\0b"]) | st.binary(max_size=30)
        )
        frames.append(
            key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + body
        )
    _feed(login, frames)


@given(st.integers(0, 80), st.integers(0, 255))
def test_changed_byte_of_a_proof_opens_no_session(position: int, value: int) -> None:
    login = Login()
    login.handshake(SCRAM_SHA_256)
    client = login_client(SCRAM_SHA_256, "alice", "secret", "cn")
    challenge = login.answer(login.token(client.next(b"") or b""))["auth_bytes"]
    final = client.next(challenge) or b""
    position %= len(final)
    changed = final[:position] + bytes([value]) + final[position + 1 :]
    action = login.token(changed)
    assert isinstance(action, Done) == (changed == final)


def _feed(login: Login, frames: list[bytes]) -> None:
    for frame in frames:
        action = login.machine.receive(frame, 1.0)
        if isinstance(action, Verify):
            action = login.machine.verified(False, 1.0)
        assert not isinstance(action, Done)
        if isinstance(action, Failed):
            return


def test_failures_of_one_address_raise_its_delay() -> None:
    failures = FailedLogins(0.1)
    delays = [failures.failed("a", 1.0) for _ in range(FREE_FAILURES + 1)]
    assert delays == [0.1] * FREE_FAILURES + [DELAY_SECONDS_MAX]
    assert failures.failed("b", 1.0) == 0.1
    assert failures.failed("a", 62.0) == 0.1


def test_delayed_responses_are_limited_per_address_and_in_total() -> None:
    failures = FailedLogins(0.1)
    delays = [failures.failed("a", 1.0) for _ in range(DELAYED_PER_ADDRESS_MAX + 1)]
    assert delays.count(None) == 1
    assert not failures.admits("a", 1.0)
    assert failures.admits("b", 1.0)
    failures.ended("a")
    assert failures.admits("a", 1.0)
    assert failures.failed("a", 1.0) is not None
    for number in range(DELAYED_MAX):
        failures.failed(f"b{number}", 1.0)
    assert failures.delayed == DELAYED_MAX
    assert failures.failed("c", 1.0) is None
    assert failures.admits("c", 1.0)
    assert not failures.admits("a", 1.0)
    assert not failures.admits("a", 59.0)


def test_addresses_are_limited() -> None:
    failures = FailedLogins(0.0)
    for number in range(ADDRESSES_MAX + 5):
        if failures.failed(str(number), 1.0) is not None:
            failures.ended(str(number))
    assert len(failures._by_address) == ADDRESSES_MAX
    assert failures.delayed == 0
