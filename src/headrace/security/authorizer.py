"""The interface of an authorizer, which decides whether a principal may access a resource.

Pure. Operations and resource types have Kafka's names and numbers.

1. Handlers call `allows` before they read or change data.
2. `version` changes with the ACLs. A cached result of another version is not used.
3. Handlers call `denied` for each denial that a response contains. They do not call it if the
   denial only removes an item of a list, or if another permission allows the request.
"""

from typing import NamedTuple, Protocol

from headrace.model.acls import CLUSTER_NAME, Operation, ResourceType

__all__ = [
    "ANY_TOPIC",
    "CLUSTER",
    "AllowAll",
    "Authorizer",
    "Operation",
    "Resource",
    "ResourceType",
    "group_resource",
    "topic_resource",
]


class Resource(NamedTuple):
    type: ResourceType
    name: str | None
    """None stands for any resource: the operation must be allowed on at least one of this type."""


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
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

    def denied(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: Resource
    ) -> None:
        """Report that a request was denied, for the audit log."""


class AllowAll:
    """Allows every principal every operation."""

    version = 0

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return True

    def denied(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: Resource
    ) -> None:
        raise AssertionError("nothing is denied")
