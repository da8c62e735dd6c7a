"""ElectLeaders, versions 0 to 2: elect preferred replicas, or any replica (unclean).

- Null requests all partitions. The response then contains every topic, without the
  partitions that need no election.
- An unclean election of a partition without a leader chooses the live replica with the greatest
  last leader epoch and log end offset.
- Any broker accepts the request and forwards it to the controller.
- Requires: Alter on the cluster.
- Versions: 0 to 2. 0 elects preferred replicas only.
"""

from collections.abc import Iterable, Mapping

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.wire.codec import Message

_PREFERRED, _UNCLEAN = 0, 1


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    kind = request.get("election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}.")
    deadline = Deadline(broker.clock, request["timeout_ms"])
    outcomes = await deadline.wait_for(
        broker.controller.elect_leaders(_requested(request), is_unclean=kind == _UNCLEAN)
    )
    return {"replica_election_results": _results(broker.image.topics, request, outcomes)}


def error_response(request: Message, error: ApiError) -> Message:
    outcomes = dict.fromkeys(_requested(request) or (), error)
    return {"error_code": error.code, "replica_election_results": _results((), request, outcomes)}


def _requested(request: Message) -> list[TopicPartition] | None:
    if request["topic_partitions"] is None:
        return None
    requested = [
        TopicPartition(topic["topic"], index)
        for topic in request["topic_partitions"]
        for index in topic["partitions"]
    ]
    return list(dict.fromkeys(requested))


def _results(
    names: Iterable[str],
    request: Message,
    outcomes: Mapping[TopicPartition, ApiError | None],
) -> list[Message]:
    """The outcomes in the order of the request; for all partitions, one entry per topic."""
    topics = [(topic["topic"], topic["partitions"]) for topic in request["topic_partitions"] or ()]
    if request["topic_partitions"] is None:
        by_name: dict[str, list[int]] = {name: [] for name in names}
        for topic, index in outcomes:
            by_name.setdefault(topic, []).append(index)
        topics = list(by_name.items())
    return [
        {
            "topic": topic,
            "partition_result": [
                _result(index, outcomes.get(TopicPartition(topic, index))) for index in indexes
            ],
        }
        for topic, indexes in topics
    ]


def _result(index: int, error: ApiError | None) -> Message:
    entry: Message = {"partition_id": index}
    if error is not None:
        entry.update(error_code=error.code, error_message=error.message)
    return entry
