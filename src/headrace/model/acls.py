"""ACLs: Kafka's names and numbers, one ACL, and the filters of requests. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class Operation(IntEnum):
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
GROUP_OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: TOPIC_OPERATIONS,
    ResourceType.GROUP: GROUP_OPERATIONS,
    ResourceType.CLUSTER: CLUSTER_OPERATIONS,
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations of each resource type. An ACL can also have All."""
WILDCARD = "*"
"""As a literal resource name: every resource of the type. As a host: every host."""
ANY_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
ANY = 1
"""The number with which a filter selects every value of a field."""
MATCH = 2
"""A pattern type of filters: it selects every pattern that applies to the name."""


class Acl(NamedTuple):
    """One ACL. Two ACLs are the same if all their fields are equal."""

    type: ResourceType
    pattern: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        kind = "" if self.pattern is PatternType.LITERAL else "prefixed "
        return (
            f"{title(self.permission)} {self.principal} from host {self.host} "
            f"{title(self.operation)} on {kind}{title(self.type)} {self.name}"
        )


PRODUCER_OPERATIONS = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
"""The operations that kafka-acls --producer allows on a topic."""
CONSUMER_OPERATIONS = (Operation.READ, Operation.DESCRIBE)
"""The operations that kafka-acls --consumer allows on a topic. On the group, it allows Read."""


def title(value: IntEnum) -> str:
    """The name as Kafka's tools show it, for example DescribeConfigs."""
    return "".join(word.capitalize() for word in value.name.split("_"))


class AclFilter(NamedTuple):
    """The ACLs that a request selects. None selects every value of a field."""

    type: ResourceType | None = None
    pattern: int = ANY
    """A PatternType, ANY or MATCH."""
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None

    @property
    def is_everything(self) -> bool:
        """Whether it selects all ACLs."""
        return self._replace(pattern=ANY) == AclFilter()

    def matches(self, acl: Acl) -> bool:
        return (
            self.type in (None, acl.type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (None, acl.operation)
            and self.permission in (None, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (ANY, MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        return self.pattern == MATCH and applies(acl.pattern, acl.name, self.name)


ALL_ACLS = AclFilter()


def applies(pattern: PatternType, name: str, resource: str) -> bool:
    """Whether the ACLs of a pattern apply to a resource."""
    if pattern is PatternType.PREFIXED:
        return resource.startswith(name)
    return name in (resource, WILDCARD)


def principals(text: str) -> list[str]:
    """The principals in super.users, separated by semicolons. Raises ValueError."""
    found = [each.strip() for each in text.split(";") if each.strip()]
    for each in found:
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{each!r} is not a principal such as User:admin")
    return found
