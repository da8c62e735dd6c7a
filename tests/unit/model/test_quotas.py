"""Quotas: precedence, and the rules for entities and limits."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordination import layout
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.quotas import (
    CLIENT_ID,
    CLIENT_KINDS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    address_limit,
    check_entity,
    check_limit,
    entity_of,
    has_limit,
    limit_of,
    limits_from_text,
    limits_to_text,
    precedence,
    user_entity,
)

ORDER: list[Mapping[str, str | None]] = [
    {USER: "alice", CLIENT_ID: "app"},
    {USER: "alice", CLIENT_ID: None},
    {USER: "alice"},
    {USER: None, CLIENT_ID: "app"},
    {USER: None, CLIENT_ID: None},
    {USER: None},
    {CLIENT_ID: "app"},
    {CLIENT_ID: None},
]
"""Kafka's precedence, the strongest first."""
ALICE = user_entity("alice")
ADDRESS: Entity = ((IP, "10.0.0.1"),)


def test_first_entity_of_the_order_decides() -> None:
    quotas = {
        entity_of(names): {PRODUCER_BYTE_RATE: float(at + 1)} for at, names in enumerate(ORDER)
    }
    for at, names in enumerate(ORDER):
        found = limit_of(quotas, precedence("alice", "app"), PRODUCER_BYTE_RATE)
        assert found is not None
        assert found[:2] == (at + 1, entity_of(names))
        del quotas[entity_of(names)]
    assert limit_of(quotas, precedence("alice", "app"), PRODUCER_BYTE_RATE) is None


def test_default_counts_each_name_separately() -> None:
    def counted(names: Mapping[str, str | None], user: str, client_id: str) -> Entity | None:
        quotas = {entity_of(names): {PRODUCER_BYTE_RATE: 1.0}}
        found = limit_of(quotas, precedence(user, client_id), PRODUCER_BYTE_RATE)
        return None if found is None else found[2]

    assert counted({USER: None}, "alice", "app") == counted({USER: None}, "alice", "other")
    assert counted({USER: None}, "alice", "app") != counted({USER: None}, "bob", "app")
    both = {USER: None, CLIENT_ID: None}
    assert counted(both, "alice", "app") != counted(both, "alice", "other")
    assert counted({CLIENT_ID: "app"}, "alice", "app") == counted({CLIENT_ID: "app"}, "bob", "app")


def test_kinds_have_separate_precedence() -> None:
    quotas = {ALICE: {PRODUCER_BYTE_RATE: 1.0}, ((CLIENT_ID, "app"),): {CONSUMER_BYTE_RATE: 2.0}}
    found = limit_of(quotas, precedence("alice", "app"), CONSUMER_BYTE_RATE)
    assert found is not None
    assert found[0] == 2.0


