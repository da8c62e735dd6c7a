"""confluent-kafka, and so librdkafka, under the common verbs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.interop.client import TIMEOUT_S, Record, Refused, Stored
from tests.interop.security import of_librdkafka


class Librdkafka:
    def __init__(self, address: str) -> None:
        self.address = address
        self._admin = AdminClient(of_librdkafka(address))

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
        producer = Producer(
            {
                **of_librdkafka(self.address),
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": 1_048_588,
                "linger.ms": 5,
            }
        )
        offsets = [-1] * len(records)
        errors: list[Any] = []
        for index, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
                timestamp=record.timestamp_ms or 0,
                on_delivery=_report_to(offsets, errors, index),
            )
        unsent = producer.flush(TIMEOUT_S)
        if errors:
            raise _refused(errors[0])
        assert unsent == 0
        return offsets

    def consume(
        self, topic: str, count: int, *, offset: int = 0, partition: int = 0
    ) -> list[Stored]:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return _read(consumer, count)

    def read_at(self, topic: str, offsets: Sequence[int]) -> list[Stored]:
        found: list[Stored] = []
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0, offsets[0])])
            for offset in offsets:
                consumer.seek(TopicPartition(topic, 0, offset))
                found += _read(consumer, 1)
        return found

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer() as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
            return low, high

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        with self._consumer() as consumer:
            asked = [TopicPartition(topic, 0, timestamp_ms)]
            found: int = consumer.offsets_for_times(asked, TIMEOUT_S)[0].offset
            return None if found < 0 else found  # librdkafka returns -1, OFFSET_END.

    def partitions(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise _refused(found.error)
        return {index: partition.leader for index, partition in found.partitions.items()}

    def brokers(self) -> dict[int, str]:
        found = self._admin.list_topics(timeout=TIMEOUT_S).brokers
        return {broker.id: f"{broker.host}:{broker.port}" for broker in found.values()}

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, config=dict(configs or {}))
        _result(self._admin.create_topics([new])[topic])

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic])[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)])[topic])

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResource.Type.TOPIC, topic))

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResource.Type.BROKER, str(node)))

    def alter_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        _result(self._admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, topic: str, before: int) -> int:
        asked = TopicPartition(topic, 0, before)
        low: int = _result(self._admin.delete_records([asked])[asked]).low_watermark
        return low

    def _describe(self, resource: Any) -> dict[str, str | None]:
        entries = _result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in entries.items()}

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = Consumer(
            {
                **of_librdkafka(self.address),
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _report_to(offsets: list[int], errors: list[Any], index: int) -> Callable[[Any, Any], None]:
    def report(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets[index] = message.offset()

    return report


def _read(consumer: Any, count: int) -> list[Stored]:
    found: list[Stored] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        message = consumer.poll(1.0)
        if message is None:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            continue
        if message.error() is not None:
            raise _refused(message.error())
        record = Record(
            message.value(),
            message.key(),
            tuple(message.headers() or ()),
            message.timestamp()[1],
        )
        found.append(Stored(message.offset(), record))
    return found


def _result(future: Any) -> Any:
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as error:
        raise _refused(error.args[0]) from error


def _refused(error: Any) -> Exception:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # The error with auto.offset.reset=error.
        return Refused(KafkaError.OFFSET_OUT_OF_RANGE)
    # Negative codes are librdkafka's own troubles; the broker said nothing.
    return KafkaException(error) if error.code() < -1 else Refused(error.code())
