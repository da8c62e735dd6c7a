"""An internal error while batches are written: other partitions and connections continue."""

from typing import cast

from headrace.client.produce.produce_codec import PartitionBatch, TopicBatches, encode_produce
from headrace.model.errors import ErrorCode
from headrace.runtime.exchange import Exchange, Peer
from headrace.testing.disk import SimulatedFiles
from headrace.wire.codec import decode_response
from tests.storage.log_scenario import frame
from tests.unit.replication.leader_scenario import PRODUCE, Leader
from tests.unit.replication.replica_scenario import TOPIC, elect


class Connection(Peer):
    """A connection that sends one batch per call, and can lose its memory."""

    def __init__(self, leader: Leader, index: int) -> None:
        super().__init__()
        self._leader = leader
        self._index = index
        self._sequence = 0
        self.failure = ""
        self.has_memory = True

    def send(self) -> None:
        batch = frame("v", producer=(self._index, 0, self._sequence))
        topics = [TopicBatches(TOPIC, None, [PartitionBatch(self._index, batch)])]
        body = b"".join(encode_produce(9, -1, 1000, topics))
        self._leader.produce.handle(self, 0, 9, body, 0, len(body))

    def received(self) -> int:
        """The error code of the next response."""
        pieces = self.exchanges.popleft().pieces
        assert pieces is not None
        data = b"".join(cast("list[bytes]", pieces))[4:]
        answer = decode_response(PRODUCE, 9, data)[1]
        error = int(answer["responses"][0]["partition_responses"][0]["error_code"])
        self._sequence += error == 0
        return error

    def defer(self, exchange: Exchange, kept_bytes: int) -> None:
        if not self.has_memory:
            raise MemoryError

    def fail(self, reason: str) -> None:
        self.failure = reason


class BrokenFiles(SimulatedFiles):
    is_broken = False

    def append(self, fd: int, buffers: object) -> None:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("a bug")
        super().append(fd, buffers)  # type: ignore[arg-type]


def connections() -> tuple[Leader, Connection, Connection]:
    leader = Leader()
    files = leader.node.files = BrokenFiles()
    leader.node.table.drop(TOPIC, 0)
    for index in range(2):
        leader.node.add(index)
        elect(leader.node, 1, isr=(1,), index=index)
    leader.partition = leader.node.partition()
    assert leader.partition.log.files is files
    return leader, Connection(leader, 0), Connection(leader, 1)


def test_failed_write_does_not_stop_the_writes_of_other_partitions() -> None:
    leader, first, second = connections()
    assert isinstance(leader.node.files, BrokenFiles)
    leader.node.files.is_broken = True
    for _ in range(2):
        first.send()
        second.send()
        leader.node.appends.flush()
        assert second.received() == 0
    assert first.received() == ErrorCode.KAFKA_STORAGE_ERROR
    assert first.received() == 0
    assert leader.node.partition(0).log.written_end_offset == 1
    assert leader.node.partition(1).log.written_end_offset == 2


def test_connection_whose_wait_cannot_be_recorded_is_closed() -> None:
    leader, first, second = connections()
    for index in range(2):
        leader.node.partition(index).retire()
        elect(leader.node, 2, isr=(1, 2), index=index)
    first.has_memory = False
    first.send()
    second.send()
    leader.node.appends.flush()
    assert (first.failure, second.failure) == ("an internal error of the broker", "")
    assert leader.node.partition(1).acks.any_awaits_commit()
    assert not leader.node.partition(0).is_dirty
