"""What requests about groups have in common."""

from headrace.handlers.context import RequestContext
from headrace.model.errors import ApiError, ErrorCode

OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8
"""Read, delete and describe. Nobody is denied anything yet."""

_INSTANCE_ID_CHARACTERS_MAX = 249


def check_not_empty(group_id: str) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "A group that has members has a name.")


def check_instance_id(instance_id: str | None) -> None:
    """Clients hold themselves to this; it bounds what a group keeps of each member."""
    if instance_id is not None and not 0 < len(instance_id) <= _INSTANCE_ID_CHARACTERS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"group.instance.id has 1 to {_INSTANCE_ID_CHARACTERS_MAX} characters.",
        )


def host_of(context: RequestContext) -> str:
    """Where a member is, as Java prints an address and Kafka's tools therefore show it."""
    return "/" + context.peer.rpartition(":")[0].strip("[]")
