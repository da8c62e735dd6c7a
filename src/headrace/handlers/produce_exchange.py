"""A Produce request between its arrival and its answer.  # HOT"""

from typing import final

from mypy_extensions import i64

from headrace.replication.partition import Partition
from headrace.runtime.exchange import Exchange, Peer
from headrace.wire.produce import ProducePart, ProduceRequest, write_produce_response


@final
class ProduceExchange(Exchange):
    def __init__(
        self,
        peer: Peer,
        correlation_id: i64,
        version: i64,
        request: ProduceRequest,
        data: bytes,
    ) -> None:
        super().__init__(peer, correlation_id, version)
        self.request = request
        self.data = data
        self.next: i64 = 0
        """The first part of the request that was not looked at yet."""
        self.parts: list[ProducePart] = []
        self.partitions: list[Partition] = []
        """What was staged, side by side: a part of the request and the partition it went to."""
        self.waiting: i64 = 0
        """How many parts still wait for a sync, or for followers."""
        self.deadline: float = 0.0
        """When to give up waiting for followers, by the clock that does not jump."""
        self.throttle_ms: i64 = 0
        """For how long the client should rest, and its connection will (quotas)."""

    def fail(self, partition: Partition, code: i64) -> None:
        for at, part in enumerate(self.parts):
            if self.partitions[at] is partition and part.error == 0:
                part.error = code
                part.base_offset = -1

    def encode(self) -> None:
        request = self.request
        if request.acks != 0:
            answer = write_produce_response(
                self.correlation_id, self.version, request.topics, self.throttle_ms
            )
            self.pieces = [answer]
            return
        self.pieces = []
        for part in request.parts:
            if part.error != 0:
                # Nobody waits for an answer (acks=0): a closed connection is the only sign.
                self.peer.fail(f"a record sent with acks=0 was refused: error {part.error}")
                return
