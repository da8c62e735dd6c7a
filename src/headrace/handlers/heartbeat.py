"""Heartbeat, versions 0 to 4: keep a member in its group, and report a rebalance.

- While the group is loading, the response has no error: on an error, members would rejoin.
- Requires: Read on the group.
- Versions: 0 to 4. Since 3, static members send their instance id.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_member
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    check_member(broker, context, request["group_id"])
    error = broker.groups().heartbeat(
        request["group_id"],
        request["member_id"],
        request.get("group_instance_id"),
        request["generation_id"],
    )
    return {"error_code": error}


def error_response(request: Message, error: ApiError) -> Message:
    is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return {"error_code": ErrorCode.NONE if is_loading else error.code}
