"""OffsetCommit, versions 2 to 9: remember how far a group has read.

Metadata and leader epoch come back as they were given (G32). Up to version 4 a client may say how
long to keep the offsets. A partition that does not exist has its own error, and the others are
committed all the same. Version 10 names topics by id only; not offering it is safe (G13).
"""

from collections.abc import Awaitable

from headrace.group.offsets_machine import Commit
from headrace.group.shard_machine import Committer
from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.later import then
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.codec import Message

_NO_RETENTION = -1


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    errors: list[ErrorCode | None] = []
    commits: list[Commit] = []
    for topic in request["topics"]:
        for each in topic["partitions"]:
            if broker.image.partition(topic["name"], each["partition_index"]) is None:
                errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                errors.append(None)
                commits.append(_commit(topic["name"], each))
    if not commits:
        return _message(request, errors, [])
    member = Committer(
        request["member_id"],
        request.get("group_instance_id"),
        request["generation_id_or_member_epoch"],
    )
    answer = broker.groups().commit(
        request["group_id"],
        member,
        commits,
        context.api_version,
        request.get("retention_time_ms", _NO_RETENTION),
    )
    return then(answer, lambda committed: _message(request, errors, committed))


def refuse(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": each["partition_index"], "error_code": error.code}
                    for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _commit(topic: str, asked: Message) -> Commit:
    return Commit(
        topic,
        asked["partition_index"],
        asked["committed_offset"],
        asked.get("committed_leader_epoch", -1),
        asked["committed_metadata"],
    )


def _message(
    request: Message, errors: list[ErrorCode | None], committed: list[ErrorCode]
) -> Message:
    """Every partition in its place: what was refused here, and what the group said of the rest."""
    of_group = iter(committed)
    of_all = iter(errors)
    topics = []
    for topic in request["topics"]:
        slots = []
        for each in topic["partitions"]:
            error = next(of_all)
            code = next(of_group) if error is None else error
            slots.append({"partition_index": each["partition_index"], "error_code": code})
        topics.append({"name": topic["name"], "partitions": slots})
    return {"topics": topics}
