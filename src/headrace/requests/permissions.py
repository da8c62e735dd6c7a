"""The permissions that each API requires, as a table.

`of_request` permissions are required for the complete request. The dispatcher checks them before
the handler runs, and before a request is forwarded. The handler checks `of_items` for each topic,
group or other item; a test compares these checks with this table.

1. Every API has a row. An empty row requires nothing: logins, and APIs of brokers, which only the
   inter-broker listener accepts.
2. A request for the controller is not forwarded if all of its items are denied.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.model.acls import CLUSTER_OPERATIONS, GROUP_OPERATIONS, TOPIC_OPERATIONS
from headrace.requests.authorization import (
    check,
    is_allowed,
)
from headrace.requests.config_resources import resource_of
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.token_requests import TOKEN_APIS, check_token_request
from headrace.security.authorizer import (
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
    topic_resource,
)
from headrace.wire import apis
from headrace.wire.codec import Message

Need = tuple[Operation, ResourceType]


class Permissions(NamedTuple):
    of_request: Operation | None = None
    """The operation on the cluster."""
    of_items: frozenset[Need] = frozenset()


def _cluster(operation: Operation) -> Permissions:
    return Permissions(operation)


def _items(*needs: Need) -> Permissions:
    return Permissions(None, frozenset(needs))


_NOTHING = Permissions()
_ALTER_CLUSTER = _cluster(Operation.ALTER)
_DESCRIBE_CLUSTER = _cluster(Operation.DESCRIBE)
_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_OF_CLUSTER = ResourceType.CLUSTER
_READ_GROUP = _items((Operation.READ, _GROUP))
_DESCRIBE_TOPIC: Need = (Operation.DESCRIBE, _TOPIC)
_ON_TOPIC: tuple[Need, ...] = tuple((each, _TOPIC) for each in TOPIC_OPERATIONS)
"""For the field of authorized operations, like the next two."""
_ON_GROUP: tuple[Need, ...] = tuple((each, _GROUP) for each in GROUP_OPERATIONS)
_ON_CLUSTER: tuple[Need, ...] = tuple((each, _OF_CLUSTER) for each in CLUSTER_OPERATIONS)


def _configs(operation: Operation) -> Permissions:
    return _items((operation, _TOPIC), (operation, _GROUP), (operation, _OF_CLUSTER))


PERMISSIONS: dict[int, Permissions] = {
    apis.PRODUCE: _items((Operation.WRITE, _TOPIC)),
    apis.FETCH: _items((Operation.READ, _TOPIC)),
    apis.LIST_OFFSETS: _items(_DESCRIBE_TOPIC),
    apis.METADATA: _items(*_ON_TOPIC, *_ON_CLUSTER),
    apis.OFFSET_COMMIT: _items((Operation.READ, _GROUP), (Operation.READ, _TOPIC)),
    apis.OFFSET_FETCH: _items((Operation.DESCRIBE, _GROUP), _DESCRIBE_TOPIC),
    apis.FIND_COORDINATOR: _items((Operation.DESCRIBE, _GROUP)),
    apis.JOIN_GROUP: _READ_GROUP,
    apis.HEARTBEAT: _READ_GROUP,
    apis.LEAVE_GROUP: _READ_GROUP,
    apis.SYNC_GROUP: _READ_GROUP,
    apis.DESCRIBE_GROUPS: _items(*_ON_GROUP),
    apis.LIST_GROUPS: _items((Operation.DESCRIBE, _OF_CLUSTER), (Operation.DESCRIBE, _GROUP)),
    apis.SASL_HANDSHAKE: _NOTHING,
    apis.API_VERSIONS: _NOTHING,
    apis.CREATE_TOPICS: _items(
        (Operation.CREATE, _OF_CLUSTER),
        (Operation.CREATE, _TOPIC),
        (Operation.DESCRIBE_CONFIGS, _TOPIC),
    ),
    apis.DELETE_TOPICS: _items(
        (Operation.DELETE, _OF_CLUSTER), (Operation.DELETE, _TOPIC), _DESCRIBE_TOPIC
    ),
    apis.DELETE_RECORDS: _items((Operation.DELETE, _TOPIC)),
    apis.INIT_PRODUCER_ID: _items(
        (Operation.IDEMPOTENT_WRITE, _OF_CLUSTER), (Operation.WRITE, _TOPIC)
    ),
    apis.OFFSET_FOR_LEADER_EPOCH: _items((Operation.CLUSTER_ACTION, _OF_CLUSTER), _DESCRIBE_TOPIC),
    apis.DESCRIBE_ACLS: _DESCRIBE_CLUSTER,
    apis.CREATE_ACLS: _ALTER_CLUSTER,
    apis.DELETE_ACLS: _ALTER_CLUSTER,
    apis.DESCRIBE_CONFIGS: _configs(Operation.DESCRIBE_CONFIGS),
    apis.ALTER_CONFIGS: _configs(Operation.ALTER_CONFIGS),
    apis.ALTER_REPLICA_LOG_DIRS: _ALTER_CLUSTER,
    apis.DESCRIBE_LOG_DIRS: _DESCRIBE_CLUSTER,
    apis.SASL_AUTHENTICATE: _NOTHING,
    apis.CREATE_PARTITIONS: _items((Operation.ALTER, _TOPIC)),
    apis.CREATE_DELEGATION_TOKEN: _items((Operation.CREATE_TOKENS, ResourceType.USER)),
    apis.RENEW_DELEGATION_TOKEN: _NOTHING,
    apis.EXPIRE_DELEGATION_TOKEN: _NOTHING,
    apis.DESCRIBE_DELEGATION_TOKEN: _items(
        (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        (Operation.DESCRIBE_TOKENS, ResourceType.USER),
    ),
    apis.DELETE_GROUPS: _items((Operation.DELETE, _GROUP)),
    apis.ELECT_LEADERS: _ALTER_CLUSTER,
    apis.INCREMENTAL_ALTER_CONFIGS: _configs(Operation.ALTER_CONFIGS),
    apis.ALTER_PARTITION_REASSIGNMENTS: _ALTER_CLUSTER,
    apis.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE_CLUSTER,
    apis.OFFSET_DELETE: _items((Operation.DELETE, _GROUP), (Operation.READ, _TOPIC)),
    apis.DESCRIBE_CLIENT_QUOTAS: _cluster(Operation.DESCRIBE_CONFIGS),
    apis.ALTER_CLIENT_QUOTAS: _cluster(Operation.ALTER_CONFIGS),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE_CLUSTER,
    apis.ALTER_USER_SCRAM_CREDENTIALS: _ALTER_CLUSTER,
    apis.ALTER_PARTITION: _NOTHING,
    apis.ENVELOPE: _NOTHING,
    apis.DESCRIBE_CLUSTER: _items(*_ON_CLUSTER),
    apis.DESCRIBE_PRODUCERS: _items((Operation.READ, _TOPIC)),
    apis.BROKER_HEARTBEAT: _NOTHING,
    apis.ALLOCATE_PRODUCER_IDS: _NOTHING,
    apis.CONSUMER_GROUP_HEARTBEAT: _items((Operation.READ, _GROUP), _DESCRIBE_TOPIC),
    apis.CONSUMER_GROUP_DESCRIBE: _items(_DESCRIBE_TOPIC, *_ON_GROUP),
    apis.ASSIGN_REPLICAS_TO_DIRS: _NOTHING,
    apis.LIST_CONFIG_RESOURCES: _cluster(Operation.DESCRIBE_CONFIGS),
    apis.DESCRIBE_TOPIC_PARTITIONS: _items(*_ON_TOPIC),
}


def check_request(broker: BrokerContext, context: RequestContext) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED if the complete request is denied.

    Requests about delegation tokens require a login.
    """
    if context.api_key in TOKEN_APIS:
        check_token_request(broker, context)
    operation = PERMISSIONS[context.api_key].of_request
    if operation is not None:
        check(broker, context, operation, CLUSTER)


