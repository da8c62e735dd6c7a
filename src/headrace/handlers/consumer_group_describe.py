"""ConsumerGroupDescribe, versions 0 and 1: describe epochs, members and assignments of groups.

- Returns GROUP_ID_NOT_FOUND for a classic group.
- Omits deleted topics.
- Requires: Describe on the group and on each assigned topic.
- Versions: 0 and 1. Since 1, the response contains the protocol of each member.
"""

from headrace.group.assignment import Assignment, sorted_partitions
from headrace.group.views import ConsumerGroupView, ConsumerMemberView
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import cannot_describe
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import (
    check_not_empty,
    describe_each,
    error_of_each_group,
    not_found,
)
from headrace.requests.replies import now_or_later
from headrace.wire.codec import Message

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    async def describe(group_id: str) -> Message:
        check_not_empty(group_id)
        view = await now_or_later(broker.groups().describe_consumer(group_id))
        if view is None:
            raise not_found(broker, group_id, "consumer")
        _check_topics(broker, context, view)
        return _described(broker, view)

    with_operations = request["include_authorized_operations"]
    return await describe_each(
        broker, context, request["group_ids"], describe, with_operations=with_operations
    )


def error_response(request: Message, error: ApiError) -> Message:
    return error_of_each_group(request["group_ids"], error)


def _check_topics(broker: BrokerContext, context: RequestContext, view: ConsumerGroupView) -> None:
    names = broker.image.names_by_id
    ids = {id_ for member in view.members for id_ in (*member.assigned, *member.target)}
    if any(cannot_describe(broker, context, names[id_]) for id_ in ids if id_ in names):
        raise ApiError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "Members are assigned topics that this client is not allowed to describe.",
        )


def _described(broker: BrokerContext, view: ConsumerGroupView) -> Message:
    return {
        "group_id": view.group_id,
        "group_state": view.state,
        "group_epoch": view.epoch,
        "assignment_epoch": view.assignment_epoch,
        "assignor_name": view.assignor,
        "members": [_member(broker, member) for member in view.members],
    }


def _member(broker: BrokerContext, member: ConsumerMemberView) -> Message:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": _assignment(broker, member.assigned),
        "target_assignment": _assignment(broker, member.target),
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _assignment(broker: BrokerContext, assignment: Assignment) -> Message:
    names = broker.image.names_by_id
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": indexes}
            for topic_id, indexes in sorted_partitions(assignment)
            if topic_id in names
        ]
    }
