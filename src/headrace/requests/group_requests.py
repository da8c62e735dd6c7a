"""Checks shared by requests about groups."""

from collections.abc import Awaitable, Callable, Iterable

from headrace.model.acls import GROUP_OPERATIONS
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import (
    allowed_operations,
    check,
    is_allowed,
)
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from headrace.wire.codec import Message

_INSTANCE_ID_CHARACTERS_MAX = 249
_WAITING = frozenset({JOIN_GROUP, SYNC_GROUP, LEAVE_GROUP, OFFSET_FETCH, CONSUMER_GROUP_HEARTBEAT})


def coordinator_wait(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Awaitable[None] | None:
    """An awaitable if a member's request must wait for its coordinator: see
    ShardRegistry.wait_until_ready.

    Heartbeat needs no wait: it gets no error while its group is being loaded. A denied request does
    not wait.
    """
    if context.api_key not in _WAITING:
        return None
    operation = Operation.DESCRIBE if context.api_key == OFFSET_FETCH else Operation.READ
    groups = [each["group_id"] for each in request.get("groups", (request,))]
    allowed = [
        each for each in groups if is_allowed(broker, context, operation, group_resource(each))
    ]
    return broker.groups().shards.wait_until_ready(allowed) if allowed else None


def check_member(broker: BrokerContext, context: RequestContext, group_id: str) -> None:
    """Check the permission of a member to take part in a group, and that the group has a name."""
    check(broker, context, Operation.READ, group_resource(group_id))
    check_not_empty(group_id)


def check_not_empty(group_id: str) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "group_id must not be empty.")


def check_instance_id(instance_id: str | None) -> None:
    """Clients apply the same limit. It bounds the state that a group keeps per member."""
    if instance_id is not None and not 0 < len(instance_id) <= _INSTANCE_ID_CHARACTERS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"group.instance.id must have 1 to {_INSTANCE_ID_CHARACTERS_MAX} characters.",
        )


async def describe_each(
    broker: BrokerContext,
    context: RequestContext,
    group_ids: Iterable[str],
    describe: Callable[[str], Awaitable[Message]],
    *,
    with_operations: bool,
) -> Message:
    """One entry per group: the result of `describe`, or its error."""
    entries = []
    for group_id in dict.fromkeys(group_ids):
        try:
            check(broker, context, Operation.DESCRIBE, group_resource(group_id))
            entry = await describe(group_id)
            if with_operations and "error_code" not in entry:
                entry["authorized_operations"] = allowed_operations(
                    broker, context, group_resource(group_id), GROUP_OPERATIONS
                )
        except ApiError as error:
            entry = {"group_id": group_id, **failure(error)}
        entries.append(entry)
    return {"groups": entries}


def error_of_each_group(group_ids: Iterable[str], error: ApiError) -> Message:
    entries = [{"group_id": group_id, **failure(error)} for group_id in dict.fromkeys(group_ids)]
    return {"groups": entries}


def not_found(broker: BrokerContext, group_id: str, kind: str) -> ApiError:
    """The error for a group that does not exist or is of another kind."""
    exists = broker.groups().type_of(group_id) is not None
    why = f"is not a {kind} group" if exists else "does not exist"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id[:200]} {why}.")


def host_of(context: RequestContext) -> str:
    """The address of a member in Java's format, which Kafka's tools show."""
    return f"/{context.host}"
