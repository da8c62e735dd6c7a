"""Reads ACLs that Apache Kafka stored in ZooKeeper, for `headrace acls import --zookeeper`.

    /kafka-acl/TYPE/NAME                     literal names
    /kafka-acl-extended/prefixed/TYPE/NAME   prefixes

Each node has {"acls": [{"principal", "permissionType", "operation", "host"}]}. Changes nothing.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure
from headrace.model.acls import PatternType, title

if TYPE_CHECKING:
    from headrace.client import Acl
    from headrace.coordination.port import Store

_ROOTS = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}


def read_kafka_acls(address: str) -> "list[Acl]":
    from headrace.coordination.port import StoreError, StoreUnavailable
    from headrace.coordination.zookeeper import ZooKeeperStore

    async def read() -> "list[Acl]":
        store = await ZooKeeperStore.open(address)
        try:
            return await acls_of(store)
        finally:
            await store.close()

    try:
        return asyncio.run(read())
    except (StoreError, StoreUnavailable) as error:
        raise Failure(f"Cannot read the ACLs of {address}: {error}") from None


async def acls_of(store: "Store") -> "list[Acl]":
    found: list[Acl] = []
    for pattern, root in _ROOTS.items():
        if await store.exists(root) is None:
            continue
        for type_ in await store.children(root):
            for name in await store.children(f"{root}/{type_}"):
                path = f"{root}/{type_}/{name}"
                data, _ = await store.get(path)
                found += decoded(path, pattern, type_, name, data)
    return found


def decoded(path: str, pattern: PatternType, type_: str, name: str, data: bytes) -> "Iterator[Acl]":
    """The ACLs of one ZooKeeper node. Raises Failure if one cannot be imported."""
    from headrace.coordination.acl_layout import from_row

    try:
        for each in json.loads(data)["acls"]:
            who, host = each["principal"], each["host"]
            operation, permission = each["operation"], each["permissionType"]
            yield from_row([type_, title(pattern), name, who, host, operation, permission])
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"Cannot import {path}: {error!r} in {data[:200]!r}.") from None
