"""Compaction in a live broker: a separate process, under real clients, through crashes."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headrace.testing import RunningBroker
from tests.interop.client import TIMEOUT_S
from tests.interop.librdkafka import Librdkafka

TOPIC = "settings"
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
EAGER = {"log.cleaner.backoff.ms": "50"}
SLOW = {"log.cleaner.backoff.ms": "50", "log.cleaner.io.max.bytes.per.second": "10000"}
LONG_S = 60.0
KEYS = 20


@contextmanager
def running(settings: dict[str, str], data: Path) -> Iterator[RunningBroker]:
    with RunningBroker.start(data / "data", settings=settings) as broker:
        Librdkafka(broker.address).create_topic(TOPIC, configs=TOPIC_CONFIG)
        yield broker


@contextmanager
def producing(broker: RunningBroker) -> Iterator[Producer]:
    """An idempotent producer that has lost nothing and met no error by its end."""
    errors: list[KafkaError] = []
    yield Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "linger.ms": 1,
            "error_cb": lambda error: errors.append(error) if error.fatal() else None,
        }
    )
    assert errors == []


def send(producer: Producer, values: dict[bytes, bytes | None]) -> None:
    """Write one record per key, and wait for the acknowledgements."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for key, value in values.items():
        producer.produce(TOPIC, key=key, value=value, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def update(producer: Producer, first: int, rounds: int) -> dict[bytes, bytes | None]:
    """Write each key repeatedly. Returns the last value of each key."""
    last: dict[bytes, bytes | None] = {}
    for number in range(first, first + rounds):
        last = {b"key %d" % key: b"value %d of %d" % (number, key) for key in range(KEYS)}
        send(producer, last)
    return last


def read_all(broker: RunningBroker) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all records in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def latest(broker: RunningBroker) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in read_all(broker) if value is not None}


def log_size(broker: RunningBroker) -> int:
    return sum(_size(path) for path in (broker.data_dir / f"{TOPIC}-0").glob("*.log"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wait_until(condition: Callable[[], bool], what: str, broker: RunningBroker) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}; the broker wrote:\n{broker.log()}"
        time.sleep(0.02)


def compacted_to(broker: RunningBroker) -> int:
    """The offset of the topic in the cleaner's checkpoint."""
    path = broker.data_dir / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines[2:]:
        topic, _, offset = line.split()
        if topic == TOPIC:
            return int(offset)
    return 0


def wait_for_compaction(broker: RunningBroker, offset: int) -> None:
    wait_until(lambda: compacted_to(broker) >= offset, f"not compacted up to {offset}", broker)


def cleaner_pids(broker: RunningBroker) -> list[int]:
    """The processes that the broker has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == broker.pid:
            found.append(int(entry.name))
    return found


def leftovers(broker: RunningBroker) -> list[str]:
    names = os.listdir(broker.data_dir / f"{TOPIC}-0")
    return [name for name in names if name.endswith((".cleaned", ".swap"))]


def test_compaction_keeps_last_values_and_the_sequence_of_the_producer(tmp_path: Path) -> None:
    with running(EAGER, tmp_path) as broker, producing(broker) as producer:
        last = update(producer, 0, 50)
        before = log_size(broker)
        wait_for_compaction(broker, 45 * KEYS)
        assert log_size(broker) < before // 3
        assert latest(broker) == last
        found = read_all(broker)
        assert len(found) < 10 * KEYS
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        # Most batches of the producer were removed. Its sequence continues, also after a crash.
        last = update(producer, 50, 10)
        assert latest(broker) == last
        broker.kill()
        broker.restart()
        last = update(producer, 60, 20)
        wait_for_compaction(broker, 75 * KEYS)
        assert latest(broker) == last
        assert Librdkafka(broker.address).watermarks(TOPIC) == (0, 80 * KEYS)


def test_tombstones_are_removed_after_their_retention_and_keys_stay_deleted(
    tmp_path: Path,
) -> None:
    with running(EAGER, tmp_path) as broker, producing(broker) as producer:
        update(producer, 0, 10)
        deleted = [b"key %d" % key for key in range(0, KEYS, 2)]
        send(producer, dict.fromkeys(deleted))
        number = 10

        def are_gone() -> bool:
            # Compaction looks at a log again when there is something new in it.
            nonlocal number
            send(producer, {b"key 1": b"number %d" % number + bytes(500)})
            number += 1
            keys = {key for _, key, _ in read_all(broker)}
            assert b"key 1" in keys
            return not keys.intersection(deleted)

        wait_until(are_gone, "the tombstones stay", broker)
        assert not latest(broker).keys() & set(deleted)
        broker.kill()
        broker.restart()
        assert not {key for _, key, _ in read_all(broker)} & set(deleted)


def test_cleaner_is_killed_with_its_broker_and_the_next_start_removes_its_files(
    tmp_path: Path,
) -> None:
    with running(SLOW, tmp_path) as broker, producing(broker) as producer:
        last = update(producer, 0, 30)
        wait_until(lambda: bool(leftovers(broker)), "no cleaning began", broker)
        (pid,) = cleaner_pids(broker)
        broker.kill()
        wait_until(lambda: not _is_running(pid), "the cleaner lives on", broker)
        assert leftovers(broker)
        broker.restart()
        assert latest(broker) == last


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_clean_stop_ends_the_cleaner_and_leaves_no_unfinished_file(tmp_path: Path) -> None:
    with running(SLOW, tmp_path) as broker, producing(broker) as producer:
        last = update(producer, 0, 30)
        wait_until(lambda: bool(leftovers(broker)), "no cleaning began", broker)
        (pid,) = cleaner_pids(broker)
        broker.stop()
        assert not _is_running(pid)
        assert leftovers(broker) == []
        broker.restart()
        assert latest(broker) == last


def test_a_cleaner_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with running(SLOW, tmp_path) as broker, producing(broker) as producer:
        last = update(producer, 0, 30)
        wait_until(lambda: bool(cleaner_pids(broker)), "no cleaning began", broker)
        (pid,) = cleaner_pids(broker)
        os.kill(pid, 9)
        wait_until(lambda: "compaction failed" in broker.log(), "no failure logged", broker)
        wait_until(
            lambda: any(each != pid for each in cleaner_pids(broker)), "no other began", broker
        )
        assert latest(broker) == last


def test_topic_deleted_during_compaction_leaves_nothing_to_a_recreated_one(
    tmp_path: Path,
) -> None:
    with running(SLOW, tmp_path) as broker, producing(broker) as producer:
        update(producer, 0, 30)
        wait_until(lambda: bool(leftovers(broker)), "no cleaning began", broker)
        client = Librdkafka(broker.address)
        client.delete_topic(TOPIC)
        client.create_topic(TOPIC, configs=TOPIC_CONFIG)
        with producing(broker) as another:
            last = update(another, 100, 3)
        assert latest(broker) == last
        broker.kill()
        broker.restart()
        assert latest(broker) == last


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_kill_during_the_replacement_of_segments_loses_nothing(
    tmp_path: Path, delay_s: float
) -> None:
    with running(EAGER, tmp_path) as broker, producing(broker) as producer:
        last = update(producer, 0, 40)
        wait_until(lambda: bool(cleaner_pids(broker)) or compacted_to(broker) > 0, "-", broker)
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:
            assert latest(broker) == last
        broker.kill()
        broker.restart()
        assert latest(broker) == last
        last = update(producer, 40, 5)
        wait_for_compaction(broker, 35 * KEYS)
        assert latest(broker) == last
