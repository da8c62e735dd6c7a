"""Apache Kafka's data directory, adopted: everything is served as Kafka served it."""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import headrace.client
from bench import kafka
from headrace.config.security_rows import AUTHORIZERS
from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker
from tests.interop.client import Record
from tests.interop.librdkafka import Librdkafka
from tests.java.conftest import run

LONG_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN, TRANSACTIONS, COMPACTED = "plain", "with.transactions", "compacted"
COUNTS = {PLAIN: 3, TRANSACTIONS: 1, COMPACTED: 1}
GROUP = "readers"
COMPACTED_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}

Row = tuple[Any, ...]


@dataclass
class Served:
    """The responses of a broker to consumers."""

    uncommitted: dict[tuple[str, int], list[Row]]
    committed: dict[tuple[str, int], list[Row]]
    watermarks: dict[tuple[str, int], tuple[int, int]]
    times: dict[tuple[str, int], list[int]]
    group_offset: int


@dataclass
class Adopted:
    """Kafka's responses, and copies of its directory after a stop and while it was running."""

    served: Served
    clean: Path
    unclean: Path


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Adopted:
    where = tmp_path_factory.mktemp("adopted")
    settings = {
        "log.cleaner.backoff.ms": "100",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "2",
    }
    with kafka.running_kafka(settings, heap_mb=512) as node:
        fill(node.address)
        wait_until_compacted(node.data_directory)
        served = ask(node.address)
        shutil.copytree(node.data_directory, where / "unclean")
        node.stop()
        shutil.copytree(node.data_directory, where / "clean")
    return Adopted(served, where / "clean", where / "unclean")


QUOTAS: list[tuple[dict[str, str | None], dict[str, float]]] = [
    ({"user": "al ice"}, {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}),
    ({"client-id": "app", "user": None}, {"consumer_byte_rate": 2048.0}),
    ({"ip": "10.1.2.3"}, {"connection_creation_rate": 20.0}),
    ({"user": "bob"}, {"request_percentage": 5.0}),
]
"""The last one is deleted before the adoption."""


