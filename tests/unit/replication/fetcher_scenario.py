"""Broker 1 leads what brokers 2 and 3 follow, and the words that tests of it are written in."""

from headrace.log.log import Log
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.header import read_header
from headrace.wire.replica_fetch import VERSION
from tests.storage.log_scenario import ManualClock, topic_config
from tests.unit.replication.replica_scenario import TOPIC_ID, Node, Wire, elect

FETCH = 1


class Scene:
    """Broker 1 leads what brokers 2 and 3 follow."""

    def __init__(
        self, partitions: int = 1, isr: tuple[int, ...] = (1, 2, 3), **config: int
    ) -> None:
        self.clock = ManualClock()
        self.nodes = {node_id: Node(node_id, self.clock) for node_id in (1, 2, 3)}
        self.leader, self.follower, self.third = self.nodes.values()
        for node in self.nodes.values():
            for index in range(partitions):
                node.add(index, topic_config(**config) if config else None)
        for index in range(partitions):
            elect(self.leader, 1, self.follower, self.third, index=index, isr=isr)
        self.wire = Wire(self.follower, self.leader)
        for index in range(partitions):
            self.wire.machine.follow(self.follower.partition(index))

    @property
    def log(self) -> Log:
        return self.follower.partition().log

    def asked(self, at: int = -1) -> dict[int, tuple[int, int, int, int]]:
        """What a request said of each partition: epoch, offset, last epoch, log start."""
        frame = self.wire.requests[at]
        message = decode_request(FETCH, VERSION, frame, read_header(frame).body_at)
        return {
            part["partition"]: (
                part["current_leader_epoch"],
                part["fetch_offset"],
                part["last_fetched_epoch"],
                part["log_start_offset"],
            )
            for topic in message["topics"]
            for part in topic["partitions"]
        }

    def session(self, at: int = -1) -> tuple[int, int]:
        frame = self.wire.requests[at]
        message = decode_request(FETCH, VERSION, frame, read_header(frame).body_at)
        return message["session_id"], message["session_epoch"]

    def forgotten(self, at: int = -1) -> list[int]:
        frame = self.wire.requests[at]
        message = decode_request(FETCH, VERSION, frame, read_header(frame).body_at)
        return [i for topic in message["forgotten_topics_data"] for i in topic["partitions"]]

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)


def answer(error: int = 0, session_id: int = 1, **part: object) -> bytes:
    """An invented response of a leader for partition 0."""
    slot = {"partition_index": 0, "high_watermark": 0, "log_start_offset": 0} | part
    topics = [{"topic_id": TOPIC_ID, "partitions": [slot]}] if part else []
    reply = {"error_code": error, "session_id": session_id, "responses": topics}
    return encode_response(FETCH, VERSION, 0, reply)


def epochs_of(node: Node) -> list[tuple[int, int]]:
    return node.partition().log.epochs.entries()
