"""LeaveGroup, versions 0 to 5: remove members without waiting for their sessions to expire.

- Requires: Read on the group.
- Versions: 0 to 5. Up to 2, a request contains one member. Since 3, it contains several members,
  also by instance id alone, each with its own error.
"""

from collections.abc import Awaitable

from headrace.group.messages import Leaver
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_member
from headrace.requests.replies import then
from headrace.wire.codec import Message


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check_member(broker, context, request["group_id"])
    if "members" not in request:
        alone = [Leaver(request["member_id"])]
        response = broker.groups().leave(request["group_id"], alone)
        return then(response, lambda errors: {"error_code": errors[0]})
    leavers = [
        Leaver(each["member_id"], each.get("group_instance_id")) for each in request["members"]
    ]
    response = broker.groups().leave(request["group_id"], leavers)
    return then(response, lambda errors: _message(leavers, errors))


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}


def _message(leavers: list[Leaver], errors: list[ErrorCode]) -> Message:
    return {
        "members": [
            {
                "member_id": leaver.member_id,
                "group_instance_id": leaver.instance_id,
                "error_code": error,
            }
            for leaver, error in zip(leavers, errors, strict=True)
        ]
    }
