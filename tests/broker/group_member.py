"""A group member that sends exactly the requests of a test, on its own connection."""

from typing import Any, Self

from headrace.wire.codec import Message
from tests.broker.raw import RawConnection

METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
CONSUMER_GROUP_HEARTBEAT = 68
CONSUMER_GROUP_DESCRIBE = 69

JOIN_VERSION = 5
SESSION_MS = 6_000


def make_offsets_topic(connection: RawConnection, group: str = "any") -> None:
    """Send FindCoordinator like every client, which creates the offsets topic."""
    reply = connection.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
    assert reply["error_code"] == 0, reply


def join_body(group: str, member_id: str = "", **fields: Any) -> Message:
    return {
        "group_id": group,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
        **fields,
    }


def commit_body(group: str, topic: str, offset: int, **fields: Any) -> Message:
    asked = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [{"name": topic, "partitions": [asked | fields]}],
    }


def commit(connection: RawConnection, group: str, topic: str, offset: int, **fields: Any) -> int:
    """Commit an offset without a member id; returns the error code."""
    reply = connection.ask(OFFSET_COMMIT, 7, commit_body(group, topic, offset, **fields))
    code: int = reply["topics"][0]["partitions"][0]["error_code"]
    return code


def fetch_offset(connection: RawConnection, group: str, topic: str) -> tuple[int, int]:
    """The committed offset, and the error."""
    body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    reply = connection.ask(OFFSET_FETCH, 5, body)
    if reply["error_code"]:
        return -1, reply["error_code"]
    found = reply["topics"][0]["partitions"][0]
    return found["committed_offset"], found["error_code"]


class RawMember:
    def __init__(self, port: int, group: str) -> None:
        self.connection = RawConnection(port)
        self.group = group
        self.member_id = ""
        self.generation = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.sock.close()

    def reconnect(self) -> None:
        port = self.connection.sock.getpeername()[1]
        self.connection.sock.close()
        self.connection = RawConnection(port)

    def begin_join(self, **fields: Any) -> None:
        """Send JoinGroup. `end_join` reads the response, which can wait for other members."""
        body = join_body(self.group, self.member_id, **fields)
        self.connection.send(self.connection.frame(JOIN_GROUP, JOIN_VERSION, body))

    def end_join(self) -> Message:
        reply = self.connection.read_answer(JOIN_GROUP, JOIN_VERSION)
        self.member_id = reply["member_id"]
        self.generation = reply["generation_id"]
        return reply

    def join(self, **fields: Any) -> Message:
        self.begin_join(**fields)
        reply = self.end_join()
        if reply["error_code"] == 79:
            self.begin_join(**fields)
            reply = self.end_join()
        assert reply["error_code"] == 0, reply
        return reply

    def sync(self, assignments: dict[str, bytes]) -> Message:
        given = [{"member_id": id_, "assignment": what} for id_, what in assignments.items()]
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "assignments": given,
        }
        return self.connection.ask(SYNC_GROUP, 3, body)

    def heartbeat(self) -> int:
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }
        code: int = self.connection.ask(HEARTBEAT, 3, body)["error_code"]
        return code

    def live(self) -> None:
        """Become the one member of a stable group."""
        self.join()
        assert self.sync({self.member_id: b"all"})["assignment"] == b"all"


def describe(connection: RawConnection, group: str) -> Message:
    body = {"groups": [group], "include_authorized_operations": False}
    found: Message = connection.ask(DESCRIBE_GROUPS, 4, body)["groups"][0]
    return found
