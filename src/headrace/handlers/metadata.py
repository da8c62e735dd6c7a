"""Metadata, versions 0 to 13: list brokers, topics, partitions and leaders.

- An unknown topic is created if both the client and auto.create.topics.enable allow it. The
  response waits for it, so that the client need not retry.
- A response that would name a leader whose connection was just lost waits for the election, at most
  0.3 s. For three seconds after the loss, the first response on each connection lists the lost
  broker; later ones list it only if they name it as a leader
  (see cluster/failure_detection/loss_machine.py).
- A broker that is cut off from ZooKeeper and most of its followers neither lists itself nor names
  itself as a leader.
- Null topics mean all topics. An empty array means all topics in version 0, and no topics later.
- Requires: Describe on the topic; to create it, also Create on the cluster or the topic.
- Versions: 0 to 13. Since 12, topics can be requested by id. 13 has an error for the complete
  response, which only an internal failure sets.
"""

from collections.abc import Awaitable, Iterator
from uuid import UUID

from headrace.model.acls import TOPIC_OPERATIONS
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import INTERNAL_TOPICS, TopicPartition, TopicState, check_topic_name
from headrace.requests.authorization import (
    allowed_operations,
    can_describe,
    check,
    cluster_operations,
    is_allowed,
)
from headrace.requests.cluster_view import (
    brokers_on,
    controller_for,
    partition_message,
)
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import named_topic, topic_with_id
from headrace.security.authorizer import CLUSTER, Operation, topic_resource
from headrace.wire.codec import Message

_TOPIC_IDS_SINCE = 12
_LISTENER_ERRORS_SINCE = 6


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    topics = request["topics"]
    names: list[str] | None = None
    ids: list[UUID] = []
    if topics is not None and (topics or context.api_version > 0):
        names, ids = _requested(topics, context.api_version)
    image = broker.image
    # For a topic that the user cannot see, the work is the same whether it exists or not.
    # Otherwise, the time of the response would reveal it.
    visible = names and [name for name in names if can_describe(broker, context, name)]
    is_missing = any(name not in image.topics for name in visible or ())
    if names and is_missing and not ids and _may_create(broker, request):
        return _create_and_reply(broker, context, request, names)

    def reply() -> Message:
        if names is None:
            entries = [
                _topic(broker, context, topic)
                for topic in image.topics.values()
                if can_describe(broker, context, topic.name)
            ]
        elif ids:
            entries = [_by_id(broker, context, topic_id) for topic_id in ids]
            # As in Kafka, unknown ids are listed first.
            entries.sort(key=lambda entry: entry["name"] is not None)
        else:
            entries = [_by_name(broker, context, name) for name in names]
        return _reply(broker, context, request, entries)

    waiting = broker.wait_for_election(
        _partitions(broker, context, visible, ids), len(topics or ())
    )
    if waiting is None:
        return reply()

    async def reply_later() -> Message:
        await waiting
        return reply()

    return reply_later()


def _partitions(
    broker: BrokerContext, context: RequestContext, names: list[str] | None, ids: list[UUID]
) -> Iterator[TopicPartition]:
    """The partitions of the requested topics (None: all), also if the image changes in between."""
    image = broker.image
    if ids:
        names = [image.names_by_id.get(topic_id, "") for topic_id in ids]
    for name in list(image.topics) if names is None else names:
        topic = image.topics.get(name)
        if topic is not None and can_describe(broker, context, name):
            for index in range(len(topic.partitions)):
                yield TopicPartition(name, index)


def error_response(request: Message, error: ApiError) -> Message:
    topics = request["topics"]
    if not topics:
        raise error  # Closes the connection: before version 13, no field can report the error.
    return {
        "error_code": error.code,
        "topics": [
            # Before version 12, a name must not be null in a response.
            {
                "error_code": error.code,
                "name": topic["name"] or "",
                "topic_id": topic.get("topic_id"),
            }
            for topic in topics
        ],
    }


def _requested(topics: list[Message], version: int) -> tuple[list[str], list[UUID]]:
    """Names and ids in the order of the request. Duplicates would enlarge responses."""
    names = dict.fromkeys(topic["name"] for topic in topics)
    ids = dict.fromkeys(topic.get("topic_id") for topic in topics)
    if version < _TOPIC_IDS_SINCE and (None in names or any(ids)):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topic ids can be used since version 12.")
    return (
        [name for name in names if name is not None],
        [topic_id for topic_id in ids if topic_id is not None],
    )


