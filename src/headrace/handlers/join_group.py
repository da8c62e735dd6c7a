"""JoinGroup, versions 0 to 9: join a group, and wait for the next generation.

- The group's leader receives the list of members; other members receive an empty list.
- If the rebalance timeout is 0, the session timeout is used for both. kafkajs's own tests send 0;
  Apache Kafka 4 removes such a member before it can sync.
- Requires: Read on the group.
- Versions: 0 to 9. 0 has no rebalance timeout; the session timeout is used. Since 4, a new dynamic
  member first gets a member id and MEMBER_ID_REQUIRED (KIP-394). Since 5, static members send their
  instance id. Since 9, the response can skip the assignment (KIP-814).
"""

from collections.abc import Awaitable
from functools import partial
from uuid import uuid4

from headrace.group.messages import JoinReply, JoinRequest
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import can_describe, check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_instance_id, host_of
from headrace.requests.replies import then
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

_KNOWN_ID_NEEDED_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_SKIPPING_SINCE = 9
_CLIENT_ID_CHARACTERS_MAX = 255
"""The client id is a part of the member id, which is stored with the group."""


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check(broker, context, Operation.READ, group_resource(request["group_id"]))
    if not request["group_id"]:
        reply = JoinReply(ErrorCode.INVALID_GROUP_ID, request["member_id"])
        return _message(reply, context.api_version)
    instance_id = request.get("group_instance_id")
    check_instance_id(instance_id)
    client_id = (context.client_id or "")[:_CLIENT_ID_CHARACTERS_MAX]
    session_ms: int = request["session_timeout_ms"]
    rebalance_ms: int = request.get("rebalance_timeout_ms", session_ms)
    # The first entry of each protocol applies; clients send each protocol once.
    protocols = {each["name"]: each["metadata"] for each in reversed(request["protocols"])}
    names = dict.fromkeys(each["name"] for each in request["protocols"])
    join = JoinRequest(
        member_id=request["member_id"],
        instance_id=instance_id,
        client_id=client_id,
        client_host=host_of(context),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms if rebalance_ms > 0 else session_ms,
        protocol_type=request["protocol_type"],
        protocols=tuple((name, protocols[name]) for name in names),
        new_member_id=f"{instance_id or client_id}-{uuid4()}",
        needs_known_id=context.api_version >= _KNOWN_ID_NEEDED_SINCE,
        can_skip_assignment=context.api_version >= _SKIPPING_SINCE,
        can_describe=partial(can_describe, broker, context),
    )
    response = broker.groups().join(request["group_id"], join)
    return then(response, lambda reply: _message(reply, context.api_version))


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "member_id": request["member_id"], "protocol_name": ""}


def _message(reply: JoinReply, version: int) -> Message:
    no_protocol = None if version >= _NULL_PROTOCOL_SINCE else ""
    return {
        "error_code": reply.error,
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        "protocol_name": no_protocol if reply.protocol is None else reply.protocol,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in reply.members
        ],
    }
