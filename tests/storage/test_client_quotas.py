"""DescribeClientQuotas and AlterClientQuotas over the real controller and its store."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.changes import ImageChange
from headrace.controller.service import Controller
from headrace.coordination import layout
from headrace.coordination.embedded import EmbeddedStore
from headrace.model.errors import ErrorCode
from headrace.model.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    USER,
    entity_of,
)
from headrace.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
)
from headrace.wire.codec import Message
from tests.storage.test_handlers_with_controller import Ask, _with_a_controller
from tests.storage.test_users import SHA_256, upsertion
from tests.storage.test_users import alter as alter_users

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
Names = Mapping[str, str | None]


def entry(names: Names, **limits: float | None) -> Message:
    return {
        "entity": [{"entity_type": type_, "entity_name": name} for type_, name in names.items()],
        "ops": [
            {"key": kind, "value": limit or 0.0, "remove": limit is None}
            for kind, limit in limits.items()
        ],
    }


async def alter(ask: Ask, *entries: Message, validate_only: bool = False) -> list[tuple[int, str]]:
    body = {"entries": list(entries), "validate_only": validate_only}
    reply = await ask(ALTER_CLIENT_QUOTAS, 1, body)
    return [(row["error_code"], row["error_message"] or "") for row in reply["entries"]]


async def describe(ask: Ask, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    body = {
        "components": [
            {"entity_type": type_, "match_type": match, "match": name}
            for type_, match, name in components
        ],
        "strict": strict,
    }
    reply = await ask(DESCRIBE_CLIENT_QUOTAS, 1, body)
    if reply["error_code"]:
        assert reply["entries"] is None
        return reply["error_code"], reply["error_message"]
    return {
        tuple((each["entity_type"], each["entity_name"]) for each in row["entity"]): {
            value["key"]: value["value"] for value in row["values"]
        }
        for row in reply["entries"]
    }


def run(path: Path, scene: Callable[[Ask, Controller], Awaitable[None]]) -> None:
    _with_a_controller(path, scene)


ALL: list[Names] = [
    {USER: "alice"},
    {USER: None},
    {CLIENT_ID: "app"},
    {CLIENT_ID: None},
    {USER: "alice", CLIENT_ID: "app"},
    {USER: "alice", CLIENT_ID: None},
    {USER: None, CLIENT_ID: "app"},
    {USER: None, CLIENT_ID: None},
]


def test_limits_of_every_kind_of_entity_are_set_described_and_removed(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        entries = [
            entry(names, producer_byte_rate=1000.0 + at, consumer_record_rate=5.0)
            for at, names in enumerate(ALL)
        ]
        entries.append(entry({IP: "10.0.0.1"}, connection_creation_rate=7.0))
        entries.append(entry({IP: None}, connection_creation_rate=9.0))
        assert await alter(ask, *entries) == [(0, "")] * 10
        found = await describe(ask)
        assert len(found) == 10
        for at, names in enumerate(ALL):
            expected = {"producer_byte_rate": 1000.0 + at, "consumer_record_rate": 5.0}
            assert found[entity_of(names)] == expected
        assert found[((IP, None),)] == {CONNECTION_CREATION_RATE: 9.0}
        # One limit of an entity stays if the other is removed.
        assert await alter(ask, entry(ALL[0], producer_byte_rate=None)) == [(0, "")]
        assert (await describe(ask))[entity_of(ALL[0])] == {"consumer_record_rate": 5.0}
        removed = [
            entry(names, producer_byte_rate=None, consumer_record_rate=None) for names in ALL
        ]
        addresses: list[Names] = [{IP: "10.0.0.1"}, {IP: None}]
        removed += [entry(names, connection_creation_rate=None) for names in addresses]
        assert await alter(ask, *removed) == [(0, "")] * 10
        assert await describe(ask) == {}
        assert controller.image.quotas == {}
        store = controller._store
        for room in (layout.USER_CONFIGS, layout.CLIENT_CONFIGS, layout.IP_CONFIGS):
            assert await store.children(room) == []

    run(tmp_path, scene)


def test_response_to_a_change_lists_the_client_id_first(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        change = entry({USER: None, CLIENT_ID: "app"}, producer_byte_rate=5.0)
        body = {"entries": [change], "validate_only": False}
        reply = await ask(ALTER_CLIENT_QUOTAS, 1, body)
        assert reply["entries"][0]["entity"] == [
            {"entity_type": CLIENT_ID, "entity_name": "app"},
            {"entity_type": USER, "entity_name": None},
        ]

    run(tmp_path, scene)


def test_credentials_and_quotas_of_a_user_do_not_replace_each_other(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        assert await alter(ask, entry({USER: "bob"}, request_percentage=12.5)) == [(0, "")]
        assert await alter_users(ask, upsertion("bob")) == {"bob": 0}
        path = layout.user_config_path("bob")
        stored = layout.decode_config(path, (await controller._store.get(path))[0])
        assert (set(stored), stored[REQUEST_PERCENTAGE]) == (
            {"SCRAM-SHA-256", REQUEST_PERCENTAGE},
            "12.5",
        )
        below = entry({USER: "bob", CLIENT_ID: "app"}, producer_byte_rate=5.0)
        assert await alter(ask, below) == [(0, "")]
        deletion = {"name": "bob", "mechanism": SHA_256}
        assert await alter_users(ask, deletions=[deletion]) == {"bob": 0}
        assert await alter(ask, entry({USER: "bob"}, request_percentage=None)) == [(0, "")]
        # The empty node stays, because it has a child.
        assert list(await describe(ask)) == [((CLIENT_ID, "app"), (USER, "bob"))]
        assert await alter_users(ask, upsertion("bob")) == {"bob": 0}
        assert await alter_users(ask, deletions=[deletion]) == {"bob": 0}
        below = entry({USER: "bob", CLIENT_ID: "app"}, producer_byte_rate=None)
        assert await alter(ask, below) == [(0, "")]
        assert await controller._store.children(layout.USER_CONFIGS) == []

    run(tmp_path, scene)


def test_filters_match_like_those_of_kafka(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        await alter(ask, *(entry(names, producer_byte_rate=1.0) for names in ALL))

        async def found(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
            return set(await describe(ask, *components, strict=strict))

        def entities(*numbers: int) -> set[Any]:
            return {entity_of(ALL[number]) for number in numbers}

        assert await found((USER, EXACT, "alice")) == entities(0, 4, 5)
        assert await found((USER, EXACT, "alice"), strict=True) == entities(0)
        assert await found((USER, DEFAULT, None)) == entities(1, 6, 7)
        assert await found((USER, SPECIFIED, None)) == entities(0, 1, 4, 5, 6, 7)
        assert await found((USER, SPECIFIED, None), (CLIENT_ID, EXACT, "app")) == entities(4, 6)
        assert await found((USER, DEFAULT, None), (CLIENT_ID, DEFAULT, None)) == entities(7)
        assert await found(strict=True) == set()

    run(tmp_path, scene)


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", EXACT, "x")], 42, "Invalid empty entity type."),
        ([(USER, EXACT, "a"), (USER, DEFAULT, None)], 42, "cannot appear more than once"),
        ([("group", EXACT, "x")], 35, "Unsupported entity type group"),
        ([(USER, EXACT, None)], 42, "MATCH_TYPE_EXACT, but set match string to null"),
        ([(USER, DEFAULT, "a")], 42, "MATCH_TYPE_DEFAULT, but also specified"),
        ([(USER, SPECIFIED, "a")], 42, "MATCH_TYPE_SPECIFIED, but also specified"),
        ([(USER, 9, None)], 42, "Unknown match type 9"),
        ([(IP, SPECIFIED, None), (USER, SPECIFIED, None)], 42, "IP filter component"),
    ],
)
def test_invalid_filter_is_rejected(
    tmp_path: Path, components: list[tuple[str, int, str | None]], code: int, text: str
) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        got, message = await describe(ask, *components)
        assert got == code
        assert text in message

    run(tmp_path, scene)


def test_each_entity_has_its_own_result(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        twice = entry({USER: "twice"}, producer_byte_rate=1.0)
        same_key = entry({USER: "key"}, producer_byte_rate=1.0)
        same_key["ops"] *= 2
        results = await alter(
            ask,
            entry({USER: "good"}, producer_byte_rate=1.0),
            twice,
            twice,
            same_key,
            entry({USER: "nan"}, request_percentage=math.nan),
            entry({USER: "zero"}, producer_byte_rate=0.0),
            entry({}, producer_byte_rate=1.0),
        )
        assert [code for code, _ in results] == [0, 42, 42, 42, 42, 42]
        assert results[1][1] == "Ignoring duplicate entity ClientQuotaEntity(entries={user=twice})"
        assert "Duplicate quota key producer_byte_rate" in results[2][1]
        assert set(await describe(ask)) == {((USER, "good"),)}

    run(tmp_path, scene)


def test_validation_changes_nothing(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        good = entry({USER: "good"}, producer_byte_rate=1.0)
        bad = entry({USER: "bad"}, producer_byte_rate=-1.0)
        results = await alter(ask, good, bad, validate_only=True)
        assert [code for code, _ in results] == [0, int(ErrorCode.INVALID_REQUEST)]
        assert await describe(ask) == {}

    run(tmp_path, scene)


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    async def write(ask: Ask, controller: Controller) -> None:
        await alter(ask, *(entry(names, producer_record_rate=3.0) for names in ALL))
        await alter_users(ask, upsertion("carol"))

    async def read(ask: Ask, controller: Controller) -> None:
        assert await describe(ask) == {entity_of(each): {PRODUCER_RECORD_RATE: 3.0} for each in ALL}
        # The versions of the nodes are known: they can be changed and deleted.
        entries = [entry(names, producer_record_rate=None) for names in ALL]
        assert await alter(ask, *entries) == [(0, "")] * 8
        assert list(controller.image.users) == ["carol"]

    run(tmp_path, write)
    run(tmp_path, read)


def test_quotas_that_kafka_wrote_are_read(tmp_path: Path) -> None:
    """Kafka leaves parents without data, and nodes without settings."""

    async def scene() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "store.db"))
        for path, config in {
            "/config": None,
            "/config/users": None,
            "/config/users/al%20ice": None,
            "/config/users/al%20ice/clients": None,
            "/config/users/al%20ice/clients/app": {PRODUCER_BYTE_RATE: "2048"},
            "/config/users/<default>": {},
            "/config/clients": None,
            "/config/clients/<default>": {CONSUMER_BYTE_RATE: "1024", REQUEST_PERCENTAGE: "x"},
        }.items():
            await store.create(path, b"" if config is None else layout.encode_config(config))
        await store.close()

    asyncio.run(scene())

    async def read(ask: Ask, controller: Controller) -> None:
        assert await describe(ask) == {
            ((CLIENT_ID, "app"), (USER, "al ice")): {PRODUCER_BYTE_RATE: 2048.0},
            ((CLIENT_ID, None),): {CONSUMER_BYTE_RATE: 1024.0},
        }
        more = entry({USER: "al ice", CLIENT_ID: "app"}, producer_byte_rate=1.0)
        assert await alter(ask, more) == [(0, "")]

    run(tmp_path, read)


def test_listeners_are_notified_once_per_change(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        changes: list[ImageChange] = []
        controller.on_change(changes.append)
        for names in ALL:
            await alter(ask, entry(names, producer_byte_rate=1.0))
            await alter(ask, entry(names, producer_byte_rate=1.0))
        assert sum(change.has_new_quotas for change in changes) == len(ALL)

    run(tmp_path, scene)


def test_store_has_nodes_for_all_user_names(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        for name in (".", "..", "a/b", "<default>", "ü \t*~"):
            assert await alter(
                ask,
                entry({USER: name, CLIENT_ID: name}, producer_byte_rate=1.0),
                entry({CLIENT_ID: name}, producer_byte_rate=1.0),
            ) == [(0, ""), (0, "")]
        assert len(await describe(ask)) == 10

    run(tmp_path, scene)
