"""CreateAcls, DescribeAcls and DeleteAcls over the real controller."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.security_rows import AUTHORIZERS
from headrace.controller.service import Controller
from headrace.model.acls import Acl
from headrace.model.errors import ErrorCode
from headrace.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from headrace.wire.codec import Message
from tests.storage.test_handlers_with_controller import Ask, _with_a_controller

TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
ALL, READ, WRITE, DESCRIBE, CREATE_TOKENS = 2, 3, 4, 8, 13
DENY, ALLOW = 2, 3
INVALID = ErrorCode.INVALID_REQUEST


def creation(name: str = "orders", **fields: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **fields,
    }


def selection(name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }


async def create(ask: Ask, *creations: Any) -> list[int]:
    reply = await ask(CREATE_ACLS, 3, {"creations": list(creations)})
    return [result["error_code"] for result in reply["results"]]


async def described(ask: Ask, name: str | None = None, **fields: Any) -> list[tuple[Any, ...]]:
    reply = await ask(DESCRIBE_ACLS, 3, selection(name, **fields))
    assert reply["error_code"] == ErrorCode.NONE
    return [
        (resource["pattern_type"], resource["resource_name"], acl["principal"], acl["operation"])
        for resource in reply["resources"]
        for acl in resource["acls"]
    ]


async def delete(ask: Ask, *filters: Any) -> list[Message]:
    reply = await ask(DELETE_ACLS, 3, {"filters": list(filters)})
    results: list[Message] = reply["filter_results"]
    return results


def with_acls(path: Path, scene: Callable[[Ask, Controller], Awaitable[None]]) -> None:
    config = BrokerConfig.load({"authorizer.class.name": AUTHORIZERS[0]})
    _with_a_controller(path, scene, config)


def stored(controller: Controller) -> list[Acl]:
    return [acl for acls in controller.image.acls.values() for acl in acls or ()]


def test_created_acls_are_described_until_they_are_deleted(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        three = [creation(), creation(operation=WRITE), creation("or", resource_pattern_type=4)]
        assert await create(ask, *three) == [0, 0, 0]
        assert await create(ask, three[0], three[0]) == [0, 0]
        assert len(stored(controller)) == 3
        ann = "User:ann"
        assert await described(ask) == [
            (LITERAL, "orders", ann, READ),
            (LITERAL, "orders", ann, WRITE),
            (PREFIXED, "or", ann, READ),
        ]
        assert await described(ask, "orders", pattern_type_filter=MATCH, operation=READ) == [
            (LITERAL, "orders", ann, READ),
            (PREFIXED, "or", ann, READ),
        ]
        assert await described(ask, host_filter="10.0.0.1") == []
        removed, none = await delete(ask, selection("orders", operation=WRITE), selection("x"))
        (row,) = removed["matching_acls"]
        assert (row["error_code"], row["resource_name"], row["operation"]) == (0, "orders", WRITE)
        assert none["matching_acls"] == []
        assert len(stored(controller)) == 2

    with_acls(tmp_path, scene)


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_name": ""},
        {"resource_type": CLUSTER},
        {"resource_type": ANY},
        {"resource_type": 0},
        {"resource_type": 99},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"operation": 0},
        {"operation": CREATE_TOKENS},
        {"resource_type": GROUP, "operation": WRITE},
        {"permission_type": ANY},
        {"principal": "ann"},
        {"host": "localhost"},
        {"host": "10.0.0.1/8"},
    ],
)
def test_invalid_acl_is_rejected_and_the_others_are_created(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        assert await create(ask, creation() | fields, creation("b")) == [INVALID, 0]
        assert [acl.name for acl in stored(controller)] == ["b"]

    with_acls(tmp_path, scene)


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "operation": ALL},
        {"resource_type": USER, "resource_name": "User:bob", "operation": CREATE_TOKENS},
        {"resource_name": "a/b c*ü"},
        {"host": "10.0.0.0/8"},
        {"principal": "User:CN=ann,O=Mill"},
        {"principal": "User:*", "resource_name": "*", "permission_type": DENY},
    ],
)
def test_unusual_acl_is_accepted(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        assert await create(ask, creation() | fields) == [0]
        assert len(await described(ask)) == 1

    with_acls(tmp_path, scene)


def test_filter_with_an_unknown_number_is_rejected_and_the_others_are_applied(
    tmp_path: Path,
) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        await create(ask, creation())
        unknown = selection(operation=99)
        first, second = await delete(ask, unknown, selection("orders"))
        assert (first["error_code"], second["error_code"]) == (INVALID, 0)
        assert len(second["matching_acls"]) == 1
        reply = await ask(DESCRIBE_ACLS, 3, unknown)
        assert reply["error_code"] == INVALID

    with_acls(tmp_path, scene)


def test_without_an_authorizer_security_is_disabled(tmp_path: Path) -> None:
    async def scene(ask: Ask, controller: Controller) -> None:
        disabled = ErrorCode.SECURITY_DISABLED
        assert (await ask(DESCRIBE_ACLS, 3, selection()))["error_code"] == disabled
        assert await create(ask, creation(), creation()) == [disabled, disabled]
        (result,) = await delete(ask, selection())
        assert result["error_code"] == disabled

    _with_a_controller(tmp_path, scene)
