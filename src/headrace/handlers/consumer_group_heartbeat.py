"""ConsumerGroupHeartbeat, versions 0 and 1: join, stay in or leave a consumer group (KIP-848).

- Member epoch 0 joins, -1 leaves, -2 leaves temporarily (static members).
- A field that the member omits has not changed.
- Requires: Read on the group, and Describe on each named topic. A regular expression matches only
  topics with Describe.
- Versions: 0 and 1. In 0 the coordinator generates a missing member id. Since 1 the member
  generates it (KIP-1082) and can subscribe by a regular expression.

Gaps: a member of a deleted group gets UNKNOWN_MEMBER_ID and joins again; Kafka returns
GROUP_ID_NOT_FOUND, which stops clients. The first epoch of a group is 1; in Kafka 4.3 it is 2.
"""

from collections.abc import Awaitable
from functools import partial
from uuid import uuid4

from headrace.group.assignment import Assignment, assignment_of, sorted_partitions
from headrace.group.consumer.machine import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from headrace.group.messages import ConsumerHeartbeat, ConsumerHeartbeatReply
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import can_describe, cannot_describe, check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_instance_id, host_of
from headrace.requests.replies import failure, then
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

_OWN_IDS_SINCE = 1
_ID_CHARACTERS_MAX = 255
_TOPIC_CHARACTERS_MAX = 249
_CLIENT_ID_CHARACTERS_MAX = 255


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check(broker, context, Operation.READ, group_resource(request["group_id"]))
    _check(request, context.api_version)
    service = broker.groups()
    _check_assignor(request["server_assignor"], service.settings.consumer.assignors)
    topics = request["subscribed_topic_names"]
    if any(cannot_describe(broker, context, name) for name in set(topics or ())):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    owned = request["topic_partitions"]
    consumer_heartbeat = ConsumerHeartbeat(
        member_id=request["member_id"] or str(uuid4()),
        member_epoch=request["member_epoch"],
        client_id=(context.client_id or "")[:_CLIENT_ID_CHARACTERS_MAX],
        client_host=host_of(context),
        instance_id=request["instance_id"],
        rack_id=request["rack_id"],
        rebalance_timeout_ms=request["rebalance_timeout_ms"],
        topics=None if topics is None else tuple(dict.fromkeys(topics)),
        regex=request.get("subscribed_topic_regex"),
        assignor=request["server_assignor"],
        owned=None if owned is None else _assignment(owned),
        can_describe=partial(can_describe, broker, context),
    )
    return then(service.consumer_heartbeat(request["group_id"], consumer_heartbeat), _message)


def error_response(request: Message, error: ApiError) -> Message:
    return failure(error)


def _check(request: Message, version: int) -> None:
    epoch = request["member_epoch"]
    needs_id = version >= _OWN_IDS_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request["member_id"].strip():
        raise _invalid("member_id must not be empty: since version 1 the member generates it.")
    if not request["group_id"].strip():
        raise _invalid("group_id must not be empty.")
    check_instance_id(request["instance_id"])
    for name in ("member_id", "rack_id"):
        value = request[name]
        if value is not None and len(value) > _ID_CHARACTERS_MAX:
            raise _invalid(f"{name} must not be longer than {_ID_CHARACTERS_MAX} characters.")
    if request["rack_id"] is not None and not request["rack_id"].strip():
        raise _invalid("rack_id must not be empty; omit it.")
    if epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"{epoch} is not a valid member epoch.")
    if epoch == STATIC_LEAVE_EPOCH and request["instance_id"] is None:
        raise _invalid("Only a static member (with an instance_id) can leave temporarily.")
    if any(len(name) > _TOPIC_CHARACTERS_MAX for name in request["subscribed_topic_names"] or ()):
        raise _invalid(f"A topic name must not be longer than {_TOPIC_CHARACTERS_MAX} characters.")
    if epoch == 0:
        _check_join(request)


def _check_join(request: Message) -> None:
    if request["rebalance_timeout_ms"] == -1 and request["topic_partitions"] is None:
        # librdkafka (2.16) omits unchanged fields if it subscribes immediately after it has
        # unsubscribed. INVALID_REQUEST would stop it; after this error, it joins with all fields.
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            "A joining member must send all fields: the group has no state for it.",
        )
    if request["rebalance_timeout_ms"] < 0:
        raise _invalid("A joining member must send rebalance_timeout_ms.")
    if request["topic_partitions"] is None or request["topic_partitions"]:
        raise _invalid("topic_partitions of a joining member must be empty.")
    if request["subscribed_topic_names"] is None and request.get("subscribed_topic_regex") is None:
        raise _invalid(
            "A joining member must send subscribed_topic_names or subscribed_topic_regex."
        )


def _check_assignor(name: str | None, offered: tuple[str, ...]) -> None:
    if name is not None and name not in offered:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"Unknown assignor {name[:100]!r}; available: {' and '.join(offered)}.",
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _assignment(topics: list[Message]) -> Assignment:
    known = (each for each in topics if each["topic_id"] is not None)
    return assignment_of((each["topic_id"], each["partitions"]) for each in known)


def _message(reply: ConsumerHeartbeatReply) -> Message:
    assignment: Message | None = None
    if reply.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": indexes}
                for topic_id, indexes in sorted_partitions(reply.assignment)
            ]
        }
    return {
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval_ms": reply.heartbeat_interval_ms,
        "assignment": assignment,
    }
