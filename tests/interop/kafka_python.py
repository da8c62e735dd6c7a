"""kafka-python under the common verbs."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from tests.interop.client import TIMEOUT_S, Record, Refused, Stored
from tests.interop.security import of_kafka_python

T = TypeVar("T")


class KafkaPython:
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
        producer = KafkaProducer(
            **of_kafka_python(self.address),
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [future.get(TIMEOUT_S).offset for future in sent]
        except KafkaError as error:
            raise Refused(error.errno) from error
        finally:
            producer.close(TIMEOUT_S)

    def consume(
        self, topic: str, count: int, *, offset: int = 0, partition: int = 0
    ) -> list[Stored]:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            consumer.assign([where])
            consumer.seek(where, offset)
            return _read(consumer, count)

    def read_at(self, topic: str, offsets: Sequence[int]) -> list[Stored]:
        where = TopicPartition(topic, 0)
        found: list[Stored] = []
        with self._consumer() as consumer:
            consumer.assign([where])
            for offset in offsets:
                consumer.seek(where, offset)
                found += _read(consumer, 1)
        return found

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            low = consumer.beginning_offsets([where])[where]
            return low, consumer.end_offsets([where])[where]

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        where = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({where: timestamp_ms})[where]
            return None if found is None else int(found.offset)

    def partitions(self, topic: str) -> dict[int, int]:
        (found,) = self._ask_admin(lambda admin: admin.describe_topics([topic]))
        if found["error_code"]:
            raise Refused(found["error_code"])
        return {part["partition_index"]: part["leader_id"] for part in found["partitions"]}

    def brokers(self) -> dict[int, str]:
        found = self._ask_admin(lambda admin: admin.describe_cluster())
        return {
            broker.get("broker_id", broker.get("node_id")): f"{broker['host']}:{broker['port']}"
            for broker in found["brokers"]
        }

    def topics(self) -> set[str]:
        return self._ask_admin(lambda admin: set(admin.list_topics()))

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = {"num_partitions": partitions, "configs": dict(configs or {})}
        self._ask_admin(lambda admin: admin.create_topics({topic: new}))

    def delete_topic(self, topic: str) -> None:
        self._ask_admin(lambda admin: admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        self._ask_admin(lambda admin: admin.create_partitions({topic: total}))

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.BROKER, str(node)))

    def alter_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))
        told = self._ask_admin(
            lambda admin: admin.alter_configs([resource], raise_on_unknown=False)
        )
        refused = re.match(r"\[Error (\d+)\]", told["topic"][topic])
        if refused:
            raise Refused(int(refused[1]))

    def delete_records(self, topic: str, before: int) -> int:
        where = TopicPartition(topic, 0)
        told = self._ask_admin(lambda admin: admin.delete_records({where: before}))
        return int(told[where]["low_watermark"])

    def _describe(self, resource: Any) -> dict[str, str | None]:
        told = self._ask_admin(
            lambda admin: admin.describe_configs([resource], config_filter="all")
        )
        ((entries,),) = (kind.values() for kind in told.values())
        return {name: entry["value"] for name, entry in entries.items()}

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = KafkaConsumer(
            **of_kafka_python(self.address), group_id=None, auto_offset_reset="none"
        )
        try:
            yield consumer
        except KafkaError as error:
            raise Refused(error.errno) from error
        finally:
            consumer.close()

    def _ask_admin(self, ask: Callable[[Any], T]) -> T:
        admin = KafkaAdminClient(**of_kafka_python(self.address))
        try:
            return ask(admin)
        except KafkaError as error:
            raise Refused(error.errno) from error
        finally:
            admin.close()


def _read(consumer: Any, count: int) -> list[Stored]:
    found: list[Stored] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for messages in consumer.poll(1000, max_records=count - len(found)).values():
            for message in messages:
                headers = tuple(message.headers)
                record = Record(message.value, message.key, headers, message.timestamp)
                found.append(Stored(message.offset, record))
    return found
