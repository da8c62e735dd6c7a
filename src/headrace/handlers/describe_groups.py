"""DescribeGroups, versions 0 to 6: describe state, protocol and members of groups.

- A group that does not exist, or that uses the consumer protocol, has the state "Dead".
- Metadata of members is returned when the generation is stable.
- Requires: Describe on the group.
- Versions: 0 to 6. Since 6, such a group also gets GROUP_ID_NOT_FOUND (KIP-1043).
"""

from headrace.group.shard_machine import DEAD
from headrace.group.views import GroupView
from headrace.model.errors import ApiError
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import describe_each, error_of_each_group, not_found
from headrace.requests.replies import failure, now_or_later
from headrace.wire.codec import Message

_NOT_FOUND_SINCE = 6


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    async def describe(group_id: str) -> Message:
        view = await now_or_later(broker.groups().describe(group_id))
        if view is None:
            return _missing(broker, group_id, context.api_version)
        return _described(view)

    with_operations = request.get("include_authorized_operations", False)
    return await describe_each(
        broker, context, request["groups"], describe, with_operations=with_operations
    )


def error_response(request: Message, error: ApiError) -> Message:
    return error_of_each_group(request["groups"], error)


def _missing(broker: BrokerContext, group_id: str, version: int) -> Message:
    entry: Message = {"group_id": group_id, "group_state": DEAD}
    if version >= _NOT_FOUND_SINCE:
        entry |= failure(not_found(broker, group_id, "classic"))
    return entry


def _described(view: GroupView) -> Message:
    return {
        "group_id": view.group_id,
        "group_state": view.state,
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in view.members
        ],
    }
