"""OffsetCommit, versions 2 to 9: remember how far a group has read.

Metadata and leader epoch come back as they were given (G32). Up to version 4 a client may say how
long to keep the offsets. A partition that does not exist has its own error, and the others are
committed all the same. Version 10 names topics by id only; not offering it is safe (G13).
What comes in one turn of the loop is one write: members commit often, and little at a time.
"""

from collections.abc import Awaitable, Sequence
from functools import partial

from headrace.group.offsets_machine import Commit
from headrace.group.service import CommitAnswer, CommitRequest
from headrace.group.shard_machine import Committer
from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.later import then
from headrace.model.errors import ApiError, ErrorCode
from headrace.runtime.exchange import Promise
from headrace.wire.codec import Message

_NO_RETENTION = -1


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message | Promise:
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
    wanted = CommitRequest(
        request["group_id"],
        member,
        commits,
        context.api_version,
        request.get("retention_time_ms", _NO_RETENTION),
    )
    promise = Promise().then(partial(_reply, request, errors))
    broker.commits.append((wanted, promise))
    if len(broker.commits) == 1:
        broker.at_turn_end(partial(_carry_out, broker))
    return promise


def _carry_out(broker: BrokerContext) -> None:
    """All that came in one turn, in the order in which it came."""
    waiting, broker.commits = broker.commits, []
    answers: Sequence[CommitAnswer | Exception]
    try:
        answers = broker.groups().commit_all([wanted for wanted, _ in waiting])
    except Exception as error:  # noqa: BLE001 (it is answered, and logged)
        answers = [error] * len(waiting)
    for (_, promise), answer in zip(waiting, answers, strict=True):
        promise.settle(answer)


def _reply(
    request: Message, errors: list[ErrorCode | None], answer: CommitAnswer | Exception
) -> Message | Awaitable[Message] | Exception:
    if isinstance(answer, Exception):
        return answer
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