def _may_create(broker: BrokerContext, request: Message) -> bool:
    is_allowed = request.get("allow_auto_topic_creation", True)
    return bool(is_allowed and broker.config.get_bool("auto.create.topics.enable"))


async def _create_and_reply(
    broker: BrokerContext, context: RequestContext, request: Message, names: list[str]
) -> Message:
    entries = []
    for name in names:
        try:
            check(broker, context, Operation.DESCRIBE, topic_resource(name))
            if name not in broker.image.topics and name not in INTERNAL_TOPICS:
                if not is_allowed(broker, context, Operation.CREATE, CLUSTER):
                    check(broker, context, Operation.CREATE, topic_resource(name))
                await _create(broker, name)
            entries.append(_by_name(broker, context, name))
        except ApiError as error:
            entries.append({"error_code": error.code, "name": name})
    return _reply(broker, context, request, entries)


async def _create(broker: BrokerContext, name: str) -> None:
    check_topic_name(name)
    try:
        await broker.controller.create_topic(name)
    except ApiError as error:
        # Another client has created the topic first, so the request has succeeded.
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    await broker.opened(name)


def _by_name(broker: BrokerContext, context: RequestContext, name: str) -> Message:
    try:
        check(broker, context, Operation.DESCRIBE, topic_resource(name))
        if name not in broker.image.topics:
            check_topic_name(name)
        return _topic(broker, context, named_topic(broker, name))
    except ApiError as error:
        return {"error_code": error.code, "name": name, "is_internal": name in INTERNAL_TOPICS}


def _by_id(broker: BrokerContext, context: RequestContext, topic_id: UUID) -> Message:
    try:
        topic = topic_with_id(broker, topic_id)
        check(broker, context, Operation.DESCRIBE, topic_resource(topic.name))
        return _topic(broker, context, topic)
    except ApiError as error:
        return {"error_code": error.code, "name": None, "topic_id": topic_id}


def _topic(broker: BrokerContext, context: RequestContext, topic: TopicState) -> Message:
    partitions = [
        partition_message(broker, context.listener, topic.name, index, state)
        for index, state in enumerate(topic.partitions)
    ]
    if context.api_version < _LISTENER_ERRORS_SINCE:
        for partition in partitions:
            _adapt_to_version(partition, context.api_version)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
    }


def _adapt_to_version(partition: Message, version: int) -> None:
    if partition["error_code"] == ErrorCode.LISTENER_NOT_FOUND:
        partition["error_code"] = ErrorCode.LEADER_NOT_AVAILABLE
    if version == 0 and partition["offline_replicas"]:
        # Version 0 contains only live replicas, and an error if others are offline.
        offline = set(partition["offline_replicas"])
        for nodes in ("replica_nodes", "isr_nodes"):
            partition[nodes] = [node for node in partition[nodes] if node not in offline]
        if partition["error_code"] == ErrorCode.NONE:
            partition["error_code"] = ErrorCode.REPLICA_NOT_AVAILABLE


def _reply(
    broker: BrokerContext, context: RequestContext, request: Message, entries: list[Message]
) -> Message:
    def leaders() -> set[int]:
        partitions = (part for entry in entries for part in entry.get("partitions", ()))
        return {part["leader_id"] for part in partitions}

    brokers = broker.image.brokers
    if broker.brokers_to_list is not None:
        brokers = broker.brokers_to_list(context.peer, leaders)
    if broker.has_isolated_leaders() and broker.node_id not in leaders():
        # librdkafka requests metadata from brokers that it is connected to, possibly only this one.
        # It forgets a broker that is not listed, and connects to another one.
        brokers = {node: info for node, info in brokers.items() if node != broker.node_id}
    if request.get("include_topic_authorized_operations"):
        for entry in entries:
            is_denied = entry.get("error_code") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if entry["name"] is not None and not is_denied:
                entry["topic_authorized_operations"] = allowed_operations(
                    broker, context, topic_resource(entry["name"]), TOPIC_OPERATIONS
                )
    listed = brokers_on(brokers, context.listener)
    return {
        "brokers": [
            {
                "node_id": info.node_id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": info.rack,
            }
            for info, endpoint in listed
        ],
        "cluster_id": broker.image.cluster_id,
        "controller_id": controller_for(broker, listed),
        "topics": entries,
        "cluster_authorized_operations": cluster_operations(
            broker, context, request.get("include_cluster_authorized_operations", False)
        ),
    }
