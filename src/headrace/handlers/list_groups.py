"""ListGroups, versions 0 to 5: list the groups of this coordinator.

- Filters ignore case.
- Requires: Describe on the cluster. Otherwise, the response contains only groups
  for which the client has Describe.
- Versions: 0 to 5. Since 4, a request can filter by state, since 5 also by type.
"""

from collections.abc import Awaitable

from headrace.group.shard_machine import ListedGroup
from headrace.model.errors import ApiError
from headrace.requests.authorization import is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import then
from headrace.security.authorizer import CLUSTER, Operation, group_resource
from headrace.wire.codec import Message


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    states, types = (
        frozenset(word.strip().lower() for word in request.get(name, ()))
        for name in ("states_filter", "types_filter")
    )
    can_describe_all = is_allowed(broker, context, Operation.DESCRIBE, CLUSTER)

    def is_visible(group_id: str) -> bool:
        return can_describe_all or is_allowed(
            broker, context, Operation.DESCRIBE, group_resource(group_id)
        )

    listed = broker.groups().list_groups(states, types)
    return then(listed, lambda groups: _message([g for g in groups if is_visible(g.group_id)]))


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}


def _message(listed: list[ListedGroup]) -> Message:
    return {
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in listed
        ]
    }