def test_address_without_a_limit_has_the_default() -> None:
    default: Entity = ((IP, None),)
    quotas = {default: {CONNECTION_CREATION_RATE: 2.0}, ADDRESS: {CONNECTION_CREATION_RATE: 5.0}}
    assert address_limit(quotas, "10.0.0.1") == 5
    assert address_limit(quotas, "10.0.0.2") == 2
    assert address_limit({}, "10.0.0.1") is None


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "Invalid empty client quota entity"),
        ([(USER, "")], "Empty user not supported"),
        ([("group", "g")], "Unhandled client quota entity type: group"),
        ([(IP, "10.0.0.1"), (USER, "a")], "IP entity should not be combined"),
        ([(IP, "mill.example")], "'mill.example' is not a valid IP address"),
        ([(CLIENT_ID, "x" * 256)], "not be longer than 255 bytes"),
    ],
)
def test_invalid_entity_is_rejected(names: list[tuple[str, str | None]], text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        check_entity(names)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_one_address_has_one_text() -> None:
    assert check_entity([(IP, "::ffff:10.0.0.1")]) == ADDRESS
    assert check_entity([(IP, "0:0::1")]) == ((IP, "::1"),)
    assert check_entity([(IP, None)]) == ((IP, None),)


@pytest.mark.parametrize(
    ("entity", "kind", "value", "text"),
    [
        (ALICE, "bogus", 1.0, "Invalid configuration key bogus"),
        (ALICE, CONNECTION_CREATION_RATE, 1.0, "Invalid configuration key"),
        (ADDRESS, PRODUCER_BYTE_RATE, 1.0, "Invalid configuration key"),
        (ALICE, PRODUCER_BYTE_RATE, 0.0, "must be greater than 0"),
        (ALICE, PRODUCER_BYTE_RATE, -1.0, "must be greater than 0"),
        (ALICE, PRODUCER_BYTE_RATE, 1.5, "cannot be a fractional value"),
        (ALICE, PRODUCER_BYTE_RATE, 1e-9, "cannot be a fractional value"),
        (ALICE, PRODUCER_RECORD_RATE, 1e30, "too large for a LONG"),
        (ADDRESS, CONNECTION_CREATION_RATE, 2.0**31, "too large for an INT"),
        (ALICE, PRODUCER_BYTE_RATE, math.inf, "too large for a LONG"),
        (ALICE, REQUEST_PERCENTAGE, math.inf, "must be a finite number"),
        (ALICE, REQUEST_PERCENTAGE, math.nan, "must be a finite number"),
        (ALICE, PRODUCER_BYTE_RATE, math.nan, "must be a finite number"),
        (ADDRESS, CONNECTION_CREATION_RATE, math.nan, "must be a finite number"),
        (ALICE, CONTROLLER_MUTATION_RATE, -math.inf, "must be greater than 0"),
    ],
)
def test_invalid_limit_is_rejected(entity: Entity, kind: str, value: float, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        check_limit(entity, kind, value)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_valid_limit_is_kept() -> None:
    assert check_limit(ALICE, REQUEST_PERCENTAGE, 12.5) == 12.5
    assert check_limit(ALICE, PRODUCER_BYTE_RATE, 1024.0000001) == 1024
    assert check_limit(ADDRESS, CONNECTION_CREATION_RATE, 7.0) == 7


def test_limits_are_stored_as_text_like_in_kafka() -> None:
    stored = limits_to_text({PRODUCER_BYTE_RATE: 1024.0, REQUEST_PERCENTAGE: 12.5})
    assert stored == {PRODUCER_BYTE_RATE: "1024", REQUEST_PERCENTAGE: "12.5"}
    assert limits_from_text(stored) == ({PRODUCER_BYTE_RATE: 1024.0, REQUEST_PERCENTAGE: 12.5}, [])


def test_invalid_stored_limits_are_reported() -> None:
    config = {"SCRAM-SHA-256": "salt=", PRODUCER_BYTE_RATE: "nan", CONSUMER_BYTE_RATE: "x"}
    assert limits_from_text(config) == ({}, [PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE])
    assert set(CLIENT_KINDS) >= {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE}


names = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(names, names)
def test_path_of_an_entity_identifies_it(user: str | None, client_id: str | None) -> None:
    for entity in (
        user_entity(user),
        ((CLIENT_ID, client_id),),
        entity_of({USER: user, CLIENT_ID: client_id}),
    ):
        path = layout.quota_path(entity)
        assert layout.entity_of_path(path) == entity


def test_paths_are_those_of_kafka() -> None:
    paths: dict[str, Mapping[str, str | None]] = {
        "/config/clients/app": {CLIENT_ID: "app"},
        "/config/clients/<default>": {CLIENT_ID: None},
        "/config/users/al%20ice": {USER: "al ice"},
        "/config/users/<default>/clients/%3Cdefault%3E": {USER: None, CLIENT_ID: "<default>"},
        "/config/users/alice/clients/<default>": {USER: "alice", CLIENT_ID: None},
        "/config/ips/<default>": {IP: None},
        "/config/ips/::1": {IP: "::1"},
    }
    for path, of in paths.items():
        assert layout.quota_path(entity_of(of)) == path
        assert layout.entity_of_path(path) == entity_of(of)


def test_counted_entity_is_limited_by_its_quota_or_a_default() -> None:
    counted = entity_of({USER: "alice", CLIENT_ID: "app"})
    limited = [entity_of(names) for names in ORDER if len(names) == 2]
    for entity in limited:
        assert has_limit({entity: {PRODUCER_BYTE_RATE: 1.0}}, PRODUCER_BYTE_RATE, counted)
        assert not has_limit({entity: {PRODUCER_BYTE_RATE: 1.0}}, CONSUMER_BYTE_RATE, counted)
        assert not has_limit({entity: {PRODUCER_BYTE_RATE: 1.0}}, PRODUCER_BYTE_RATE, ALICE)
