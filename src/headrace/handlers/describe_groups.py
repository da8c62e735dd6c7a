"""DescribeGroups, versions 0 to 6: state, protocol and members of groups.

A group that does not exist is "Dead", without an error; from version 6 on it has one
(GROUP_ID_NOT_FOUND, KIP-1043). So is a group of the newer protocol, which this API cannot show.
Members' metadata is shown once their generation is stable.
"""

from headrace.group.shard_machine import DEAD
from headrace.group.views import GroupView
from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.group_requests import OPERATIONS
from headrace.handlers.later import now_or_later
from headrace.handlers.slots import failure
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.codec import Message

_NOT_FOUND_SINCE = 6


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    slots = []
    for group_id in dict.fromkeys(request["groups"]):
        try:
            view = await now_or_later(broker.groups().describe(group_id))
            slot = _missing(broker, group_id, context.api_version)
            if view is not None:
                slot = _described(view)
            if request.get("include_authorized_operations"):
                slot["authorized_operations"] = OPERATIONS
        except ApiError as error:
            slot = {"group_id": group_id, **failure(error)}
        slots.append(slot)
    return {"groups": slots}


def refuse(request: Message, error: ApiError) -> Message:
    groups = dict.fromkeys(request["groups"])
    return {"groups": [{"group_id": group_id, **failure(error)} for group_id in groups]}


def _missing(broker: BrokerContext, group_id: str, version: int) -> Message:
    slot: Message = {"group_id": group_id, "group_state": DEAD}
    if version >= _NOT_FOUND_SINCE:
        is_there = broker.groups().type_of(group_id) is not None
        why = "is not a classic group" if is_there else "does not exist"
        message = f"Group {group_id[:200]} {why}."
        slot |= failure(ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message))
    return slot


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
