"""aiokafka under the common verbs: each is one run of an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.interop.client import TIMEOUT_S, Record, Refused, Stored
from tests.interop.security import of_aiokafka

T = TypeVar("T")


class Aiokafka:
    def __init__(self, address: str) -> None:
        self.address = address

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        async def send() -> list[int]:
            producer = AIOKafkaProducer(
                **of_aiokafka(self.address),
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=5,
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                done = await asyncio.gather(*sent)
            return [-1 if told is None else told.offset for told in done]

        return _run(send)

    def consume(
        self, topic: str, count: int, *, offset: int = 0, partition: int = 0
    ) -> list[Stored]:
        where = TopicPartition(topic, partition)

        async def read() -> list[Stored]:
            async with self._consumer() as consumer:
                consumer.assign([where])
                consumer.seek(where, offset)
                return [_stored(await consumer.getone()) for _ in range(count)]

        return _run(read)

    def read_at(self, topic: str, offsets: Sequence[int]) -> list[Stored]:
        where = TopicPartition(topic, 0)

        async def read() -> list[Stored]:
            found = []
            async with self._consumer() as consumer:
                consumer.assign([where])
                for offset in offsets:
                    consumer.seek(where, offset)
                    found.append(_stored(await consumer.getone()))
            return found

        return _run(read)

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)

        async def ask() -> tuple[int, int]:
            async with self._consumer() as consumer:
                low = await consumer.beginning_offsets([where])
                high = await consumer.end_offsets([where])
                return low[where], high[where]

        return _run(ask)

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        where = TopicPartition(topic, 0)

        async def ask() -> int | None:
            async with self._consumer() as consumer:
                found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
                return None if found is None else int(found.offset)

        return _run(ask)

    def partitions(self, topic: str) -> dict[int, int]:
        async def ask(admin: Any) -> dict[int, int]:
            (found,) = await admin.describe_topics([topic])
            _check(found["error_code"])
            return {part["partition"]: part["leader"] for part in found["partitions"]}

        return self._ask_admin(ask)

    def brokers(self) -> dict[int, str]:
        async def ask(admin: Any) -> dict[int, str]:
            found = await admin.describe_cluster()
            return {b["node_id"]: f"{b['host']}:{b['port']}" for b in found["brokers"]}

        return self._ask_admin(ask)

    def topics(self) -> set[str]:
        async def ask(admin: Any) -> set[str]:
            return set(await admin.list_topics())

        return self._ask_admin(ask)

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        async def ask(admin: Any) -> None:
            new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
            told = await admin.create_topics([new])
            _check(told.topic_errors[0][1])

        self._ask_admin(ask)

    def delete_topic(self, topic: str) -> None:
        async def ask(admin: Any) -> None:
            told = await admin.delete_topics([topic])
            _check(told.topic_error_codes[0][1])

        self._ask_admin(ask)

    def create_partitions(self, topic: str, total: int) -> None:
        async def ask(admin: Any) -> None:
            await admin.create_partitions({topic: NewPartitions(total)})

        self._ask_admin(ask)

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.BROKER, str(node)))

    def alter_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        async def ask(admin: Any) -> None:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))
            (told,) = await admin.alter_configs([resource])
            _check(told.resources[0][0])

        self._ask_admin(ask)

    def delete_records(self, topic: str, before: int) -> int:
        where = TopicPartition(topic, 0)

        async def ask(admin: Any) -> int:
            told = await admin.delete_records({where: RecordsToDelete(before)})
            return int(told[where])

        return self._ask_admin(ask)

    def _describe(self, resource: Any) -> dict[str, str | None]:
        async def ask(admin: Any) -> dict[str, str | None]:
            (told,) = await admin.describe_configs([resource])
            code, _message, _type, _name, entries = told.resources[0]
            _check(code)
            return {entry[0]: entry[1] for entry in entries}

        return self._ask_admin(ask)

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(
            **of_aiokafka(self.address), group_id=None, auto_offset_reset="none"
        )
        async with consumer:
            yield consumer

    def _ask_admin(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            admin = AIOKafkaAdminClient(**of_aiokafka(self.address))
            await admin.start()
            try:
                return await ask(admin)
            finally:
                await admin.close()

        return _run(run)


def _run(work: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work(), TIMEOUT_S)

    try:
        return asyncio.run(limited())
    except KafkaError as error:
        raise Refused(error.errno) from error


def _check(code: int) -> None:
    if code:
        raise Refused(code)


def _stored(message: Any) -> Stored:
    record = Record(message.value, message.key, tuple(message.headers), message.timestamp)
    return Stored(message.offset, record)
