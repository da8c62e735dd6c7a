"""AlterReplicaLogDirs, versions 1 and 2: move a replica to another directory.

- Succeeds, and moves nothing, if the replica is already in that directory of this broker.
- Otherwise returns LOG_DIR_NOT_FOUND or REPLICA_NOT_AVAILABLE.
- Requires: Alter on the cluster.
- Versions: 1 and 2.

Gaps: a broker has one directory.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    results: dict[str, dict[int, int]] = {}
    for directory in request["dirs"]:
        is_ours = directory["path"] == broker.logs.path
        for topic in directory["topics"]:
            hosted = broker.partitions.get(topic["name"], {})
            for index in topic["partitions"]:
                if not is_ours:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif index not in hosted:
                    code = ErrorCode.REPLICA_NOT_AVAILABLE
                else:
                    code = ErrorCode.NONE
                results.setdefault(topic["name"], {})[index] = code
    return _reply(results)


def error_response(request: Message, error: ApiError) -> Message:
    results: dict[str, dict[int, int]] = {}
    for directory in request["dirs"]:
        for topic in directory["topics"]:
            results.setdefault(topic["name"], {}).update(
                dict.fromkeys(topic["partitions"], error.code)
            )
    return _reply(results)


def _reply(results: dict[str, dict[int, int]]) -> Message:
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "error_code": code} for index, code in codes.items()
                ],
            }
            for name, codes in results.items()
        ]
    }
