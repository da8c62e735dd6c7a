"""Topics and groups for the tests of responses, which also run against Apache Kafka."""

from headrace.model.errors import ErrorCode
from headrace.wire.apis import FIND_COORDINATOR, HEARTBEAT, LIST_OFFSETS
from tests.broker.raw import RawConnection, eventually


def create_topic(connection: RawConnection, topic: str, **configs: str) -> None:
    """Apache Kafka responds before all requests can use the topic."""
    connection.create_topic(topic, 1, **configs)
    partition = {"partition_index": 0, "timestamp": -1}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}

    def has_leader() -> bool:
        (found,) = connection.ask(LIST_OFFSETS, 1, body)["topics"]
        return bool(found["partitions"][0]["error_code"] == 0)

    eventually("a topic with a leader", has_leader)


def wait_for_coordinator(connection: RawConnection, group: str) -> None:
    """The first request creates __consumer_offsets."""
    wanted = {"key": group, "key_type": 0}
    member = {"group_id": group, "generation_id": 1, "member_id": "unknown"}
    eventually(
        "a coordinator that has loaded its groups",
        lambda: (
            connection.ask(FIND_COORDINATOR, 3, wanted)["error_code"] == 0
            and connection.ask(HEARTBEAT, 4, member)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        ),
    )
