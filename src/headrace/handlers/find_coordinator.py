"""FindCoordinator, versions 0 to 6: find the coordinator of a group.

- The first request creates __consumer_offsets and waits for it, so that clients need not retry.
  If it cannot be created, the error is COORDINATOR_NOT_AVAILABLE, and its message has the reason,
  for example fewer live brokers than offsets.topic.replication.factor.
- A response that would name a coordinator whose connection was just lost waits for the election, at
  most 0.3 s.
- Requires: Describe on the group.
- Versions: 0 to 6. Since 4, a request contains several keys, each with its own error.

Gaps: transactions (type 1) and share groups (type 2) are not supported. A transactional id gets the
same fatal error as from InitProducerId; librdkafka retries most other errors forever.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import OFFSETS_TOPIC, TopicPartition
from headrace.requests.authorization import check, is_allowed
from headrace.requests.cluster_view import endpoint_of, is_stale_leader
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

GROUP = 0
TRANSACTION = 1
_NO_COORDINATOR: Message = {"node_id": -1, "host": "", "port": -1}


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    key_type = request.get("key_type", GROUP)
    if "key" in request:
        if key_type == GROUP:
            await _wait_for_leaders(broker, context, [request["key"]])
        found = await _coordinator(broker, context, key_type, request["key"])
        # As in Kafka, versions 1 to 3 return the name of the error code also on success.
        return {"error_message": ErrorCode.NONE.name, **found}
    keys = dict.fromkeys(request["coordinator_keys"])
    if key_type == GROUP:
        await _wait_for_leaders(broker, context, list(keys))
    entries = [{"key": key, **await _coordinator(broker, context, key_type, key)} for key in keys]
    return {"coordinators": [{"error_message": "", **entry} for entry in entries]}


def error_response(request: Message, error: ApiError) -> Message:
    entry = {**_NO_COORDINATOR, **failure(error)}
    keys = dict.fromkeys(request.get("coordinator_keys", ()))
    return {**entry, "coordinators": [{"key": key, **entry} for key in keys]}


async def _wait_for_leaders(
    broker: BrokerContext, context: RequestContext, keys: list[str]
) -> None:
    shards = broker.groups().shards
    partitions = (
        TopicPartition(OFFSETS_TOPIC, shards.partition_of(key))
        for key in keys
        if is_allowed(broker, context, Operation.DESCRIBE, group_resource(key))
    )
    waiting = broker.wait_for_election(partitions, len(keys))
    if waiting is not None:
        await waiting


async def _coordinator(
    broker: BrokerContext, context: RequestContext, key_type: int, key: str
) -> Message:
    try:
        if key_type == TRANSACTION:
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "Transactions are not supported yet.",
            )
        if key_type != GROUP:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Coordinator type {key_type} is not supported."
            )
        check(broker, context, Operation.DESCRIBE, group_resource(key))
        shards = broker.groups().shards
        node_id = await shards.coordinator_of(key)
        if node_id == broker.node_id and is_stale_leader(
            broker, OFFSETS_TOPIC, shards.partition_of(key)
        ):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        endpoint = endpoint_of(broker.image.brokers[node_id], context.listener)
        if endpoint is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except ApiError as error:
        return {**_NO_COORDINATOR, **failure(error)}
    return {"node_id": node_id, "host": endpoint.host, "port": endpoint.port}