def is_denied_completely(broker: BrokerContext, context: RequestContext, request: Message) -> bool:
    """Whether every item of a request for the controller is denied, so that nothing will change."""
    row = _ITEMS.get(context.api_key)
    if row is None:
        return False
    operation, by_cluster, resources = row
    if by_cluster and is_allowed(broker, context, operation, CLUSTER):
        return False
    found = list(resources(broker, request))
    return bool(found) and not any(
        each is None or is_allowed(broker, context, operation, each) for each in found
    )


def _named(broker: BrokerContext, request: Message) -> Iterable[Resource]:
    return (topic_resource(topic["name"]) for topic in request["topics"])


def _deleted(broker: BrokerContext, request: Message) -> Iterable[Resource | None]:
    for topic in request.get("topics", ()):
        name = topic["name"] or broker.image.names_by_id.get(topic["topic_id"])
        yield None if name is None else topic_resource(name)
    yield from map(topic_resource, request.get("topic_names", ()))


def _configured(broker: BrokerContext, request: Message) -> Iterable[Resource | None]:
    return map(resource_of, request["resources"])


_Resources = Callable[[BrokerContext, Message], Iterable[Resource | None]]
_ITEMS: dict[int, tuple[Operation, bool, _Resources]] = {
    apis.CREATE_TOPICS: (Operation.CREATE, True, _named),
    apis.DELETE_TOPICS: (Operation.DELETE, True, _deleted),
    apis.CREATE_PARTITIONS: (Operation.ALTER, False, _named),
    apis.ALTER_CONFIGS: (Operation.ALTER_CONFIGS, False, _configured),
    apis.INCREMENTAL_ALTER_CONFIGS: (Operation.ALTER_CONFIGS, False, _configured),
}
"""The operation, whether the cluster's permission replaces those of the items, and the items. None
stands for an item that only the controller can check."""
