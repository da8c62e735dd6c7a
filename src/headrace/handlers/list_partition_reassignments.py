"""ListPartitionReassignments, version 0: list reassignments in progress.

- Every broker responds.
- Null requests all partitions. Partitions without a reassignment are omitted.
- Requires: Describe on the cluster.
- Versions: 0.
"""

from headrace.model.errors import ApiError
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    requested = request["topics"]
    wanted = (
        dict.fromkeys(broker.image.topics)
        if requested is None
        else {topic["name"]: topic["partition_indexes"] for topic in requested}
    )
    topics = []
    for name, indexes in wanted.items():
        topic = broker.image.topics.get(name)
        entries = [
            {
                "partition_index": index,
                "replicas": state.replicas,
                "adding_replicas": state.adding,
                "removing_replicas": state.removing,
            }
            for index, state in enumerate(() if topic is None else topic.partitions)
            if (state.adding or state.removing) and (indexes is None or index in indexes)
        ]
        if entries:
            topics.append({"name": name, "partitions": entries})
    return {"error_message": None, "topics": topics}


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "error_message": error.message}
