"""Answers one question: is a principal on a host allowed an operation on a resource?

Pure. Operations and resource types have Kafka's names and numbers.

1. Handlers ask before they read or change data.
2. `version` changes with the rules. A cached answer of another version is not used.
"""

from enum import IntEnum
from typing import NamedTuple, Protocol


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    type: ResourceType
    name: str | None
    """None asks whether the operation is allowed on at least one resource of this type."""


CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
ANY_TOPIC = Resource(ResourceType.TOPIC, None)


def topic_resource(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group_resource(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


class Authorizer(Protocol):
    @property
    def version(self) -> int: ...

    def allows(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool: ...


class AllowAll:
    """Allows every principal every operation."""

    version = 0

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return True
