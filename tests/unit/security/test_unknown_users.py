"""Responses about users that do not exist look like those about existing users."""

from collections import Counter
from random import Random

import pytest

from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.scram import SCRAMS, Credential
from headrace.security.unknown_users import UnknownUsers
from headrace.security.users import stored_credential

SCRAM = SCRAMS[SCRAM_SHA_256]
SECRET = bytes(range(32))
NAMES = [f"user-{number}" for number in range(200)]


def stored(iterations: int = 4096, salt: bytes = bytes(16)) -> dict[str, str]:
    credential = Credential(salt, bytes(32), bytes(32), iterations)
    return {SCRAM_SHA_256: credential.to_text()}


def seen(unknown: UnknownUsers, name: str, mechanism: str = SCRAM_SHA_256) -> tuple[int, int]:
    """Iterations and the size of the salt, which every client can see."""
    credential = unknown.credential(SCRAMS[mechanism], name)
    return credential.iterations, len(credential.salt)


def test_all_brokers_invent_the_same_salt_per_name() -> None:
    users = {"alice": stored(), "bob": stored(8192)}
    credentials = {name: UnknownUsers(SECRET, users).credential(SCRAM, name) for name in NAMES}
    again = UnknownUsers(SECRET, dict(reversed(users.items())))
    assert all(again.credential(SCRAM, name) == each for name, each in credentials.items())
    assert len({each.salt for each in credentials.values()}) == len(NAMES)
    assert UnknownUsers(b"x", users).credential(SCRAM, "a") != again.credential(SCRAM, "a")


def test_iterations_and_salts_are_those_of_existing_users() -> None:
    """Kafka's tools store salts of 25 or 26 digits, and librdkafka salts of 64 bytes."""
    kinds = [(4096, b"5jqyfyxt7e2mlp0ksm01b4y2z"), (8192, bytes(16)), (4096, bytes(64))]
    unknown = UnknownUsers(SECRET, {str(each): stored(*each) for each in kinds})
    found = Counter(seen(unknown, name) for name in NAMES)
    assert found.keys() == {(4096, 25), (8192, 16), (4096, 64)}
    assert min(found.values()) > len(NAMES) // 6
    salts = [unknown.credential(SCRAM, name).salt for name in NAMES]
    assert all(salt.isalnum() == (len(salt) == 25) for salt in salts)
    assert {seen(unknown, name, SCRAM_SHA_512) for name in NAMES} == {(4096, 16)}


def test_a_new_kind_changes_few_names_and_its_end_restores_them() -> None:
    users = {str(count): stored(count) for count in (4096, 5000, 6000, 7000)}
    unknown = UnknownUsers(SECRET, users)
    before = {name: seen(unknown, name) for name in NAMES}
    unknown.change({}, stored(8192))
    after = {name: seen(unknown, name) for name in NAMES}
    changed = [name for name in NAMES if before[name] != after[name]]
    assert 0 < len(changed) < len(NAMES) // 3
    assert {after[name] for name in changed} == {(8192, 16)}
    unknown.change(stored(8192), {})
    assert {name: seen(unknown, name) for name in NAMES} == before
    for config in users.values():
        unknown.change(config, stored(9000))
    assert {seen(unknown, name) for name in NAMES} == {(9000, 16)}


def test_tokens_have_one_kind_of_credential() -> None:
    unknown = UnknownUsers(SECRET, {"alice": stored(8192, bytes(64))})
    credential = unknown.of_token(SCRAM, "id")
    assert (credential.iterations, len(credential.salt)) == (4096, 16)


@pytest.mark.parametrize("user", ["alice", "nobody", "bob"])
def test_look_up_decodes_one_text_for_every_user(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the first response of SCRAM comes microseconds sooner for unknown users."""
    decoded: list[str] = []
    monkeypatch.setattr("headrace.security.users.credential_from_text", decoded.append)
    salt = Random(1).randbytes(16)
    stored_credential({"alice": stored(salt=salt), "bob": {}}, SCRAM_SHA_256, user)
    (text,) = decoded
    assert len(text) == len(stored(salt=salt)[SCRAM_SHA_256])
