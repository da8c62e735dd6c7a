"""Group members of all real clients, with the same methods.

A member commits only if a test calls `commit`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.structs import OffsetAndMetadata as AioOffset
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError
from kafka.structs import OffsetAndMetadata as PythonOffset
from kafka.structs import TopicPartition as PythonPartition

import headrace.client
from tests.interop.security import of_aiokafka, of_headrace, of_kafka_python, of_librdkafka

SESSION_MS = 6_000
HEARTBEAT_MS = 200
T = TypeVar("T")


class Member(Protocol):
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None: ...

    def poll(self) -> list[tuple[int, int]]:
        """The partitions and offsets of records that have just arrived."""

    def assignment(self) -> set[int]: ...

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        """Remember where to go on reading."""

    def committed(self, partition: int) -> tuple[int, str] | None:
        """The offset and its metadata."""

    def close(self) -> None:
        """Leave the group."""


class LibrdkafkaMember:
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        self.assignments = 0
        self._consumer = Consumer(
            {
                **of_librdkafka(address),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "fetch.wait.max.ms": 50,
                **settings,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, consumer: Any, partitions: Any) -> None:
        self.assignments += 1

    def poll(self) -> list[tuple[int, int]]:
        messages = self._consumer.consume(100, timeout=0.1)
        return [(each.partition(), each.offset()) for each in messages if each.error() is None]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        wanted = [
            TopicPartition(self.topic, partition, offset, metadata)
            for partition, offset in offsets.items()
        ]
        done = self._consumer.commit(offsets=wanted, asynchronous=False)
        assert all(each.error is None for each in done)

    def committed(self, partition: int) -> tuple[int, str] | None:
        (found,) = self._consumer.committed([TopicPartition(self.topic, partition)], timeout=40)
        assert found.error is None
        return None if found.offset < 0 else (found.offset, found.metadata or "")

    def close(self) -> None:
        self._consumer.close()


class ConsumerProtocolMember(LibrdkafkaMember):
    """The newer protocol (KIP-848), whose timeouts are the broker's."""

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        self.assignments = 0
        self._consumer = Consumer(
            {
                **of_librdkafka(address),
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                **settings,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)


class KafkaPythonMember:
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        self._consumer = KafkaConsumer(
            topic,
            **of_kafka_python(address),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=50,
            **settings,
        )

    def poll(self) -> list[tuple[int, int]]:
        try:
            batches = self._consumer.poll(timeout_ms=100)
        except KafkaConnectionError:
            # The client raises this if a broker is down. The next poll continues.
            return []
        return [(each.partition, each.offset) for batch in batches.values() for each in batch]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        self._consumer.commit(
            {
                PythonPartition(self.topic, partition): PythonOffset(offset, metadata, -1)
                for partition, offset in offsets.items()
            }
        )

    def committed(self, partition: int) -> tuple[int, str] | None:
        found = self._consumer.committed(PythonPartition(self.topic, partition), metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def close(self) -> None:
        self._consumer.close()


class AiokafkaMember:
    """With an event loop in a thread: it must send heartbeats while a test looks away."""

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(
            self._start(address, group, settings), self._loop
        )

    async def _start(self, address: str, group: str, settings: dict[str, Any]) -> Any:
        """Ends when the member has its first assignment: others may have to rejoin for that."""
        consumer: Any = AIOKafkaConsumer(
            self.topic,
            **of_aiokafka(address),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=50,
            **settings,
        )
        await consumer.start()
        return consumer

    @property
    def _consumer(self) -> Any:
        return self._starting.result(60)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def poll(self) -> list[tuple[int, int]]:
        if not self._starting.done():
            return []
        batches = self._run(self._consumer.getmany(timeout_ms=100))
        return [(each.partition, each.offset) for batch in batches.values() for each in batch]

    def assignment(self) -> set[int]:
        if not self._starting.done():
            return set()
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        wanted = {
            AioPartition(self.topic, partition): AioOffset(offset, metadata)
            for partition, offset in offsets.items()
        }
        self._run(self._consumer.commit(wanted))

    def committed(self, partition: int) -> tuple[int, str] | None:
        offset = self._run(self._consumer.committed(AioPartition(self.topic, partition)))
        return None if offset is None else (offset, "")

    def close(self) -> None:
        try:
            self._run(self._consumer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class HeadraceMember:
    """The member of Headrace's client, with the names of its options."""

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        self._group = group
        self._client = headrace.client.connect(**of_headrace(address))
        self._client.open()
        self._consumer = self._client.group_consumer(
            group,
            topic,
            auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **settings,
        )

    def poll(self) -> list[tuple[int, int]]:
        return [(each.partition, each.offset) for each in self._consumer.poll(100)]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.partitions}

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        self._consumer.commit(
            {
                headrace.client.TopicPartition(self.topic, partition): headrace.client.GroupOffset(
                    offset, metadata=metadata
                )
                for partition, offset in offsets.items()
            }
        )

    def committed(self, partition: int) -> tuple[int, str] | None:
        place = headrace.client.TopicPartition(self.topic, partition)
        found = self._client.group_offsets(self._group, [place]).get(place)
        return None if found is None else (found.offset, found.metadata)

    def close(self) -> None:
        self._consumer.close()
        self._client.close()


MEMBERS: dict[str, type[Member]] = {
    "librdkafka": LibrdkafkaMember,
    "aiokafka": AiokafkaMember,
    "kafka-python": KafkaPythonMember,
}


class Living:
    """A member with its own thread, which polls: some clients wait for others in a poll."""

    def __init__(
        self, kind: type[Member], address: str, group: str, topic: str, **settings: Any
    ) -> None:
        self.read: set[tuple[int, int]] = set()
        """What has come, as partitions and offsets."""
        self.owned: set[int] = set()
        self._jobs: SimpleQueue[tuple[Callable[[Member], Any], Future[Any]]] = SimpleQueue()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(lambda: kind(address, group, topic, **settings),)
        )
        self._thread.start()

    def _run(self, start: Callable[[], Member]) -> None:
        try:
            member = start()
            try:
                while not self._is_closing:
                    self.read.update(member.poll())
                    self.owned = member.assignment()
                    self._work(member)
            finally:
                member.close()
        except BaseException as error:  # noqa: BLE001 (raised where the test waits)
            self._failure = error

    def _work(self, member: Member) -> None:
        try:
            job, future = self._jobs.get_nowait()
        except Empty:
            return
        try:
            future.set_result(job(member))
        except BaseException as error:  # noqa: BLE001 (raised where the test waits)
            future.set_exception(error)

    def _ask(self, job: Callable[[Member], T]) -> T:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future.result(40)

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        self._ask(lambda member: member.commit(offsets, metadata))

    def committed(self, partition: int) -> tuple[int, str] | None:
        return self._ask(lambda member: member.committed(partition))

    def leave(self) -> None:
        """Begin to close; `close` waits for it."""
        self._is_closing = True

    def close(self) -> None:
        self.leave()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