def fill(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topics = [
        NewTopic(name, count, 1, config=COMPACTED_CONFIG if name == COMPACTED else {})
        for name, count in COUNTS.items()
    ]
    for created in admin.create_topics(topics).values():
        created.result(LONG_S)
    for number, codec in enumerate(CODECS):
        fill_plain(address, codec, number)
    fill_transactions(address)
    fill_compacted(address)
    commit_offset(address, 7)
    with headrace.client.connect(address) as client:
        for entity, limits in QUOTAS:
            client.alter_quotas(entity, limits)
        client.alter_quotas({"user": "bob"}, {"request_percentage": None})


def fill_plain(address: str, codec: str, number: int) -> None:
    """All that a record can be, under one codec; the first two by an idempotent producer."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "enable.idempotence": number < 2,
            "linger.ms": 20,
        }
    )
    base_ms = int(time.time() * 1000) - 3_600_000
    for at in range(120):
        producer.produce(
            PLAIN,
            partition=at % 3,
            key=None if at % 7 == 0 else f"{codec} {at}",
            value=None if at % 11 == 0 else f"{codec} {at} " * (at * 20 if at == 100 else 3),
            headers=[("codec", codec.encode()), ("nothing", None)] if at % 5 == 0 else [],
            timestamp=base_ms + number * 1000 + at,
        )
    assert producer.flush(LONG_S) == 0


def fill_transactions(address: str) -> None:
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": "writer", "compression.type": "lz4"}
    )
    producer.init_transactions(LONG_S)
    for number in range(6):
        producer.begin_transaction()
        for at in range(5):
            producer.produce(TRANSACTIONS, key=f"{at}", value=f"transaction {number}, {at}")
        producer.flush(LONG_S)
        if number % 2:
            producer.abort_transaction(LONG_S)
        else:
            producer.commit_transaction(LONG_S)


def fill_compacted(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(30):
        for key in range(10):
            value = None if key == 3 and number > 20 else f"{number}" * 20
            producer.produce(COMPACTED, key=f"key {key}", value=value)
        assert producer.flush(LONG_S) == 0
        time.sleep(0.02)  # Kafka rolls a segment when it is 200 ms old.


def commit_offset(address: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(PLAIN, 0, offset)], asynchronous=False)
    consumer.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_until_compacted(data: Path) -> None:
    def is_compacted() -> bool:
        checkpoint = data / "cleaner-offset-checkpoint"
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return any(line.startswith(f"{COMPACTED} 0 ") for line in lines)

    wait_until(is_compacted, "Kafka has not compacted the topic")


def ask(address: str) -> Served:
    committed = read_all(address, partitions(), "read_committed")
    uncommitted = read_all(address, partitions(), "read_uncommitted")
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    try:
        watermarks = {
            (topic, index): consumer.get_watermark_offsets(TopicPartition(topic, index), LONG_S)
            for topic, index in partitions()
        }
        times = {
            (topic, index): [
                consumer.offsets_for_times([TopicPartition(topic, index, row[1])], LONG_S)[0].offset
                for row in uncommitted[(topic, index)][::25]
            ]
            for topic, index in partitions()
        }
        (found,) = consumer.committed([TopicPartition(PLAIN, 0)], LONG_S)
    finally:
        consumer.close()
    return Served(uncommitted, committed, watermarks, times, found.offset)


def read_all(
    address: str, asked: Sequence[tuple[str, int]], isolation: str
) -> dict[tuple[str, int], list[Row]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    rows: dict[tuple[str, int], list[Row]] = {partition: [] for partition in asked}
    ended: set[tuple[str, int]] = set()
    try:
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in asked])
        deadline = time.monotonic() + LONG_S
        while len(ended) < len(asked):
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            where = (message.topic(), message.partition())
            if message.error() is None:
                rows[where].append(row_of(message))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(where)
    finally:
        consumer.close()
    return rows


def row_of(message: Message) -> Row:
    kind, timestamp = message.timestamp()
    return (
        message.offset(),
        timestamp,
        kind,
        message.key(),
        message.value(),
        message.headers(),
        message.leader_epoch(),
    )


def check(broker: RunningBroker, served: Served) -> None:
    found = ask(broker.address)
    assert found.uncommitted == served.uncommitted
    assert found.committed == served.committed
    assert found.watermarks == served.watermarks
    assert found.times == served.times
    assert found.group_offset == served.group_offset == 7


@pytest.mark.parametrize("copy", ["clean", "unclean"])
def test_records_of_kafka_are_served_like_by_kafka(
    adopted: Adopted, copy: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(adopted.clean if copy == "clean" else adopted.unclean, data)
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker, adopted.served)
        if copy == "clean":
            check_new_writes(broker, adopted.served)


def check_new_writes(broker: RunningBroker, served: Served) -> None:
    """Settings are those of Kafka. Producers continue with higher leader epochs."""
    with headrace.client.connect(broker.address) as client:
        found = [(each.entity, each.limits) for each in client.list_quotas()]
        assert sorted(found, key=str) == sorted(QUOTAS[:-1], key=str)
    admin = AdminClient({"bootstrap.servers": broker.address})
    configs = topic_configs(admin, COMPACTED)
    assert {name: configs[name] for name in COMPACTED_CONFIG} == COMPACTED_CONFIG
    assert topic_configs(admin, PLAIN)["cleanup.policy"] == "delete"
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for index in range(3):
        producer.produce(PLAIN, partition=index, key="after", value="adoption")
    assert producer.flush(LONG_S) == 0
    broker.restart()
    again = read_all(broker.address, [(PLAIN, index) for index in range(3)], "read_committed")
    for where, rows in again.items():
        assert rows[:-1] == served.uncommitted[where]
        assert rows[-1][3:5] == (b"after", b"adoption")
        assert rows[-1][6] > rows[-2][6]
        assert rows[-1][0] == served.watermarks[where][1]


def topic_configs(admin: AdminClient, topic: str) -> dict[str, str]:
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in described.result(LONG_S).items()}


def test_directories_are_kept_and_logged_without_adopt(adopted: Adopted, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(adopted.clean, data)
    before = sorted(path.name for path in (data / f"{PLAIN}-0").iterdir())
    with RunningBroker.start(data) as broker:
        (line,) = (
            each for each in broker.log().splitlines() if "partitions of unknown topics" in each
        )
        assert f"{COMPACTED}-0" in line
        assert f"{PLAIN} (3 partitions)" in line
        admin = AdminClient({"bootstrap.servers": broker.address})
        assert PLAIN not in admin.list_topics(timeout=LONG_S).topics
    assert sorted(path.name for path in (data / f"{PLAIN}-0").iterdir()) == before


def test_kafkas_dump_tool_reads_what_headrace_has_compacted(
    adopted: Adopted, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(adopted.clean, data)
    eager = {"log.cleaner.backoff.ms": "100"}
    with RunningBroker.start(data, settings=eager, options=["--adopt"]) as broker:
        client = Librdkafka(broker.address)
        for topic in (PLAIN, TRANSACTIONS, COMPACTED):
            client.alter_topic_configs(topic, {**COMPACTED_CONFIG, "segment.ms": "1"})
            for index in range(COUNTS[topic]):
                client.produce(topic, [Record(b"last", b"key")], partition=index)
        rows = read_all(broker.address, partitions(), "read_committed")
        expected = {where: latest(each) for where, each in rows.items()}
        wait_until(
            lambda: broker.log().count("log compacted: ") >= len(expected),
            "Headrace has not compacted the topics",
        )
        rows = read_all(broker.address, partitions(), "read_committed")
        assert {where: latest(each) for where, each in rows.items()} == expected
        broker.stop()
    check_dump(data, {where: [row[0] for row in each] for where, each in rows.items()})


def partitions() -> list[tuple[str, int]]:
    return [(topic, index) for topic, count in COUNTS.items() for index in range(count)]


def latest(rows: Sequence[Row]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for _, _, _, key, value, _, _ in rows:
        if key is not None:
            state.pop(key, None)
        if key is not None and value is not None:
            state[key] = value
    return state


def check_dump(data: Path, offsets: dict[tuple[str, int], list[int]]) -> None:
    """Kafka considers every batch valid, and every index matches its log."""

    def files(*kinds: str) -> list[Path]:
        directories = [data / f"{topic}-{index}" for topic, index in offsets]
        return [path for each in directories for kind in kinds for path in sorted(each.glob(kind))]

    found: dict[str, list[int]] = {f"{topic}-{index}": [] for topic, index in offsets}
    told = dump(files("*.log"), "--print-data-log")
    assert "isvalid: false" not in told
    for section in told.split("Dumping ")[1:]:
        directory = Path(section.split()[0]).parent.name
        found[directory] += map(int, re.findall(r"\| offset: (\d+) (?!.*endTxnMarker)", section))
    assert found == {f"{topic}-{index}": each for (topic, index), each in offsets.items()}
    told = dump(files("*.index", "*.timeindex"), "--verify-index-only")
    assert not re.search(r"mismatch|out of order|not found|Error", told, re.IGNORECASE)
    assert "Exception" not in dump(files("*.txnindex", "*.snapshot"))


def dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    return run(kafka.tool_command(kafka.DUMP_LOG_SEGMENTS, [*options, "--files", names]))


def test_users_and_acls_are_adopted(tmp_path: Path) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.PREFIXED,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    settings = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS"}
    with kafka.running_kafka(settings, heap_mb=512) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = UserScramCredentialUpsertion("ann", info, b"secret")
        for outcome in (
            *admin.create_topics([NewTopic("orders", 1, 1)]).values(),
            *admin.create_acls([acl]).values(),
            *admin.alter_user_scram_credentials([user]).values(),
        ):
            outcome.result(LONG_S)
        node.stop()
        data = tmp_path / "data"
        shutil.copytree(node.data_directory, data)
    port = free_port()
    secured = {**settings, "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}"}
    with (
        RunningBroker.start(data, settings=secured, options=["--adopt"]),
        headrace.client.connect(
            f"127.0.0.1:{port}", sasl_username="ann", sasl_password="secret"
        ) as ann,
    ):
        assert list(ann.list_topics()) == ["orders"]
        with pytest.raises(headrace.client.NotAuthorized):
            ann.produce("orders", "text")
