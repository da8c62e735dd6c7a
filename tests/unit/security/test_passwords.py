"""Passwords that were verified lately, and the credential of brokers."""

from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.brokers import broker_credential, salt_secret
from headrace.security.passwords import KEPT_MAX, KEPT_SECONDS, KnownPasswords
from headrace.security.scram import SCRAMS, Credential, verifies

ONE = Credential(b"salt", b"1" * 32, b"server", 4096)
TWO = Credential(b"salt", b"2" * 32, b"server", 4096)


def test_password_is_known_for_its_credential_and_for_a_time() -> None:
    known = KnownPasswords(b"key")
    assert not known.knows(ONE, "secret", 0.0)
    known.add(ONE, "secret", 0.0)
    assert known.knows(ONE, "secret", KEPT_SECONDS - 1)
    assert not known.knows(ONE, "secret", KEPT_SECONDS)
    assert not known.knows(ONE, "Secret", 1.0)
    assert not known.knows(TWO, "secret", 1.0)


def test_known_passwords_are_limited() -> None:
    known = KnownPasswords(b"key")
    for number in range(KEPT_MAX + 10):
        known.add(ONE, str(number), 0.0)
    assert len(known._until) == KEPT_MAX
    known.add(ONE, "later", KEPT_SECONDS)
    assert len(known._until) == 1


def test_all_brokers_derive_the_same_credential_from_the_secret() -> None:
    credential = broker_credential("secret")
    assert verifies(SCRAMS[SCRAM_SHA_256], credential, "secret")
    assert broker_credential("another").salt != credential.salt
    assert salt_secret("secret") != salt_secret("another")
