"""The cost of a failed check of a password."""

import hashlib
from collections import Counter
from typing import Any

import pytest

from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.plain import failing_work, verifies_plain
from headrace.security.sasl_machine import SaslMachine, Verify
from headrace.security.scram import SCRAMS, credential_of, salted_password
from headrace.security.unknown_users import UnknownUsers
from headrace.security.users import stored_credential
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import encode_request

SALT = b"0123456789abcdef"


def text(mechanism: str, iterations: int) -> str:
    scram = SCRAMS[mechanism]
    salted = salted_password(scram, "secret", SALT, iterations)
    return credential_of(scram, salted, SALT, iterations).to_text()


USERS = {
    "usual": {SCRAM_SHA_256: text(SCRAM_SHA_256, 4096), SCRAM_SHA_512: text(SCRAM_SHA_512, 4096)},
    "careful": {SCRAM_SHA_256: text(SCRAM_SHA_256, 16384)},
    "long": {SCRAM_SHA_512: text(SCRAM_SHA_512, 8192)},
    "quota": {"producer_byte_rate": "1000"},
}


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The iterations that were performed, by digest."""
    performed: Counter[str] = Counter()
    derive = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, count: int) -> bytes:
        performed[name] += count
        return derive(name, password, salt, count)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    return performed


def check_of(user: str, password: str) -> Verify:
    def credentials(mechanism: str, name: str) -> Any:
        return stored_credential(USERS, mechanism, name)

    machine = SaslMachine(MECHANISMS, credentials, UnknownUsers(b"s" * 32), lambda: "n", 0.0)
    machine.receive(encode_request(SASL_HANDSHAKE, 1, 1, "", {"mechanism": PLAIN}), 0.0)
    token = f"\0{user}\0{password}".encode()
    action = machine.receive(
        encode_request(SASL_AUTHENTICATE, 2, 2, "", {"auth_bytes": token}), 0.0
    )
    assert isinstance(action, Verify)
    return action


@pytest.mark.parametrize("user", ["usual", "careful", "long", "quota", "unknown"])
def test_failed_check_costs_the_same_for_every_user(user: str, iterations: Counter[str]) -> None:
    check = check_of(user, "wrong")
    work = failing_work(USERS)
    assert not verifies_plain(check.scram, check.credential, check.password, work)
    assert iterations == {"sha256": 16384, "sha512": 8192}


def test_failed_check_costs_no_more_than_needed_if_all_users_are_usual(
    iterations: Counter[str],
) -> None:
    check = check_of("unknown", "wrong")
    work = failing_work({"usual": USERS["usual"]})
    assert not verifies_plain(check.scram, check.credential, check.password, work)
    assert iterations == {"sha256": 4096}


@pytest.mark.parametrize("user", ["usual", "careful", "long"])
def test_right_password_is_verified(user: str) -> None:
    check = check_of(user, "secret")
    assert verifies_plain(check.scram, check.credential, "secret", failing_work(USERS))
