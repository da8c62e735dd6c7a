"""SyncGroup, versions 0 to 5: distribute the assignments of the group's leader.

- Every member receives its own assignment, as the leader sent it.
- Requires: Read on the group.
- Versions: 0 to 5. Since 3, static members send their instance id. Since 5, both sides send the
  protocol; a request without it gets INCONSISTENT_GROUP_PROTOCOL.
"""

from collections.abc import Awaitable

from headrace.group.messages import SyncReply, SyncRequest
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_not_empty
from headrace.requests.replies import then
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

_PROTOCOL_NAMED_SINCE = 5


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check(broker, context, Operation.READ, group_resource(request["group_id"]))
    names = request.get("protocol_type"), request.get("protocol_name")
    if context.api_version >= _PROTOCOL_NAMED_SINCE and None in names:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_not_empty(request["group_id"])
    sync = SyncRequest(
        member_id=request["member_id"],
        instance_id=request.get("group_instance_id"),
        generation=request["generation_id"],
        protocol_type=names[0],
        protocol=names[1],
        assignments={each["member_id"]: each["assignment"] for each in request["assignments"]},
    )
    return then(broker.groups().sync(request["group_id"], sync), _message)


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}


def _message(reply: SyncReply) -> Message:
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol,
        "assignment": reply.assignment,
    }
