"""Simulated clients that use the wire protocol, retry, and record all responses.

A producer is idempotent and can have several batches in flight per partition. `Noise` writes with
acks=1, so that leaders have records that no other replica has. A consumer reads every
partition from its beginning, by topic id.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_batches, read_records
from headrace.runtime.link import Link, LinkBroken, call
from tests.simulation.broker import CLIENT_PORT
from tests.simulation.history import Ends, History, Seen, Violation, seen
from tests.simulation.network import ProcessNetwork, Simulated, SimulatedLink
from tests.simulation.topics import EVENTS, Topic
from tests.simulation.world import Process, World

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
CREATE_TOPICS, INIT_PRODUCER_ID = 19, 22
TOPIC = EVENTS
ANSWER_S = 2.0
PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
_REREAD_OFFSETS = 200
EARLIEST = -2
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
    }
)


class Client:
    def __init__(
        self, world: World, network: Simulated, name: str, hosts: Sequence[str], history: History
    ) -> None:
        self.world = world
        self.process = Process(world, name)
        self.history = history
        self.topic = TOPIC
        self.topic_id: UUID | None = None
        self.leaders: dict[int, tuple[str, int]] = {}
        self._network = ProcessNetwork(network, self.process)
        self._hosts = list(hosts)
        self._links: dict[str, Link] = {}
        self._failures = 0

    async def link_to(self, host: str) -> Link:
        link = self._links.get(host)
        if link is None or not link.is_open:
            link = self._links[host] = await self._network.connect(host, CLIENT_PORT, ANSWER_S)
        return link

    async def ask(self, host: str, key: int, version: int, request: dict[str, Any]) -> Any:
        answer = await call(await self.link_to(host), key, version, request, ANSWER_S)
        self._failures = 0
        return answer

    async def ask_once(self, host: str, key: int, version: int, request: dict[str, Any]) -> Any:
        """Ask; None without a response. A request that was not carried out by then never is."""
        link: Link | None = None
        try:
            link = await self.link_to(host)
            answer = await call(link, key, version, request, ANSWER_S)
        except (LinkBroken, TimeoutError):
            if isinstance(link, SimulatedLink):
                link.reset()
            return None
        self._failures = 0
        return answer

    async def ask_any(self, key: int, version: int, request: dict[str, Any]) -> Any:
        while True:
            host = self.world.random.choice(self._hosts)
            try:
                return await self.ask(host, key, version, request)
            except (LinkBroken, TimeoutError):
                await self.pause()

    async def pause(self) -> None:
        """Wait before another attempt; longer while no broker responds."""
        self._failures += 1
        await asyncio.sleep(min(PAUSE_S * 1.1 ** max(self._failures - 20, 0), PAUSE_S_MAX))

    async def refresh(self) -> None:
        answer = await self.ask_any(
            METADATA, 12, {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False}
        )
        brokers = {broker["node_id"]: broker["host"] for broker in answer["brokers"]}
        for topic in answer["topics"]:
            if topic["topic_id"] not in (None, self.topic_id):
                self.topic_id = topic["topic_id"]
                self.leaders.clear()
                self.recreated()
            for partition in topic["partitions"]:
                leader, epoch = partition["leader_id"], partition["leader_epoch"]
                index = partition["partition_index"]
                known = self.leaders.get(index)
                if leader in brokers and (known is None or epoch >= known[1]):
                    self.leaders[index] = (brokers[leader], epoch)

    def recreated(self) -> None:
        """The topic has another id than before."""

    async def look_again(self, index: int) -> None:
        self.leaders.pop(index, None)
        await self.pause()

    async def create_topic(self, topic: Topic, replicas: int) -> UUID | None:
        """Returns the new topic's id; None if it exists already."""
        document = {
            "name": topic.name,
            "num_partitions": topic.partitions,
            "replication_factor": replicas,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
        }
        request = {"topics": [document], "timeout_ms": 2000, "validate_only": False}
        while True:
            answer = await self.ask_any(CREATE_TOPICS, 7, request)
            created = answer["topics"][0]
            if created["error_code"] == ErrorCode.NONE:
                topic_id: UUID = created["topic_id"]
                return topic_id
            if created["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS:
                return None
            await self.pause()


class _Batch(NamedTuple):
    frame: bytes
    records: list[NewRecord]
    sent_to: object
    """The incarnation of the topic when the batch was first sent; None if it is not known."""


class Producer(Client):
    """`acks` of all and idempotent; or, as noise, of one and not."""

    def __init__(
        self, *args: Any, topic: Topic, is_noise: bool = False, in_flight_max: int = 1
    ) -> None:
        super().__init__(*args)
        self.topic = topic.name
        self.is_stopping = False
        self.is_noise = is_noise
        self.renews = False
        """Whether it requests a new id now and then. It then has one partition."""
        self.unanswered = 0
        self._spec = topic
        self._in_flight_max = in_flight_max
        self._producer_id = -1

    async def run(self) -> None:
        if not self.is_noise:
            await self._request_id()
        await asyncio.gather(*(self._write(index) for index in range(self._spec.partitions)))

    async def _request_id(self) -> None:
        while True:
            answer = await self.ask_any(
                INIT_PRODUCER_ID, 2, {"transactional_id": None, "transaction_timeout_ms": 0}
            )
            if answer["error_code"] == 0:
                self._producer_id = answer["producer_id"]
                return
            await self.pause()

    async def _write(self, index: int) -> None:
        generator = self.world.random
        number = sequence = 0
        while not self.is_stopping:
            if self.renews and not self.is_noise and generator.random() < 0.05:
                await self._request_id()
                sequence = 0
            batches: list[_Batch] = []
            for _ in range(generator.randint(1, self._in_flight_max)):
                records = self._records(index, number)
                number += len(records)
                frame = build_batch(
                    records,
                    producer_id=self._producer_id,
                    producer_epoch=-1 if self.is_noise else 0,
                    base_sequence=-1 if self.is_noise else sequence,
                )
                sequence += len(records)
                batches.append(_Batch(frame, records, self._spec.incarnation))
            self.unanswered += 1
            await self._deliver_all(index, batches)
            self.unanswered -= 1
            # More partitions do not mean more records: they would only cost time.
            pause_s = generator.uniform(0.001, 0.1) * self._spec.partitions
            await asyncio.sleep(pause_s * len(batches))

    def _records(self, index: int, number: int) -> list[NewRecord]:
        generator = self.world.random
        records = []
        for at in range(number, number + generator.choice((1, 1, 2, 3, 6))):
            key = b"k"
            value: bytes | None = f"{self.process.name}-{index}:{at}".encode()
            if self._spec.is_compacted:
                key = b"k%d" % generator.randrange(self._spec.keys)
                if generator.random() < 0.1:
                    value = None
            records.append(NewRecord(key, value, self.world.wall_ms()))
            self.history.sent.add(seen(key, value).value)
        return records

    async def _deliver_all(self, index: int, batches: list[_Batch]) -> None:
        """Send them together; again, in the same order, those that were not acknowledged."""
        is_first = True
        while batches:
            if index not in self.leaders:
                await self.refresh()
                if index not in self.leaders:
                    await self.pause()
                    continue
            host, _ = self.leaders[index]
            try:
                await self.link_to(host)  # All use one connection, or their order is lost.
            except (LinkBroken, TimeoutError):
                if self.is_noise:
                    return
                await self.look_again(index)
                continue
            outcomes = await asyncio.gather(
                *(self._send(index, host, each.frame) for each in batches)
            )
            left: list[_Batch] = []
            for batch, (code, offset) in zip(batches, outcomes, strict=True):
                if code == ErrorCode.NONE:
                    self._acknowledged(index, batch, offset, is_first)
                elif code in RETRIED or (left and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
                    left.append(batch)
                elif not self._spec.is_recreated:
                    raise Violation(f"a producer received {ErrorCode(code)!r} from {host}")
            if self.is_noise:
                return
            batches, is_first = left, False
            if left:
                await self.look_again(index)

    async def _send(self, index: int, host: str, frame: bytes) -> tuple[int, int]:
        partition = {"index": index, "records": frame}
        request = {
            "transactional_id": None,
            "acks": 1 if self.is_noise else -1,
            "timeout_ms": 1500,
            "topic_data": [{"name": self.topic, "partition_data": [partition]}],
        }
        try:
            answer = await self.ask(host, PRODUCE, 9, request)
        except (LinkBroken, TimeoutError):
            return int(ErrorCode.NETWORK_EXCEPTION), -1
        result = answer["responses"][0]["partition_responses"][0]
        return int(result["error_code"]), int(result["base_offset"])

    def _acknowledged(self, index: int, batch: _Batch, offset: int, is_first: bool) -> None:
        incarnation = self._spec.incarnation
        if self.is_noise or incarnation is None or incarnation is not batch.sent_to:
            return
        partition = TopicPartition(self._spec.log_name, index)
        for at, record in enumerate(batch.records):
            content = seen(record.key, record.value)
            self.history.acknowledge(partition, offset + at, content, record.timestamp)
            if self._spec.is_recreated and is_first:
                # No other copy of it is in flight.
                self.history.confined[content.value] = incarnation


class Consumer(Client):
    """Reads all partitions. With `rereads`, it sometimes seeks back."""

    def __init__(self, *args: Any, topic: Topic, rereads: bool = False) -> None:
        super().__init__(*args)
        self.topic = topic.name
        self._spec = topic
        self._rereads = rereads
        self.positions: dict[int, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.records: dict[TopicPartition, list[tuple[int, Seen]]] = {}
        self.recreated()

    def recreated(self) -> None:
        self.positions = dict.fromkeys(range(self._spec.partitions), 0)
        self.starts = {self._partition(index): 0 for index in self.positions}
        self.records = {self._partition(index): [] for index in self.positions}

    def _partition(self, index: int) -> TopicPartition:
        """Readers know the incarnation of a topic that is deleted and created again."""
        name = f"{self.topic}@{self.topic_id}" if self._spec.is_recreated else self.topic
        return TopicPartition(name, index)

    async def run(self) -> None:
        await asyncio.gather(*(self._read(index) for index in range(self._spec.partitions)))

    async def _read(self, index: int) -> None:
        while True:
            if index not in self.leaders:
                await self.refresh()
                await self.pause()
                continue
            try:
                await self._fetch(index, *self.leaders[index])
            except (LinkBroken, TimeoutError):
                self.leaders.pop(index, None)

    async def _fetch(self, index: int, host: str, epoch: int) -> None:
        offset, topic_id = self.positions[index], self.topic_id
        partition = self._partition(index)
        before = self.history.ends(partition, epoch)
        request = _fetch_request(topic_id, index, epoch, offset)
        answer = await self.ask(host, FETCH, 13, request)
        if topic_id != self.topic_id or offset != self.positions[index]:
            return
        response = answer["responses"][0]["partitions"][0]
        code = response["error_code"]
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._find_start(index, host, epoch)
            return
        if code != 0:
            if code not in RETRIED:
                raise Violation(f"a consumer at {offset} received {ErrorCode(code)!r} from {host}")
            await self.look_again(index)
            return
        now = Ends(response["log_start_offset"], response["high_watermark"])
        self.history.see_ends(partition, epoch, before, now)
        self.positions[index] = self._take(partition, offset, response, now)
        if self._rereads and self.world.random.random() < 0.05:
            first = now.log_start_offset
            if self.world.random.random() < 0.8:
                first = max(first, offset - _REREAD_OFFSETS)  # Reading the complete log takes long.
            self.positions[index] = self.world.random.randint(first, max(first, offset))

    def _take(self, partition: TopicPartition, offset: int, response: Any, ends: Ends) -> int:
        """Check the records; returns the next position."""
        for batch in read_batches(response["records"] or b""):
            for record in read_records(batch):
                if record.offset < offset:
                    continue
                if record.offset != offset and not self._spec.is_compacted:
                    raise Violation(f"I3: {partition} skips from {offset} to {record.offset}")
                if record.offset >= ends.high_watermark:
                    raise Violation(f"I6: {partition}@{record.offset} is above the high watermark")
                offset = int(record.offset)
                content = seen(record.key, record.value)
                self.history.show(partition, offset, content)
                if self.history.confined.get(content.value, self.topic_id) != self.topic_id:
                    raise Violation(f"B10: {partition} shows {content} of a deleted topic")
                if not self._rereads:
                    self.records[partition].append((offset, content))
                offset += 1
            # A compacted batch may have lost its last records.
            offset = max(offset, int(batch.last_offset()) + 1)
        return offset

    async def _find_start(self, index: int, host: str, epoch: int) -> None:
        """The position is not in the log: only removed records explain that."""
        topic_id, partition = self.topic_id, self._partition(index)
        asked = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": EARLIEST}
        topics = [{"name": self.topic, "partitions": [asked]}]
        request = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        answer = await self.ask(host, LIST_OFFSETS, 6, request)
        response = answer["topics"][0]["partitions"][0]
        if topic_id != self.topic_id or response["error_code"] in RETRIED:
            await self.look_again(index)
            return
        start, position = int(response["offset"]), self.positions[index]
        if start <= position:
            if self._spec.is_recreated:
                await self.look_again(index)
                return
            raise Violation(f"a consumer of {partition} at {position}: out of range, from {start}")
        self.history.skip(partition, start)
        self.starts[partition] = self.positions[index] = start


def _fetch_request(topic_id: UUID | None, index: int, epoch: int, offset: int) -> dict[str, Any]:
    partition = {
        "partition": index,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
